# Copyright (c) 2026, torchlan contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What this rank measures about itself, to be equal on every rank. Only what is listed here is ever published."""

from __future__ import annotations

import hashlib
import importlib.util
import os
import sys
from collections.abc import Mapping
from typing import Any

from torchlan_runner.plan import Plan


def measure(plan: Plan, script: str, args: list[str], environ: Mapping[str, str]) -> dict[str, Any]:
    import torch

    version, _plus, build = torch.__version__.partition("+")
    facts: dict[str, Any] = {
        "world.GROUP_WORLD_SIZE": plan.group_world_size,
        "world.WORLD_SIZE": plan.env_world_size,
        "world.nnodes of the plan": plan.nnodes,
        "world.device": plan.device,
        "argument.script": script,
    }
    facts.update(arguments(args))
    facts["version.python"] = "%d.%d" % sys.version_info[:2]
    facts["version.torch"] = version
    facts["version.torch build"] = build or "(default)"
    for name in ("NANOCHAT_DTYPE", *plan.compare_env):
        facts["environment." + name] = environ.get(name)
    facts.update(flat("plan", plan.fingerprint))
    facts.update(nanochat_facts(script, environ))
    return facts


def arguments(args: list[str]) -> dict[str, str]:
    """One fact per option, so that a difference names the option; a repeated option keeps all its values, in order."""
    found: dict[str, str] = {}
    loose = 0
    for word in args:
        if word.startswith("--") and len(word) > 2:
            name, equals, value = word.partition("=")
            text = value if equals else "(flag)"
        else:
            loose += 1
            name, text = "word %d" % loose, word
        key = "argument." + name
        found[key] = found[key] + " " + text if key in found else text
    return found


def flat(prefix: str, value: Any) -> dict[str, Any]:
    if isinstance(value, Mapping):
        found: dict[str, Any] = {}
        for key in sorted(value, key=str):
            found.update(flat("%s.%s" % (prefix, key), value[key]))
        return found
    return {prefix: value}


def nanochat_facts(script: str, environ: Mapping[str, str]) -> dict[str, Any]:
    """The code, the tokenizer and the shards as they lie on this host, if the script is nanochat's."""
    try:
        spec = importlib.util.find_spec("nanochat") if script != "torchlan_smoke" else None
    except (ImportError, ValueError):
        spec = None
    if spec is None or not spec.submodule_search_locations:
        return {}
    package = next(iter(spec.submodule_search_locations))
    base = environ.get("NANOCHAT_BASE_DIR") or os.path.expanduser("~/.cache/nanochat")
    shards = environ.get("NANOCHAT_DATA_DIR") or os.path.join(base, "base_data_climbmix")
    folders = [package, os.path.join(os.path.dirname(package), script.split(".")[0])]
    return {
        "code.sha256 of its .py files": _digest_sources(folders),
        "tokenizer.sha256 of tokenizer.pkl": _digest_file(os.path.join(base, "tokenizer", "tokenizer.pkl")),
        "data.shards": _shards(shards),
    }


def _digest_sources(folders: list[str]) -> str:
    digest = hashlib.sha256()
    for folder in folders:
        try:
            names = sorted(name for name in os.listdir(folder) if name.endswith(".py"))
        except OSError:
            continue
        for name in names:
            digest.update(("%s %s\n" % (name, _digest_file(os.path.join(folder, name)))).encode())
    return digest.hexdigest()[:16]


def _digest_file(path: str) -> str | None:
    try:
        with open(path, "rb") as file:
            return hashlib.sha256(file.read()).hexdigest()[:16]
    except OSError:
        return None


def _shards(folder: str) -> str | None:
    """Number, names and sizes: reading gigabytes here would cost more than it tells."""
    try:
        names = sorted(name for name in os.listdir(folder) if name.endswith(".parquet"))
        sizes = [os.path.getsize(os.path.join(folder, name)) for name in names]
    except OSError:
        return None
    digest = hashlib.sha256(repr(list(zip(names, sizes))).encode()).hexdigest()[:12]
    return "%d files, %d bytes, %s" % (len(names), sum(sizes), digest)
