# Copyright (c) 2026, torchlan contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Action of torchlan.nanochat.dataset: one host's steps, with progress, and the copies that the controller sends."""

from __future__ import annotations

import base64
import hashlib
import json
import os
import time
from typing import Any

from ansible_collections.torchlan.nanochat.plugins.module_utils.causes import cause
from ansible_collections.torchlan.nanochat.plugins.plugin_utils import settings as settings_util
from ansible_collections.torchlan.nanochat.plugins.plugin_utils import shards
from ansible_collections.torchlan.nanochat.plugins.plugin_utils.deliver import DeliveringAction, absolute, first_error

# Copied files are taken into place after so many bytes: a broken connection loses no more than that.
_BATCH_BYTES = 512 * 1024 * 1024
_SAY_EVERY_S = 10.0


class ActionModule(DeliveringAction):
    """Each stage is a few steps of the module; which files go where was decided over all hosts before."""

    def work(self, args: dict[str, Any], task_vars: dict[str, Any]) -> dict[str, Any]:
        self.settings = args["settings"]
        self.task_vars = task_vars
        self.result: dict[str, Any] = {"changed": False, "causes": [], "actions": []}
        if self.settings["nanochat_source"] != "smoke":
            stages = {
                "shards": self._shards,
                "receive": self._receive,
                "remember": self._remember,
                "train": self._train,
                "tokenizer": self._tokenizer,
            }
            stages[args.get("stage") or "shards"](args)
        return self.result

    @property
    def _stopped(self) -> bool:
        return first_error(self.result["causes"])

    def _bad(self, code: str, what: str, fix: str | None = None) -> None:
        self.result["causes"].append(cause(code, what, fix))

    def _step(self, step: str, **more: Any) -> dict[str, Any]:
        """One step of the module; what it did and found goes into the result of the task."""
        module_args = {
            "step": step,
            "base_dir": self.settings["nanochat_base_dir"],
            "data_dir": self.settings["nanochat_data_dir"],
            "own_shards": bool(self.settings["nanochat_dataset_dir"]),
            **more,
        }
        found = self.patient(module_args, self.task_vars)
        self.result["changed"] = self.result["changed"] or found["changed"]
        self.result["causes"] += found["causes"]
        self.result["actions"] += found["actions"]
        for key in ("folder", "tokenizer"):
            self.result[key] = found[key]
        return found

    # what is there

    def _shards(self, args: dict[str, Any]) -> None:
        master = self.settings["node_rank"] == 0
        own = self.settings["nanochat_dataset_dir"]
        if own:
            try:
                shards.manifest(absolute(own), say=lambda text: self.say(f"the controller is {text}", _SAY_EVERY_S))
            except shards.ShardsError as problem:
                self.result["causes"].append(problem.cause)
                return
        count = self.settings["nanochat_dataset_shards"] if master and not own else 0
        found = self._step("look", shards=count)
        if found.get("needs_download") and not self._stopped and not self._comes_from_a_host(found):
            self.say(f"nanochat downloads {count} shards and the one for validation")
            self._step("download", shards=count, **self._programs())
            found = found if self._stopped or self._task.check_mode else self._step("look")
        if master and not own and self.settings["nanochat_dataset_repair"] and not self._stopped:
            found = self._rewritten(found, args.get("world_size") or 1)
        for key in ("files", "folder_id", "free_bytes", "busy"):
            self.result[key] = found.get(key)

    def _comes_from_a_host(self, found: dict[str, Any]) -> bool:
        """Whether another host has what this one has nothing of: the LAN is faster than the way out."""
        if len(found["files"]) > 1:
            return False
        nodes = (
            (self.task_vars["hostvars"].get(host, {}).get("preflight_node") or {}).get("node")
            for host in self.settings["nanochat_hosts"]
            if host != self.settings["host"]
        )
        return any(node["data"]["shards"] > 1 for node in nodes if node)

    def _rewritten(self, found: dict[str, Any], world_size: int) -> dict[str, Any]:
        """The files again, after those with too few row groups for every rank were rewritten."""
        few = [one["name"] for one in found["files"] if one["row_groups"] and one["row_groups"] < world_size]
        if not few:
            return found
        self.say(f"{len(few)} file(s) have fewer than {world_size} row groups and are rewritten")
        self._step("rewrite", names=few, row_groups=world_size, **self._programs())
        return found if self._stopped or self._task.check_mode else self._step("look")

    def _programs(self) -> dict[str, Any]:
        """What nanochat's own programs run with."""
        existing = self.settings["nanochat_install_method"] == "existing"
        checkout = self.settings["nanochat_dir"]
        variables = {**self.settings["nanochat_install_env"], **self.settings["nanochat_env"]}
        return {
            "checkout": checkout,
            "python": self.settings["nanochat_python"]
            if existing
            else os.path.join(checkout, ".venv", "bin", "python"),
            "env": json.dumps(variables) if variables else None,
        }

    # from the controller

    def _receive(self, args: dict[str, Any]) -> None:
        plan = args["plan"]
        if self._task.check_mode:
            self.result["actions"] += [f"set {name} aside" for name in plan["aside"]]
            self.result["actions"] += [f"copied {len(plan['send'])} shard(s)"] if plan["send"] else []
            self.result["changed"] = bool(self.result["actions"])
            return
        # Hosts may share the folder, so each has names of its own for what is not whole yet.
        parts = ".torchlan-" + hashlib.sha256(self.settings["host"].encode()).hexdigest()[:8] + "-"
        self._step("ready", parts=parts, aside=plan["aside"])
        if self._stopped or not plan["send"]:
            return
        folder = absolute(self.settings["nanochat_dataset_dir"])
        wanted = [entry for entry in shards.manifest(folder) if entry["name"] in plan["send"]]
        total, sent, began = sum(entry["size"] for entry in wanted), 0, time.monotonic()
        batch: list[dict[str, Any]] = []
        for index, entry in enumerate(wanted):
            name = f"{parts}{index}.part"
            source = os.path.join(folder, entry["name"])
            seconds = time.monotonic() - began
            done = f"{sent / 1e6:.0f} of {total / 1e6:.0f} MB, {seconds:.0f} s"
            text = f"sending {entry['name']}, {index + 1} of {len(wanted)}, {done}"
            self.say(text, _SAY_EVERY_S if index else 0)
            with self.ticking(text):
                path = os.path.join(self.result["folder"], name)
                if self.same_user:
                    self.put(source, path)
                else:
                    path = self.deliver(source, name)
            sent += entry["size"]
            batch.append({**entry, "path": path})
            if entry is wanted[-1] or sum(item["size"] for item in batch) >= _BATCH_BYTES:
                self._step("receive", files=batch)
                batch = []
                if self._stopped:
                    return
        others = [action for action in self.result["actions"] if not action.startswith("copied ")]
        self.result["actions"] = [*others, f"copied {len(wanted)} shard(s)"]

    def _remember(self, args: dict[str, Any]) -> None:
        files = [entry for entry in args["files"] if entry["name"] in args["brought"]]
        self._step("remember", files=files)

    # the tokenizer

    def _train(self, _args: dict[str, Any]) -> None:
        words = settings_util.argv(self.settings["nanochat_tokenizer_args"])
        found = self._step("train", tokenizer_args=words, **self._programs())
        digests = found["tokenizer"]
        if self._stopped or None in digests.values() or shards.kept_tokenizer(digests):
            return
        content = self._step("read")["content"]
        try:
            shards.keep_tokenizer(digests, {name: base64.b64decode(text) for name, text in content.items()})
        except ValueError as problem:
            self._bad("tokenizer_missing", f"the {problem}", "run it again")

    def _tokenizer(self, args: dict[str, Any]) -> None:
        master = args.get("master") or {}
        digests = master.get("tokenizer") or {}
        if first_error(master.get("causes") or []) or not digests:
            return  # the master's own causes say what is wrong
        if None in digests.values():
            self.result["changed"] = True
            self.result["actions"].append("copied the tokenizer")  # it is only predicted there, too
            return
        replace = self.settings["nanochat_dataset_repair"]
        found = self._step("write", tokenizer=digests, replace=replace)
        if not found.get("needs_tokenizer"):
            return
        paths = shards.kept_tokenizer(digests)
        if paths is None:
            what = "the controller has no copy of the master's tokenizer"
            self._bad("tokenizer_missing", what, "run dataset.yml again")
            return
        files = [
            {"name": name, "path": self.deliver(path, name), "size": os.path.getsize(path), "sha256": digests[name]}
            for name, path in paths.items()
        ]
        self._step("write", tokenizer=digests, replace=replace, files=files)
