# Copyright (c) 2026, torchlan contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The collection's own tmux server: C(-L torchlan -f /dev/null), one session per run and node.

C(-t NAME) matches prefixes, so targets are C(=NAME:). C(new-session) succeeds when its program does not, so
remain-on-exit is set in the same command. C(-c) and C(-s) expand formats, which can run commands, so neither gets a
path. A socket path over about 100 characters fails.
"""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import time
from typing import Any

SOCKET = "torchlan"
_SOCKET_PATH_MAX = 100
_TIMEOUT_S = 10
_EXITING = ("server exited", "lost server")
_PLACES = "/usr/local/bin:/usr/bin:/bin:/opt/bin:/snap/bin:/usr/pkg/bin"
# A server that is started from inside another run or session must not hand that one's marks to its panes.
_NOT_INHERITED = ("TMUX", "TMUX_PANE", "RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")


class TmuxError(Exception):
    """tmux did not do it; the text is what it said."""


class Tmux:
    """Runs tmux with argv lists, never a shell."""

    def __init__(self, tmpdir: str | None = None) -> None:
        """
        :param tmpdir: the C(TMUX_TMPDIR) that a run was started with, to find it again from another environment.
        """
        wish = tmpdir if tmpdir is not None else os.environ.get("TMUX_TMPDIR")
        self.tmpdir = wish if wish and _usable(wish) else None
        self.program = shutil.which("tmux", path=os.environ.get("PATH", "") + ":" + _PLACES)
        self.environ = {
            key: value
            for key, value in os.environ.items()
            if key not in _NOT_INHERITED and not key.startswith(("TORCHLAN_", "TORCHELASTIC_"))
        }
        self.environ.pop("TMUX_TMPDIR", None)
        if self.tmpdir:
            self.environ["TMUX_TMPDIR"] = self.tmpdir

    def attach_command(self, session: str) -> str:
        """What a person types on the host, in an environment that may differ from ours."""
        prefix = ""
        if self.tmpdir:
            prefix = "TMUX_TMPDIR=%s " % shlex.quote(self.tmpdir)
        elif os.environ.get("TMUX_TMPDIR"):
            prefix = "env -u TMUX_TMPDIR "
        return "%stmux -L %s attach -t '=%s:'" % (prefix, SOCKET, session)

    def start(self, session: str, mark: str, command: list[str], cwd: str) -> None:
        """Start a detached session that keeps its pane when the command ends.

        :param mark: remembered in the session; C(mark_of) tells by it whose session this is.
        :raises TmuxError: no server, no such session afterwards, or no answer.
        """
        target = _target(session)
        argv = ["new-session", "-d", "-s", session, "-x", "200", "-y", "50", *command]
        argv += [";", "set-option", "-w", "-t", target, "remain-on-exit", "on"]
        argv += [";", "set-option", "-t", target, "@torchlan", mark]
        deadline = time.monotonic() + _TIMEOUT_S
        while True:
            try:
                self._run(argv, cwd=cwd)
                return
            except TmuxError as problem:
                # A server whose last session has just ended still takes connections while it exits.
                if not str(problem).startswith(_EXITING) or time.monotonic() > deadline:
                    raise

    def exists(self, session: str) -> bool:
        try:
            self._run(["has-session", "-t", _target(session)])
        except TmuxError:
            return False
        return True

    def mark_of(self, session: str) -> str | None:
        try:
            return self._run(["show-options", "-v", "-t", _target(session), "@torchlan"]).rstrip("\n") or None
        except TmuxError:
            return None

    def pane_is_dead(self, session: str) -> bool:
        """Whether the session's program has ended; also true when there is no such session."""
        try:
            return self._run(["display-message", "-p", "-t", _target(session), "#{pane_dead}"]).strip() == "1"
        except TmuxError:
            return True

    def screen(self, session: str) -> list[str]:
        try:
            text = self._run(["capture-pane", "-p", "-J", "-S", "-100", "-t", _target(session)])
        except TmuxError:
            return []
        return [line.rstrip() for line in text.splitlines() if line.strip()][-30:]

    def kill(self, session: str) -> bool:
        """
        :returns: whether there was a session to kill.
        """
        try:
            self._run(["kill-session", "-t", _target(session)])
        except TmuxError:
            return False
        return True

    def _run(self, argv: list[str], **more: Any) -> str:
        if self.program is None:
            raise TmuxError("tmux is not installed")
        try:
            done = subprocess.run(  # pylint: disable=ansible-bad-function
                [self.program, "-L", SOCKET, "-f", "/dev/null", *argv],
                env=self.environ,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                timeout=_TIMEOUT_S,
                check=False,
                start_new_session=True,
                **more,
            )
        except subprocess.TimeoutExpired:
            raise TmuxError("tmux did not answer within %d s" % _TIMEOUT_S) from None
        except OSError as problem:
            raise TmuxError(str(problem)) from problem
        if done.returncode != 0:
            raise TmuxError(done.stderr.decode("utf-8", "replace").strip() or "exit status %d" % done.returncode)
        return done.stdout.decode("utf-8", "replace")


def _target(session: str) -> str:
    return "=%s:" % session


def _usable(tmpdir: str) -> bool:
    """Whether tmux can have its socket there; it would fall back or fail by itself, differently in each version."""
    path = os.path.join(os.path.realpath(tmpdir), "tmux-%d" % os.geteuid(), SOCKET)
    return os.path.isdir(tmpdir) and len(os.fsencode(path)) <= _SOCKET_PATH_MAX
