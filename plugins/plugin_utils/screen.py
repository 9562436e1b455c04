# Copyright (c) 2026, torchlan contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What a person reads at the end: one screen of plain text."""

from __future__ import annotations

import shlex
import textwrap
from collections.abc import Iterable, Mapping
from typing import Any

from ansible_collections.torchlan.nanochat.plugins.plugin_utils import progress

_WIDTH = 100
_MOST_LINKS = 12
_ORDER = {"error": 0, "warning": 1, "note": 2}
_HEADLINES = {
    "proven": "PROVEN",
    "planned": "PLANNED",
    "failed": "FAILED",
    "refused": "REFUSED",
    "unverified": "NOT PROVEN",
}


def table(head: list[str], rows: Iterable[Iterable[Any]]) -> list[str]:
    """Columns as wide as their widest cell; numbers to the right."""
    cells = [[_cell(value) for value in row] for row in rows]
    right = [all(_is_number(row[index]) for row in cells) for index in range(len(head))]
    widths = [max(len(head[index]), *(len(row[index]) for row in cells), 0) for index in range(len(head))]
    lines = []
    for row in [head, *cells]:
        padded = (
            text.rjust(width) if is_right else text.ljust(width) for text, width, is_right in zip(row, widths, right)
        )
        lines.append("  " + "  ".join(padded).rstrip())
    return lines


def _cell(value: Any) -> str:
    if value is None:
        return "-"
    if isinstance(value, float):
        return f"{value:,.4f}"
    return f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value)


def _is_number(text: str) -> bool:
    return text == "-" or text.replace(",", "").replace(".", "").replace("/", "").replace(" ", "").isdigit()


def size(count: int | None) -> str:
    """Bytes for people, decimal units."""
    if count is None:
        return "-"
    value = float(count)
    for unit in ("B", "kB", "MB", "GB"):
        if value < 1000 or unit == "GB":
            return f"{value:.0f} {unit}" if unit == "B" else f"{value:.1f} {unit}"
        value /= 1000
    raise AssertionError("unreachable")


def causes(entries: Iterable[dict[str, Any]], width: int = _WIDTH) -> list[str]:
    """Causes worst first, each with its cure."""
    lines = []
    for entry in sorted(entries, key=lambda entry: _ORDER[entry["weight"]]):
        where = f" (rank {entry['rank']})" if entry["rank"] is not None else ""
        host = f"{entry['host']}: " if entry["host"] and entry["host"] not in entry["what"] else ""
        lines += textwrap.wrap(
            f"{entry['weight']}: {host}{entry['what']}{where}  [{entry['code']}]",
            width,
            initial_indent="  ",
            subsequent_indent="      ",
            break_long_words=False,
            break_on_hyphens=False,
        )
        lines += textwrap.wrap(
            f"fix: {entry['fix']}",
            width,
            initial_indent="    ",
            subsequent_indent="         ",
            break_long_words=False,
            break_on_hyphens=False,
        )
    return lines


def numbers(plan: Mapping[str, Any]) -> list[str]:
    """The derived figures of the plan."""
    rows = [
        (name, size(value) if name.startswith("bytes") else value) for name, value in plan.get("numbers", {}).items()
    ]
    width = max((len(name) for name, _value in rows), default=0)
    return [f"  {name:<{width}}  {_cell(value)}" for name, value in rows]


def layout(plan: Mapping[str, Any], network: Mapping[str, dict[str, Any]]) -> list[str]:
    """Which rank is where, and over which interface."""
    lines = []
    for host in plan.get("hosts", []):
        mine = [str(entry["rank"]) for entry in plan.get("ranks", []) if entry["host"] == host]
        label = f"rank {mine[0]}" if len(mine) == 1 else f"ranks {mine[0]}-{mine[-1]}" if mine else "ranks"
        choice = network.get(host)
        over = f"  {choice['interface']} {choice['address']}: {choice['why']}" if choice else ""
        lines.append(f"  {label:<12}{host}{over}")
    return lines


def ranks(report: Mapping[str, Any]) -> list[str]:
    """A line a rank."""
    rows = []
    for entry in report["ranks"]:
        steps = f"{_cell(entry['step'])}/{entry['steps']}" if entry.get("steps") else _cell(entry["step"])
        rows.append(
            (
                str(entry["rank"]),
                entry["host"],
                entry["state"],
                steps,
                entry["loss"],
                None if entry["tokens_per_s"] is None else round(entry["tokens_per_s"]),
                size(entry["bytes_sent"]),
                size(entry["bytes_received"]),
                entry["interface"],
                None if entry["last_beat_age_s"] is None else f"{entry['last_beat_age_s']:.0f} s",
                entry["exit_code"],
            )
        )
    return table(
        ["rank", "host", "state", "step", "loss", "tok/s", "sent", "received", "interface", "beat", "exit"], rows
    )


def progress_table(report: Mapping[str, Any]) -> list[str]:
    """The run as it goes: a line a rank, then what all have reached. 80 columns are enough for usual names."""
    return [*ranks_now(report), "", *progress_now(report["total"])]


def ranks_now(report: Mapping[str, Any]) -> list[str]:
    """A heading and a line a rank: what it does, and how long ago it said so."""
    head = ["rank", "host", "state", "step", "in comm.", "memory", "beat", "exit"]
    rows: list[tuple[Any, ...]] = [
        (
            str(entry["rank"]),
            entry["host"],
            entry["doing"],
            entry["step"],
            _percent(entry["communication_share"]),
            size(entry["memory_bytes"]),
            progress.duration(entry["last_beat_age_s"]),
            entry["exit_code"],
        )
        for entry in report["ranks"]
    ]
    if all(row[-1] is None for row in rows):
        head, rows = head[:-1], [row[:-1] for row in rows]
    return table(head, rows)


def progress_now(total: Mapping[str, Any]) -> list[str]:
    """How far all ranks are, and how it goes."""
    first = " ".join(filter(None, [progress.progress_bar(total["step"], total["steps"], 30), how_far(total)]))
    return [f"  {line}" for line in (first, ", ".join(figures(total))) if line]


def how_far(total: Mapping[str, Any]) -> str:
    """C(step 3 of 10, done in 18 s)."""
    step, steps = total["step"], total["steps"]
    left = f", done in {progress.duration(total['eta_s'])}" if total["eta_s"] else ""
    return (f"step {_cell(step)} of {steps:,}" if steps else f"step {_cell(step)}") + left


def figures(total: Mapping[str, Any], few: bool = False) -> list[str]:
    """What is known of loss and speed."""
    said = [f"loss {total['loss']:.4f}"] if total["loss"] is not None else []
    said += [f"validation bpb {total['val_bpb']:.4f}"] if total["val_bpb"] is not None and not few else []
    said += [f"{total['tokens_per_s']:,.0f} tokens/s"] if total["tokens_per_s"] else []
    return said + ([f"{total['step_s']:.3g} s a step"] if total["step_s"] and not few else [])


def _percent(share: float | None) -> str:
    return "-" if share is None else f"{share:.0%}"


def headline(report: Mapping[str, Any]) -> str:
    """One sentence."""
    verdict, world = report["verdict"], report["world_size"]
    hosts = len(report["plan"].get("hosts") or [])
    words = {
        "proven": f"{world} ranks on {hosts} hosts train one model ({report['backend']})",
        "planned": "this is what a launch would start; nothing was changed",
        "failed": "the run was started and did not work",
        "refused": "nothing was started",
        "unverified": "the run ended before enough was seen",
    }
    if verdict == "proven" and world == 1:
        words["proven"] = "1 rank trains; there is nobody to exchange with"
    return f"{_HEADLINES[verdict]}: {words[verdict]}"


def launch(
    report: Mapping[str, Any], state: Mapping[str, Any], settings: Mapping[str, dict[str, Any]], report_file: str | None
) -> str:
    """The last screen of launch, resume and preflight."""
    plan = state.get("plan") or {}
    title = f"run {report['run']}" if report["run"] else "run"
    title += f", attempt {report['attempt']}" if report["attempt"] else ""
    lines = ["", title, headline(report), ""]
    if report["causes"]:
        lines += [*causes(report["causes"]), ""]
    if plan and report["verdict"] in ("planned", "proven"):
        lines += [*numbers(plan), "", *layout(plan, report["network"]), ""]
    if report["verdict"] == "planned":
        lines += planned(state)
    elif state.get("beats"):
        lines += [*ranks(report), ""]
        lines += evidence(report)
    if report["verdict"] == "proven" and state.get("action") == "stored":
        lines += ["  finished before, with this configuration; to run it again: -e nanochat_relaunch=true", ""]
    elif report["verdict"] == "proven" or (report["state"] == "running" and not state.get("end")):
        lines += reach(plan, state, settings)
    lines += [*talk(plan, state, settings), *last_words(state)]
    if state.get("end"):
        lines += ["  the run was ended on all hosts; its logs are kept:"]
        lines += [f"    {host}  {folder}/train.log" for host, folder in (state.get("folders") or {}).items()] + [""]
    if report["timings_s"]:
        lines.append(
            "  " + ", ".join(f"{name.replace('_', ' ')} {value:.1f} s" for name, value in report["timings_s"].items())
        )
    if report_file:
        lines.append(f"  report: {report_file}")
    return "\n".join(lines)


def preflight(
    report: Mapping[str, Any], state: Mapping[str, Any], settings: Mapping[str, dict[str, Any]], report_file: str | None
) -> str:
    """The screen of preflight: one table, worst first, then what was measured."""
    found = sorted(report["causes"], key=lambda entry: _ORDER[entry["weight"]])
    count = {weight: sum(entry["weight"] == weight for entry in found) for weight in _ORDER}
    ready = "NOT READY: a launch would be refused" if count["error"] else "READY: nothing stands against a launch"
    title = f"preflight of run {report['run']}" if report["run"] else "preflight"
    words = ", ".join(f"{number} {weight}{'' if number == 1 else 's'}" for weight, number in count.items())
    lines = ["", title, f"{ready} ({words})", ""]
    if found:
        rows = [
            (entry["weight"], entry["host"], f"{_short_what(entry)} [{entry['code']}]", entry["fix"]) for entry in found
        ]
        lines += [*table(["", "host", "what", "fix"], rows), ""]
    plan = state.get("plan") or {}
    if plan and state.get("network"):
        lines += [*layout(plan, report["network"]), ""]
    if state.get("measured"):
        lines += [*links(state["measured"]), ""]
    together = state.get("collective")
    if together:
        step = f"; a step's exchange would take {together['step_s']:.3g} s" if together["step_s"] else ""
        lines += [f"  all hosts together exchange {together['mbps']:,} Mb/s each way{step}", ""]
    if report["timings_s"]:
        lines.append(
            "  " + ", ".join(f"{name.replace('_', ' ')} {value:.1f} s" for name, value in report["timings_s"].items())
        )
    return "\n".join(lines)


def _short_what(entry: Mapping[str, Any]) -> str:
    """The host has its own column."""
    return " ".join(str(entry["what"]).removeprefix(f"{entry['host']}: ").split())


def links(measured: list[dict[str, Any]]) -> list[str]:
    """A line a link; of many, each host's slowest."""
    shown = measured
    if len(measured) > _MOST_LINKS:
        slowest: dict[str, dict[str, Any]] = {}
        for one in measured:
            known = slowest.setdefault(one["from"], one)
            if (one["mbps"] or 0) < (known["mbps"] or 0):
                slowest[one["from"]] = one
        shown = list(slowest.values())
    head = ["from", "to" if shown is measured else "to, the slowest", "round trip ms", "Mb/s", "largest packet"]
    return table(head, [(one["from"], one["to"], *_numbers(one)) for one in shown])


def _numbers(link: Mapping[str, Any]) -> tuple[str, str, int | None]:
    rtt, mbps = link["rtt_ms"], link["mbps"]
    return f"{rtt:.2f}" if rtt is not None else "-", f"{mbps:.0f}" if mbps is not None else "-", link["mtu"]


def evidence(report: Mapping[str, Any]) -> list[str]:
    """Why we believe it, or what is still missing."""
    seen = report["evidence"]
    lines = []
    for entry in seen.get("ranks", []):
        if entry["bytes_needed"] and entry["connections"]:
            peers = ", ".join(str(peer) for peer in entry["peers"])
            lines.append(
                f"  rank {entry['rank']}: {entry['connections']} TCP connections with rank {peers}, at least "
                f"{size(entry['bytes_needed'])} each way needed, {size(entry['bytes_sent'])} out and "
                f"{size(entry['bytes_received'])} in seen"
            )
    equal = seen.get("equal_parameters")
    if equal:
        lines.append(
            f"  after step {equal['step']} all ranks hold {'equal' if equal['equal'] else 'DIFFERENT'} parameters"
        )
    if report["verdict"] == "unverified":
        lines += [f"  waiting for: {line}" for line in seen.get("waiting_for", [])]
    return [*lines, ""] if lines else []


def last_words(state: Mapping[str, Any]) -> list[str]:
    """What was written last where it broke."""
    lines = []
    for host, words in (state.get("last_words") or {}).items():
        lines += [f"  last lines on {host}:", *(f"    {line}" for line in words), ""]
    return lines


def planned(state: Mapping[str, Any]) -> list[str]:
    """Each host's exact run.sh."""
    todo = state.get("todo") or {}
    words = {"install": "would install the software on", "dataset": "would bring the data to"}
    lines = [f"  {words[part]} {', '.join(hosts)}" for part, hosts in todo.items() if hosts]
    for host, start in (state.get("starts") or {}).items():
        marks = f"   (predicted: {'; '.join(start['predicted'])})" if start["predicted"] else ""
        lines += ["", f"--- {host}: run.sh{marks}", *start["script"].splitlines()]
    if not state.get("starts"):
        lines.append(f"  the run is {state.get('run_state') or 'left as it is'}: nothing would be started")
    return [*lines, ""]


def reach(plan: Mapping[str, Any], state: Mapping[str, Any], settings: Mapping[str, dict[str, Any]]) -> list[str]:
    """How to look at each host's part by hand."""
    lines = []
    for host in plan["hosts"]:
        mine = settings.get(host)
        if mine is None:
            continue
        session = f"{plan['run']}-{mine['node_rank']}"
        folder = (state.get("folders") or {}).get(host)
        attach = ["tmux", "-L", "torchlan", "attach", "-t", f"={session}:"]
        lines.append(f"  {host}")
        lines.append(f"    attach  {_over_ssh(mine['ssh'], shlex.join(attach))}")
        if folder:
            follow = shlex.join(["tail", "-f", folder + "/train.log"])
            lines.append(f"    log     {_over_ssh(mine['ssh'], follow)}")
    return [*lines, ""]


def talk(plan: Mapping[str, Any], state: Mapping[str, Any], settings: Mapping[str, dict[str, Any]]) -> list[str]:
    """How the trained model talks: the master has the checkpoint."""
    mine = settings.get(plan["hosts"][0]) if state.get("sample") else None
    if mine is None:
        return []
    return ["  let it talk:", f"    {_over_ssh(mine['ssh'], state['sample'])}", ""]


def _over_ssh(ssh: list[str], command: str) -> str:
    return f"{shlex.join(ssh)} {shlex.quote(command)}" if ssh else command


def status(
    report: Mapping[str, Any], state: Mapping[str, Any], settings: Mapping[str, dict[str, Any]], report_file: str | None
) -> str:
    """The screen of status: a line a rank, or a line a host where no rank ever spoke."""
    plan = state.get("plan") or {}
    lines = ["", f"run {report['run']}: {report['state']}, attempt {report['attempt'] or '-'}", ""]
    if state.get("beats"):
        lines += [*progress_table(report), ""]
    host_runs = state.get("host_runs") or {}
    rows = [
        (host, run["state"].replace("_", " "), run["attempt"], len(run["processes"]), run["exit_code"])
        for host, run in host_runs.items()
    ]
    if rows:
        lines += [*table(["host", "state", "attempt", "processes", "exit"], rows), ""]
    lines += last_words(state)
    last = [beat["last_line"] for beat in state.get("beats", []) if beat.get("last_line")]
    if last:
        lines += [f"  {last[0]}", ""]
    others = [
        f"  {host}: run {other['run']}, attempt {other['attempt']}, {len(other['pids'])} processes"
        for host, found in (state.get("other_runs") or {}).items()
        for other in found
    ]
    if others:
        lines += ["  other runs on these hosts:", *others, ""]
    if report["causes"]:
        lines += [*causes(report["causes"]), ""]
    if report["state"] == "running":
        lines += reach(plan, state, settings)
    return "\n".join([*lines, *talk(plan, state, settings)])


def stop(
    report: Mapping[str, Any], state: Mapping[str, Any], settings: Mapping[str, dict[str, Any]], report_file: str | None
) -> str:
    """The screen of stop: what was ended where."""
    lines = ["", f"run {report['run']}"]
    for host, ended in (state.get("ended") or {}).items():
        words = ", ".join(
            f"{entry['role']} {entry['pid']}" + (f" ({entry['signal']})" if entry["signal"] else "") for entry in ended
        )
        lines.append(f"  {host}: {words or 'nothing of it was running'}")
    if report["causes"]:
        lines += ["", *causes(report["causes"])]
    return "\n".join([*lines, ""])


def prepare(
    report: Mapping[str, Any], state: Mapping[str, Any], settings: Mapping[str, dict[str, Any]], report_file: str | None
) -> str:
    """The screen of install and dataset: what every host has now."""
    rows = [
        (
            host,
            str(has["commit"] or "-")[:12],
            has["python"],
            has["torch"],
            has["shards"],
            str(has["tokenizer"] or "-")[:12],
        )
        for host, has in (state.get("software") or {}).items()
    ]
    lines = ["", "ready" if state.get("go") else "NOT READY", ""]
    if rows:
        lines += [*table(["host", "commit", "python", "torch", "shards", "tokenizer"], rows), ""]
    if report["causes"]:
        lines += [*causes(report["causes"]), ""]
    return "\n".join(lines)


SCREENS = {
    "install": prepare,
    "dataset": prepare,
    "launch": launch,
    "preflight": preflight,
    "status": status,
    "logs": status,
    "collect": status,
    "stop": stop,
}


def succeeded(of: str, report: Mapping[str, Any], state: Mapping[str, Any]) -> bool:
    """Whether a playbook reached what it is for."""
    if of == "launch":
        return report["verdict"] in ("proven", "planned")
    return bool(state.get("go")) and not any(entry["weight"] == "error" for entry in report["causes"])
