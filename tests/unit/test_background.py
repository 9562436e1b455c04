# Copyright (c) 2026, torchlan contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Work in the background: quick work ends in the first call, long work is followed, abandoned work ends itself."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from typing import Any

import pytest

from ansible_collections.torchlan.nanochat.plugins.module_utils import background
from ansible_collections.torchlan.nanochat.plugins.module_utils.background import Progress, follow


@pytest.fixture(autouse=True)
def jobs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HOME", str(tmp_path))
    return tmp_path / ".cache" / "torchlan" / "jobs"


def wait_for(condition: Any, limit_s: float = 20) -> None:
    until = time.monotonic() + limit_s
    while not condition():
        assert time.monotonic() < until
        time.sleep(0.02)


def gone(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()[0] == "Z"
    except (OSError, IndexError):
        return True


def test_quick_work_ends_in_the_first_call(jobs: Path) -> None:
    assert follow(None, lambda progress: {"pid_differs": os.getpid() != parent}) == {"pid_differs": True}
    assert not list(jobs.iterdir()), "nothing is left"


parent = os.getpid()


def test_long_work_is_followed_and_tells_its_progress(tmp_path: Path, jobs: Path) -> None:
    gate = tmp_path / "gate"
    filled = tmp_path / "filled"
    filled.mkdir()
    (filled / "half").write_bytes(b"x" * 3_000_000)

    def work(progress: Progress) -> dict[str, Any]:
        progress.folder = str(filled)
        code, text = progress.run(["sh", "-c", f"echo Downloading it; while [ ! -e '{gate}' ]; do sleep 0.05; done"])
        return {"code": code, "text": text}

    first = follow(None, work, patience_s=0.2)
    assert set(first) == {"job", "progress"}
    wait_for(lambda: "Downloading it, 3 MB" in follow(first["job"], work, patience_s=0)["progress"])
    gate.touch()
    assert follow(first["job"], work, patience_s=20) == {"code": 0, "text": "Downloading it"}
    assert not list(jobs.iterdir())
    with pytest.raises(RuntimeError, match="outside"):
        follow(first["job"], work)


def test_work_that_breaks_says_how() -> None:
    def work(progress: Progress) -> dict[str, Any]:
        raise ValueError("no such luck")

    with pytest.raises(RuntimeError, match="no such luck"):
        follow(None, work)


def test_work_that_is_killed_is_told(tmp_path: Path) -> None:
    pid_file = tmp_path / "pid"

    def work(progress: Progress) -> dict[str, Any]:
        pid_file.write_text(str(os.getpid()), encoding="ascii")
        time.sleep(60)
        return {}

    job = follow(None, work, patience_s=0.1)["job"]
    wait_for(lambda: pid_file.exists() and pid_file.read_text(encoding="ascii"))
    os.kill(int(pid_file.read_text(encoding="ascii")), signal.SIGKILL)
    with pytest.raises(RuntimeError, match="ended from outside"):
        follow(job, work, patience_s=20)


def test_work_that_nobody_asks_for_ends_with_its_children(
    tmp_path: Path, jobs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(background, "ABANDONED_S", 1.0)
    child = tmp_path / "child"
    follow(None, lambda progress: {"code": progress.run(["sh", "-c", f"echo $$ > '{child}'; exec sleep 60"])[0]}, 0.1)
    wait_for(lambda: child.exists() and child.read_text(encoding="ascii").strip())
    pid = int(child.read_text(encoding="ascii"))
    wait_for(lambda: gone(pid))
    wait_for(lambda: not list(jobs.iterdir()))


@pytest.mark.parametrize("job", ["../../etc", "", "0" * 15, "0" * 16 + "\n"])
def test_only_a_job_is_a_job(job: str) -> None:
    with pytest.raises(RuntimeError):
        follow(job, lambda progress: {})


def test_passwords_are_not_in_the_progress() -> None:
    progress = Progress()
    progress.say("Looking in indexes: https://me:s3cret@mirror.example/simple")
    assert "s3cret" not in progress.shown(1.0)
