#!/usr/bin/python
# Copyright (c) 2026, torchlan contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Shards and tokenizer of one host."""

from __future__ import annotations

DOCUMENTATION = r"""
module: dataset
short_description: Bring shards and tokenizer to a host
version_added: 0.1.0
author: torchlan contributors (@torchlan)
description:
  - With C(nanochat_dataset_dir), every host gets the shards of that folder of the controller. A file is renamed into
    place only after its digest was compared, so that a short one is never taken for a whole one.
  - Without it, the master downloads missing shards with nanochat's own downloader.
  - The master trains the tokenizer where there is none; the other hosts get a copy, byte for byte.
  - What is wrong is returned under RV(causes); the task does not fail for it. Nothing that a user put there is deleted.
options:
  settings:
    description: Settings of the host, as M(torchlan.nanochat.settings) returns them. Used on the controller only.
    type: dict
  stage:
    description:
      - V(shards) brings the shards, and on the master trains the tokenizer.
      - V(tokenizer) copies the master's tokenizer, and compares the shards with the master's.
    type: str
    choices: [shards, tokenizer]
    default: shards
  master:
    description: Result of the V(shards) stage on the master, for the V(tokenizer) stage. Used on the controller only.
    type: dict
  base_dir:
    description: The base folder. Set by the action from O(settings).
    type: str
  data_dir:
    description: Folder of the shards; unset, nanochat's own below O(base_dir). Set by the action from O(settings).
    type: str
  step:
    description: What to do on the host. Set by the action.
    type: str
    choices: [look, receive, prepare, read, write]
    default: look
  manifest:
    description: Name, size and sha256 of the shards that the host should have. Set by the action.
    type: list
    elements: dict
  files:
    description: Files that were copied to the host, to be taken into place. Set by the action.
    type: list
    elements: dict
    default: []
  parts:
    description: Word in the names of unfinished copies of this host. Set by the action.
    type: str
  checkout:
    description: Folder of the checkout, for O(step=prepare). Set by the action.
    type: str
  python:
    description: Interpreter of the environment, for O(step=prepare). Set by the action.
    type: str
  shards:
    description: Number of training shards to download; 0 for none. Set by the action.
    type: int
    default: 0
  tokenizer_args:
    description: Arguments for C(scripts.tok_train). Set by the action.
    type: list
    elements: str
    default: []
  tokenizer:
    description: Digests that the host's tokenizer files should have, by name. Set by the action.
    type: dict
  env:
    description: Environment for nanochat's own programs, as JSON. Set by the action.
    type: str
attributes:
  check_mode:
    description: Can run in check mode and predict changes.
    support: full
  diff_mode:
    description: Can show differences.
    support: none
"""

EXAMPLES = r"""
- name: Shards, and the tokenizer on the master
  torchlan.nanochat.dataset:
    settings: "{{ preflight_settings.settings }}"
  register: dataset_shards

- name: Tokenizer
  torchlan.nanochat.dataset:
    settings: "{{ preflight_settings.settings }}"
    stage: tokenizer
    master: "{{ hostvars['workstation'].dataset_shards }}"
  register: dataset_tokenizer
"""

RETURN = r"""
causes:
  description: What is wrong.
  type: list
  elements: dict
  returned: always
folder:
  description: Folder of the shards.
  type: str
  returned: always
shards:
  description: Name and size of the host's shards.
  type: list
  elements: list
  returned: always
tokenizer:
  description: Digests of the host's tokenizer files by name; null for a file that is not there.
  type: dict
  returned: always
missing:
  description: Shards that are missing or differ.
  type: list
  elements: str
  returned: with a manifest
actions:
  description: What was done, or would be done in check mode.
  type: list
  elements: str
  returned: always
  sample: ["copied 2 shards", "trained the tokenizer"]
"""

import base64
import contextlib
import errno
import json
import os
import re
import shutil
import tempfile
from typing import Any

from ansible.module_utils.basic import AnsibleModule

from ansible_collections.torchlan.nanochat.plugins.module_utils import data, in_use
from ansible_collections.torchlan.nanochat.plugins.module_utils.causes import cause
from ansible_collections.torchlan.nanochat.plugins.module_utils.workdir import (
    answer,
    expand,
    last_lines,
    locked,
    run,
    sha256_file,
    write_atomic,
)

TOKENIZER_FILES = ("tokenizer.pkl", "token_bytes.pt")
OWN_FOLDER = "base_data_climbmix"
_DIGESTS = ".torchlan-shards.json"
_SHARD = re.compile(r"shard_(\d{5})\.parquet\Z")

# nanochat reads NANOCHAT_DATA_DIR in some forks only; so the folder is set in its module, before its program starts.
_TRAIN_TOKENIZER = """
import os, runpy, sys
folder, sys.argv = sys.argv[1], ["scripts.tok_train"] + sys.argv[2:]
sys.path.insert(0, os.getcwd())
import nanochat.dataset
nanochat.dataset.DATA_DIR = folder
runpy.run_module("scripts.tok_train", run_name="__main__", alter_sys=True)
"""
_DOWNLOAD = """
import os, runpy, sys
folder, count = sys.argv[1], int(sys.argv[2])
sys.path.insert(0, os.getcwd())
import nanochat.dataset as dataset
if os.path.realpath(dataset.DATA_DIR) == os.path.realpath(folder):
    sys.argv = ["nanochat.dataset", "-n", str(count)]
    sys.modules.pop("nanochat.dataset")
    runpy.run_module("nanochat.dataset", run_name="__main__", alter_sys=True)
elif hasattr(dataset, "download_single_file") and hasattr(dataset, "MAX_SHARD"):
    import multiprocessing
    dataset.DATA_DIR = folder
    wanted = list(range(min(count, dataset.MAX_SHARD))) + [dataset.MAX_SHARD]
    with multiprocessing.get_context("fork").Pool(4) as pool:
        raise SystemExit(0 if all(pool.map(dataset.download_single_file, wanted)) else 1)
else:
    raise SystemExit("this nanochat downloads to %s only: set nanochat_data_dir to it" % dataset.DATA_DIR)
"""


class Dataset:
    """Shards and tokenizer below the folders of one host."""

    def __init__(self, given: dict[str, Any], check_mode: bool = False) -> None:
        self.given = given
        self.check_mode = check_mode
        self.base = expand(given["base_dir"])
        if given.get("data_dir"):
            self.folder = expand(given["data_dir"])
        elif given.get("manifest") is not None:
            self.folder = os.path.join(self.base, OWN_FOLDER)
        else:
            self.folder = data.default_folder(self.base)
        self.tokenizer_folder = os.path.join(self.base, "tokenizer")
        self.causes: list[dict[str, Any]] = []
        self.actions: list[str] = []

    def result(self, **more: Any) -> dict[str, Any]:
        """The module's result."""
        return answer(
            bool(self.actions),
            self.causes,
            actions=self.actions,
            folder=self.folder,
            shards=[[name, size] for name, size in self.shards()],
            tokenizer=self.tokenizer(),
            **more,
        )

    def bad(self, code: str, what: str, fix: str | None = None) -> None:
        """Add a cause that stops the work."""
        self.causes.append(cause(code, what, fix))

    def shards(self) -> list[tuple[str, int]]:
        """Name and size of what nanochat would read."""
        return data._shards(self.folder)

    def tokenizer(self) -> dict[str, str | None]:
        """Digests of the tokenizer's files."""
        return {name: data._sha256(os.path.join(self.tokenizer_folder, name)) for name in TOKENIZER_FILES}

    def do(self) -> dict[str, Any]:
        """The step that the action asks for."""
        steps = {
            "look": self.look,
            "receive": self.receive,
            "prepare": self.prepare,
            "read": self.read,
            "write": self.write,
        }
        try:
            return steps[self.given["step"]]()
        except OSError as problem:
            full = problem.errno in (errno.ENOSPC, errno.EDQUOT)
            code = (
                "path_invalid"
                if problem.errno in (errno.EACCES, errno.EROFS, errno.ENOTDIR, errno.EPERM)
                else "data_missing"
            )
            self.bad(code, str(problem), "free disk space on the host" if full else None)
            return self.result(missing=[])

    # shards from the controller

    def look(self) -> dict[str, Any]:
        """What is here, and what is missing of the manifest."""
        self.causes += in_use.of_data(self.base, self.folder)
        if self.given.get("manifest") is None:
            return self.result()
        wanted = {entry["name"]: entry for entry in self.given["manifest"]}
        extra = [name for name, _size in self.shards() if name not in wanted]
        if extra:
            what = f"{self.folder} has {len(extra)} shard(s) that nanochat_dataset_dir lacks: {_some(extra)}"
            self.bad("dataset_extra", what, "move them away, or add them to nanochat_dataset_dir")
        missing = [] if self.causes else self._missing(list(wanted.values()))
        if missing and not self.check_mode:
            os.makedirs(self.folder, exist_ok=True)
            for name in os.listdir(self.folder):
                if self.given.get("parts") and name.startswith(self.given["parts"]):
                    os.unlink(os.path.join(self.folder, name))
            need = sum(int(entry["size"]) for entry in wanted.values() if entry["name"] in missing)
            free = shutil.disk_usage(self.folder).free
            if need > free:
                what = f"{self.folder} has {free / 1e9:.1f} GB free; the missing shards need {need / 1e9:.1f} GB"
                self.bad("data_missing", what, "free disk space on the host, or name another nanochat_data_dir")
        return self.result(missing=missing)

    def _missing(self, wanted: list[dict[str, Any]]) -> list[str]:
        """Names that are not here as they should be. Digests of unchanged files are remembered: shards are large."""
        memory_path = os.path.join(self.base, _DIGESTS)
        known = _read_json(memory_path)
        fresh = {path: entry for path, entry in known.items() if os.path.dirname(path) != self.folder}
        missing = []
        for entry in wanted:
            path = os.path.join(self.folder, entry["name"])
            try:
                stat = os.stat(path)
            except OSError:
                missing.append(entry["name"])
                continue
            signature = [stat.st_size, stat.st_mtime_ns, stat.st_ino]
            if stat.st_size != int(entry["size"]):
                missing.append(entry["name"])
                continue
            remembered = known.get(path) or [None, None]
            digest = remembered[1] if remembered[0] == signature else sha256_file(path)
            fresh[path] = [signature, digest]
            if digest != entry["sha256"]:
                missing.append(entry["name"])
        if fresh != known and not self.check_mode:
            with contextlib.suppress(OSError):
                os.makedirs(self.base, exist_ok=True)
                write_atomic(memory_path, json.dumps(fresh).encode())
        return missing

    def receive(self) -> dict[str, Any]:
        """Take copied files into place, each only if it is what it should be."""
        done = 0
        for entry in self.given["files"]:
            place = os.path.join(self.folder, entry["name"])
            what = self._take(entry, place)
            if what:
                self.bad(
                    "data_missing",
                    "{} arrived damaged: {}".format(entry["name"], what),
                    "run it again: only what is missing is sent",
                )
            else:
                done += 1
        if done:
            self.actions.append(f"copied {done} shard(s)")
        return self.result()

    def _take(self, entry: dict[str, Any], place: str) -> str | None:
        """Move or copy one file to its place; C(None), or what is wrong with it."""
        path = entry["path"]
        if not os.path.exists(path):
            return "it is not there"
        part = path
        if os.path.dirname(path) != os.path.dirname(place):
            handle, part = tempfile.mkstemp(prefix=".torchlan-", suffix=".part", dir=os.path.dirname(place))
            os.close(handle)
        try:
            size = os.path.getsize(path)
            if size != int(entry["size"]):
                return f"{size} bytes of {entry['size']}"
            if part != path:
                shutil.copyfile(path, part)
            digest = sha256_file(part)
            if digest != entry["sha256"]:
                return "its sha256 is {} instead of {}".format(digest[:12], entry["sha256"][:12])
            os.chmod(part, 0o644)
            with open(part, "rb") as file:
                os.fsync(file.fileno())
            os.replace(part, place)
        finally:
            for leftover in (part, path):
                with contextlib.suppress(OSError):
                    os.unlink(leftover)
        return None

    # shards and tokenizer made by nanochat on the master

    def prepare(self) -> dict[str, Any]:
        """Download what is missing, and train the tokenizer where there is none."""
        self.causes += in_use.of_data(self.base, self.folder)
        if self.causes:
            return self.result()
        with contextlib.nullcontext() if self.check_mode else locked(self.base, timeout=7200):
            if self.given["shards"] and self._needs_download():
                self._download()
            if not self.causes and None in self.tokenizer().values():
                self._train_tokenizer()
        return self.result()

    def _needs_download(self) -> bool:
        """Whether shards of nanochat's own data set are missing. A folder with data of the user's is left alone."""
        names = [name for name, _size in self.shards()]
        if len(names) < 2:
            return True
        matches = [_SHARD.match(name) for name in names]
        numbers = [int(match.group(1)) for match in matches if match]
        training = len(numbers) - 1
        if len(numbers) != len(names) or numbers[:-1] != list(range(training)) or numbers[-1] == training:
            return False  # the downloader leaves a gap before its last shard, the validation set
        return training < self.given["shards"]

    def _program(self, code: str, words: list[str], env: dict[str, str]) -> tuple[int, str]:
        """Run a program of nanochat; its exit code and the last lines of what it printed."""
        python, checkout = expand(self.given["python"]), expand(self.given["checkout"])
        variables = json.loads(self.given["env"]) if self.given.get("env") else {}
        full = {**variables, "NANOCHAT_DATA_DIR": self.folder, "PYTHONUNBUFFERED": "1", **env}
        status, text = run([python, "-c", code, self.folder, *words], env=full, cwd=checkout)
        return status, f"exit code {status}\n{last_lines(text)}"

    def _able(self, code: str, what: str) -> bool:
        """Whether nanochat's programs can run at all."""
        python, checkout = expand(self.given["python"]), expand(self.given["checkout"])
        if not os.path.isfile(os.path.join(checkout, "nanochat", "dataset.py")):
            self.bad(code, f"{what}, and there is no nanochat in {checkout} to do that", "run install.yml first")
        elif not os.access(python, os.X_OK):
            self.bad("environment_missing", f"{what}, and there is no {python} to do that", "run install.yml first")
        return not self.causes

    def _download(self) -> None:
        count = self.given["shards"]
        action = "downloaded shards"
        if self.check_mode:
            self.actions.append(action)
            return
        before = self.shards()
        if not self._able("data_missing", f"{self.folder} lacks shards"):
            return
        os.makedirs(self.folder, exist_ok=True)
        status, said = self._program(_DOWNLOAD, [str(count)], {"NANOCHAT_BASE_DIR": self.base})
        if self.shards() != before:
            self.actions.append(action)
        # It ends with 0, too, when it could not get a file.
        if status or self._needs_download():
            there = f"{len(self.shards())} of {count + 1} shards are in {self.folder}"
            fix = "nanochat_dataset_dir: a folder with shards on the controller; or nanochat_install_env: https_proxy"
            self.bad("data_missing", f"nanochat's downloader failed, {there}: {said}", fix)

    def _train_tokenizer(self) -> None:
        action = "trained the tokenizer"
        if self.check_mode:
            self.actions.append(action)
            return
        if len(self.shards()) < 2:
            there = f"{self.folder} has {len(self.shards())} shard(s)"
            self.bad("data_missing", f"{there}; nanochat needs at least two, of which the last is for validation")
            return
        if not self._able("tokenizer_missing", f"{self.base} has no tokenizer"):
            return
        os.makedirs(self.base, exist_ok=True)
        # In a base folder of its own, so that a broken attempt leaves no half tokenizer.
        with tempfile.TemporaryDirectory(prefix=".torchlan-tokenizer-", dir=self.base) as work:
            status, said = self._program(_TRAIN_TOKENIZER, self.given["tokenizer_args"], {"NANOCHAT_BASE_DIR": work})
            made = [os.path.join(work, "tokenizer", name) for name in TOKENIZER_FILES]
            lacking = [os.path.basename(path) for path in made if not os.path.isfile(path) or not os.path.getsize(path)]
            if status or lacking:
                said = said if status else "it made no {}".format(" and no ".join(lacking))
                self.bad(
                    "tokenizer_missing",
                    f"scripts.tok_train failed: {said}",
                    "correct nanochat_tokenizer_args or the data",
                )
                return
            self._place_tokenizer(dict(zip(TOKENIZER_FILES, made)))
        self.actions.append(action)

    def _place_tokenizer(self, made: dict[str, str]) -> None:
        """Rename both files into place; half a tokenizer that was there is kept under another name."""
        os.makedirs(self.tokenizer_folder, exist_ok=True)
        for name in TOKENIZER_FILES:
            place = os.path.join(self.tokenizer_folder, name)
            if os.path.lexists(place):
                os.replace(place, place + ".old")
        for name in reversed(TOKENIZER_FILES):
            os.replace(made[name], os.path.join(self.tokenizer_folder, name))

    # the tokenizer, from host to host

    def read(self) -> dict[str, Any]:
        """The tokenizer's files, for the controller."""
        content = {}
        for name in TOKENIZER_FILES:
            with open(os.path.join(self.tokenizer_folder, name), "rb") as file:
                content[name] = base64.b64encode(file.read()).decode()
        return self.result(content=content)

    def write(self) -> dict[str, Any]:
        """Compare the tokenizer with the master's; take the copied files where there is none."""
        self.causes += in_use.of_data(self.base, self.folder)
        wanted = self.given["tokenizer"]
        here = self.tokenizer()
        if self.causes or here == wanted:
            return self.result(needs_tokenizer=False)
        different = [name for name in TOKENIZER_FILES if here[name] not in (None, wanted[name])]
        if different:
            name = different[0]
            what = "{} is {} here and {} on the master".format(
                os.path.join(self.tokenizer_folder, name),
                (here[name] or "")[:12],
                wanted[name][:12],
            )
            self.bad("tokenizer_differs", what, f"move {self.tokenizer_folder} away: the master's is copied then")
            return self.result(needs_tokenizer=False)
        if self.check_mode:
            self.actions.append("copied the tokenizer")
            return self.result(needs_tokenizer=False)
        if not self.given["files"]:
            return self.result(needs_tokenizer=True)
        os.makedirs(self.tokenizer_folder, exist_ok=True)
        with locked(self.base):
            for entry in self.given["files"]:
                problem = self._take(entry, os.path.join(self.tokenizer_folder, entry["name"]))
                if problem:
                    self.bad(
                        "tokenizer_missing", "{} arrived damaged: {}".format(entry["name"], problem), "run it again"
                    )
        if not self.causes:
            self.actions.append("copied the tokenizer")
        return self.result(needs_tokenizer=False)


def _some(names: list[str], most: int = 5) -> str:
    return ", ".join(names[:most]) + (f" and {len(names) - most} more" if len(names) > most else "")


def _read_json(path: str) -> dict[str, Any]:
    try:
        with open(path, encoding="utf-8") as file:
            value = json.load(file)
    except (OSError, ValueError):
        return {}
    return value if isinstance(value, dict) else {}


def main() -> None:
    """Entry point."""
    module = AnsibleModule(
        argument_spec={
            "settings": {"type": "dict"},
            "stage": {"type": "str", "choices": ["shards", "tokenizer"], "default": "shards"},
            "master": {"type": "dict"},
            "base_dir": {"type": "str"},
            "data_dir": {"type": "str"},
            "step": {"type": "str", "choices": ["look", "receive", "prepare", "read", "write"], "default": "look"},
            "manifest": {"type": "list", "elements": "dict"},
            "files": {"type": "list", "elements": "dict", "default": []},
            "parts": {"type": "str"},
            "checkout": {"type": "str"},
            "python": {"type": "str"},
            "shards": {"type": "int", "default": 0},
            "tokenizer_args": {"type": "list", "elements": "str", "default": [], "no_log": False},
            "tokenizer": {"type": "dict", "no_log": False},
            # A dictionary that is not logged would censor every equal piece of the result.
            "env": {"type": "str", "no_log": True},
        },
        supports_check_mode=True,
    )
    if not module.params["base_dir"]:
        module.fail_json(msg="base_dir is required; the action plugin of the same name sets it")
    module.exit_json(**Dataset(module.params, module.check_mode).do())


if __name__ == "__main__":
    main()
