# Copyright (c) 2026, torchlan contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Logs of all hosts as one, in the order of time: what a host's shell is asked, and what its answer becomes."""

from __future__ import annotations

import bisect
import os
import re
import shlex
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from ansible_collections.torchlan.nanochat.plugins.module_utils.messages import is_noise
from ansible_collections.torchlan.nanochat.plugins.plugin_utils.watching import folder_of

# A line of nanochat has about 130 bytes; noise and tracebacks need room beside what is asked for.
_BYTES_A_LINE = 600
_LEAST_BYTES = 100_000
# At once, of a log that grew while its host was away: the rest comes with the next look.
MOST_BYTES = 1_000_000
# Clocks that differ by less are not corrected: asking takes as long.
_SKEW_S = 2.0
_STAMP = re.compile(r"(?:^|(?<=[,\n]))(\d{10}(?:\.\d+)?) (\d{1,18})(?=[,\n]|\Z)")
_OF_RANK = re.compile(r"\[(?:default|rank)?(\d+)\]: ?")


@dataclass(frozen=True)
class Entry:
    """One line. The time is by the controller's clock, and None where nobody noted it."""

    time: float | None
    rank: int | None
    text: str


@dataclass(frozen=True)
class Part:
    """What a host answered: a piece of the log of its newest attempt, from C(start) up to C(start + len(content))."""

    attempt: str
    clock: float
    ended: bool
    ranks: list[int]
    stamps: list[tuple[float, int]]
    start: int
    content: bytes


def stamps(text: str) -> list[tuple[float, int]]:
    """What train.times says: when the log had which size. Lines may end with a comma, too."""
    return [(float(when), int(size)) for when, size in _STAMP.findall(text)]


def ahead(seconds: float) -> float:
    """By how much a host's clock is corrected."""
    return seconds if abs(seconds) >= _SKEW_S else 0.0


class Times:
    """When a log was written, by the controller's clock."""

    def __init__(self, noted: list[tuple[float, int]], ahead_s: float) -> None:
        self._times, self._sizes = [when - ahead_s for when, _size in noted], [size for _when, size in noted]

    def at(self, position: int) -> float | None:
        """When the log first was longer than this; the last time for what came after it, None where none was noted."""
        index = min(bisect.bisect_right(self._sizes, position), len(self._times) - 1)
        return self._times[index] if self._times else None


def command(base_dir: str, run: str, node_rank: int, lines: int, attempt: str = "", start: int = 0) -> str:
    """What a host's shell is asked.

    :param base_dir: may begin with C(~).
    :param lines: so many of the last ones, when no C(attempt) is given.
    :param attempt: what was read before, up to C(start); a newer attempt is read from its beginning.
    """
    wanted = max(_LEAST_BYTES, lines * _BYTES_A_LINE)
    first = f"$(( size > {wanted} ? size - {wanted} : 0 ))"
    if attempt:
        same = f'[ "$(basename "$(dirname "$(pwd -P)")")" = {shlex.quote(attempt)} ]'
        first = f"$({same} && echo {start} || echo 0)"
    words = (
        '"$(pwd -P)"',
        '"$(date +%s)"',
        '"$(cat exit_code 2> /dev/null || { [ -e stopped ] && echo stopped; })"',
        '"$(echo beats/rank-*.json)"',
        # What was noted of the part that follows, and the last word: it is for what was written since.
        "\"$(awk -v first=$first '$2 > first; END { print }' train.times 2> /dev/null | tr '\\n' ',')\"",
        '"$first"',
    )
    steps = (
        f"cd {folder_of(base_dir, run, node_rank)}",
        "size=$(wc -c < train.log)",
        f"first={first}",
        "left=$(( size - first ))",
        f"printf '%s\\n' {' '.join(words)}",
        f"tail -c +$(( first + 1 )) train.log | head -c $(( left > {MOST_BYTES} ? {MOST_BYTES} : left ))",
    )
    return " && ".join(steps)


def read(answer: str) -> Part | None:
    """The answer to C(command); None when it is none."""
    head = answer.split("\n", 6)
    if len(head) < 7 or not head[1].isdigit() or not head[5].strip().isdigit():
        return None
    folder, clock, code, beats, noted, start, content = head
    return Part(
        attempt=os.path.basename(os.path.dirname(folder)),
        clock=float(clock),
        ended=code.strip() != "",
        ranks=sorted(int(number) for number in re.findall(r"rank-(\d+)\.json", beats)),
        stamps=stamps(noted),
        start=int(start),
        content=content.encode("utf-8", "surrogateescape"),
    )


def entries(part: Part, now: float, raw: bool, begun: bool = False) -> tuple[list[Entry], int]:
    """The whole lines of a part, and where the next part begins.

    :param now: by the controller's clock, when the host answered.
    :param raw: with noise, and with all that a progress bar wrote.
    :param begun: the part begins at the beginning of a line.
    """
    times = Times(part.stamps, ahead(part.clock - now))
    position, found = part.start, []
    *whole, rest = part.content.split(b"\n")
    if (rest and part.ended) or (len(part.content) >= MOST_BYTES and not whole):
        whole, rest = [*whole, rest], b""
    for number, line in enumerate(whole):
        at, position = position, position + len(line) + 1
        text = line.decode("utf-8", "replace").rstrip("\r")
        text = text if raw else text.rpartition("\r")[2].rstrip()
        if (number == 0 and at and not begun) or (not raw and (not text.strip() or is_noise(text))):
            continue
        found.append(Entry(times.at(at), *_rank(text, part)))
    return found, min(position, part.start + len(part.content))


def _rank(text: str, part: Part) -> tuple[int | None, str]:
    """Whose line it is: torch says it of some; where a host has one rank, the others are of this one."""
    match = _OF_RANK.match(text)
    if match:
        return int(match[1]), text[match.end() :]
    return (part.ranks[0] if len(part.ranks) == 1 else None), text


def merged(by_host: Mapping[str, Iterable[Entry]], lines: int) -> list[str]:
    """The last C(lines) lines of all hosts, in the order of time, ready for a person."""
    rows: list[tuple[float, str, Entry]] = []
    for host, those in by_host.items():
        last = 0.0
        for entry in those:
            last = entry.time if entry.time is not None else last
            rows.append((last, host, entry))
    rows.sort(key=lambda row: row[0])  # stable: a host's own order stays
    rows = rows[-lines:]
    width = max((len(_who(host, entry)) for _when, host, entry in rows), default=0)
    return [line(host, entry, width) for _when, host, entry in rows]


def line(host: str, entry: Entry, width: int = 0) -> str:
    when = time.strftime("%H:%M:%S", time.localtime(entry.time)) if entry.time is not None else " " * 8
    # A log may hold anything; nothing of it is to move a person's cursor.
    text = "".join(letter if letter.isprintable() or letter == "\t" else "�" for letter in entry.text)
    return f"{when} {_who(host, entry).ljust(width)} | {text}"


def _who(host: str, entry: Entry) -> str:
    return host if entry.rank is None else f"{host}:{entry.rank}"


def as_data(found: Iterable[Entry]) -> list[list[Any]]:
    return [[entry.time, entry.rank, entry.text] for entry in found]


def from_data(found: Iterable[list[Any]]) -> list[Entry]:
    return [Entry(*one) for one in found]
