# Copyright (c) 2026, torchlan contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Action of torchlan.nanochat.dataset: copies shards from the controller and the tokenizer from the master."""

from __future__ import annotations

import base64
import hashlib
import json
import os
from typing import Any

from ansible_collections.torchlan.nanochat.plugins.module_utils.causes import cause
from ansible_collections.torchlan.nanochat.plugins.plugin_utils import settings as settings_util
from ansible_collections.torchlan.nanochat.plugins.plugin_utils import shards
from ansible_collections.torchlan.nanochat.plugins.plugin_utils.deliver import DeliveringAction, absolute, first_error

# Copied files are taken into place after so many bytes: a broken connection loses no more than that.
_BATCH_BYTES = 512 * 1024 * 1024


class ActionModule(DeliveringAction):
    """Decides from what the host has; the module does each step."""

    def work(self, args: dict[str, Any], task_vars: dict[str, Any]) -> dict[str, Any]:
        self.settings = args["settings"]
        self.task_vars = task_vars
        self.result: dict[str, Any] = {"changed": False, "causes": [], "actions": []}
        if self.settings["nanochat_source"] == "smoke":
            return self.result
        if args.get("stage") == "tokenizer":
            self._copy_tokenizer(args.get("master") or {})
            return self.result
        if self.settings["nanochat_dataset_dir"]:
            self._copy_shards()
        elif self.settings["node_rank"] != 0:
            self._step("look")
            if not self._stopped and not self.result["shards"]:
                what = f"{self.result['folder']} has no shards"
                fix = "nanochat_dataset_dir: a folder with shards on the controller; or copy the master's folder here"
                self._bad("data_missing", what, fix)
        if self.settings["node_rank"] == 0 and not self._stopped:
            self._prepare()
        return self.result

    @property
    def _stopped(self) -> bool:
        return first_error(self.result["causes"])

    def _bad(self, code: str, what: str, fix: str | None = None) -> None:
        self.result["causes"].append(cause(code, what, fix))

    def _step(self, step: str, **more: Any) -> dict[str, Any]:
        """One run of the module; what it did and found goes into the result of the task."""
        module_args = {
            "step": step,
            "base_dir": self.settings["nanochat_base_dir"],
            "data_dir": self.settings["nanochat_data_dir"],
            **more,
        }
        found = self.remote(module_args, self.task_vars)
        self.result["changed"] = self.result["changed"] or found["changed"]
        self.result["causes"] += found["causes"]
        self.result["actions"] += found["actions"]
        for key in ("folder", "shards", "tokenizer"):
            self.result[key] = found[key]
        return found

    def _copy_shards(self) -> None:
        folder = absolute(self.settings["nanochat_dataset_dir"])
        try:
            wanted = shards.manifest(folder)
        except shards.ShardsError as problem:
            self.result["causes"].append(problem.cause)
            return
        # Hosts may share the folder, so each has names of its own for what is not whole yet.
        parts = ".torchlan-" + hashlib.sha256(self.settings["host"].encode()).hexdigest()[:8] + "-"
        found = self._step("look", manifest=wanted, parts=parts)
        missing = [entry for entry in wanted if entry["name"] in found.get("missing", [])]
        if self._stopped or not missing:
            return
        if self._task.check_mode:
            self.result["changed"] = True
            self.result["actions"].append(f"copied {len(missing)} shard(s)")
            return
        batch: list[dict[str, Any]] = []
        for index, entry in enumerate(missing):
            name = f"{parts}{index}.part"
            source = os.path.join(folder, entry["name"])
            self._display.v(f"{self.settings['host']}: shard {index + 1} of {len(missing)}, {entry['name']}")
            if self.same_user:
                path = os.path.join(found["folder"], name)
                self.put(source, path)
            else:
                path = self.deliver(source, name)
            batch.append({**entry, "path": path})
            if entry is missing[-1] or sum(int(item["size"]) for item in batch) >= _BATCH_BYTES:
                self._step("receive", manifest=wanted, files=batch)
                batch = []
                if self._stopped:
                    return
        done = [action for action in self.result["actions"] if not action.startswith("copied ")]
        self.result["actions"] = [*done, f"copied {len(missing)} shard(s)"]

    def _prepare(self) -> None:
        existing = self.settings["nanochat_install_method"] == "existing"
        checkout = self.settings["nanochat_dir"]
        variables = {**self.settings["nanochat_install_env"], **self.settings["nanochat_env"]}
        own_shards = bool(self.settings["nanochat_dataset_dir"])
        found = self._step(
            "prepare",
            # Says which folder is meant where none is set; the shards themselves were looked at.
            manifest=[] if own_shards else None,
            shards=0 if own_shards else self.settings["nanochat_dataset_shards"],
            checkout=checkout,
            python=self.settings["nanochat_python"] if existing else os.path.join(checkout, ".venv", "bin", "python"),
            tokenizer_args=settings_util.argv(self.settings["nanochat_tokenizer_args"]),
            env=json.dumps(variables) if variables else None,
        )
        digests = found["tokenizer"]
        if self._stopped or None in digests.values() or shards.kept_tokenizer(digests):
            return
        content = self.remote({"step": "read", "base_dir": self.settings["nanochat_base_dir"]}, self.task_vars)[
            "content"
        ]
        try:
            shards.keep_tokenizer(digests, {name: base64.b64decode(text) for name, text in content.items()})
        except ValueError as problem:
            self._bad("tokenizer_missing", f"the master's {problem}", "run it again")

    def _copy_tokenizer(self, master: dict[str, Any]) -> None:
        digests = master.get("tokenizer") or {}
        if self.settings["node_rank"] == 0 or first_error(master.get("causes") or []):
            return  # the master's own causes say what is wrong
        if not digests or None in digests.values():
            found = self._step("look")
            if None in found["tokenizer"].values() and not self._task.check_mode:
                what = f"no tokenizer below {self.settings['nanochat_base_dir']}, and none of the master's to copy"
                self._bad("tokenizer_missing", what, "run dataset.yml with the master, which trains it")
            return
        found = self._step("write", tokenizer=digests)
        if found.get("needs_tokenizer"):
            paths = shards.kept_tokenizer(digests)
            if paths is None:
                self._bad(
                    "tokenizer_missing", "the controller has no copy of the master's tokenizer", "run dataset.yml again"
                )
                return
            files = [
                {"name": name, "path": self.deliver(path, name), "size": os.path.getsize(path), "sha256": digests[name]}
                for name, path in paths.items()
            ]
            self._step("write", tokenizer=digests, files=files)
        differs = shards.difference(self.result["shards"], master.get("shards") or [])
        if differs and not self._task.check_mode:
            self._bad("data_differ", f"{self.result['folder']}: {differs}")
