# Copyright (c) 2026, torchlan contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Numbers, events and the page of a run, from whole files, from broken ones, and from what means harm."""

from __future__ import annotations

import csv
import io
import json
import re
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from ansible_collections.torchlan.nanochat.plugins.plugin_utils import metrics, page

T = 1_796_640_000.0
STEP = "step %05d/00020 (0.00%%) | loss: %.6f | lrm: 0.10 | dt: 100.00ms | tok/sec: 1,706 | mfu: 1"
EVIL = "</script><img src=x onerror=alert(1)>\"'&{{7*7}}"


def beat(at: float, **more: Any) -> str:
    return json.dumps({"time": T + at, "state": "training", "step": int(at), "communication_share": 0.25, **more})


class Run:
    """A folder as collect leaves it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def host(self, host: str, node_rank: int, attempt: str = "a1", ahead: float = 0.0, **files: str) -> Path:
        here = self.folder / host / attempt
        (here / "beats").mkdir(parents=True, exist_ok=True)
        (self.folder / host / "collected.json").write_text(json.dumps({"host": host, "clock_ahead_s": ahead}))
        record = {"node_rank": node_rank, "started_unix": T, "config": {"arguments": {"depth": "2"}}}
        (here / "run.json").write_text(json.dumps(record))
        for name, text in files.items():
            (here / name).write_text(text, encoding="utf-8")
        return here

    def parts(self, *attempts: str) -> list[metrics.Part]:
        return metrics.parts(self.folder, attempts or ["a1"])


@pytest.fixture(name="run")
def run_fixture(tmp_path: Path) -> Run:
    return Run(tmp_path)


def log(here: Path, *lines: tuple[float, str]) -> None:
    content, times = "", ""
    for at, line in lines:
        content += line + "\n"
        times += f"{T + at:.1f} {len(content.encode())}\n"
    (here / "train.log").write_text(content, encoding="utf-8")
    (here / "train.times").write_text(times)


def whole(run: Run) -> list[metrics.Part]:
    """Two hosts, a failure at 6 s, a restart that goes on from step 5, and the end."""
    failure = {"time": T + 6, "code": "rank_died", "step": 6, "what": "rank 1 on laptop ended without a word"}
    here = run.host(*("workstation", 0), **{"restarts.json": json.dumps({"failures": [failure]}), "exit_code": "0\n"})
    waiting = {"op": "all_gather", "n": 42}
    told = [beat(at) for at in range(6)] + [beat(5 + at, step=at, began_at=5) for at in range(5, 9)]
    told += [beat(30, waiting_in={**waiting, "since": T + 14}), beat(31)]
    (here / "beats/rank-0.jsonl").write_text("\n".join(told))
    log(
        here,
        (1, "Step 00000 | Validation bpb: 8.037438"),
        (2, STEP % (0, 5.5)),
        (3, STEP % (1, 5.25)),
        (5, "Saved checkpoint of step 5 to /home/x/base_checkpoints/demo"),
        (8, "[torchlan] starts again, 1 of at most 2 times, after rank_died: rank 1 on laptop ended without a word"),
        (9, "[torchlan] the run goes on from step 5"),
        (10, "2026-12-07 12:00:00 - INFO - Saved model parameters to: /x/base_checkpoints/d4/model_000010.pt"),
        (11, "Step 00010 | Validation bpb: 2.5"),
    )
    here = run.host("laptop", 1, ahead=100.0, exit_code="0\n")
    (here / "beats/rank-1.jsonl").write_text("\n".join(beat(100 + at, communication_share=0.5) for at in range(6)))
    return run.parts()


def test_rows(run: Run) -> None:
    parts = whole(run)
    assert [part.host for part in parts] == ["workstation", "laptop"]
    rows = [row for part in parts for row in part.rows]
    logged = [row for row in rows if row.source == "log"]
    assert [(row.time, row.step, row.loss, row.val_bpb, row.tokens_per_s) for row in logged] == [
        (T + 1, 0, None, 8.037438, None),
        (T + 2, 1, 5.5, None, 1706.0),
        (T + 3, 2, 5.25, None, 1706.0),
        (T + 11, 10, None, 2.5, None),
    ]
    beats = [row for row in rows if row.source == "beat" and row.rank == 0]
    assert [row.step for row in beats[6:10]] == [10, 11, 12, 13], "steps after a resume are those of the run"
    assert (beats[10].waiting_in, beats[10].waiting_s) == ("all_gather 42", 16.0)
    assert min(row.time or 0 for row in rows if row.rank == 1) == T, "by the controller's clock"
    read = list(csv.DictReader(io.StringIO(metrics.as_csv(rows))))
    assert len(read) == len(rows) and read[0]["host"] == "workstation"
    assert {row["communication_share"] for row in read if row["rank"] == "1"} == {"0.5"}


def test_events(run: Run) -> None:
    assert [(event.kind, event.time - T) for event in metrics.events(whole(run))] == [
        ("start", -100),  # the laptop's clock is ahead
        ("evaluation", 1),
        ("save", 5),
        ("failure", 6),
        ("restart", 8),
        ("resume", 9),
        ("save", 10),
        ("evaluation", 11),
        ("stall", 14),
        ("end", 31),
    ]
    words = {event.kind: event.text for event in metrics.events(whole(run))}
    assert words["stall"] == "rank 0 waited 16 s in all_gather 42" and words["end"] == "finished"
    assert words["failure"] == "rank_died at step 6: rank 1 on laptop ended without a word"


def test_a_run_that_broke_for_good(run: Run) -> None:
    causes = {"causes": ["x", {"weight": "warning"}, {"weight": "error", "code": "link_lost", "what": "no route"}]}
    here = run.host("a", 0, exit_code="79", **{"cluster.json": json.dumps(causes)})
    (here / "beats/rank-0.jsonl").write_text(beat(1))
    assert metrics.events(run.parts())[-1].text == "link_lost: no route"
    (here / "cluster.json").write_text("[]")
    assert metrics.events(run.parts())[-1].text == "exit code 79"
    (here / "stopped").write_text("no longer needed\n")
    assert metrics.events(run.parts())[-1].text == "stopped: no longer needed"
    (here / "stopped").unlink()
    (here / "exit_code").unlink()
    assert [event.kind for event in metrics.events(run.parts())] == ["start"], "it goes on"


HOSTILE = [
    "",
    "not json",
    "null",
    "[]",
    "1",
    '{"time": ',
    '{"time": "now"}',
    '{"time": true}',
    '{"time": NaN}',
    '{"time": 1e400}',
    '{"time": -5}',
    '{"time": 1e300}',
    '{"time": 1%s}' % ("0" * 400),
    "[" * 100_000,
    '{"time": %f, "step": "7", "loss": Infinity, "waiting_in": [1], "communication_share": {"a": 1}}' % T,
    '{"time": %f, "step": 1e308, "tokens_per_s": 1%s, "waiting_in": {"since": "x"}, "state": ["a"]}' % (T, "0" * 400),
]


def test_broken_beats(run: Run) -> None:
    here = run.host("a", 0, **{"restarts.json": '{"failures": [1, {"time": "x"}, {}]}', "train.times": "x\n1.2.3 4\n"})
    (here / "beats/rank-0.jsonl").write_bytes("\n".join([*HOSTILE, beat(1)]).encode() + b"\n\xff\xfe\n{")
    (here / "beats/rank-x.jsonl").write_text(beat(2))
    (here / "train.log").write_bytes(
        b"\xff\xfe step 1/2 (1%%) | loss: einf\nStep 3 | Validation bpb: nan\nStep %s | Validation bpb: 1\n"
        % (b"9" * 5000)
    )
    rows = run.parts()[0].rows
    timed = [row for row in rows if row.time is not None]
    assert [row.time for row in timed] == [T, T, T + 1]
    assert all(row.loss is None and row.tokens_per_s is None for row in timed[:2])
    (here / "run.json").write_text(json.dumps({"node_rank": 0, "started_unix": 1e300}))
    (here / "restarts.json").write_text(json.dumps({"failures": [{"time": 1e300}, {"time": T + 5, "what": [1]}]}))
    (here / "train.times").write_text("9" * 400 + " 5\n" + "5 " + "9" * 5000 + "\n")
    assert [event.kind for event in metrics.events(run.parts())] == ["failure"]
    metrics.as_csv(rows)
    (here / "run.json").write_text('{"config": [], "node_rank": "x", "started_unix": "y"}')
    (run.folder / "a/collected.json").write_text("{")
    (run.folder / "stray").write_text("x")
    assert metrics.configuration(run.parts()) == {} and len(metrics.events(run.parts())) == 1
    assert metrics.parts(run.folder / "nothing", ["a1"]) == []


def test_steps_from_before_the_first_time_that_is_kept(run: Run) -> None:
    here = run.host("a", 0)
    old = "".join(STEP % (number, 5) + "\n" for number in range(1000))
    (here / "train.log").write_text(old + STEP % (1000, 4) + "\n")
    (here / "train.times").write_text(f"{T:.1f} {len(old)}\n{T + 1:.1f} {len(old) + 200}\n")
    rows = run.parts()[0].rows
    assert [row.time for row in rows[:1000]] == [None] * 1000 and rows[-1].time == T + 1


def test_a_name_is_no_formula() -> None:
    row = metrics.Row(T, "=cmd|' /C calc'!A0", 0, "-1+1", "log", loss=-1.5)
    (read,) = csv.DictReader(io.StringIO(metrics.as_csv([row])))
    assert read["host"].startswith("'=") and read["attempt"] == "'-1+1" and read["loss"] == "-1.5"


# ---- the page ----


class Page(HTMLParser):
    """What a browser would load, and what is in its scripts."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.loaded: list[str] = []
        self.tags: list[str] = []
        self.text, self._in = "", ""
        self.scripts: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self._in = tag
        if tag == "script":
            self.scripts.append("")
        self.loaded += [value or "" for name, value in attrs if name in ("src", "href", "data", "action", "srcset")]
        assert not any(name.startswith("on") for name, _value in attrs)

    def handle_endtag(self, tag: str) -> None:
        self._in = ""

    def handle_data(self, data: str) -> None:
        if self._in == "script":
            self.scripts[-1] += data
        elif self._in != "style":
            self.text += data

    def traces(self) -> dict[str, Any]:
        """Those of each chart, by its id."""
        found = {}
        for script in self.scripts[1:]:
            match = re.search(r'Plotly\.newPlot\(\s*"(\w+)",\s*', script)
            if match:
                found[match[1]] = json.JSONDecoder().raw_decode(script[match.end() :])[0]
        return found


def made(rows: list[metrics.Row], events: list[metrics.Event], run: str = "demo", **more: Any) -> Page:
    pytest.importorskip("plotly", reason="plotly draws the page")
    return Page(
        page.make(run, rows, events, more.get("report", {}), more.get("causes", []), more.get("config", {}), T + 60)
    )


def test_the_page_holds_everything(run: Run) -> None:
    parts = whole(run)
    rows = sorted((row for part in parts for row in part.rows), key=lambda row: row.time or 0)
    report = {"verdict": "proven", "world_size": 2, "backend": "gloo", "run": "demo"}
    report["plan"] = {"hosts": ["a", "b"], "numbers": {"tokens per step": 1024}}  # type: ignore[assignment]
    report["causes"] = [{"weight": "warning", "code": "threads_few", "what": "few", "fix": "more", "host": "a"}]  # type: ignore[assignment]
    causes = [{"weight": "error", "code": "disk_full", "what": "rank 0: the disk is full", "fix": "df", "host": "a"}]
    text = made(rows, metrics.events(parts), report=report, causes=causes, config={"arguments": {"depth": "2"}})
    assert set(text.loaded) <= {"data:,"}
    names = {chart: [trace["name"] for trace in traces] for chart, traces in text.traces().items()}
    assert names == {
        "chart0": ["loss"],
        "chart1": ["validation bpb"],
        "chart2": ["tokens/s"],
        "chart3": ["rank 0, workstation", "rank 1, laptop"],
        "chart4": ["start", "resume", "evaluation", "save", "stall", "failure", "restart", "end"],
    }
    assert text.traces()["chart1"][0]["y"] == [8.037438, 2.5]
    for words in (
        "PROVEN: 2 ranks on 2 hosts",
        "tokens per step",
        "depth",
        "threads_few",
        "the disk is full",
        "goes on from step 5",
    ):
        assert words in text.text, words


def test_names_that_mean_harm(run: Run) -> None:
    rows = [replace(row, host=EVIL, attempt=EVIL) for part in whole(run) for row in part.rows]
    events = [metrics.Event(T + 1, kind, EVIL, EVIL) for kind in metrics.KINDS]
    config = {"arguments": {EVIL: EVIL}}
    report = {
        "verdict": EVIL,
        "plan": {"numbers": {EVIL: EVIL}, "hosts": EVIL},
        "causes": [{"what": EVIL}],
        "ranks": [3],
    }
    for text in (
        made(rows, events, EVIL, report=report, config=config),
        made(rows, events, EVIL, report={"plan": [], "causes": {}, "verdict": None}, config=config),
    ):
        assert set(text.tags) & {"img", "iframe", "link"} == {"link"} and set(text.loaded) <= {"data:,"}
        assert len([script for script in text.scripts if "newPlot" in script]) == 6  # plotly itself is one
        assert EVIL in text.text and "<img" not in "".join(text.scripts[1:])


def test_times_that_no_calendar_has(run: Run) -> None:
    here = run.host("a", 0, **{"restarts.json": json.dumps({"failures": [{"time": 1e300}]})})
    (here / "run.json").write_text(json.dumps({"node_rank": 0, "started_unix": 1e300}))
    (here / "beats/rank-0.jsonl").write_text("\n".join([*HOSTILE, beat(1)]))
    (part,) = run.parts()
    assert len(made(part.rows, metrics.events([part])).traces()) >= 1


def test_a_run_of_nothing() -> None:
    text = made([], [])
    assert "nothing was noted" in text.text and "no report.json" in text.text


def test_a_long_run_is_drawn_with_fewer_points() -> None:
    rows = [metrics.Row(T + at, "a", 0, "a1", "log", step=at, loss=1.0) for at in range(100_000)]
    (trace,) = made(rows, []).traces()["chart0"]
    assert 1000 < len(trace["x"]) < 4000 and trace["x"][-1].endswith(page._iso(T + 99_999)[-9:])


def test_a_line_stops_where_nothing_was_written_and_where_a_resume_goes_back() -> None:
    rows = [metrics.Row(T + at, "a", 0, "a1", "log", step=at, loss=1.0) for at in range(60)]
    rows += [metrics.Row(T + 100 + at, "a", 0, "a1", "log", step=at + 60, loss=1.0) for at in range(10)]
    rows += [metrics.Row(T + 111 + at, "a", 0, "a1", "log", step=at + 40, loss=1.0) for at in range(10)]
    (trace,) = made(rows, []).traces()["chart0"]
    assert [place for place, value in enumerate(trace["y"]) if value is None] == [60, 71]


def test_without_plotly(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "plotly.offline", None)
    with pytest.raises(page.NoPlotly):
        page.make("demo", [], [], {}, [], {}, T)
