# Copyright (c) 2026, torchlan contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The checkout on a host: real repositories and bundles, interrupted attempts, a user's own files."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import software

from ansible_collections.torchlan.nanochat.plugins.modules import checkout
from ansible_collections.torchlan.nanochat.plugins.plugin_utils import source


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "home"
    folder.mkdir()
    monkeypatch.setenv("HOME", str(folder))
    return folder


@pytest.fixture()
def repo(tmp_path: Path) -> Path:
    return software.repository(tmp_path / "source", commits=3)


@pytest.fixture()
def place(tmp_path: Path) -> Path:
    """Where the checkout shall be; its name is not friendly."""
    return tmp_path / "ho st" / "it's $(touch pwned) nanochat"


def bring(repo: Path, place: Path, version: str = "main", **more: Any) -> dict[str, Any]:
    """What the action does: ask, send a bundle if needed, ask again."""
    found = source.resolve(str(repo), version)
    result = checkout.bring(str(place), found.commit, **more)
    if not result["needs_bundle"]:
        return result
    assert not result["changed"]
    bundle = found.bundle(result["have"])
    try:
        return checkout.bring(str(place), found.commit, bundle, found.shallow_commits(), **more)
    finally:
        os.unlink(bundle)


def codes(result: dict[str, Any]) -> list[tuple[str, str]]:
    return [(entry["code"], entry["weight"]) for entry in result["causes"]]


def head(path: Path) -> str:
    return software.git(path, "rev-parse", "HEAD")


def test_a_clone_then_nothing_then_a_newer_and_an_older_commit(repo: Path, place: Path) -> None:
    predicted = bring(repo, place, check_mode=True)
    assert (predicted["action"], predicted["changed"], place.exists()) == ("clone", True, False)
    first = bring(repo, place, origin="https://example.com/x.git")
    assert (first["action"], first["changed"], first["before"], first["causes"]) == ("clone", True, None, [])
    assert (head(place), (place / "file.txt").read_text(encoding="utf-8")) == (head(repo), "2\n")
    assert software.git(place, "remote", "get-url", "origin") == "https://example.com/x.git"
    assert software.git(place, "status", "--porcelain") == ""
    again = bring(repo, place)
    assert (again["action"], again["changed"], again["needs_bundle"]) == ("none", False, False)
    newer = software.commit(repo, text="newer\n")
    assert bring(repo, place, check_mode=True)["action"] == "fetch"
    assert head(place) != newer
    assert bring(repo, place)["action"] == "fetch"
    assert head(place) == newer
    assert bring(repo, place, "main~2")["action"] == "checkout", "it is here already"
    assert head(place) == software.git(repo, "rev-parse", "HEAD~2")
    assert list(place.parent.iterdir()) == [place], "nothing is left beside it"
    assert not list(place.parents[1].rglob("pwned"))


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_folder_that_cannot_be_written_is_a_cause(repo: Path, place: Path) -> None:
    place.parent.mkdir(mode=0o500)
    assert codes(bring(repo, place)) == [("install_failed", "error")]


def test_changed_files_are_never_overwritten(repo: Path, place: Path) -> None:
    bring(repo, place)
    edited = place / "file.txt"
    edited.write_text("mine\n", encoding="utf-8")
    same = bring(repo, place)
    assert (codes(same), same["changed"]) == ([("checkout_dirty", "warning")], False)
    software.commit(repo, text="newer\n")
    for check_mode in (True, False):
        other = bring(repo, place, check_mode=check_mode)
        assert (codes(other), other["changed"]) == ([("checkout_dirty", "error")], False)
        assert "file.txt" in other["causes"][0]["what"] and "stash" in other["causes"][0]["fix"]
    assert edited.read_text(encoding="utf-8") == "mine\n"


@pytest.mark.parametrize("name", ["new.py", "sub/new.py", "ignored.log", "folder"])
def test_untracked_files_only_block_where_they_are_in_the_way(name: str, repo: Path, place: Path) -> None:
    software.commit(repo, ".gitignore", "*.log\n")
    bring(repo, place)
    (place / "harmless.txt").write_text("mine", encoding="utf-8")
    mine = place / name
    mine.parent.mkdir(exist_ok=True)
    mine.write_text("mine", encoding="utf-8")
    software.commit(repo, text="newer\n")
    assert bring(repo, place)["changed"], "not in the way yet"
    coming = "folder/inner.py" if name == "folder" else name
    (repo / coming).parent.mkdir(exist_ok=True)
    (repo / coming).write_text("theirs", encoding="utf-8")
    software.git(repo, "add", "-f", coming)
    software.git(repo, "commit", "-q", "-m", "adds it")
    result = bring(repo, place)
    assert codes(result) == [("checkout_dirty", "error")]
    assert name in result["causes"][0]["what"]
    assert mine.read_text(encoding="utf-8") == "mine"
    mine.unlink()
    assert bring(repo, place)["changed"]
    assert (place / coming).read_text(encoding="utf-8") == "theirs"
    assert (place / "harmless.txt").exists()


@pytest.mark.parametrize("kind", ["folder", "file", "inside of a repository", "broken .git"])
def test_what_is_no_checkout_is_left_alone(kind: str, repo: Path, place: Path, tmp_path: Path) -> None:
    if kind == "inside of a repository":
        software.repository(place.parent)
    place.parent.mkdir(parents=True, exist_ok=True)
    if kind == "file":
        place.write_text("mine", encoding="utf-8")
    else:
        place.mkdir()
        (place / ("notes.txt" if kind != "broken .git" else ".git")).write_text("mine", encoding="utf-8")
    result = bring(repo, place)
    assert (codes(result), result["changed"]) == ([("checkout_foreign", "error")], False)
    files = [place] if kind == "file" else list(place.iterdir())
    assert [file.read_text(encoding="utf-8") for file in files] == ["mine"]


def test_an_empty_folder_a_link_and_our_own_environment_are_taken_over(repo: Path, place: Path, tmp_path: Path) -> None:
    target = tmp_path / "big disk"
    (target / ".venv" / "bin").mkdir(parents=True)
    place.parent.mkdir()
    place.symlink_to(target)
    assert bring(repo, place)["action"] == "clone"
    assert place.is_symlink() and (target / "file.txt").exists() and (target / ".venv" / "bin").is_dir()
    (tmp_path / "empty").mkdir()
    assert bring(repo, tmp_path / "empty")["action"] == "clone"


def test_a_broken_bundle_leaves_nothing(repo: Path, place: Path, tmp_path: Path) -> None:
    found = source.resolve(str(repo), "main")
    whole = Path(found.bundle()).read_bytes()
    for size in (0, 40, len(whole) // 2, len(whole) - 1):
        bundle = tmp_path / "short.bundle"
        bundle.write_bytes(whole[:size])
        result = checkout.bring(str(place), found.commit, str(bundle))
        assert (codes(result), result["changed"]) == ([("install_failed", "error")], False)
        assert list(place.parent.iterdir()) == []
    assert bring(repo, place)["changed"]
    # and an existing checkout stays what it is
    before = head(place)
    newer = software.commit(repo, text="newer\n")
    bundle.write_bytes(Path(source.resolve(str(repo), "main").bundle([before])).read_bytes()[:-30])
    result = checkout.bring(str(place), newer, str(bundle))
    assert codes(result) == [("install_failed", "error")]
    assert (head(place), software.git(place, "status", "--porcelain")) == (before, "")
    assert bring(repo, place)["changed"]


def test_a_killed_clone_is_cleaned_up_by_the_next(repo: Path, place: Path) -> None:
    place.parent.mkdir()
    stale = place.parent / f".{place.name}.torchlan-clone-abc"
    (stale / ".git").mkdir(parents=True)
    assert bring(repo, place)["action"] == "clone"
    assert list(place.parent.iterdir()) == [place]


def test_a_user_s_branch_and_detached_commits_survive(repo: Path, place: Path) -> None:
    software.git(repo.parent, "clone", "-q", str(repo), str(place))
    branch = software.commit(place, "mine.txt", "on a branch\n")
    bring(repo, place, "main~1")
    assert software.git(place, "rev-parse", "main") == branch
    software.git(place, "checkout", "-q", "--detach", "main~1")
    lone = software.commit(place, "lone.txt", "detached\n")
    bring(repo, place)
    assert software.git(place, "for-each-ref", f"--contains={lone}").count("refs/torchlan/kept/") == 1


def test_a_shallow_source_and_a_shallow_host_both_work(repo: Path, place: Path, tmp_path: Path) -> None:
    address = "file://" + str(repo)
    software.git(tmp_path, "clone", "-q", "--depth=1", address, "shallow")
    assert bring(tmp_path / "shallow", place, "HEAD")["action"] == "clone"
    assert head(place) == head(repo)
    software.git(place, "fsck", "--connectivity-only")
    # forwards and backwards from there
    software.commit(repo, text="newer\n")
    assert bring(repo, place)["action"] == "fetch"
    assert bring(repo, place, "main~3")["action"] == "fetch"
    assert head(place) == software.git(repo, "rev-parse", "main~3")


def test_a_hook_of_the_user_s_is_not_run(repo: Path, place: Path, tmp_path: Path) -> None:
    bring(repo, place)
    hook = place / ".git" / "hooks" / "post-checkout"
    hook.parent.mkdir(exist_ok=True)
    hook.write_text(f"#!/bin/sh\ntouch {tmp_path}/ran\n", encoding="utf-8")
    hook.chmod(0o755)
    software.commit(repo, text="newer\n")
    assert bring(repo, place)["changed"]
    assert not (tmp_path / "ran").exists()


def test_without_git_the_cause_says_how_to_get_it(repo: Path, place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    result = checkout.bring(str(place), "0" * 40)
    assert codes(result) == [("git_missing", "error")]
    assert "install" in result["causes"][0]["fix"]


def test_a_run_that_works_in_the_checkout_is_not_disturbed(repo: Path, place: Path, tmp_path: Path) -> None:
    bring(repo, place)
    run_dir = tmp_path / "base" / "runs" / "trial" / "attempts" / "20260101-000000" / "node-0"
    env = {**os.environ, "TORCHLAN_RUN_DIR": str(run_dir)}
    command = [sys.executable, "-c", "print('up', flush=True); import time; time.sleep(60)"]
    with subprocess.Popen(command, env=env, cwd=place, stdout=subprocess.PIPE) as process:
        try:
            assert process.stdout is not None and process.stdout.readline()
            software.commit(repo, text="newer\n")
            result = bring(repo, place)
            assert (codes(result), result["changed"]) == ([("run_in_progress", "error")], False)
            assert "trial" in result["causes"][0]["what"]
            assert bring(repo, tmp_path / "elsewhere")["changed"], "another checkout is free"
        finally:
            process.kill()
    assert bring(repo, place)["changed"]
