# Copyright (c) 2026, torchlan contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""nanochat's source on the controller: real git repositories, by path and by URL."""

from __future__ import annotations

import multiprocessing
import os
import subprocess
from pathlib import Path

import pytest
import software

from ansible_collections.torchlan.nanochat.plugins.plugin_utils import source


def url(path: Path) -> str:
    return "file://" + str(path).replace(" ", "%20")


@pytest.fixture()
def cache(tmp_path: Path) -> str:
    return str(tmp_path / "a cache")


@pytest.fixture()
def repo(tmp_path: Path) -> Path:
    return software.repository(tmp_path / "my repo's $(touch pwned)", commits=3)


@pytest.mark.parametrize("kind", ["absolute", "relative", "home", "bare", "worktree"])
def test_a_path_of_any_kind_gives_the_full_commit(
    kind: str, repo: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    head = software.git(repo, "rev-parse", "HEAD")
    given = str(repo)
    monkeypatch.chdir(tmp_path)
    if kind == "relative":
        given = repo.name
    elif kind == "home":
        monkeypatch.setenv("HOME", str(tmp_path))
        given = "~/" + repo.name
    elif kind == "bare":
        software.git(tmp_path, "clone", "-q", "--bare", str(repo), "bare.git")
        given = str(tmp_path / "bare.git")
    elif kind == "worktree":
        software.git(repo, "worktree", "add", "-q", str(tmp_path / "linked"), "HEAD")
        given = str(tmp_path / "linked")
    found = source.resolve(given, "main" if kind != "worktree" else "HEAD")
    assert (found.commit, found.causes, found.url) == (head, [], None)
    assert not (tmp_path / "pwned").exists()


def test_branch_tag_short_and_remote_branch_are_versions(repo: Path, tmp_path: Path) -> None:
    first = software.git(repo, "rev-parse", "HEAD~2")
    software.git(repo, "tag", "-a", "v1", "-m", "one", first)
    software.git(repo, "branch", "feature/x", "HEAD~1")
    software.git(tmp_path, "clone", "-q", str(repo), "clone")
    clone = str(tmp_path / "clone")
    assert source.resolve(clone, "v1").commit == first
    assert source.resolve(clone, first[:9]).commit == first
    assert source.resolve(clone, "feature/x").commit == software.git(repo, "rev-parse", "HEAD~1")
    assert source.resolve(clone, "").commit == software.git(repo, "rev-parse", "HEAD")


@pytest.mark.parametrize(
    "version", ["no-such", "0" * 40, "--upload-pack=touch pwned", "a b", "main\nHEAD", "HEAD^{tree}"]
)
def test_an_unknown_version_is_a_cause_that_names_the_known_ones(version: str, repo: Path) -> None:
    with pytest.raises(source.SourceError) as caught:
        source.resolve(str(repo), version)
    assert caught.value.cause["code"] == "version_unknown"
    if version == "no-such":
        assert "main" in caught.value.cause["what"]


@pytest.mark.parametrize(
    "given", ["", "no/such/folder", "--upload-pack=x", "ext::sh -c 'touch pwned'", "a\nb", "plain", "file.txt"]
)
def test_what_is_no_repository_is_refused(
    given: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cache: str
) -> None:
    (tmp_path / "plain").mkdir()
    (tmp_path / "file.txt").write_text("", encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(source.SourceError) as caught:
        source.resolve(given, "main", cache=cache)
    assert caught.value.cause["code"] == "repo_unreachable"
    assert not list(tmp_path.rglob("pwned"))


def test_a_folder_inside_of_a_repository_is_not_that_repository(repo: Path) -> None:
    (repo / "inner").mkdir()
    with pytest.raises(source.SourceError, match="cannot read"):
        source.resolve(str(repo / "inner"), "main")


def test_uncommitted_changes_are_a_warning_and_stay(repo: Path) -> None:
    (repo / "file.txt").write_text("edited\n", encoding="utf-8")
    (repo / "new.py").write_text("", encoding="utf-8")
    index = (repo / ".git" / "index").read_bytes()
    found = source.resolve(str(repo), "main")
    assert [(entry["code"], entry["weight"]) for entry in found.causes] == [("repo_dirty", "warning")]
    assert "file.txt" in found.causes[0]["what"] and "new.py" in found.causes[0]["what"]
    assert source.resolve(str(repo), "main~1").causes == [], "who names another commit does not mean the edits"
    assert (repo / ".git" / "index").read_bytes() == index


def test_an_url_is_cached_and_a_full_commit_needs_no_network(repo: Path, cache: str, tmp_path: Path) -> None:
    found = source.resolve(url(repo), "main", cache=cache)
    assert found.commit == software.git(repo, "rev-parse", "HEAD")
    assert found.git_dir.startswith(cache)
    moved = tmp_path / "away"
    repo.rename(moved)
    again = source.resolve(url(repo), found.commit, cache=cache)
    assert again.commit == found.commit
    with pytest.raises(source.SourceError) as caught:
        source.resolve(url(repo), "main", cache=cache)
    assert caught.value.cause["code"] == "repo_unreachable", "a branch may have moved: never the old one in silence"
    moved.rename(repo)
    software.commit(repo, text="newer\n")
    assert source.resolve(url(repo), "main", cache=cache).commit == software.git(repo, "rev-parse", "HEAD")


def test_a_rewritten_branch_does_not_lose_the_commit_that_was_used(repo: Path, cache: str) -> None:
    old = source.resolve(url(repo), "main", cache=cache).commit
    software.git(repo, "reset", "-q", "--hard", "HEAD~2")
    software.commit(repo, text="other\n")
    new = source.resolve(url(repo), "", cache=cache).commit
    assert new == software.git(repo, "rev-parse", "HEAD") != old
    assert source.resolve(url(repo), old, cache=cache).holds(old)


def test_an_object_without_its_history_is_not_taken_for_cached(repo: Path, cache: str) -> None:
    git_dir = source.resolve(url(repo), "main~1", cache=cache).git_dir
    newer = software.commit(repo, text="newer\n")
    # what an interrupted fetch leaves: the commit's own object, nothing else
    name = Path(git_dir, "objects", newer[:2], newer[2:])
    name.parent.mkdir(exist_ok=True)
    name.write_bytes((repo / ".git" / "objects" / newer[:2] / newer[2:]).read_bytes())
    found = source.resolve(url(repo), newer, cache=cache)
    assert software.git(Path(git_dir), "rev-list", "--objects", found.commit)


def test_a_commit_outside_of_all_branches_is_asked_for(repo: Path, cache: str) -> None:
    lone = software.commit(repo, text="lone\n")
    software.git(repo, "reset", "-q", "--hard", "HEAD~1")
    software.git(repo, "update-ref", "refs/pull/1/head", lone)
    assert source.resolve(url(repo), lone, cache=cache).commit == lone


def test_a_broken_cache_is_made_anew(repo: Path, cache: str) -> None:
    git_dir = Path(source.resolve(url(repo), "main", cache=cache).git_dir)
    (git_dir / "HEAD").write_text("garbage", encoding="utf-8")
    assert source.resolve(url(repo), "main", cache=cache).holds(software.git(repo, "rev-parse", "HEAD"))


def test_passwords_of_an_url_are_in_no_message(cache: str) -> None:
    with pytest.raises(source.SourceError) as caught:
        source.resolve("https://me:s3cret@127.0.0.1:9/x.git", "main", cache=cache)
    assert "s3cret" not in str(caught.value.cause)
    assert caught.value.cause["code"] == "repo_unreachable"


def _resolve(arguments: tuple[str, str]) -> str:
    return source.resolve(arguments[0], "main", cache=arguments[1]).commit


def test_launches_at_the_same_time_share_the_cache(repo: Path, cache: str) -> None:
    with multiprocessing.get_context("spawn").Pool(3) as pool:
        commits = pool.map(_resolve, [(url(repo), cache)] * 6)
    assert set(commits) == {software.git(repo, "rev-parse", "HEAD")}


def unbundled(bundle: str, path: Path) -> set[str]:
    software.git(path, "bundle", "unbundle", bundle)
    return set(software.git(path, "cat-file", "--batch-all-objects", "--batch-check=%(objectname)").split())


def test_a_bundle_holds_what_the_host_lacks_and_the_source_is_untouched(repo: Path, tmp_path: Path) -> None:
    before = software.git(repo, "for-each-ref")
    found = source.resolve(str(repo), "main")
    older = software.git(repo, "rev-parse", "HEAD~1")
    whole, part = found.bundle(), found.bundle([older, "f" * 40, "not a commit"])
    assert os.path.getsize(part) < os.path.getsize(whole)
    host = software.repository(tmp_path / "host", commits=0)
    assert len(unbundled(whole, host)) == 9
    with pytest.raises(AssertionError, match="prerequisite"):
        unbundled(part, software.repository(tmp_path / "empty", commits=0))
    assert software.git(repo, "for-each-ref") == before
    # older than what the host has, which it nevertheless lacks
    backwards = source.resolve(str(repo), "main~2").bundle([found.commit])
    assert len(unbundled(backwards, software.repository(tmp_path / "third", commits=0))) == 3
    for path in (whole, part, backwards):
        os.unlink(path)


def test_the_bundle_of_a_shallow_clone_says_where_history_ends(repo: Path, tmp_path: Path) -> None:
    software.git(tmp_path, "clone", "-q", "--depth=2", url(repo), "shallow")
    found = source.resolve(str(tmp_path / "shallow"), "HEAD")
    assert found.shallow_commits() == [software.git(repo, "rev-parse", "HEAD~1")]
    bundle = found.bundle()
    assert os.path.getsize(bundle) > 0
    os.unlink(bundle)
    assert source.resolve(str(repo), "main").shallow_commits() == []


def test_requirements_come_from_the_commit_with_the_wanted_torch(tmp_path: Path) -> None:
    repo = software.minichat(tmp_path / "minichat")
    found = source.resolve(str(repo), "main")
    (repo / "pyproject.toml").write_text("[project]\ndependencies = ['other']\n", encoding="utf-8")
    assert found.requirements() == ["numpy>=1.26.0", "torch>=2.9"]
    assert found.requirements("torch==2.13.0", "cpu") == ["numpy>=1.26.0", "torch==2.13.0"]
    changed = software.commit(
        repo,
        "pyproject.toml",
        '[project]\ndependencies = ["PyYAML>=6 ; python_version>\'3\'", "Torch == 2.9.1"]\n'
        '[project.optional-dependencies]\ncpu = ["setuptools>=65.0.0", "torch==2.9.1"]\n',
    )
    wanted = source.resolve(str(repo), changed)
    assert wanted.requirements("torch==2.13.0", "cpu") == [
        "PyYAML>=6 ; python_version>'3'",
        "torch==2.13.0",
        "setuptools>=65.0.0",
    ]
    assert wanted.requirements() == ["PyYAML>=6 ; python_version>'3'", "Torch == 2.9.1"]
    none = software.commit(repo, "pyproject.toml", '[project]\ndependencies = ["numpy"]\n')
    assert source.resolve(str(repo), none).requirements() == ["numpy", "torch"]


@pytest.mark.parametrize(
    "text", ["[project", 'project = "x"', "[project]\ndependencies = 3", '[project]\ndependencies = ["-r x"]']
)
def test_an_unusable_pyproject_is_a_cause(text: str, tmp_path: Path) -> None:
    repo = software.repository(tmp_path / "repo")
    with pytest.raises(source.SourceError, match="does not exist"):
        source.resolve(str(repo), "HEAD").requirements()
    broken = software.commit(repo, "pyproject.toml", text)
    with pytest.raises(source.SourceError) as caught:
        source.resolve(str(repo), broken).requirements()
    assert caught.value.cause["code"] == "install_failed"


def test_a_hook_s_environment_is_not_ours(repo: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    other = software.repository(tmp_path / "other")
    monkeypatch.setenv("GIT_DIR", str(other / ".git"))
    monkeypatch.setenv("GIT_WORK_TREE", str(other))
    found = source.resolve(str(repo), "main")
    monkeypatch.delenv("GIT_DIR")
    monkeypatch.delenv("GIT_WORK_TREE")
    head = subprocess.run(["git", "-C", str(repo), "rev-parse", "HEAD"], capture_output=True, text=True, check=True)
    assert found.commit == head.stdout.strip()
