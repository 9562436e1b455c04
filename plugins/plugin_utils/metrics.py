# Copyright (c) 2026, torchlan contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The history of a run from its collected files: rows of numbers for metrics.csv, and what happened.

Beats have every rank of the last hour or more (their history is bounded), the log has every step and every validation
of rank 0. Any of these files may be missing, cut off or broken; what is whole of them counts.
"""

from __future__ import annotations

import csv
import io
import json
import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields
from functools import cached_property
from pathlib import Path
from typing import Any

from ansible_collections.torchlan.nanochat.plugins.module_utils.messages import STARTS_AGAIN
from ansible_collections.torchlan.nanochat.plugins.module_utils.printed import STEP, VALIDATION
from ansible_collections.torchlan.nanochat.plugins.plugin_utils import logs
from ansible_collections.torchlan.nanochat.plugins.plugin_utils.collected import ABOUT

# So long a rank is in one collective before it is worth an event; a save or a sample on rank 0 may be one.
STALL_S = 10.0
# The first time is noted when a log is about this long; where it is longer, the times before were dropped.
_FIRST_BYTES = 65536
_SAVED = re.compile(r"Saved (?:checkpoint of step (\d{1,12})|model parameters to\b.*?model_(\d{1,12})\.pt)")
_TOLD = re.compile(rb"^.*(?:loss:|Validation bpb:|Saved |\[torchlan\] ).*$", re.MULTILINE)
_GOES_ON = re.compile(r"\[torchlan\] .*?(the run goes on from step \d+.*)")


@dataclass(frozen=True)
class Row:
    """A line of metrics.csv. The time is by the controller's clock, and None where nobody noted it."""

    time: float | None
    host: str
    rank: int | None
    attempt: str
    source: str  # beat or log
    state: str | None = None
    step: int | None = None
    loss: float | None = None
    val_bpb: float | None = None
    tokens_per_s: float | None = None
    communication_share: float | None = None
    collectives: int | None = None
    collective_bytes: int | None = None
    waiting_in: str | None = None
    waiting_s: float | None = None


@dataclass(frozen=True)
class Event:
    time: float
    kind: str  # one of KINDS
    text: str
    host: str = ""


KINDS = ("start", "resume", "evaluation", "save", "stall", "failure", "restart", "end")


@dataclass
class Part:
    """One host's part of one attempt."""

    host: str
    attempt: str
    folder: Path
    ahead_s: float = 0.0
    record: dict[str, Any] = field(default_factory=dict)

    @property
    def node_rank(self) -> int:
        rank = self.record.get("node_rank")
        return rank if isinstance(rank, int) else 1 << 30

    def text(self, name: str) -> str:
        return _read(self.folder / name)

    def json(self, name: str) -> dict[str, Any]:
        return _object(self.text(name))

    @cached_property
    def beats(self) -> dict[int, str]:
        """Each rank's history."""
        names = {path: re.fullmatch(r"rank-(\d+)\.jsonl", path.name) for path in self.folder.glob("beats/*")}
        return {int(match[1]): _read(path) for path, match in sorted(names.items()) if match}

    @cached_property
    def lines(self) -> list[tuple[float | None, str]]:
        """The lines of the log that say something of it, with the time at which the log grew. A log may be large."""
        stamps = logs.stamps(self.text("train.times"))
        times = logs.Times(stamps, self.ahead_s)
        lost = stamps[0][1] if stamps and stamps[0][1] > _FIRST_BYTES else 0
        found: list[tuple[float | None, str]] = []
        try:
            content = (self.folder / "train.log").read_bytes()
        except OSError:
            return []
        for match in _TOLD.finditer(content):
            text = match[0].decode("utf-8", "replace").rstrip("\r").rpartition("\r")[2]
            found.append((times.at(match.start()) if match.start() >= lost else None, text))
        return found

    @cached_property
    def rows(self) -> list[Row]:
        """All that is known, in the order of time."""
        found = [row for rank, text in self.beats.items() for row in _of_beats(self, rank, text)]
        found += _of_log(self)
        return sorted(found, key=lambda row: (row.time is not None, row.time or 0))


def parts(collected: Path, attempts: Iterable[str]) -> list[Part]:
    """What is there of these attempts, the master's first."""
    found = []
    wanted = set(attempts)
    for path in sorted(collected.glob("*/*")):
        if path.is_dir() and path.name in wanted:
            about = _object(_read(path.parent / ABOUT))
            ahead = _number(about.get("clock_ahead_s")) or 0.0
            part = Part(str(about.get("host") or path.parent.name), path.name, path)
            part.ahead_s = logs.ahead(ahead) if abs(ahead) < 1 << 30 else 0.0
            part.record = part.json("run.json")
            found.append(part)
    return sorted(found, key=lambda part: (part.attempt, part.node_rank, part.host))


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


def _object(text: str) -> dict[str, Any]:
    try:
        value = json.loads(text or "{}")
    except (ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}


def _number(value: Any) -> float | None:
    """A number that can be drawn."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    try:
        return float(value) if math.isfinite(value) else None
    except OverflowError:
        return None


def _time(value: Any) -> float | None:
    """A time that a calendar has."""
    number = _number(value)
    return number if number is not None and 0 < number < 1 << 33 else None


def _whole(value: Any) -> int | None:
    number = _number(value)
    return None if number is None else int(number)


def _figure(text: str | None) -> float | None:
    try:
        return _number(float((text or "").replace(",", "")))
    except ValueError:
        return None


def _of_beats(part: Part, rank: int, text: str) -> list[Row]:
    found = []
    for line in text.splitlines():
        beat = _object(line)
        time = _time(beat.get("time"))
        if time is None:
            continue
        waiting = beat.get("waiting_in") if isinstance(beat.get("waiting_in"), dict) else {}
        since, step = _number((waiting or {}).get("since")), _whole(beat.get("step"))
        found.append(
            Row(
                time=round(time - part.ahead_s, 3),
                host=part.host,
                rank=rank,
                attempt=part.attempt,
                source="beat",
                state=str(beat["state"])[:40] if beat.get("state") else None,
                step=None if step is None else step + (_whole(beat.get("began_at")) or 0),
                loss=_number(beat.get("loss")),
                tokens_per_s=_number(beat.get("tokens_per_s")),
                communication_share=_number(beat.get("communication_share")),
                collectives=_whole(beat.get("collectives_finished")),
                collective_bytes=_whole(beat.get("collective_bytes")),
                waiting_in=f"{str(waiting.get('op'))[:40]} {_whole(waiting.get('n'))}" if waiting else None,
                waiting_s=None if since is None else round(max(0.0, time - since), 1),
            )
        )
    return found


def _of_log(part: Part) -> list[Row]:
    """Steps and validations; on hosts without rank 0 a log has none."""
    found = []
    for time, text in part.lines:
        figures: dict[str, Any]
        if match := STEP.search(text):
            figures = {"step": int(match[1]) + 1, "loss": _figure(match[3]), "tokens_per_s": _figure(match[4])}
        elif match := VALIDATION.search(text):
            figures = {"step": int(match[1]), "val_bpb": _figure(match[2])}
        else:
            continue
        found.append(Row(time, part.host, 0, part.attempt, "log", **figures))
    return found


def events(those: list[Part]) -> list[Event]:
    """What happened, in the order of time."""
    found: list[Event] = []
    for attempt in sorted({part.attempt for part in those}):
        mine = [part for part in those if part.attempt == attempt]
        found += _starts(mine)
        found += [event for part in mine for event in _told(part)]
        found += _failures(mine)
        found += _stalls([row for part in mine for row in part.rows])
    return sorted(found, key=lambda event: event.time)


def _starts(those: list[Part]) -> list[Event]:
    started = [(_time(part.record.get("started_unix")), part.ahead_s) for part in those]
    times = [time - ahead for time, ahead in started if time is not None]
    return [Event(min(times), "start", f"attempt {those[0].attempt} on {len(those)} hosts")] if times else []


def _told(part: Part) -> list[Event]:
    found = []
    for time, text in part.lines:
        if time is None:
            continue
        if match := VALIDATION.search(text):
            found.append(Event(time, "evaluation", f"step {int(match[1])}: validation bpb {match[2]}", part.host))
        elif match := _SAVED.search(text):
            found.append(Event(time, "save", f"checkpoint of step {int(match[1] or match[2])}", part.host))
        elif match := _GOES_ON.search(text):
            found.append(Event(time, "resume", match[1], part.host))
        elif text.startswith(f"[torchlan] {STARTS_AGAIN}") and part.node_rank == 0:
            found.append(Event(time, "restart", text.removeprefix("[torchlan] "), part.host))
    return found


def _failures(those: list[Part]) -> list[Event]:
    """Every start that broke, and how it ended. Guards give all hosts the same reason: the master's host tells it."""
    told = next((part for part in those if part.json("restarts.json").get("failures")), None)
    found = []
    for entry in told.json("restarts.json")["failures"] if told else []:
        time = _time(entry.get("time")) if isinstance(entry, dict) else None
        if told and time is not None:
            words = f"{entry.get('code')} at step {entry.get('step')}: {entry.get('what')}"
            found.append(Event(time - told.ahead_s, "failure", words, told.host))
    ends = [last for part in those if (last := _last(part)) is not None]
    codes = {part.host: part.text("exit_code").strip() for part in those}
    if ends and all(code or part.text("stopped") for part, code in zip(those, codes.values())):
        last = max(ends)
        bad = {host: code for host, code in codes.items() if code not in ("", "0")}
        stopped = next((text for one in those if (text := one.text("stopped").strip())), "")
        if stopped:
            found.append(Event(last, "end", f"stopped: {stopped}"))
        elif bad and not found:
            found.append(Event(last, "failure", _why(those) or f"exit code {', '.join(sorted(set(bad.values())))}"))
        elif not bad:
            found.append(Event(last, "end", "finished"))
    return found


def _last(part: Part) -> float | None:
    return max((row.time for row in part.rows if row.time is not None), default=None)


def _why(those: list[Part]) -> str | None:
    for part in those:
        for entry in part.json("cluster.json").get("causes") or []:
            if isinstance(entry, dict) and entry.get("weight") == "error":
                return f"{entry.get('code')}: {entry.get('what')}"
    return None


def _stalls(rows: list[Row]) -> list[Event]:
    """Ranks that were in one collective for long, each collective once."""
    found: dict[tuple[str, int], list[tuple[float, Row]]] = {}
    for row in rows:
        if row.waiting_in and row.time is not None and (row.waiting_s or 0) >= STALL_S:
            began = row.time - (row.waiting_s or 0)
            # Collectives are counted from 0 again after a restart: ranks enter the same one at about the same time.
            found.setdefault((row.waiting_in, round(began / 300)), []).append((began, row))
    result = []
    for (collective, _when), seen in found.items():
        began, longest = min(one[0] for one in seen), max(row.waiting_s or 0 for _began, row in seen)
        ranks = _ranks({row.rank or 0 for _began, row in seen})
        result.append(Event(began, "stall", f"{ranks} waited {longest:.0f} s in {collective}", seen[0][1].host))
    return result


def _ranks(numbers: set[int]) -> str:
    listed = ", ".join(str(number) for number in sorted(numbers)[:8])
    more = f" and {len(numbers) - 8} more" if len(numbers) > 8 else ""
    return f"rank{'s' if len(numbers) > 1 else ''} {listed}{more}"


def as_csv(those: Iterable[Row]) -> str:
    """metrics.csv; what is not known is empty."""
    text = io.StringIO()
    names = [one.name for one in fields(Row)]
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(names)
    for row in those:
        writer.writerow([_cell(getattr(row, name)) for name in names])
    return text.getvalue()


def _cell(value: Any) -> Any:
    """A spreadsheet is not to take a name for a formula."""
    return f"'{value}" if isinstance(value, str) and value[:1] in ("=", "+", "-", "@") else value


def configuration(those: list[Part]) -> Mapping[str, Any]:
    """What the newest attempt was started with."""
    found = [part.record.get("config") for part in those if isinstance(part.record.get("config"), dict)]
    return found[-1] or {} if found else {}
