# Copyright (c) 2026, torchlan contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Checkpoints as nanochat lays them down, and which step is whole over all hosts. Standard library only, no torch.

The runner carries a copy of this file in its zip: no import of the collection here.
Rank 0's host has model_STEP.pt and meta_STEP.json, every rank's host has its own optim_STEP_rankR.pt.
"""

from __future__ import annotations

import json
import os
import re
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

_FILE = re.compile(r"(?:model_(\d{6,})\.pt|meta_(\d{6,})\.json|optim_(\d{6,})_rank(\d+)\.pt)\Z")
# Every byte is read of files up to this size; a larger one must have the directory that torch.save writes last.
_READ_WHOLE = 64 * 1024 * 1024
OWNER = "torchlan.json"  # whose checkpoints the folder holds
# Options that make a model what it is, as nanochat's user_config names them.
_SHAPE = ("depth", "aspect_ratio", "head_dim", "max_seq_len", "window_pattern")

Inventory = Mapping[str, Any]  # file name -> None when it is whole, else what is wrong with it


def folder_of(base_dir: str, tag: str) -> str:
    """Where the checkpoints of one model are."""
    return os.path.join(base_dir, "base_checkpoints", tag)


def step_of(name: str) -> int | None:
    match = _FILE.match(name)
    return next((int(text) for text in match.groups()[:3] if text), None) if match else None


def names(folder: str) -> list[str]:
    try:
        return sorted(name for name in os.listdir(folder) if step_of(name) is not None)
    except OSError:
        return []


def inventory(folder: str) -> dict[str, str | None]:
    return {name: broken(os.path.join(folder, name)) for name in names(folder)}


def broken(path: str) -> str | None:
    """What is wrong with a file of a checkpoint; None when nothing is."""
    try:
        size = os.path.getsize(path)
        if path.endswith(".json"):
            meta(path)
            return None
        with zipfile.ZipFile(path) as archive:
            bad = archive.testzip() if size <= _READ_WHOLE else None
        return "%s in it is damaged" % bad if bad else None
    except (OSError, ValueError, EOFError, RuntimeError, zipfile.BadZipFile) as problem:
        return "cut off or damaged (%s)" % (str(problem) or type(problem).__name__)


def meta(path: str) -> dict[str, Any]:
    """:raises ValueError: it is no JSON object."""
    with open(path, encoding="utf-8") as file:
        found = json.load(file)
    if not isinstance(found, dict):
        raise ValueError("no JSON object")
    return found


def owner(folder: str) -> str | None:
    """The run whose checkpoints these are, where it is written down."""
    try:
        return str(meta(os.path.join(folder, OWNER)).get("run") or "") or None
    except (OSError, ValueError):
        return None


def needed(step: int, ranks: list[int]) -> list[str]:
    """What a host with these ranks reads to go on from a step."""
    return ["model_%06d.pt" % step, "meta_%06d.json" % step] + ["optim_%06d_rank%d.pt" % (step, r) for r in ranks]


@dataclass
class Choice:
    """A step, where its files are, and why newer ones are not taken."""

    step: int | None = None
    source: dict[str, int] = field(default_factory=dict)  # file name -> node rank that has it whole
    skipped: list[str] = field(default_factory=list)
    worlds: dict[int, int] = field(default_factory=dict)  # step -> ranks that its optimizer parts are of


def choose(have: Mapping[int, Inventory], world: int, wanted: int | None, places: Mapping[int, str]) -> Choice:
    """The newest step that is whole over all hosts, or the wanted one if it is.

    :param have: inventories by node rank.
    :param wanted: a step, or None for the newest.
    :param places: host names by node rank, for people.
    """
    choice = Choice()
    steps = {step for files in have.values() for step in map(step_of, files) if step is not None}
    for step in sorted(steps if wanted is None else steps & {wanted}, reverse=True):
        parts = {name for files in have.values() for name in files if name.startswith("optim_%06d_rank" % step)}
        choice.worlds[step] = 1 + max((int(_FILE.match(name).group(4)) for name in parts), default=-1)  # type: ignore[union-attr]
        source: dict[str, int] = {}
        wrong = []
        for name in needed(step, list(range(world))):
            whole = [node for node in sorted(have) if name in have[node] and have[node][name] is None]
            if whole:
                source[name] = whole[0]
                continue
            told = ["on %s %s" % (places.get(n, n), have[n][name]) for n in sorted(have) if name in have[n]]
            wrong.append("%s is %s" % (name, ", ".join(told) or "on no host"))
        if choice.worlds[step] != world:
            wrong.append("it has the optimizer's parts of %d ranks, there are %d now" % (choice.worlds[step], world))
        if not wrong:
            choice.step, choice.source = step, source
            return choice
        choice.skipped.append("step %d: %s" % (step, "; ".join(wrong[:3])))
    return choice


def shapes(folder: str) -> dict[str, dict[str, str]]:
    """The options that made the model of each checkpoint, by the name of its meta file."""
    found = {}
    for name in names(folder):
        if name.startswith("meta_"):
            try:
                written = meta(os.path.join(folder, name)).get("user_config") or {}
                found[name] = {key: str(written[key]) for key in _SHAPE if key in written}
            except (OSError, ValueError, TypeError, AttributeError):
                pass  # the inventory says what is wrong with it
    return found


def misfits(written: Mapping[str, str], words: list[str]) -> list[str]:
    """How the model of a checkpoint differs from the one that these words of a command line describe."""
    given = {
        key.lstrip("-").replace("-", "_"): value for key, _equals, value in (word.partition("=") for word in words)
    }
    return [
        "--%s=%s, the checkpoint has %s" % (name.replace("_", "-"), given[name], written[name])
        for name in _SHAPE
        if name in given and name in written and written[name] != given[name]
    ]
