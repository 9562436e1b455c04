#!/usr/bin/python
# Copyright (c) 2026, torchlan contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Bring the checkout on a host to one commit."""

from __future__ import annotations

DOCUMENTATION = r"""
module: checkout
short_description: Bring the nanochat checkout of a host to one commit
version_added: 0.1.0
author: torchlan contributors (@torchlan)
description:
  - Makes the checkout, or moves it to the commit, with a detached HEAD. The host needs git, but no network and
    no access to the git source. The controller sends a bundle of what the host lacks.
  - Changes that a user has not committed are never overwritten, branches are not moved, and commits that nothing else
    would reach are kept below C(refs/torchlan/kept/).
  - What is wrong is returned under RV(causes); the task does not fail for it.
options:
  settings:
    description: Settings of the host, as M(torchlan.nanochat.settings) returns them. Used on the controller only.
    type: dict
  commit:
    description: The full commit. Unset, the controller resolves C(nanochat_version).
    type: str
  path:
    description: The folder of the checkout. Set by the action from O(settings).
    type: str
  bundle:
    description: A bundle on the host that holds the commit. Set by the action.
    type: str
  shallow:
    description: Commits where the history in the bundle is cut off. Set by the action.
    type: list
    elements: str
    default: []
  origin:
    description: URL that a new checkout remembers as its remote C(origin). Set by the action.
    type: str
extends_documentation_fragment:
  - torchlan.nanochat.attributes
"""

EXAMPLES = r"""
- name: Checkout
  torchlan.nanochat.checkout:
    settings: "{{ preflight_settings.settings }}"
    commit: "{{ preflight_verdict.commit }}"
  register: install_checkout
"""

RETURN = r"""
causes:
  description: What is wrong.
  type: list
  elements: dict
  returned: always
folder:
  description: The folder of the checkout, absolute.
  type: str
  returned: always
commit:
  description: The commit that the checkout should have.
  type: str
  returned: always
before:
  description: The commit that it had, if any.
  type: str
  returned: always
action:
  description: What was done, or would be done in check mode.
  type: str
  returned: always
  sample: clone
needs_bundle:
  description: The host lacks the commit.
  type: bool
  returned: always
have:
  description: Commits that the host has with their history, when it lacks the wanted one.
  type: list
  elements: str
  returned: always
"""

import contextlib
import os
import shutil
import tempfile
from typing import Any

from ansible.module_utils.basic import AnsibleModule

from ansible_collections.torchlan.nanochat.plugins.module_utils import in_use, packages
from ansible_collections.torchlan.nanochat.plugins.module_utils.causes import cause
from ansible_collections.torchlan.nanochat.plugins.module_utils.workdir import (
    answer,
    expand,
    last_lines,
    locked,
    run,
)

# What the collection itself may have put into the folder before there was a checkout.
_OURS = frozenset((".venv",))
_GIT_ENV = {"GIT_TERMINAL_PROMPT": "0", "LC_ALL": "C", "GIT_CONFIG_COUNT": "0"}


class GitFailed(Exception):
    """git ended with an error."""


def _git(path: str, *words: str, timeout: float = 600.0) -> tuple[int, str]:
    # A hook or a monitor of the user's is not ours to start.
    argv = ["git", "-C", path, "-c", "core.hooksPath=/dev/null", "-c", "core.fsmonitor=false", "-c", "gc.auto=0"]
    argv += ["-c", "maintenance.auto=false", "-c", "advice.detachedHead=false"]
    return run(argv + list(words), env=_GIT_ENV, timeout=timeout)


def _must(path: str, *words: str) -> str:
    code, text = _git(path, *words)
    if code:
        raise GitFailed(f"git {words[0]}: {last_lines(text, 6)}")
    return text


class Checkout:
    """The folder of the checkout, whatever is there now."""

    def __init__(self, path: str, commit: str, check_mode: bool = False) -> None:
        self.shown = expand(path)
        # A link to another disk stays one.
        self.path = os.path.realpath(self.shown)
        self.commit = commit
        self.check_mode = check_mode
        self.before: str | None = None
        self.causes: list[dict[str, Any]] = []

    def result(self, action: str, needs_bundle: bool = False, have: list[str] | None = None) -> dict[str, Any]:
        """The module's result."""
        return answer(
            action != "none",
            self.causes,
            folder=self.shown,
            commit=self.commit,
            before=self.before,
            action=action,
            needs_bundle=needs_bundle,
            have=have or [],
        )

    def bad(self, code: str, what: str, fix: str | None = None, weight: str = "error") -> dict[str, Any]:
        """Add a cause; the result of having done nothing."""
        self.causes.append(cause(code, what, fix, weight=weight))
        return self.result("none")

    def bring(self, bundle: str | None, shallow: list[str], origin: str | None) -> dict[str, Any]:
        """Bring the folder to the commit, or say why not, or that a bundle is needed for it."""
        if shutil.which("git") is None:
            return self.bad("git_missing", "git is not installed", packages.hint(["git"]))
        self.causes += in_use.of_checkout(self.path)
        if self.causes:
            return self.result("none")
        entries = self._entries()
        if entries is None:
            return self.bad("checkout_foreign", f"{self.shown} is not a folder")
        if ".git" not in entries:
            if not set(entries) <= _OURS:
                some = ", ".join(sorted(set(entries) - _OURS)[:5])
                return self.bad("checkout_foreign", f"{self.shown} is not a git checkout; it holds {some}")
            if self.check_mode:
                return self.result("clone")
            if bundle is None:
                return self.result("none", needs_bundle=True)
            self._clone(bundle, shallow, origin)
            return self.result("clone")
        return self._move(bundle, shallow)

    def _entries(self) -> list[str] | None:
        if not os.path.lexists(self.path):
            return []
        return os.listdir(self.path) if os.path.isdir(self.path) else None

    def _clone(self, bundle: str, shallow: list[str], origin: str | None) -> None:
        """Make the checkout beside its place and rename it there: a broken attempt leaves nothing that looks whole."""
        parent, name = os.path.split(self.path)
        os.makedirs(parent, exist_ok=True)
        prefix = f".{name}.torchlan-clone-"
        for stale in os.listdir(parent):
            if stale.startswith(prefix):
                shutil.rmtree(os.path.join(parent, stale), ignore_errors=True)
        work = tempfile.mkdtemp(prefix=prefix, dir=parent)
        try:
            umask = os.umask(0)
            os.umask(umask)
            os.chmod(work, 0o777 & ~umask)
            _must(work, "init", "--quiet")
            if origin:
                _must(work, "remote", "add", "origin", origin)
            self._receive(work, bundle, shallow)
            _must(work, "checkout", "--quiet", "--detach", self.commit)
            for entry in _OURS:
                if os.path.lexists(os.path.join(self.path, entry)):
                    os.rename(os.path.join(self.path, entry), os.path.join(work, entry))
            os.rename(work, self.path)
        except BaseException:
            for entry in _OURS:
                if os.path.lexists(os.path.join(work, entry)) and os.path.isdir(self.path):
                    with contextlib.suppress(OSError):
                        os.rename(os.path.join(work, entry), os.path.join(self.path, entry))
            shutil.rmtree(work, ignore_errors=True)
            raise

    def _receive(self, path: str, bundle: str, shallow: list[str]) -> None:
        cut = [commit for commit in shallow if _git(path, "cat-file", "-e", commit + "^{commit}")[0]]
        if cut:
            file = os.path.join(path, _must(path, "rev-parse", "--git-path", "shallow").strip())
            with open(file, "a", encoding="ascii") as lines:
                lines.write("".join(commit + "\n" for commit in cut))
        _must(path, "bundle", "unbundle", bundle)
        _must(path, "update-ref", "refs/torchlan/commits/" + self.commit, self.commit)

    def _has_commit(self) -> bool:
        """Whether the commit is here with all that it needs: a reference says so, a lone object does not."""
        if _git(self.path, "cat-file", "-e", self.commit + "^{commit}")[0]:
            return False
        code, text = _git(self.path, "for-each-ref", "--count=1", "--contains=" + self.commit)
        if code == 0 and text.strip():
            return True
        return _git(self.path, "merge-base", "--is-ancestor", self.commit, "HEAD")[0] == 0

    def _move(self, bundle: str | None, shallow: list[str]) -> dict[str, Any]:
        code, text = _git(self.path, "rev-parse", "--git-dir")
        if code:
            fix = f"git config --global --add safe.directory {self.path}" if "dubious ownership" in text else None
            return self.bad("checkout_foreign", f"git cannot use {self.shown}: {last_lines(text, 1)}", fix)
        code, text = _git(self.path, "rev-parse", "--quiet", "--verify", "HEAD^{commit}")
        self.before = text.strip() if code == 0 else None
        changed = self._changed()
        if self.before == self.commit:
            if changed:
                return self.bad(
                    "checkout_dirty", f"{self.shown} has uncommitted changes in {changed}", weight="warning"
                )
            return self.result("none")
        stash = f"git -C '{self.shown}' stash"
        if changed:
            what = "%s has uncommitted changes in %s; it is at %s and should be at %s"
            return self.bad(
                "checkout_dirty",
                what % (self.shown, changed, (self.before or "no commit")[:10], self.commit[:10]),
                stash,
            )
        here = self._has_commit()
        if self.check_mode:
            in_way = self._in_the_way() if here else ""
            if in_way:
                return self.bad("checkout_dirty", f"{self.shown} has files that the checkout would overwrite: {in_way}")
            return self.result("checkout" if here else "fetch")
        if not here:
            if bundle is None:
                return self.result("none", needs_bundle=True, have=self._have())
            self._receive(self.path, bundle, shallow)
        in_way = self._in_the_way()
        if in_way:
            what = f"{self.shown} has files that the checkout would overwrite: {in_way}"
            return self.bad(
                "checkout_dirty", what, f"move them away: commit {self.commit[:10]} brings files of these names"
            )
        self._keep_head()
        _must(self.path, "checkout", "--quiet", "--detach", "--no-overwrite-ignore", self.commit)
        return self.result("checkout" if here else "fetch")

    def _changed(self) -> str:
        text = _must(
            self.path, "status", "--porcelain", "--no-renames", "--untracked-files=no", "--ignore-submodules=all", "-z"
        )
        return _some([entry[3:] for entry in text.split("\0") if entry])

    def _in_the_way(self) -> str:
        """Files that git does not track now and that the commit would write, ignored ones included."""
        coming = set(_must(self.path, "ls-tree", "-r", "-z", "--name-only", self.commit).split("\0")) - {""}
        tracked = set(_must(self.path, "ls-files", "-z").split("\0"))
        found = set()
        for name in coming - tracked:
            # A file where the commit has a folder is in the way, too.
            parts = name.split("/")
            for depth in range(1, len(parts) + 1):
                part = "/".join(parts[:depth])
                full = os.path.join(self.path, part)
                if os.path.lexists(full) and part not in tracked and (depth == len(parts) or not os.path.isdir(full)):
                    found.add(part)
                    break
        return _some(sorted(found))

    def _have(self) -> list[str]:
        if _must(self.path, "rev-parse", "--is-shallow-repository").strip() == "true":
            return []  # commits without their history are no base for a bundle
        if _git(self.path, "config", "--get-regexp", r"^remote\..*\.promisor$")[0] == 0:
            return []
        refs = _must(
            self.path, "for-each-ref", "--count=30", "--sort=-committerdate", "--format=%(objectname) %(objecttype)"
        )
        tips = [line.split()[0] for line in refs.splitlines() if line.endswith(" commit")]
        return list(dict.fromkeys(([self.before] if self.before else []) + tips))

    def _keep_head(self) -> None:
        """Commits that only a detached HEAD reaches would be lost one day."""
        if not self.before or _git(self.path, "symbolic-ref", "--quiet", "HEAD")[0] == 0:
            return
        if not _must(self.path, "for-each-ref", "--count=1", "--contains=" + self.before).strip():
            _must(self.path, "update-ref", "refs/torchlan/kept/" + self.before, self.before)


def _some(names: list[str], most: int = 5) -> str:
    return ", ".join(names[:most]) + (f" and {len(names) - most} more" if len(names) > most else "")


def bring(
    path: str,
    commit: str,
    bundle: str | None = None,
    shallow: list[str] | None = None,
    origin: str | None = None,
    check_mode: bool = False,
) -> dict[str, Any]:
    """Bring the checkout C(path) to C(commit), or say in the result why that was not done."""
    # git would take these from whoever started us.
    for name in ("GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE", "GIT_OBJECT_DIRECTORY", "GIT_CONFIG_PARAMETERS"):
        os.environ.pop(name, None)
    checkout = Checkout(path, commit, check_mode)
    try:
        with contextlib.nullcontext() if check_mode else locked(checkout.path):
            return checkout.bring(bundle, shallow or [], origin)
    except (GitFailed, OSError) as problem:
        return checkout.bad("install_failed", f"the checkout {checkout.shown} could not be made: {problem}")


def main() -> None:
    """Entry point."""
    module = AnsibleModule(
        argument_spec={
            "settings": {"type": "dict"},
            "commit": {"type": "str"},
            "path": {"type": "str"},
            "bundle": {"type": "str"},
            "shallow": {"type": "list", "elements": "str", "default": []},
            "origin": {"type": "str"},
        },
        supports_check_mode=True,
    )
    given = module.params
    if not given["path"] or not given["commit"]:
        module.fail_json(msg="path and commit are required; the action plugin of the same name sets them")
    module.exit_json(
        **bring(given["path"], given["commit"], given["bundle"], given["shallow"], given["origin"], module.check_mode)
    )


if __name__ == "__main__":
    main()
