# Copyright (c) 2026, torchlan contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""report.html: one page about a run that needs no other file and no network. Drawn with plotly."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Mapping
from datetime import datetime
from html import escape
from typing import Any

from ansible_collections.torchlan.nanochat.plugins.plugin_utils import progress, screen
from ansible_collections.torchlan.nanochat.plugins.plugin_utils.metrics import KINDS, Event, Row

# Readable on white and on black.
_COLOURS = ("#3b82c4", "#d9722e", "#2ca36b", "#b452b8", "#b8951a", "#d24d57", "#2aa5b8", "#8a6fd1")
_KIND_COLOURS = dict(
    zip(KINDS, ("#2ca36b", "#2ca36b", "#8a8f98", "#3b82c4", "#d9722e", "#d24d57", "#b8951a", "#8a8f98"))
)
_MARKED = ("failure", "restart", "resume")
# More points than a screen has only make the page slow; metrics.csv has all of them.
_POINTS = 1500
# A line is not drawn over a time in which nothing was written.
_GAP_S = 30.0
_FEW = 50  # points that are drawn one by one, however far apart
_EVENTS = 500
_MARKS = 100

_STYLE = """
:root { color-scheme: light dark; --fg: #1c2128; --soft: #5c6570; --bg: #fff; --card: #f5f6f8; --line: #d8dce2;
  --good: #1b7f4c; --bad: #c02f3a }
@media (prefers-color-scheme: dark) { :root { --fg: #e4e7eb; --soft: #9aa3ae; --bg: #14171b; --card: #1d2126;
  --line: #363c44; --good: #4cc38a; --bad: #ff7a83 } }
* { box-sizing: border-box }
body { margin: 0 auto; max-width: 1180px; padding: 16px; background: var(--bg); color: var(--fg);
  font: 15px/1.5 system-ui, sans-serif; overflow-wrap: break-word }
h1 { font-size: 1.5em; margin: 0 } h2 { font-size: 1.1em; margin: 1.6em 0 .4em }
p { margin: .2em 0 } .soft { color: var(--soft) } .good { color: var(--good) } .bad { color: var(--bad) }
.tiles { display: grid; grid-template-columns: repeat(auto-fit, minmax(140px, 1fr)); gap: 8px; margin: 16px 0 }
.tile { background: var(--card); border-radius: 8px; padding: 8px 12px } .tile b { display: block; font-size: 1.2em }
.charts { display: grid; gap: 8px 24px }
.chart { min-width: 0 } .chart h2 { margin-top: .6em } .wide { grid-column: 1 / -1 }
.scroll { overflow-x: auto } .tall { max-height: 420px; overflow: auto }
table { border-collapse: collapse; width: 100%; font-size: .92em }
th, td { text-align: left; padding: 3px 12px 3px 0; border-bottom: 1px solid var(--line); vertical-align: top }
th { color: var(--soft); font-weight: 600 } .when { white-space: nowrap }
.two { display: grid; gap: 0 24px } .two, .charts { grid-template-columns: minmax(0, 1fr) }
@media (max-width: 700px) { .tall tr { display: block; padding: 4px 0; border-bottom: 1px solid var(--line) }
  .tall td { display: inline; border: 0 } }
@media (min-width: 900px) { .two, .charts { grid-template-columns: repeat(2, minmax(0, 1fr)) } }
pre { background: var(--card); border-radius: 8px; padding: 12px; overflow-x: auto; font-size: .85em }
.legend { max-height: 6.5em; overflow: auto; font-size: .85em }
.legend > span { display: inline-block; margin-right: 14px }
.dot { display: inline-block; width: 9px; height: 9px; border-radius: 50%; margin-right: 6px }
.js-plotly-plot text { fill: var(--fg) !important } .js-plotly-plot .hovertext text { fill: #fff !important }
.js-plotly-plot .axistext text { fill: var(--bg) !important }
.js-plotly-plot .axistext path { fill: var(--fg) !important }
.js-plotly-plot .hoverlayer .legend .bg { fill: var(--card) !important; stroke: var(--line) !important }
.js-plotly-plot .hoverlayer line { stroke: var(--soft) !important }
.js-plotly-plot .gridlayer path, .js-plotly-plot .zerolinelayer path { stroke: var(--line) !important }
"""
# Nothing is loaded, whatever a name or a line of a log may hold.
_POLICY = "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; img-src data: blob:"


class NoPlotly(Exception):
    """The library that draws is not there."""


def make(
    run: str,
    rows: list[Row],
    events: list[Event],
    report: Mapping[str, Any],
    causes: list[dict[str, Any]],
    config: Mapping[str, Any],
    now: float,
) -> str:
    """The page.

    :param report: report.json of the newest launch, empty where there is none.
    :param causes: what is known of the run now, and why it broke.
    :param config: what the newest attempt was started with.
    :raises NoPlotly: it is not installed.
    """
    try:
        from plotly.offline import get_plotlyjs
    except ImportError as problem:
        raise NoPlotly(str(problem)) from problem
    zone = time.strftime("%Z", time.localtime(now))
    body = [
        _head(run, report, rows),
        f'<p class="soft">collected {_when(now)} {escape(zone)}, as are all times here</p>',
        _tiles(rows),
        f'<div class="charts">{"".join(_charts(rows, events))}</div>',
        _events(events),
        _causes("Causes, as the hosts tell them now", causes),
        _causes("Causes, as the last launch reported them", report.get("causes") or []),
        _ranks(report),
        f'<div class="two">{_pairs("Plan", (report.get("plan") or {}).get("numbers"))}'
        f"{_pairs('Options of the script', config.get('arguments'))}</div>",
        _configuration(report, config),
    ]
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">'
        '<meta name="viewport" content="width=device-width, initial-scale=1"><link rel="icon" href="data:,">'
        f"<title>{escape(run)}</title><style>{_STYLE}</style><script>{get_plotlyjs()}</script></head>\n"
        f"<body>\n{chr(10).join(filter(None, body))}\n</body></html>\n"
    )


def _head(run: str, report: Mapping[str, Any], rows: list[Row]) -> str:
    attempts = sorted({row.attempt for row in rows})
    label = f"attempt{'s' if len(attempts) > 1 else ''} {', '.join(attempts)}" if attempts else "no attempt"
    try:
        verdict, words = str(report["verdict"]), screen.headline({"plan": {}, **report})
    except (KeyError, TypeError, AttributeError):
        return f'<h1>{escape(run)}</h1><p class="soft">{escape(label)}; no report.json of it is here</p>'
    colour = "good" if verdict in ("proven", "planned") else "bad"
    return f'<h1>{escape(run)}</h1><p class="soft">{escape(label)}</p><p class="{colour}">{escape(words)}</p>'


def _tiles(rows: list[Row]) -> str:
    times = [row.time for row in rows if row.time is not None]
    losses = [row for row in rows if row.loss is not None]
    bpbs = [row.val_bpb for row in rows if row.val_bpb is not None]
    speeds = sorted(row.tokens_per_s for row in rows if row.tokens_per_s)
    steps = [row.step for row in rows if row.step is not None]
    tiles = {
        "ranks on hosts": f"{len({row.rank for row in rows if row.rank is not None})} on {len({r.host for r in rows})}",
        "steps": f"{max(steps):,}" if steps else "-",
        "last loss": f"{losses[-1].loss:.4f}" if losses else "-",
        "best validation bpb": f"{min(bpbs):.4f}" if bpbs else "-",
        "tokens/s, median": f"{speeds[len(speeds) // 2]:,.0f}" if speeds else "-",
        "from first to last": progress.duration(max(times) - min(times)) if times else "-",
    }
    cells = "".join(
        f'<div class="tile"><b>{value}</b><span class="soft">{name}</span></div>' for name, value in tiles.items()
    )
    return f'<div class="tiles">{cells}</div>'


def _charts(rows: list[Row], events: list[Event]) -> list[str]:
    logged = [row for row in rows if row.source == "log"]
    told = logged if any(row.loss is not None and row.time for row in logged) else [r for r in rows if not r.rank]
    beats = [row for row in rows if row.source == "beat"]
    times = [row.time for row in rows if row.time is not None] + [event.time for event in events]
    span = (min(times), max(times)) if times else (0.0, 1.0)
    by_rank = sorted({(row.rank or 0, row.host) for row in beats})
    lines = [
        ("Loss", [("loss", told, lambda row: row.loss)], ".4~f"),
        ("Validation bpb", [("validation bpb", logged, lambda row: row.val_bpb)], ".4~f"),
        ("Tokens per second", [("tokens/s", told, lambda row: row.tokens_per_s)], ",.0f"),
        (
            "Communication share of each rank",
            [
                (f"rank {rank}, {host}", [row for row in beats if row.rank == rank and row.host == host], _share)
                for rank, host in by_rank
            ],
            ".0%",
        ),
    ]
    charts = [
        _chart(number, title, [_trace(*one, place) for place, one in enumerate(traces)], span, events, style)
        for number, (title, traces, style) in enumerate(lines)
    ]
    return [*charts, _timeline(len(lines), events, span)]


def _share(row: Row) -> float | None:
    return row.communication_share


def _trace(name: str, rows: Iterable[Row], value: Callable[[Row], float | None], place: int) -> dict[str, Any]:
    points = [
        (row.time, figure, row.step) for row in rows if row.time is not None and (figure := value(row)) is not None
    ]
    stride = max(1, len(points) // _POINTS)
    points = points[: -1 or None : stride] + points[-1:] if stride > 1 else points
    x: list[str] = []
    y: list[float | None] = []
    steps: list[int | None] = []
    before, last = points[0][0] if points else 0.0, None
    for when, figure, step in points:
        silent = when - before > _GAP_S * stride and len(points) > _FEW
        if silent or (step is not None and last is not None and step < last):  # a resume goes back
            x.append(_iso(before))
            y.append(None)
            steps.append(None)
        x.append(_iso(when))
        y.append(figure)
        steps.append(step)
        before, last = when, step
    colour = _COLOURS[place % len(_COLOURS)]
    return {
        "name": escape(name),
        "x": x,
        "y": y,
        "customdata": steps,
        "mode": "lines" if len(points) > _FEW else "lines+markers",
        "line": {"color": colour, "width": 1.5},
        "marker": {"color": colour, "size": 5},
        "hovertemplate": "%{y}, step %{customdata}",
        "hoverlabel": {"bgcolor": colour},
    }


def _chart(
    number: int,
    title: str,
    traces: list[dict[str, Any]],
    span: tuple[float, float],
    events: list[Event],
    style: str,
    more: Mapping[str, Any] | None = None,
) -> str:
    import plotly.graph_objects as go
    from plotly.io import to_html

    marks = [event for event in events if event.kind in _MARKED][:_MARKS]
    margin = max(1.0, (span[1] - span[0]) * 0.02)
    figure = go.Figure([go.Scatter(**trace) for trace in traces])
    figure.update_layout(
        template="none",
        paper_bgcolor="rgba(0,0,0,0)",
        plot_bgcolor="rgba(0,0,0,0)",
        margin={"l": 52, "r": 8, "t": 8, "b": 36},
        height=260,
        showlegend=False,  # plotly's own takes the room of the chart on a phone
        hovermode="x unified" if len(traces) == 1 else "closest",
        xaxis={
            "type": "date",
            "range": [_iso(span[0] - margin), _iso(span[1] + margin)],
            "nticks": 5,
            "showline": False,
            "zeroline": False,
        },
        yaxis={"tickformat": style, "hoverformat": style, "zeroline": False, "nticks": 6},
        shapes=[
            {
                "type": "line",
                "x0": _iso(mark.time),
                "x1": _iso(mark.time),
                "yref": "paper",
                "y0": 0,
                "y1": 1,
                "line": {"color": _KIND_COLOURS[mark.kind], "dash": "dot", "width": 1},
            }
            for mark in marks
        ],
    )
    figure.update_layout(**(more or {}))
    drawn = to_html(
        figure,
        full_html=False,
        include_plotlyjs=False,
        div_id=f"chart{number}",
        default_height=f"{figure.layout.height}px",
        config={"displayModeBar": False, "responsive": True, "displaylogo": False},
    )
    kind = "chart wide" if more else "chart"
    empty = "" if any(trace["x"] for trace in traces) else '<p class="soft">nothing was noted</p>'
    dots = [f"{_dot(trace['line']['color'])}{trace['name']}" for trace in traces if "line" in trace]
    legend = f'<p class="legend soft">{" ".join(f"<span>{dot}</span>" for dot in dots)}</p>' if len(dots) > 1 else ""
    return f'<section class="{kind}"><h2>{escape(title)}</h2>{empty or drawn + legend}</section>'


def _dot(colour: str) -> str:
    return f'<span class="dot" style="background:{colour}"></span>'


def _timeline(number: int, events: list[Event], span: tuple[float, float]) -> str:
    traces = [
        {
            "name": kind,
            "x": [_iso(event.time) for event in events if event.kind == kind],
            "y": [kind for event in events if event.kind == kind],
            "text": [escape(_cut(event.text)) for event in events if event.kind == kind],
            "mode": "markers",
            "marker": {"color": _KIND_COLOURS[kind], "size": 9},
            "hovertemplate": "%{text}<extra></extra>",
            "hoverlabel": {"bgcolor": _KIND_COLOURS[kind]},
        }
        for kind in KINDS
        if any(event.kind == kind for event in events)
    ]
    more = {"margin": {"l": 80, "r": 8, "t": 8, "b": 36}, "hovermode": "closest"}
    more["yaxis"] = {"autorange": "reversed", "nticks": 2 * len(KINDS)}
    return _chart(number, "Events", traces, span, events, "", {**more, "height": 60 + 30 * max(2, len(traces))})


def _events(events: list[Event]) -> str:
    if not events:
        return ""
    shown = events[-_EVENTS:]
    rows = "".join(
        f'<tr><td class="when">{_when(event.time)}</td>'
        f'<td class="when">{_dot(_KIND_COLOURS[event.kind])}{event.kind}</td>'
        f"<td>{escape(event.host)}</td><td>{escape(_cut(event.text))}</td></tr>"
        for event in shown
    )
    left = f'<p class="soft">the last {len(shown)} of {len(events)}</p>' if len(shown) < len(events) else ""
    return f'<h2>What happened</h2>{left}<div class="tall"><table>{rows}</table></div>'


def _causes(title: str, found: Iterable[Any]) -> str:
    names = ("weight", "host", "code", "what", "fix")
    rows = [[entry.get(name) for name in names] for entry in found if isinstance(entry, Mapping)]
    return _table(title, ["", *names[1:]], rows)


def _ranks(report: Mapping[str, Any]) -> str:
    names = ("rank", "host", "node_rank", "state", "address", "interface", "step", "exit_code")
    rows = [[entry.get(name) for name in names] for entry in report.get("ranks") or [] if isinstance(entry, Mapping)]
    return _table("Ranks, as the last launch saw them", [name.replace("_", " ") for name in names], rows)


def _table(title: str, head: list[str], rows: list[list[Any]]) -> str:
    if not rows:
        return ""
    cells = "".join(f"<tr>{''.join(f'<td>{_text(cell)}</td>' for cell in row)}</tr>" for row in rows)
    heads = "".join(f"<th>{escape(name)}</th>" for name in head)
    heads = f"<tr>{heads}</tr>" if any(head) else ""
    return f'<section><h2>{escape(title)}</h2><div class="scroll"><table>{heads}{cells}</table></div></section>'


def _pairs(title: str, found: Any) -> str:
    if not isinstance(found, Mapping):
        return ""
    return _table(title, ["", ""], [[key, value] for key, value in found.items()])


def _configuration(report: Mapping[str, Any], config: Mapping[str, Any]) -> str:
    whole = {"configuration": config, "plan": report.get("plan"), "network": report.get("network")}
    text = json.dumps({key: value for key, value in whole.items() if value}, indent=1, default=str)
    return f"<h2>Configuration</h2><details><summary>everything, as JSON</summary><pre>{escape(text)}</pre></details>"


def _text(value: Any) -> str:
    return (
        ""
        if value is None
        else escape(str(value) if isinstance(value, (str, int, float)) else json.dumps(value, default=str))
    )


def _cut(text: str) -> str:
    text = " ".join(text.split())
    return text if len(text) <= 400 else text[:399] + "…"


def _iso(when: float) -> str:
    return datetime.fromtimestamp(when).isoformat(sep=" ", timespec="milliseconds")


def _when(when: float) -> str:
    return datetime.fromtimestamp(when).strftime("%Y-%m-%d %H:%M:%S")
