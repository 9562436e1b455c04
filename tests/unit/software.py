# Copyright (c) 2026, torchlan contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Repositories, wheels and shards that the tests of software and data make."""

from __future__ import annotations

import base64
import hashlib
import json
import os
import shutil
import subprocess
import zipfile
from pathlib import Path

MINICHAT = Path(__file__).resolve().parents[1] / "fixtures" / "minichat"


def git(path: Path, *words: str) -> str:
    """Run git as a user with a name and without configuration."""
    env = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    env.update(GIT_CONFIG_GLOBAL="/dev/null", GIT_CONFIG_SYSTEM="/dev/null", LC_ALL="C")
    env.update(
        GIT_AUTHOR_NAME="T",
        GIT_AUTHOR_EMAIL="t@example.com",
        GIT_COMMITTER_NAME="T",
        GIT_COMMITTER_EMAIL="t@example.com",
    )
    done = subprocess.run(["git", "-C", str(path), *words], env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"git {words}: {done.stderr}"
    return done.stdout.strip()


def commit(repo: Path, name: str = "file.txt", text: str = "text\n") -> str:
    """Commit one file."""
    file = repo / name
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text, encoding="utf-8")
    git(repo, "add", "-A", "--", name)
    git(repo, "commit", "-q", "-m", f"{name}: {text!r}")
    return git(repo, "rev-parse", "HEAD")


def repository(path: Path, commits: int = 1) -> Path:
    """A checkout on branch main with so many commits."""
    path.mkdir(parents=True)
    git(path, "init", "-q", "-b", "main")
    for number in range(commits):
        commit(path, text=f"{number}\n")
    return path


def minichat(path: Path) -> Path:
    """The nanochat-shaped repository of the fixtures, as a git repository."""
    shutil.copytree(MINICHAT, path, ignore=shutil.ignore_patterns("__pycache__"))
    git(path, "init", "-q", "-b", "main")
    git(path, "add", "-A")
    git(path, "commit", "-q", "-m", "minichat")
    return path


def write_shards(folder: Path, count: int = 3, documents: int = 32) -> Path:
    """Shards as minichat reads them."""
    folder.mkdir(parents=True, exist_ok=True)
    for shard in range(count):
        lines = [
            json.dumps({"text": f"The {number} cats of shard {shard} sleep on the mat."}) for number in range(documents)
        ]
        (folder / f"shard_{shard:05d}.parquet").write_text("\n".join(lines) + "\n", encoding="utf-8")
    return folder


def wheel(folder: Path, name: str, version: str, requires: list[str] | None = None) -> Path:
    """A wheel with one module, made without any build tool."""
    folder.mkdir(parents=True, exist_ok=True)
    module = name.replace("-", "_")
    info = f"{module}-{version}.dist-info"
    metadata = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
    metadata += "".join(f"Requires-Dist: {line}\n" for line in requires or [])
    files = {
        f"{module}/__init__.py": f"__version__ = '{version}'\n",
        f"{module}/version.py": f"__version__ = '{version}'\ncuda = None\n",
        f"{info}/METADATA": metadata,
        f"{info}/WHEEL": "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    record = ""
    for path, text in files.items():
        digest = base64.urlsafe_b64encode(hashlib.sha256(text.encode()).digest()).rstrip(b"=").decode()
        record += f"{path},sha256={digest},{len(text.encode())}\n"
    files[f"{info}/RECORD"] = record + f"{info}/RECORD,,\n"
    path = folder / f"{module}-{version}-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        for name_, text in files.items():
            archive.writestr(name_, text)
    return path
