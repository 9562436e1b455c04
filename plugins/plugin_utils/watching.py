# Copyright (c) 2026, torchlan contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What a person sees of a run while it goes on, from one look at the master's files after the other."""

from __future__ import annotations

import json
import os
import re
import shlex
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from ansible_collections.torchlan.nanochat.plugins.module_utils.runs import cluster_beats
from ansible_collections.torchlan.nanochat.plugins.plugin_utils import report, root_cause, screen

# A guard writes every second as long as it lives. Before there is one, torch is imported; without the runner there is
# none at all, and the log is all that there is.
_QUIET_S = 30
_QUIET_WITHOUT_BEATS_S = 300
# A run that starts again by itself waits so long for a host that is away (MEET and SPEAK of the runner's again.py).
_QUIET_RESTARTING_S = 700
# When the first part of a run has ended, the others need a moment: the guards end what is left.
_ENDING_S = 10
_FINAL = ("finished", "failed", "stopped")
# In lines for a log, steps and what ranks do may change this often.
_NEWS_EVERY_S = 10
_WIDTH = 100
_MOST_NAMED = 4
_HOME = re.compile(r"~[A-Za-z0-9_.-]*\Z")


@dataclass(frozen=True)
class Picture:
    """One look at the newest attempt."""

    attempt: str
    ended: str  # how the master's part did, empty while it has not
    cluster: dict[str, Any]
    restarts: dict[str, Any]
    last_line: str
    clock: float = field(compare=False)  # the master's

    @property
    def beats(self) -> list[dict[str, Any]]:
        return cluster_beats(self.cluster)

    @property
    def causes(self) -> list[dict[str, Any]]:
        restarted = (
            root_cause.restarts({"master": {"restarts": self.restarts}}) if self.restarts.get("failures") else []
        )
        return [*(self.cluster.get("causes") or []), *restarted]

    @property
    def patience(self) -> int:
        """Seconds without anything new after which nothing more is expected."""
        if self.beats:
            return _QUIET_S
        starting_again = self.restarts and not self.restarts.get("gave_up")
        return _QUIET_RESTARTING_S if starting_again else _QUIET_WITHOUT_BEATS_S


def folder_of(base_dir: str, run: str, node_rank: int) -> str:
    """A host's part of the newest attempt, as a word for its shell."""
    home, slash, rest = base_dir.partition("/")
    base = home + slash + (rest and shlex.quote(rest)) if _HOME.match(home) else shlex.quote(base_dir)
    return f"{base.rstrip('/')}/runs/{shlex.quote(run)}/current-{node_rank}"


def command(base_dir: str, run: str) -> str:
    """What the master's shell is asked: six lines, or a failure where there is no such run.

    :param base_dir: may begin with C(~).
    """
    ended = '"$(cat exit_code || { [ -e stopped ] && echo stopped; })"'
    line = "\"$(tail -c 400 train.log | tr '\\r' '\\n' | grep '[[:alnum:]]' | tail -n 1)\""
    words = f'"$(pwd -P)" "$(date +%s)" {ended} "$(cat cluster.json)" "$(cat restarts.json)" {line}'
    return f"cd {folder_of(base_dir, run, 0)} && printf '%s\\n' {words}"


def read(text: str) -> Picture | None:
    """The answer to C(command); None when it is none."""
    folder, clock, code, cluster, restarts, line, *_rest = [*text.split("\n"), *[""] * 6]
    if not clock.isdigit():
        return None
    return Picture(
        attempt=os.path.basename(os.path.dirname(folder)),
        ended=f"exit code {code}" if code.isdigit() else code,
        cluster=_object(cluster),
        restarts=_object(restarts),
        last_line="".join(letter for letter in line if letter.isprintable()).strip(),
        clock=float(clock),
    )


def _object(text: str) -> dict[str, Any]:
    """A file that is not there, or not JSON, is as good as an empty one."""
    try:
        value = json.loads(text or "{}")
    except ValueError:
        return {}
    return value if isinstance(value, dict) else {}


class Watch:
    """Remembers what was seen and said. Every C(now) is the controller's C(time.time())."""

    def __init__(self, run: str) -> None:
        self.run = run
        self.picture: Picture | None = None
        self._changed = 0.0
        # by rank: its beat's own time, and when that would have been by the controller's clock
        self._beats: dict[int, tuple[float, float]] = {}
        self._said: tuple[Any, ...] = ()
        self._said_at = 0.0
        self._said_causes: set[tuple[Any, ...]] = set()

    def see(self, picture: Picture, now: float) -> None:
        """Take the next picture."""
        first = self.picture is None or self.picture.attempt != picture.attempt
        if first:
            self._beats = {}
        if first or picture != self.picture:
            self._changed = now
        for beat in picture.beats:
            written = beat.get("time") or 0
            if written and self._beats.get(beat["rank"], (None, 0))[0] != written:
                # Hosts' clocks may differ: after the first picture, only that a beat is new counts.
                age = max(0.0, picture.clock - written) if first else 0.0
                self._beats[beat["rank"]] = (written, now - age)
        self.picture = picture

    def over(self, now: float) -> str | None:
        """Why there is nothing more to watch; None as long as there is."""
        if self.picture is None:
            return None
        beats = self.picture.beats
        last = max((seen for _written, seen in self._beats.values()), default=None)
        final = all(beat.get("state") in _FINAL for beat in beats)
        silent = last is None or now - last >= _ENDING_S
        if self.picture.ended and (final or silent):
            return f"the run has ended: {self.picture.ended}"
        if now - self._changed >= self.picture.patience:
            if beats and final:
                return "all ranks have ended"
            since = self._changed if last is None else last
            day = "" if now - since < 43200 else "%Y-%m-%d "
            return f"nothing new since {time.strftime(day + '%H:%M:%S', time.localtime(since))}"
        return None

    def report(self, now: float) -> dict[str, Any]:
        """The same that status makes of beats, by what the master knows."""
        beats = self.picture.beats if self.picture else []
        aged = [
            {**beat, "age_s": max(0.0, now - self._beats[beat["rank"]][1])} if beat["rank"] in self._beats else beat
            for beat in beats
        ]
        return report.build({"beats": aged}, {}, False)

    def frame(self, size: os.terminal_size, now: float) -> list[str]:
        """The picture for a terminal of this size: no line is wider, and they are fewer than its lines."""
        if self.picture is None:
            return []
        width = min(size.columns - 1, _WIDTH)
        head = [f"run {self.run}, attempt {self.picture.attempt}, {_clock(now)}", ""]
        tail = ["", *screen.causes(self.picture.causes, width)] if self.picture.causes else []
        if self.picture.beats:
            made = self.report(now)
            rows = screen.ranks_now(made)
            tail = ["", *screen.progress_now(made["total"]), *tail]
            room = size.lines - 1 - len(head) - len(tail)
            if len(rows) > room > 2:
                rows = [*rows[: room - 1], f"  and {len(rows) - room + 1} more ranks"]
        else:
            rows = [
                "  no rank has been heard",
                *([f"  {self.picture.last_line}"] if self.picture.last_line else []),
            ]
        return [line[:width] for line in [*head, *rows, *tail]][: size.lines - 1]

    def news(self, now: float) -> list[str]:
        """For a log: one line when something has changed, and each cause once."""
        if self.picture is None:
            return []
        made = self.report(now)
        doing, total, picture = _grouped(made["ranks"]), made["total"], self.picture
        states = (picture.attempt, [entry["state"] for entry in made["ranks"]])
        moving = (total["step"], doing) if picture.beats else (picture.last_line,)
        lines = []
        if self._said[:1] != (states,) or (self._said[1:] != (moving,) and now - self._said_at >= _NEWS_EVERY_S):
            self._said, self._said_at = (states, moving), now
            words = ", ".join([screen.how_far(total), *screen.figures(total, few=True), *doing])
            words = words if picture.beats else picture.last_line
            lines.append(f"{_clock(now)}  {words or 'no rank has been heard'}")
        for entry in picture.causes:
            again = entry["what"] if entry["code"] == "restarted" else None
            key = (entry["code"], entry["host"], entry["rank"], entry["weight"], again)
            if key not in self._said_causes:
                self._said_causes.add(key)
                lines += screen.causes([entry])
        return lines


def _clock(now: float) -> str:
    return time.strftime("%H:%M:%S", time.localtime(now))


def _grouped(ranks: list[Mapping[str, Any]]) -> list[str]:
    """C(all training), or C(ranks 0, 2 training) and C(rank 1 compiling)."""
    by_word: dict[str, list[str]] = {}
    for entry in ranks:
        by_word.setdefault(entry["doing"], []).append(str(entry["rank"]))
    if len(by_word) == 1:
        return [f"all {word}" for word in by_word]
    return [f"{_named(who)} {word}" for word, who in by_word.items()]


def _named(ranks: list[str]) -> str:
    if len(ranks) > _MOST_NAMED:
        return f"{len(ranks)} ranks"
    return f"rank{'s' if len(ranks) > 1 else ''} {', '.join(ranks)}"
