# Copyright (c) 2026, torchlan contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What every kind of Python environment on a host has in common: where it is, what it was made from, who may touch it.

Making one has three steps, so that the slow line carries each file once: C(look) says what is needed, C(fetch) brings
the files to this host's wheelhouse, C(install) makes the environment from the wheelhouse alone.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import shlex
import shutil
import tarfile
from typing import Any

from ansible_collections.torchlan.nanochat.plugins.module_utils import in_use, software
from ansible_collections.torchlan.nanochat.plugins.module_utils.background import Progress
from ansible_collections.torchlan.nanochat.plugins.module_utils.causes import cause
from ansible_collections.torchlan.nanochat.plugins.module_utils.interpreters import Python, best, interpreters
from ansible_collections.torchlan.nanochat.plugins.module_utils.packages import hint
from ansible_collections.torchlan.nanochat.plugins.module_utils.wheelhouse import Wheelhouse, key_of
from ansible_collections.torchlan.nanochat.plugins.module_utils.workdir import (
    answer,
    expand,
    last_lines,
    locked,
    run,
    sha256_file,
    write_atomic,
)

SCHEMA = 1
OLDEST = (3, 10)  # nanochat's pyproject.toml
OLDEST_SHOWN = "3.10"


class Stop(Exception):
    """Cannot go on; carries the cause."""

    def __init__(self, code: str, what: str, fix: str | None = None) -> None:
        super().__init__(what)
        self.cause = cause(code, what, fix)


class Lacking(Exception):
    """A program of the controller's is needed first: C(pip) or C(uv)."""


class InUse(Exception):
    """A live run uses it; its causes are noted."""


class Environment:
    """The settings of a host, and what is there. A subclass knows how its kind is made."""

    method = ""

    def __init__(self, given: dict[str, Any], check_mode: bool = False) -> None:
        self.given = given
        self.check_mode = check_mode
        self.path = expand(given["path"])
        self.venv = os.path.join(self.path, ".venv")
        self.python = os.path.join(self.venv, "bin", "python")
        self.marker_path = os.path.join(self.venv, software.MARKER)
        self.env: dict[str, str] = json.loads(given["env"]) if given.get("env") else {}
        self.causes: list[dict[str, Any]] = []
        self.smoke = given.get("source") == "smoke"
        self.base: Python | None = None  # the interpreter that it is or will be made with

    # what a kind of environment defines

    def wanted(self) -> list[str]:
        """What it is made from, one entry a line."""
        raise NotImplementedError

    def action(self) -> str:
        """C(none), C(create) or C(update); sets C(base)."""
        raise NotImplementedError

    def fetch(self, progress: Progress) -> None:
        """Bring the files to the wheelhouse."""
        raise NotImplementedError

    def install(self, progress: Progress) -> None:
        """Make it from the wheelhouse, without the network."""
        raise NotImplementedError

    # the steps of the module

    def step(self, step: str, progress: Progress) -> dict[str, Any]:
        """Do one step; the module's result."""
        try:
            if self.check_mode or step == "look":
                return self._look()
            progress.say(f"waiting for another launch that works on {self.venv}")
            with locked(self.venv):
                return self._do(step, progress)
        except Stop as stop:
            self.causes.append(stop.cause)
        except InUse:
            pass
        except Lacking as lacking:
            return self.result("none", lacking=str(lacking))
        except OSError as problem:
            self.causes.append(cause("install_failed", f"{self.venv}: {problem}"))
        return self.result("none")

    def _look(self) -> dict[str, Any]:
        action = self.action()
        self._refuse_while_in_use(action)
        found = self.result(action, needed=action != "none")
        return {**found, "changed": self.check_mode and action != "none"}

    def _refuse_while_in_use(self, action: str) -> None:
        if action != "none":
            self.causes += in_use.of_checkout(self.path)
            if self.causes:
                raise InUse

    def _do(self, step: str, progress: Progress) -> dict[str, Any]:
        action = self.action()
        self._refuse_while_in_use(action)
        if step == "fetch":
            if self.given.get("incoming"):
                self._take(self.given["incoming"], self.given["manifest"])
            elif self.house.files() is None:
                self._fetch(progress)
            else:
                return self.result("none")
            return self.result("fetch")
        if action == "none":
            return self.result("none")
        if step == "make" and self.house.files() is None:
            self._fetch(progress)
        if self.given.get("manifest"):
            self.house.accept(self.given["manifest"])
        self.install(progress)
        return self.result(action)

    def _fetch(self, progress: Progress) -> None:
        progress.folder = self.house.folder
        self.fetch(progress)
        progress.folder = None

    def _take(self, incoming: str, manifest: list[dict[str, Any]]) -> None:
        """Take what the controller copied into the wheelhouse, each file only if it is whole."""
        folder = self.house.folder
        os.makedirs(folder, exist_ok=True)
        try:
            with tarfile.open(incoming) as archive:
                for entry in manifest:
                    part = os.path.join(folder, entry["name"] + ".part")
                    with archive.extractfile(entry["name"]) or io.BytesIO() as source, open(part, "wb") as target:
                        shutil.copyfileobj(source, target, 1 << 20)
                    if os.path.getsize(part) != entry["size"] or sha256_file(part) != entry["sha256"]:
                        raise Stop("install_failed", f"{entry['name']} arrived damaged", "run it again")
                    os.replace(part, os.path.join(folder, entry["name"]))
        except (tarfile.TarError, EOFError, KeyError) as problem:
            raise Stop(
                "install_failed", f"what the controller sent arrived damaged: {problem}", "run it again"
            ) from None
        self.house.accept(manifest)

    @property
    def chosen(self) -> Python:
        """The interpreter that C(action) has chosen."""
        if self.base is None:
            raise Stop("environment_missing", "no interpreter was chosen")
        return self.base

    @property
    def house(self) -> Wheelhouse:
        """The wheelhouse for what is wanted; C(action) must have chosen the interpreter."""
        key = key_of(self.method, self.wanted(), self.chosen.platform)
        return Wheelhouse(expand(self.given["base_dir"]), key)

    def _house_facts(self) -> dict[str, Any]:
        """What the verdict needs to know to let the files be fetched once."""
        if self.base is None:
            return {}
        house = self.house
        return {
            "key": os.path.basename(house.folder),
            "folder": house.folder,
            "files": house.files(),
            "platform": self.base.platform,
        }

    def result(self, action: str, **more: Any) -> dict[str, Any]:
        """The module's result; what is wrong is data in it."""
        found: dict[str, Any] = {"python": self.python, "action": action}
        failed = any(entry["weight"] == "error" for entry in self.causes)
        there = os.path.lexists(self.python) and not failed
        python = Python(self.python) if there else self.base
        if python is not None and python.version:
            found["version"] = python.shown
            found["torch"] = self.torch() if there else None
        return answer(action != "none", self.causes, **{**found, **self._house_facts(), **more})

    def torch(self, python: str | None = None) -> str | None:
        """Version and build of its torch."""
        facts = software.Environment(python or self.python, None).facts()
        if not facts["torch"] or facts["problem"]:
            return None
        return str(facts["torch"]) + ("+" + str(facts["torch_build"]) if facts["torch_build"] else "")

    def finish(self, progress: Progress) -> None:
        """See that torch works here, which compiles the bytecode that every start needs; then note what was made."""
        progress.say("importing torch for the first time")
        code, text = run([self.python, "-c", "import torch"], env={"PYTHONDONTWRITEBYTECODE": ""}, cwd="/")
        if code:
            raise Stop("install_failed", f"torch was installed and does not work:\n{last_lines(text)}")
        self._mark(self.wanted())

    def _mark(self, wanted: list[str]) -> None:
        version = Python(self.python).version
        content = {
            "schema": SCHEMA,
            "method": self.method,
            "digest": digest(wanted, version),
            "requirements": wanted,
            "python": list(version),
        }
        write_atomic(self.marker_path, json.dumps(content, indent=1).encode() + b"\n")

    def marker(self) -> dict[str, Any] | None:
        """What it was made from."""
        return software.read_marker(self.venv) if os.path.isdir(self.venv) else None

    # interpreters

    def check_age(self, python: Python) -> None:
        """Refuse what nanochat does not run on."""
        if python.version < OLDEST and not self.smoke:
            what = f"{python.path} is Python {python.shown}; nanochat needs {OLDEST_SHOWN} or newer"
            raise Stop("environment_missing", what, "nanochat_python: a newer interpreter of this host")

    def choose(self, current: Python | None) -> Python:
        """The interpreter to make the environment with; the environment's own, when that stays."""
        if current is not None and not self.given.get("python"):
            return current
        if self.given.get("python"):
            python = Python(self.given_python())
            if python.problem:
                raise Stop("environment_missing", f"nanochat_python: {python.path} does not run: {python.problem}")
            self.check_age(python)
            if not python.makes_venvs and current is None:
                raise _no_venv(python)
            return current or python
        found = [python for python in (Python(path) for path in interpreters()) if python.version]
        usable = [python for python in found if self.smoke or python.version >= OLDEST]
        able = [python for python in usable if python.makes_venvs]
        if able:
            return best(able)
        if usable:
            raise _no_venv(usable[0])
        seen = ", ".join(sorted({python.shown for python in found})) or "none"
        raise Stop(
            "environment_missing",
            f"nanochat needs Python {OLDEST_SHOWN} or newer; this host has: {seen}",
            "install a newer python3, or set nanochat_python",
        )

    def given_python(self) -> str:
        """C(nanochat_python) as a path."""
        path = str(self.given["python"])
        return expand(path) if "/" in path or path.startswith("~") else software.which(path) or path


class Existing(Environment):
    """An environment of the user's: looked at, never changed."""

    method = "existing"

    def step(self, step: str, progress: Progress) -> dict[str, Any]:
        """The same for every step."""
        try:
            if not self.given.get("python"):
                raise Stop("environment_missing", "nanochat_install_method is existing, and nanochat_python is not set")
            self.python = expand(self.given["python"])
            python = Python(self.python)
            if python.problem:
                there = os.path.lexists(self.python)
                what = f"{self.python} does not run: {python.problem}" if there else f"there is no {self.python}"
                raise Stop("environment_missing", what, "nanochat_python: an interpreter that has torch")
            self.check_age(python)
            if not self.torch():
                fix = f"{shlex.quote(self.python)} -m pip install torch"
                raise Stop("environment_missing", f"{self.python} has no torch", fix)
        except Stop as stop:
            self.causes.append(stop.cause)
        return self.result("none", needed=False)


def _no_venv(python: Python) -> Stop:
    what = f"{python.path} (Python {python.shown}) cannot make virtual environments: it lacks venv"
    return Stop("venv_missing", what, hint(["venv"]))


def digest(wanted: list[str], version: tuple[int, ...]) -> str:
    """What an environment was made from, as one word."""
    text = json.dumps([sorted(wanted), list(version[:2])])
    return hashlib.sha256(text.encode()).hexdigest()
