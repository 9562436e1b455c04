# Copyright (c) 2026, torchlan contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Base of the action plugins that work on a host: failure is data.

A dead host, an ssh prompt or a broken module must not end the play before C(verdict) has seen all hosts. So such an
action always succeeds; what went wrong is in its result under C(nanochat_lost), and C(verdict) decides.
"""

from __future__ import annotations

import contextlib
import os
import re
import tempfile
import threading
import time
from collections.abc import Iterator
from typing import Any

from ansible.errors import AnsibleConnectionFailure, AnsibleError
from ansible.plugins.action import ActionBase

from ansible_collections.torchlan.nanochat.plugins.module_utils.causes import cause, errors

# What ssh and sudo print, and what it means. The order matters: the first that fits.
_SSH_TEXTS = (
    ("host key verification failed", "host_key_unknown"),
    ("remote host identification has changed", "host_key_unknown"),
    ("permission denied", "ssh_refused"),
    ("too many authentication failures", "ssh_refused"),
    ("missing sudo password", "sudo_password"),
    ("a password is required", "sudo_password"),
    ("incorrect sudo password", "sudo_password"),
)
# What a shell or Ansible says where there is no Python, or an old one; a traceback may name an interpreter too.
_NO_PYTHON = re.compile(
    r"module interpreter .* not found"
    r"|python[0-9.]*['\"]?: (not found|command not found|no such file)"
    r"|requires (a minimum of )?python",
    re.IGNORECASE,
)


class RemoteAction(ActionBase):
    """Runs the module of the same name on the host. A subclass overrides C(work) to do more than that."""

    def run(self, tmp: str | None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        result: dict[str, Any] = super().run(tmp, task_vars)
        started = self._said = time.monotonic()
        self._task_host = str((task_vars or {}).get("inventory_hostname", ""))
        keep_alive(self._connection)
        try:
            result.update(self.work(dict(self._task.args), task_vars or {}))
        except Lost as lost:
            result.update(changed=False, nanochat_lost=lost.cause)
        finally:
            self._remove_tmp_path(self._connection._shell.tmpdir)
        result["ok"] = "nanochat_lost" not in result and not errors(result.get("causes", []))
        result["seconds"] = round(time.monotonic() - started, 3)
        return result

    def work(self, args: dict[str, Any], task_vars: dict[str, Any]) -> dict[str, Any]:
        """What this action does on its host; the default is the module with the task's own arguments."""
        return self.remote(args, task_vars)

    def remote(
        self, module_args: dict[str, Any], task_vars: dict[str, Any], module: str | None = None
    ) -> dict[str, Any]:
        """Run the module of this action's name, or another one.

        :raises Lost: the host could not be reached or the module broke; C(run) turns it into data.
        """
        host = task_vars["inventory_hostname"]
        try:
            result = self._execute_module(
                module_name=module or self._task.action, module_args=module_args, task_vars=task_vars
            )
        except AnsibleConnectionFailure as problem:
            raise Lost(_ssh_cause(host, str(problem), connection_of(self._templar, task_vars))) from problem
        except AnsibleError as problem:
            raise Lost(_module_cause(host, str(problem))) from problem
        if result.get("unreachable"):
            raise Lost(_ssh_cause(host, str(result.get("msg", "")), connection_of(self._templar, task_vars)))
        if result.get("failed"):
            raise Lost(_module_cause(host, " ".join(_texts(result))))
        return dict(result)

    def patient(self, module_args: dict[str, Any], task_vars: dict[str, Any]) -> dict[str, Any]:
        """Run a module whose work may take minutes (C(module_utils/background.py)), telling its progress."""
        result = self.remote(module_args, task_vars)
        shown = ""
        while "job" in result:
            text = result["progress"].rpartition(", ")[0]  # without the seconds
            self.say(result["progress"], every_s=30 if text == shown else 8)
            shown = text
            result = self.remote({**module_args, "job": result["job"]}, task_vars)
        return result

    def say(self, text: str, every_s: float = 0) -> None:
        """Tell a person what is going on on this host; with C(every_s), not more often than that."""
        now = time.monotonic()
        if now - self._said >= every_s:
            self._said = now
            self._display.display(f"{self._task_host}: {text}")

    @contextlib.contextmanager
    def ticking(self, text: str) -> Iterator[None]:
        """Say every 15 s that a module of somebody else's is still at work."""
        done, began = threading.Event(), time.monotonic()

        def tick() -> None:
            while not done.wait(15):
                self.say(f"{text}, {time.monotonic() - began:.0f} s")

        ticker = threading.Thread(target=tick, daemon=True)
        ticker.start()
        try:
            yield
        finally:
            done.set()
            ticker.join()

    def put(self, source: str | bytes, remote_path: str) -> None:
        """Copy a file of the controller (a path) or bytes to C(remote_path) on the host.

        :raises Lost: the connection broke; what is at C(remote_path) then is not to be trusted.
        """
        try:
            if isinstance(source, bytes):
                with tempfile.NamedTemporaryFile(prefix="torchlan-") as file:
                    file.write(source)
                    file.flush()
                    self._connection.put_file(file.name, remote_path)
            else:
                self._connection.put_file(os.path.abspath(source), remote_path)
        except (AnsibleConnectionFailure, AnsibleError) as problem:
            raise Lost(
                cause("host_unreachable", f"the copy to {remote_path} broke: {short(str(problem))}")
            ) from problem


def keep_alive(connection: Any) -> None:
    """Let ssh notice within 20 s that a host is gone.

    Ansible keeps connections open. When a cable is pulled, the next task would wait on the old one for a quarter of an
    hour, ConnectTimeout or not. What the user has set about it stays.
    """
    if str(getattr(connection, "transport", "")) != "ssh":
        return
    names = ("ssh_args", "ssh_common_args", "ssh_extra_args")
    given = {name: connection.get_option(name) or "" for name in names}
    if not any("ServerAliveInterval" in words for words in given.values()):
        words = f"{given['ssh_extra_args']} -o ServerAliveInterval=5 -o ServerAliveCountMax=4"
        connection.set_option("ssh_extra_args", words.strip())


class Lost(Exception):
    """The host did not answer as a host of the cluster should; carries the cause."""

    def __init__(self, lost_cause: dict[str, Any]) -> None:
        super().__init__(lost_cause["what"])
        self.cause = lost_cause


def _texts(result: dict[str, Any]) -> list[str]:
    return [str(result[key]) for key in ("msg", "module_stderr", "module_stdout") if result.get(key)]


def short(text: str, limit: int = 300) -> str:
    """On one line, and not longer than that."""
    text = " ".join(text.split())
    return text if len(text) <= limit else text[: limit - 1] + "…"


def connection_of(templar: Any, task_vars: dict[str, Any]) -> dict[str, Any]:
    """How the host is reached: these variables are templates until somebody asks."""
    found: dict[str, Any] = {}
    for name in ("ansible_connection", "ansible_host", "ansible_user", "ansible_port"):
        try:
            if name in task_vars:
                found[name] = templar.template(task_vars[name])
        except AnsibleError:
            continue  # it is for ssh to say what it could not use
    return found


def _ssh_cause(host: str, text: str, connection: dict[str, Any]) -> dict[str, Any]:
    lowered = text.lower()
    code = next((code for words, code in _SSH_TEXTS if words in lowered), "host_unreachable")
    address = connection.get("ansible_host", host)
    user = connection.get("ansible_user")
    target = f"{user}@{address}" if user else str(address)
    fixes = {
        "host_key_unknown": f"compare the fingerprint with the host's, then: {_know(target, str(address), lowered)}",
        "ssh_refused": f"ssh-copy-id {target}",
        "host_unreachable": f"is it on, and at this address? try: ssh {target}",
    }
    return cause(code, f"{host} ({address}): {short(text)}", fixes.get(code), host=host)


def _know(target: str, address: str, text: str) -> str:
    """How a host key becomes known; one that has changed must go first."""
    forget = f"ssh-keygen -R {address} && " if "has changed" in text else ""
    return f"{forget}ssh {target}"


def _module_cause(host: str, text: str) -> dict[str, Any]:
    lowered = text.lower()
    code = next((code for words, code in _SSH_TEXTS if words in lowered and code == "sudo_password"), None)
    if code is None and _NO_PYTHON.search(text):
        code = "python_missing"
    return cause(code or "module_failed", f"{host}: {short(text)}", host=host)
