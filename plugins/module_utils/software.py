# Copyright (c) 2026, torchlan contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The programs of this host and the Python environment that would train. torch is found, never imported."""

from __future__ import annotations

import glob
import json
import os
import re
import shutil
import sysconfig
from typing import Any

from ansible_collections.torchlan.nanochat.plugins.module_utils.asked import Asked, read_text

MARKER = ".torchlan.json"
# -I shuts out the current folder and PYTHONPATH. It shuts out user packages too, which only an interpreter outside of a
# virtual environment would see.
_QUESTION = """
import json, os, site, sys, sysconfig
path = list(sys.path)
if sys.prefix == sys.base_prefix:
    path.append(site.getusersitepackages())
headers = os.path.exists(os.path.join(sysconfig.get_paths()["include"], "Python.h"))
print(json.dumps({"version": "%d.%d.%d" % sys.version_info[:3], "path": path, "headers": headers}))
"""


def which(*names: str) -> str | None:
    """The first of these programs. ssh without a login shell has a short PATH, so usual places are tried as well."""
    usual = ("~/.local/bin", "~/.cargo/bin", "/usr/local/bin", "/usr/bin", "/snap/bin")
    path = os.pathsep.join([os.environ.get("PATH", ""), *map(os.path.expanduser, usual)])
    return next((there for there in (shutil.which(name, path=path) for name in names) if there), None)


def tools() -> dict[str, str | None]:
    """Where the programs are. torch.compile takes any C++ compiler of these."""
    found = {name: which(name) for name in ("tmux", "git", "uv")}
    return {**found, "compiler": which("g++", "c++", "clang++")}


def lacking(needs: list[str], headers: bool | None) -> list[str]:
    """What of C(tmux), C(git), C(compiler) and C(headers) is needed and not here.

    :param headers: whether the environment's interpreter has its C headers; C(None) when there is no environment yet,
        which this interpreter stands for then.
    """
    if headers is None:
        headers = os.path.exists(os.path.join(sysconfig.get_paths()["include"], "Python.h"))
    have: dict[str, Any] = {**tools(), "headers": headers}
    return [name for name in needs if not have[name]]


class Environment:
    """Asks the interpreter early; C(facts) reads the answer."""

    def __init__(self, python: str, marker_folder: str | None) -> None:
        self._python = python
        self._marker_folder = marker_folder
        self._asked: Asked | None = None
        if os.path.lexists(python):
            self._asked = Asked([python, "-I", "-c", _QUESTION], limit_s=10.0)

    def facts(self) -> dict[str, Any]:
        found: dict[str, Any] = {
            "python": self._python,
            "state": "absent",
            "problem": None,
            "version": None,
            "torch": None,
            "torch_build": None,
            "headers": None,
            "marker": read_marker(self._marker_folder),
        }
        if self._asked is None:
            found["problem"] = f"there is no {self._python}"
            return found
        found["state"] = "broken"
        text, problem = self._asked.answer()
        try:
            answer = json.loads(text) if text is not None else None
        except ValueError:
            answer, problem = None, "it printed something else than what it was asked"
        if not isinstance(answer, dict):
            found["problem"] = f"{self._python} does not run: {problem}"
            return found
        found["version"], found["headers"] = answer["version"], answer.get("headers")
        found["torch"], found["torch_build"], found["problem"] = torch_of(answer["path"])
        if found["torch"] and not found["problem"]:
            found["state"] = "ready"
        return found


def torch_of(folders: list[str]) -> tuple[str | None, str | None, str | None]:
    """torch's version without the local part, its build (C(cpu), C(cu128), C(rocm6.4)), and what is wrong with it."""
    for folder in folders:
        names = glob.glob(os.path.join(glob.escape(folder), "torch-*-info")) if folder else []
        for name in sorted(names):
            found = re.match(r"torch-([^-]+?)(?:-py[\d.]+)?\.(?:dist|egg)-info$", os.path.basename(name))
            if not found:
                continue
            version, _plus, build = found.group(1).replace("_", "+", 1).partition("+")
            source = read_text(os.path.join(folder, "torch", "version.py"))
            if source is None:
                return version, build or None, f"torch {version} in {folder} is incomplete"
            return version, build or _build(source), None
    return None, None, "torch is not installed in it"


def _build(source: str) -> str | None:
    """What torch/version.py says; wheels of the default index carry it only there."""
    named = re.search(r"^__version__\s*=\s*['\"][^'\"+]*\+([^'\"]+)['\"]", source, re.MULTILINE)
    if named:
        return named.group(1)
    for word, prefix in (("cuda", "cu"), ("hip", "rocm")):
        value = re.search(rf"^{word}\s*(?::[^=\n]*)?=\s*['\"]([^'\"]+)['\"]", source, re.MULTILINE)
        if value:
            return prefix + (value.group(1).replace(".", "") if prefix == "cu" else value.group(1))
    return "cpu" if re.search(r"^cuda\b", source, re.MULTILINE) else None


def read_marker(folder: str | None) -> dict[str, Any] | None:
    """What the environment in this folder was made from, by the collection's own note."""
    text = read_text(os.path.join(folder, MARKER)) if folder else None
    try:
        value = json.loads(text) if text else None
    except ValueError:
        return None
    return value if isinstance(value, dict) else None
