# Copyright (c) 2026, torchlan contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The environment that pip makes: a virtual environment of the collection's own beside the checkout.

pip comes from the controller, as Debian's python3 has none; it makes wheels of everything once, and every host
installs exactly those.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil

from ansible_collections.torchlan.nanochat.plugins.module_utils.background import Progress
from ansible_collections.torchlan.nanochat.plugins.module_utils.environments import (
    Environment,
    Lacking,
    Stop,
    digest,
)
from ansible_collections.torchlan.nanochat.plugins.module_utils.interpreters import Python, same_minor
from ansible_collections.torchlan.nanochat.plugins.module_utils.packages import hint
from ansible_collections.torchlan.nanochat.plugins.module_utils.workdir import last_lines, redact, run, write_atomic

_BEGUN = ".torchlan-begun"
_LOG = ".torchlan-install.log"
_INDEX = "nanochat_install_env: https_proxy; nanochat_pip_args: an --index-url that the host reaches"
# What pip prints, and what a person can do about it.
_PIP_TEXTS = (
    ("no space left on device", "free disk space on the host"),
    ("name resolution", _INDEX),
    ("connection", _INDEX),
    ("timed out", "nanochat_pip_args: an --index-url that is nearer to the host"),
    ("no matching distribution", "nanochat_pip_args: an --index-url or --find-links with it; another nanochat_torch"),
    ("resolutionimpossible", "nanochat_torch: a version that fits the other requirements"),
    ("certificate", "nanochat_install_env: PIP_CERT or SSL_CERT_FILE"),
)
# Words of pip and uv that mean that the host does not reach an index at all.
NO_WAY_OUT = re.compile(
    r"name resolution|name or service not known|dns error|newconnectionerror|connection (refused|error)"
    r"|network is unreachable|no route to host|connect ?timeout|connection.{0,40}timed out|error sending request",
    re.IGNORECASE,
)


class PipEnvironment(Environment):
    """Also the smoke workload's, which needs torch and numpy only."""

    method = "pip"

    def wanted(self) -> list[str]:
        if self.smoke:
            return [self.given.get("torch") or "torch", "numpy"]
        return list(self.given.get("requirements") or [])

    def action(self) -> str:
        wanted = self.wanted()
        for line in wanted:
            if line.startswith("-") or not line.strip():
                raise Stop("install_failed", f"{line!r} is no requirement")
        if not wanted:
            raise Stop("install_failed", "there are no requirements to install; the action gets them from the source")
        marker = self.marker()
        if self.smoke and self._smoke_fits():
            self.base = Python(self.python)
            return "none"
        if marker is None and self._foreign():
            raise Stop(
                "install_failed",
                f"{self.venv} was not made by this collection, which leaves it alone",
                f"use it: nanochat_install_method=existing and nanochat_python={self.python}; or remove it",
            )
        current = Python(self.python) if marker is not None else None
        if marker is None or current is None or not current.version or not same_minor(marker, current):
            self.base = self.choose(None)
            return "create"
        self.base = self.choose(current)
        return "none" if marker.get("digest") == digest(wanted, current.version) else "update"

    def _foreign(self) -> bool:
        """Whether there is something that nobody but the user can have put there."""
        if not os.path.lexists(self.venv) or os.path.exists(os.path.join(self.venv, _BEGUN)):
            return False
        return not os.path.isdir(self.venv) or bool(os.listdir(self.venv))

    def _smoke_fits(self) -> bool:
        """The smoke workload is content with any environment here that has its torch: it shall not undo nanochat's."""
        if not os.path.lexists(self.python):
            return False
        if os.path.exists(os.path.join(self.venv, _BEGUN)) and not os.path.exists(self.marker_path):
            return False
        asked = self.given.get("torch")
        pinned = re.match(r"\s*torch\s*==\s*([^\s,;]+)\s*\Z", asked or "")
        have = self.torch()
        if not have or not Python(self.python).version:
            return False
        if pinned:
            return pinned.group(1) in (have, have.partition("+")[0])
        return not asked or (self.marker() or {}).get("requirements") == [asked, "numpy"]

    def _pip(self, python: str) -> list[str]:
        """How this host runs pip: the one from the controller, or the environment's own."""
        if self.given.get("pip"):
            return [python, os.path.join(self.given["pip"], "pip")]
        if run([python, "-m", "pip", "--version"])[0] == 0:
            return [python, "-m", "pip"]
        raise Lacking("pip")

    def _run(self, progress: Progress, argv: list[str], what: str, env: dict[str, str] | None = None) -> None:
        common = {"PYTHONNOUSERSITE": "1", "PIP_USER": "0", "PIP_NO_INPUT": "1", "PIP_DISABLE_PIP_VERSION_CHECK": "1"}
        os.makedirs(self.path, exist_ok=True)
        code, text = progress.run(argv, env={**common, **self.env, **(env or {})}, cwd=self.path)
        if os.path.isdir(self.venv):
            with contextlib.suppress(OSError):
                log = os.path.join(self.venv, _LOG)
                write_atomic(log, redact(text).encode("utf-8", "replace"), 0o600)
        if code:
            lowered = text.lower()
            fix = next((fix for words, fix in _PIP_TEXTS if words in lowered), None)
            code_ = "index_unreachable" if NO_WAY_OUT.search(text) else "install_failed"
            raise Stop(code_, f"{what} ended with {code}:\n{last_lines(text)}", fix)

    def fetch(self, progress: Progress) -> None:
        house = self.house
        work = os.path.join(house.folder, ".fetching")
        shutil.rmtree(work, ignore_errors=True)
        # pip writes downloads to its temporary folder first: there, what has come so far can be seen.
        temporary = os.path.join(work, "tmp")
        os.makedirs(temporary)
        progress.say("pip looks for what is needed")
        argv = [*self._pip(self.chosen.path), "wheel", "--progress-bar=off", "--wheel-dir", work]
        argv += [*list(self.given.get("pip_args") or []), "--", *self.wanted()]
        try:
            self._run(progress, argv, "pip wheel", {"TMPDIR": temporary})
            names = [name for name in os.listdir(work) if name.endswith(".whl")]
            for name in names:
                os.replace(os.path.join(work, name), os.path.join(house.folder, name))
        finally:
            shutil.rmtree(work, ignore_errors=True)
        progress.say("computing checksums")
        house.seal(names)

    def install(self, progress: Progress) -> None:
        wheels = self.house.paths(".whl")
        if not wheels:
            raise Stop("install_failed", f"{self.house.folder} lacks the wheels for this environment", "run it again")
        fresh = self.action() == "create"
        if fresh:
            self._create(progress)
        previous = self.marker()
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self.marker_path)
        write_atomic(os.path.join(self.venv, _BEGUN), b"")
        progress.say("pip installs the wheels")
        pip = self.given.get("pip") or ""
        own = [pip] if pip.endswith(".whl") and fresh else []
        argv = [*self._pip(self.python), "install", "--progress-bar=off", "--no-index", "--no-deps", "--no-compile"]
        try:
            self._run(progress, [*argv, *own, *wheels], "pip install")
        except Stop:
            if previous is not None:
                # pip gave up in order: what was there works still, and is put right in place next time.
                self.mark_broken(previous)
            raise
        self.finish(progress)

    def mark_broken(self, previous: dict[str, object]) -> None:
        """It is ours and works, and is not what it should be."""
        content = {**previous, "digest": None, "requirements": []}
        write_atomic(self.marker_path, json.dumps(content, indent=1).encode() + b"\n")

    def _create(self, progress: Progress) -> None:
        """An empty environment. Before anything else is written, it is known to be ours, even when it breaks."""
        progress.say(f"making {self.venv}")
        if os.path.islink(self.venv):
            os.unlink(self.venv)
        elif os.path.isdir(self.venv):
            shutil.rmtree(self.venv)
        os.makedirs(self.venv)
        write_atomic(os.path.join(self.venv, _BEGUN), b"")
        bare = ["--without-pip"] if self.given.get("pip") else []
        code, text = run([self.chosen.path, "-I", "-m", "venv", *bare, self.venv], timeout=600)
        if code and not bare and "ensurepip" in text:
            shutil.rmtree(self.venv)
            raise Lacking("pip")
        if code:
            what = f"{self.chosen.path} -m venv failed: {last_lines(text, 4)}"
            raise Stop("venv_missing", what, hint(["venv"]))
