# Copyright (c) 2026, torchlan contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Action of torchlan.nanochat.collect: brings a host's part of a run, and checkpoints, to the controller."""

from __future__ import annotations

import base64
import json
import shlex
import time
import zlib
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from ansible.errors import AnsibleConnectionFailure

from ansible_collections.torchlan.nanochat.plugins.module_utils.causes import cause
from ansible_collections.torchlan.nanochat.plugins.plugin_utils import collected
from ansible_collections.torchlan.nanochat.plugins.plugin_utils.remote import Lost, RemoteAction, short

_TRIES = 3  # a checkpoint may be deleted, a log begin anew, between the look and the last piece


class ActionModule(RemoteAction):
    """The module looks, weighs and masks; what came is written here."""

    def work(self, args: dict[str, Any], task_vars: dict[str, Any]) -> dict[str, Any]:
        self._host, self._vars = str(task_vars["inventory_hostname"]), task_vars
        self._report_dir = str(args.pop("folder"))
        self._run = str(args["run"])
        self._where = {name: args[name] for name in ("run", "base_dir", "node_rank")}
        others = args.pop("collected", None)
        if not args.get("checkpoints"):
            args.pop("checkpoints", None)
        try:
            return self._attempts(args) if others is None else self._checkpoint(args["checkpoints"], others)
        except OSError as problem:
            what = f"what comes from {self._host} cannot be written to {problem.filename}: {problem.strerror}"
            raise Lost(cause("path_invalid", what, host=self._host)) from problem
        except ValueError as problem:
            raise Lost(cause("module_failed", f"{self._host}: {problem}", host=self._host)) from problem

    def _attempts(self, args: dict[str, Any]) -> dict[str, Any]:
        """Until the log that came is the one that was looked at."""
        folder = collected.host_folder(self._report_dir, self._run, self._host)
        tries = 0
        while True:
            tries += 1
            with self.ticking("reads what there is of the run"):
                seen, asked = self.remote(args, self._vars), time.time()
            if not seen["attempts"]:
                what = f"{self._host}: no run {self._run} in {seen['where']}"
                raise Lost(cause("run_absent", what, host=self._host, weight="warning"))
            about = {"host": self._host, "clock_ahead_s": round(seen["clock"] - asked, 1), **self._where}
            more = {"node_rank": int(args["node_rank"]), "checkpoints": seen.get("checkpoints")}
            try:
                return {**self._write(folder, seen["attempts"], about), **more}
            except collected.Changed as problem:
                if tries == _TRIES:
                    what = f"{self._host}: {problem} changes faster than it can be read"
                    raise Lost(cause("module_failed", what, host=self._host, weight="warning")) from problem

    def _write(self, folder: Path, attempts: list[dict[str, Any]], about: dict[str, Any]) -> dict[str, Any]:
        changed, fetched = False, 0
        for attempt in attempts:
            here = folder / attempt["attempt"]
            for name, text in collected.unpack(attempt["texts"]).items():
                changed |= not self._task.check_mode and collected.write_text(here / name, text)
            for wanted in attempt["files"]:
                masked = partial(self._masked, attempt["attempt"], wanted["size"])
                fetched += self._bring(here / wanted["name"], wanted, masked)
            changed |= self._task.check_mode and not here.exists()
        if not self._task.check_mode and (changed or fetched):
            collected.write_text(folder / collected.ABOUT, json.dumps(about) + "\n")
        return self._told(folder, changed, fetched, attempts=[attempt["attempt"] for attempt in attempts])

    def _checkpoint(self, wanted: str, others: dict[str, Any]) -> dict[str, Any]:
        choice = collected.choice(others, wanted)
        mine = [name for name, node in choice.source.items() if node == int(self._where["node_rank"])]
        folder = collected.run_folder(self._report_dir, self._run) / "checkpoints"
        fetched = 0
        if mine:
            with self.ticking("computes the digests of its part of the checkpoint"):
                weighed = self.remote({**self._where, "step": "weigh", "names": mine}, self._vars)
            for one in weighed["files"]:
                try:
                    fetched += self._bring(folder / one["name"], one, partial(self._raw, one["path"]))
                except collected.Changed as problem:
                    what = f"{self._host}: {problem} is not what it was a moment ago"
                    raise Lost(cause("module_failed", what, host=self._host, weight="warning")) from problem
        return self._told(folder, False, fetched, chosen=choice.step, why_not=choice.skipped)

    def _told(self, folder: Path, changed: bool, fetched: int, **more: Any) -> dict[str, Any]:
        files, size = collected.content(folder)
        found = {"folder": str(folder), "files": files, "bytes": size, "bytes_read": fetched}
        return {"changed": changed or fetched > 0, **found, **more}

    def _masked(self, attempt: str, size: int, offset: int, count: int) -> bytes:
        """A piece of a log, by the module, which masks it."""
        piece = {"step": "read", "attempt": attempt, "offset": offset, "count": count, "size": size}
        return zlib.decompress(base64.b64decode(self.remote({**self._where, **piece}, self._vars)["data"]))

    def _raw(self, path: str, offset: int, count: int) -> bytes:
        """A piece of a checkpoint, by the shell, which is several times as fast."""
        command = f"tail -c +{offset + 1} {shlex.quote(path)} | head -c {count} | base64"
        try:
            done = self._low_level_execute_command(command, sudoable=False)
        except AnsibleConnectionFailure as problem:
            what = f"{self._host}: {short(str(problem))}"
            raise Lost(cause("host_unreachable", what, host=self._host)) from problem
        return base64.b64decode(done["stdout"])

    def _bring(self, path: Path, wanted: dict[str, Any], piece: Callable[[int, int], bytes]) -> int:
        """:returns: bytes that came, or in check mode would come."""
        if self._task.check_mode:
            return 0 if collected.same(path, wanted) else int(wanted["size"])

        def read(offset: int, count: int) -> bytes:
            self.say(f"{path.name} {offset / 1e6:.0f} of {wanted['size'] / 1e6:.0f} MB", every_s=8)
            return piece(offset, count)

        while True:
            try:
                return collected.bring(path, wanted, read)
            except collected.Busy:
                self.say(f"waits for another process here, which brings {path.name}", every_s=15)
                time.sleep(0.5)
