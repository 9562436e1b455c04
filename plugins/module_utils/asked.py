# Copyright (c) 2026, torchlan contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Programs that are asked for one fact: started early, read late, never waited for without a limit."""

from __future__ import annotations

import os
import subprocess
import time


class Asked:
    """A started program. Several run at once; C(answer) collects one of them."""

    def __init__(self, argv: list[str], limit_s: float = 10.0, extra_env: dict[str, str] | None = None) -> None:
        self._until = time.monotonic() + limit_s
        self._limit_s = limit_s
        self._process: subprocess.Popen[bytes] | None = None
        self._problem: str | None = None
        # What git is told by the caller's environment, in a hook for example, is about another checkout.
        inherited = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
        env = {**inherited, "LC_ALL": "C", **(extra_env or {})}
        try:
            # run_command of AnsibleModule waits for each program; here several run at once, each with a limit.
            self._process = subprocess.Popen(  # pylint: disable=ansible-bad-function
                argv,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                cwd="/",
                env=env,
                start_new_session=True,
            )
        except (OSError, ValueError) as problem:
            self._problem = str(problem)

    def answer(self) -> tuple[str | None, str]:
        """What it printed, and C(""); or C(None) and why there is no answer."""
        if self._process is None:
            return None, self._problem or "did not start"
        try:
            out, err = self._process.communicate(timeout=max(0.01, self._until - time.monotonic()))
        except subprocess.TimeoutExpired:
            self._process.kill()
            return None, f"no answer within {self._limit_s:g} s"
        if self._process.returncode != 0:
            words = " ".join(err.decode("utf-8", "replace").split())[-300:]
            return None, words or f"ended with {self._process.returncode}"
        return out.decode("utf-8", "surrogateescape"), ""


def read_text(path: str, limit: int = 65536) -> str | None:
    """A small text file, stripped; C(None) where it cannot be read."""
    try:
        with open(path, "rb") as file:
            return file.read(limit).decode("utf-8", "replace").strip()
    except (OSError, ValueError):
        return None
