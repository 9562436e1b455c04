# Copyright (c) 2026, torchlan contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What the controller fetches for hosts without a way out: with its real pip, from a folder of tiny wheels."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest
import software

from ansible_collections.torchlan.nanochat.plugins.plugin_utils import fetched, source, tools

HOST = {"python": "3.11", "machine": "x86_64", "libc": "glibc", "libc_version": "2.36"}


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    for name in list(os.environ):
        if name.startswith(("PIP_", "UV_")):
            monkeypatch.delenv(name)
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    tools.pip.cache_clear()
    return tmp_path / "cache" / "torchlan"


@pytest.fixture()
def wheels(tmp_path: Path) -> Path:
    folder = tmp_path / "my wheels"
    software.wheel(folder, "torch", "9.9.1+cpu", requires=["tiny-dep"])
    software.wheel(folder, "tiny-dep", "1.0")
    # one for another system, which must not be taken
    made = software.wheel(folder, "tiny-dep", "2.0")
    made.rename(made.with_name("tiny_dep-2.0-cp311-cp311-win_amd64.whl"))
    return folder


def test_wheels_for_another_system_than_this_one(wheels: Path, cache: Path) -> None:
    given = ["--no-index", f"--find-links={wheels}"]
    folder = fetched.wheels(["torch"], HOST, given, {})
    assert [entry["name"] for entry in fetched.manifest(folder)] == [
        "tiny_dep-1.0-py3-none-any.whl",
        "torch-9.9.1+cpu-py3-none-any.whl",
    ]
    for path in wheels.iterdir():
        path.unlink()
    assert fetched.wheels(["torch"], HOST, given, {}) == folder, "kept: the next host costs no download"
    with fetched.packed(folder, fetched.manifest(folder)) as archive, tarfile.open(archive) as members:
        assert members.getnames() == [entry["name"] for entry in fetched.manifest(folder)]
    assert [path.name for path in (cache / "wheels").iterdir() if path.is_dir()] == [Path(folder).name]


def test_what_cannot_be_had_is_said_and_nothing_is_kept(wheels: Path, cache: Path) -> None:
    with pytest.raises(fetched.FetchError) as problem:
        fetched.wheels(["torch", "no-such-thing"], HOST, ["--no-index", f"--find-links={wheels}"], {})
    assert problem.value.cause["code"] == "index_unreachable"
    assert "no-such-thing" in problem.value.cause["what"]
    assert not [path for path in (cache / "wheels").iterdir() if path.is_dir()]


def test_the_environment_of_the_download_is_used(wheels: Path) -> None:
    env = {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": "file://" + str(wheels).replace(" ", "%20")}
    assert fetched.manifest(fetched.wheels(["tiny-dep"], HOST, [], env))


@pytest.mark.parametrize(
    ("libc", "version", "first", "never"),
    [
        ("glibc", "2.36", "manylinux_2_36_x86_64", "manylinux_2_37_x86_64"),
        ("", "", "musllinux_1_2_x86_64", "linux_x86_64"),
    ],
)
def test_names_of_a_platform(libc: str, version: str, first: str, never: str) -> None:
    words = tools.platform_tags({**HOST, "libc": libc, "libc_version": version})
    assert words[:2] == ["--platform", first] and never not in words
    assert words.count("--platform") * 2 == len(words)


def test_pip_runs_from_its_file_also_where_python_keeps_none(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert tools.run_pip(["--version"])[0] == 0
    tools.pip.cache_clear()
    monkeypatch.setattr(tools.glob, "glob", lambda pattern: [])
    zipped = tools.pip()
    assert zipped is not None and zipped.endswith("pip.zip")
    argv = [sys.executable, "-I", os.path.join(zipped, "pip"), "--version"]
    assert subprocess.run(argv, capture_output=True, check=True, cwd=tmp_path).stdout.startswith(b"pip ")
    tools.pip.cache_clear()


def test_uv_is_downloaded_once_and_run_for_the_hosts_platform(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    index = tmp_path / "index"
    wheel = software.wheel(index, "uv", tools.UV.partition("==")[2])
    script = (
        "import json, os, sys\n"
        "os.makedirs(os.environ['UV_CACHE_DIR'])\n"
        "json.dump(sys.argv[1:], open(os.path.join(os.environ['UV_CACHE_DIR'], 'argv'), 'w'))\n"
    )
    name = f"uv-{tools.UV.partition('==')[2]}.data/scripts/uv"
    with zipfile.ZipFile(wheel, "a") as archive:
        archive.writestr(name, f"#!{os.path.realpath(sys.executable)}\n{script}")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(index))
    uv = tools.uv(tools.here())
    wheel.unlink()
    assert tools.uv(tools.here()) == uv
    repo = software.repository(tmp_path / "repo")
    software.commit(repo, "pyproject.toml", "[project]\nname = 'x'\nversion = '1'\n")
    found = source.resolve(str(repo), "HEAD")
    with pytest.raises(fetched.FetchError, match=r"uv\.lock"):
        fetched.uv_cache(found, "cpu", HOST, {})
    software.commit(repo, "uv.lock", "version = 1\n")
    folder = fetched.uv_cache(source.resolve(str(repo), "HEAD"), "cpu", HOST, {})
    with tarfile.open(Path(folder, "uv-cache.tar")) as archive:
        member = archive.extractfile("uv-cache/argv")
        assert member is not None
        argv = json.load(member)
    assert argv[:2] == ["sync", "--frozen"]
    assert argv[argv.index("--python") + 1] == "3.11"
    assert argv[argv.index("--python-platform") + 1] == "x86_64-manylinux_2_36"


def test_without_pip_and_uv_it_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tools, "pip", lambda: None)
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(source.SourceError, match="uv is not on the host"):
        tools.uv(HOST)
