# Copyright (c) 2026, torchlan contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A source and data like nanochat's, small: tests/fixtures/minichat as a git repository, and shards that it reads.

python3 tests/lan/minichat.py FOLDER        makes FOLDER/source and FOLDER/shards
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

FIXTURE = Path(__file__).resolve().parents[1] / "fixtures/minichat"
WORDS = "the lan carries every gradient from one host to the other and back again while both of them wait".split()


def commit(repo: Path) -> None:
    shutil.copytree(FIXTURE, repo, ignore=shutil.ignore_patterns("__pycache__"))
    who = ["-c", "user.name=T", "-c", "user.email=t@example.com"]
    for words in (["init", "-q"], ["add", "-A"], [*who, "commit", "-q", "-m", "minichat"]):
        subprocess.run(["git", "-C", str(repo), *words], check=True)


def write_shards(folder: Path) -> None:
    """Two shards of 32 row groups as minichat reads them, the second for validation."""
    folder.mkdir()
    for shard in range(2):
        texts = [
            " ".join(WORDS[(shard + row * 7 + i * (i + row)) % len(WORDS)] for i in range(60)) for row in range(512)
        ]
        lines = "".join(json.dumps({"text": text}) + "\n" for text in texts)
        (folder / f"shard_{shard:05d}.parquet").write_text(lines)


if __name__ == "__main__":
    commit(Path(sys.argv[1]) / "source")
    write_shards(Path(sys.argv[1]) / "shards")
