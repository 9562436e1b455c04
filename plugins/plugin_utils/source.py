# Copyright (c) 2026, torchlan contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""nanochat's source on the controller: which commit, which requirements, and the objects that a host lacks.

C(nanochat_repo) is a git URL or a path; C(nanochat_version) is a branch, tag or commit. Both become one full
commit, once per launch. The source repository of a user is only read.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import re
import shutil
import subprocess
import tempfile
import time
import tomllib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ansible_collections.torchlan.nanochat.plugins.module_utils.causes import cause
from ansible_collections.torchlan.nanochat.plugins.module_utils.workdir import last_lines, normalised, redact

_FULL_COMMIT = re.compile(r"[0-9a-f]{40}([0-9a-f]{24})?\Z")
_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://|([A-Za-z0-9_.-]+@)?[A-Za-z0-9_.-]+:(?!:)")
_REQUIREMENT_NAME = re.compile(r"\s*([A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?)")
# A git hook or an alias may have started us; its repository is not ours.
_FOREIGN_ENV = [
    "GIT_DIR",
    "GIT_WORK_TREE",
    "GIT_INDEX_FILE",
    "GIT_OBJECT_DIRECTORY",
    "GIT_ALTERNATE_OBJECT_DIRECTORIES",
    "GIT_NAMESPACE",
    "GIT_COMMON_DIR",
    "GIT_PREFIX",
    "GIT_SHALLOW_FILE",
    "GIT_CONFIG",
    "GIT_CONFIG_PARAMETERS",
    "GIT_CONFIG_COUNT",
]
_KEEP = "refs/torchlan/commits/"
_NETWORK_TIMEOUT = 900.0


class SourceError(Exception):
    """The source cannot be used; carries the cause."""

    def __init__(self, code: str, what: str, fix: str | None = None) -> None:
        super().__init__(what)
        self.cause = cause(code, what, fix)


@dataclass
class Source:
    """A git source whose version is resolved."""

    repo: str
    version: str
    commit: str
    git_dir: str
    """Repository on the controller that holds the commit: the user's own, or the cache of an URL."""
    is_url: bool
    causes: list[dict[str, Any]] = field(default_factory=list)
    """Warnings, such as uncommitted changes."""

    @property
    def url(self) -> str | None:
        """What hosts may remember as the origin: an URL without credentials."""
        return self.repo if self.is_url and redact(self.repo) == self.repo else None

    def holds(self, commit: str) -> bool:
        """Whether the commit is in this repository."""
        return bool(_FULL_COMMIT.match(commit)) and _try(self.git_dir, "cat-file", "-e", commit + "^{commit}")[0] == 0

    def read(self, name: str) -> str | None:
        """A text file at the commit; C(None) when there is none."""
        code, text = _try(self.git_dir, "cat-file", "blob", f"{self.commit}:{name}")
        return None if code else text

    def requirements(self, torch_requirement: str | None = None, extra: str | None = None) -> list[str]:
        """What the environment of this commit needs, for pip.

        :param torch_requirement: used instead of nanochat's own requirement of torch.
        :param extra: optional group of pyproject.toml to be included, such as C(cpu) or C(gpu); may be missing there.
        :raises SourceError: there is no usable pyproject.toml at the commit.
        """
        text = self.read("pyproject.toml")
        where = f"pyproject.toml of {self.repo_shown} at {self.commit[:10]}"
        if text is None:
            raise SourceError(
                "install_failed",
                f"{where} does not exist, so the requirements are unknown",
                "nanochat_install_method: existing, with nanochat_python; or another nanochat_version",
            )
        try:
            project = tomllib.loads(text).get("project", {})
            listed = list(project.get("dependencies", []))
            listed += project.get("optional-dependencies", {}).get(extra, []) if extra else []
        except (tomllib.TOMLDecodeError, AttributeError, TypeError) as problem:
            raise SourceError("install_failed", f"{where} cannot be read: {problem}") from problem
        wanted: dict[str, str] = {}
        for line in listed:
            name = requirement_name(str(line))
            if name is None:
                raise SourceError("install_failed", f"{where} has a requirement that is none: {line!r}")
            if name == "torch" and torch_requirement:
                line = torch_requirement
            wanted.setdefault(str(line).strip(), name)
        if "torch" not in wanted.values():
            wanted[torch_requirement or "torch"] = "torch"
        return list(wanted)

    @property
    def repo_shown(self) -> str:
        """The repository as messages name it."""
        return redact(self.repo)

    def shallow_commits(self) -> list[str]:
        """Where the history of this commit is cut off, in a source that is a shallow clone."""
        if _git(self.git_dir, "rev-parse", "--is-shallow-repository").strip() != "true":
            return []
        path = _git_path(self.git_dir, "shallow")
        cut = set(Path(path).read_text(encoding="ascii").split())
        return sorted(cut & set(_git(self.git_dir, "rev-list", self.commit).split()))

    def bundle(self, have: Iterable[str] = ()) -> str:
        """Write a bundle of the commit; the caller removes it.

        :param have: commits that the receiving host holds with their history.
        :returns: path of a temporary file.
        :raises SourceError: git cannot read the source.
        """
        with tempfile.TemporaryDirectory(prefix="torchlan-") as folder:
            # A bundle needs a reference, and the user's repository is not ours to write one into: borrow its objects.
            relay = os.path.join(folder, "relay.git")
            kind = _git(self.git_dir, "rev-parse", "--show-object-format").strip()
            _git(None, "init", "--quiet", "--bare", f"--object-format={kind}", relay)
            objects = os.path.realpath(_git_path(self.git_dir, "objects"))
            Path(relay, "objects", "info", "alternates").write_text(
                objects + "\n", encoding="utf-8", errors="surrogateescape"
            )
            cut = self.shallow_commits()
            if cut:
                Path(relay, "shallow").write_text("".join(f"{commit}\n" for commit in cut), encoding="ascii")
            name = _KEEP + self.commit
            _git(relay, "update-ref", name, self.commit)
            known = [commit for commit in dict.fromkeys(have) if commit != self.commit and self.holds(commit)]
            excluded = [f"^{commit}" for commit in known]
            if excluded and _git(relay, "rev-list", "--count", name, *excluded).strip() == "0":
                excluded = []  # older than what the host has, and yet the host lacks it: send everything
            handle, path = tempfile.mkstemp(prefix="torchlan-", suffix=".bundle")
            os.close(handle)
            try:
                _git(relay, "bundle", "create", "--quiet", path, name, *excluded, timeout=_NETWORK_TIMEOUT)
            except BaseException:
                os.unlink(path)
                raise
            return path


def resolve(repo: str, version: str | None = None, cwd: str | None = None, cache: str | None = None) -> Source:
    """Find the commit that C(repo) has as C(version).

    :param repo: git URL, or path on the controller: a bare repository or a checkout.
    :param version: branch, tag or commit; C(HEAD) when empty.
    :param cwd: what a relative path is relative to; the folder the user is in.
    :param cache: folder for copies of URLs; C(~/.cache/torchlan).
    :raises SourceError: with cause C(repo_unreachable) or C(version_unknown).
    """
    version = (version or "").strip() or "HEAD"
    if shutil.which("git") is None:
        raise SourceError("git_missing", "git is not installed on the controller", "install git here")
    if not repo or "\0" in repo or "\n" in repo or repo.startswith("-"):
        raise SourceError("repo_unreachable", f"nanochat_repo={repo!r} is neither a git URL nor a path")
    if version.startswith("-") or re.search(r"[\x00-\x20\x7f]", version):
        raise SourceError("version_unknown", f"nanochat_version={version!r} is not the name of a branch, tag or commit")
    path = os.path.normpath(os.path.join(cwd or os.getcwd(), os.path.expanduser(repo)))
    if os.path.isdir(path):
        return _resolve_path(path, version)
    if _URL.match(repo):
        return _resolve_url(repo, version, cache_folder(cache))
    if os.path.isfile(path):
        raise SourceError("repo_unreachable", f"nanochat_repo: {path} is a file, not a git repository")
    raise SourceError(
        "repo_unreachable",
        f"nanochat_repo={repo!r}: there is no folder {path}, and it is no git URL",
        "give a URL (https://…, ssh://…, user@host:path) or a path that exists on the controller",
    )


def cache_folder(cache: str | None = None) -> str:
    """The folder for what the collection keeps on the controller."""
    return (
        os.path.abspath(cache)
        if cache
        else os.path.join(os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache"), "torchlan")
    )


def requirement_name(line: str) -> str | None:
    """Normalised name of the distribution that a requirement asks for; C(None) when it is no requirement."""
    match = _REQUIREMENT_NAME.match(line)
    return normalised(match.group(1)) if match else None


@contextlib.contextmanager
def exclusive(path: str, timeout: float = _NETWORK_TIMEOUT) -> Iterator[None]:
    """Hold the lock file C(path) against other launches on this controller.

    :raises SourceError: another process held it all the time.
    """
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, "a", encoding="ascii") as file:
        end = time.monotonic() + timeout
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError as problem:
                if time.monotonic() > end:
                    raise SourceError(
                        "repo_unreachable", f"another launch has held {path} for {timeout:.0f} s"
                    ) from problem
                time.sleep(0.1)
        yield


def _resolve_path(path: str, version: str) -> Source:
    code, text = _try(path, "rev-parse", "--absolute-git-dir", discover=True)
    if code:
        fix = None
        if "dubious ownership" in text:
            fix = f"git config --global --add safe.directory {path}"
        elif not os.path.exists(os.path.join(path, ".git")):
            fix = f"nanochat_repo is a git repository; {path} is a folder without one"
        raise SourceError("repo_unreachable", f"nanochat_repo: git cannot read {path}: {last_lines(text, 1)}", fix)
    git_dir = text.strip("\n")
    commit = _find(git_dir, version)
    if commit is None:
        raise _unknown(path, git_dir, version)
    source = Source(path, version, commit, git_dir, is_url=False)
    if _git(git_dir, "rev-parse", "--is-bare-repository").strip() != "true" and commit == _find(git_dir, "HEAD"):
        # Only what the commit would otherwise hold matters: somebody who names another commit does not mean the edits.
        code, text = _try(path, "status", "--porcelain", "--no-renames", "-z", discover=True)
        changed = [entry[3:] for entry in text.split("\0") if entry[:2].strip()] if code == 0 else []
        if changed:
            source.causes.append(
                cause(
                    "repo_dirty",
                    f"{path} has {len(changed)} uncommitted change(s), which the hosts do not get: {_some(changed)}",
                    f"git -C {_quoted(path)} commit, if the run should have them",
                    weight="warning",
                )
            )
    return source


def _resolve_url(url: str, version: str, cache: str) -> Source:
    name = hashlib.sha256(url.encode()).hexdigest()[:24]
    git_dir = os.path.join(cache, "repos", f"{name}.git")
    with exclusive(os.path.join(cache, "repos", f"{name}.lock")):
        if _try(git_dir, "rev-parse", "--git-dir")[0]:
            shutil.rmtree(git_dir, ignore_errors=True)
            _git(None, "init", "--quiet", "--bare", git_dir)
        if not (_FULL_COMMIT.match(version) and _complete(git_dir, version)):
            _fetch(git_dir, url, version)
        commit = _find(git_dir, "refs/torchlan/HEAD" if version == "HEAD" else version)
        if commit is None:
            raise _unknown(redact(url), git_dir, version)
        # Its own reference keeps the commit when the branch is rewritten, and says that all of its history is here.
        _git(git_dir, "update-ref", _KEEP + commit, commit)
    return Source(url, version, commit, git_dir, is_url=True)


def _complete(git_dir: str, commit: str) -> bool:
    """Whether a reference reaches the commit: git writes references only after all of their history has arrived."""
    code, text = _try(git_dir, "for-each-ref", "--count=1", f"--contains={commit}")
    return code == 0 and bool(text.strip())


def _fetch(git_dir: str, url: str, version: str) -> None:
    specs = ["+refs/heads/*:refs/heads/*", "+refs/tags/*:refs/tags/*"]
    if version == "HEAD":
        specs.append("+HEAD:refs/torchlan/HEAD")
    code, text = _try(git_dir, *_fetch_argv(url, specs), timeout=_NETWORK_TIMEOUT)
    if code == 0 and _FULL_COMMIT.match(version) and not _complete(git_dir, version):
        # A commit outside of all branches, such as a pull request's: many servers give it when asked.
        _try(git_dir, *_fetch_argv(url, [f"{version}:{_KEEP}{version}"]), timeout=_NETWORK_TIMEOUT)
    if code:
        raise SourceError(
            "repo_unreachable",
            f"nanochat_repo: git cannot fetch {redact(url)}: {last_lines(text, 3)}",
            f"git ls-remote {_quoted(redact(url))}   (by hand, here); a full commit as nanochat_version that was used "
            "before needs no network; a path on the controller works too",
        )


def _fetch_argv(url: str, specs: Sequence[str]) -> list[str]:
    slow = ["-c", "http.lowSpeedLimit=1000", "-c", "http.lowSpeedTime=60"]
    return [*slow, "fetch", "--quiet", "--prune", "--no-tags", "--", url, *specs]


def _find(git_dir: str, version: str) -> str | None:
    for name in (version, f"refs/remotes/origin/{version}"):
        code, text = _try(git_dir, "rev-parse", "--quiet", "--verify", name + "^{commit}")
        # A warning about an ambiguous name comes before the commit.
        commit = text.strip().rsplit("\n", 1)[-1]
        if code == 0 and _FULL_COMMIT.match(commit):
            return commit
    return None


def _unknown(repo: str, git_dir: str, version: str) -> SourceError:
    names = _try(git_dir, "for-each-ref", "--format=%(refname:short)", "refs/heads", "refs/tags")[1].split()
    known = f"its branches and tags: {_some(names)}" if names else "it has no branch and no tag"
    fix = None
    if _FULL_COMMIT.match(version):
        fix = "name a branch, a tag or a commit of this repository, for example nanochat_version: HEAD"
    return SourceError("version_unknown", f"nanochat_version: {repo} has no {version!r}; {known}", fix)


def _some(names: Sequence[str], most: int = 5) -> str:
    return ", ".join(names[:most]) + (f" and {len(names) - most} more" if len(names) > most else "")


def _quoted(text: str) -> str:
    return f"'{text}'" if re.search(r"[^\w@%+=:,./~-]", text) else text


def _git_path(git_dir: str, name: str) -> str:
    path = _git(git_dir, "rev-parse", "--git-path", name).strip("\n")
    return os.path.join(git_dir, path)


def _git(git_dir: str | None, *words: str, timeout: float = 300.0) -> str:
    code, text = _try(git_dir, *words, timeout=timeout)
    if code:
        where = f" of {git_dir}" if git_dir else ""
        verb = next((word for word in words if not word.startswith("-") and "=" not in word), "")
        raise SourceError("repo_unreachable", f"git {verb}{where} failed: {last_lines(text, 3)}")
    return text


def _try(git_dir: str | None, *words: str, timeout: float = 300.0, discover: bool = False) -> tuple[int, str]:
    """Run git; exit code and output, which is standard error's when it fails.

    :param discover: let git find the repository of the folder C(git_dir), but of none above it.
    """
    env = {name: value for name, value in os.environ.items() if name not in _FOREIGN_ENV}
    env.update(GIT_TERMINAL_PROMPT="0", LC_ALL="C", GIT_OPTIONAL_LOCKS="0", GIT_NO_LAZY_FETCH="1")
    argv = ["git", "--no-pager", "-c", "gc.auto=0", "-c", "maintenance.auto=false"]
    if git_dir and discover:
        env["GIT_CEILING_DIRECTORIES"] = os.path.dirname(os.path.realpath(git_dir))
        argv += ["-C", git_dir]
    elif git_dir:
        argv.append(f"--git-dir={git_dir}")
    try:
        # In a session of its own there is no terminal on which ssh could ask for a password and wait for ever.
        done = subprocess.run(
            argv + list(words), env=env, stdin=subprocess.DEVNULL, capture_output=True, timeout=timeout, check=False,
            start_new_session=True, cwd="/",
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        return 124, f"no end after {timeout:.0f} s"
    except OSError as problem:
        return 127, str(problem)
    text = done.stdout if done.returncode == 0 else done.stderr or done.stdout
    return done.returncode, text.decode("utf-8", "surrogateescape" if done.returncode == 0 else "replace")
