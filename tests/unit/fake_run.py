# Copyright (c) 2026, torchlan contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Real processes that look like a run: a fake torchrun whose workers do as they are told, in real tmux.

C(python -m torch.distributed.run) finds a package of this name in the test's folder, so that the command line is the
real one. What the fakes do stands in the variable C(FAKE), as JSON.
"""

from __future__ import annotations

import contextlib
import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from ansible_collections.torchlan.nanochat.plugins.module_utils.run_processes import all_processes

# Hostile on purpose: a space, quotes, a command for a shell and formats for tmux.
BASE_NAME = "my $(touch pwned) 'base\" #{session_name} #(touch pwned);x"

AGENT = """
import json, mmap, os, signal, subprocess, sys, time
fake = json.loads(os.environ["FAKE"])
if not fake.get("no_torch") and "die" not in fake:
    with open(os.path.join(os.path.dirname(__file__), "libtorch.so"), "rb") as file:
        torch = mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)
if fake.get("say"):
    print(fake["say"], flush=True)
if "die" in fake:
    sys.exit(fake["die"])
if fake.get("ignore_term"):
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
workers = []
def term(*_args):
    for worker in workers:
        worker.terminate()
    sys.exit(1)
if not fake.get("ignore_term"):
    signal.signal(signal.SIGTERM, term)
for rank in fake.get("ranks", [0]):
    env = dict(os.environ, RANK=str(rank), LOCAL_RANK="0", WORLD_SIZE=str(fake.get("world_size", 1)))
    argv = [sys.executable, "-m", "fake_worker", "--torchrun"]
    workers.append(subprocess.Popen(argv, env=env, start_new_session=True))
codes = [worker.wait() for worker in workers]
while fake.get("barrier"):
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    time.sleep(0.1)
sys.exit(1 if any(codes) else 0)
"""

WORKER = """
import json, os, socket, subprocess, sys, time
fake, rank = json.loads(os.environ["FAKE"]), int(os.environ["RANK"])
if fake.get("helper"):
    subprocess.Popen([sys.executable, "-c", "import time; time.sleep(300)"])
if fake.get("exit_at_once"):
    sys.exit(0)
peer = None
size = fake.get("bytes_per_step", 0)
if size:
    if rank == 0:
        server = socket.socket()
        server.bind(("127.0.0.1", fake["peer_port"]))
        server.listen()
        peer = server.accept()[0]
        server.close()
    else:
        while peer is None:
            try:
                peer = socket.create_connection(("127.0.0.1", fake["peer_port"]))
            except OSError:
                time.sleep(0.05)
for step in range(fake.get("steps", 0)):
    if peer:
        peer.sendall(b"x" * size)
        left = size
        while left:
            left -= len(peer.recv(left))
    if rank == 0:
        line = "step %05d/%05d (0.00%%) | loss: %.6f | lrm: 1.00 | dt: 5.00ms |"
        print(line % (step, fake["steps_in_all"], 9 - step), flush=True)
    time.sleep(0.2)
time.sleep(fake.get("linger", 300))
"""


class Lab:
    """A base directory, a tmux server and processes of its own; nothing of it outlives the test."""

    def __init__(self, base_dir: Path, fakes: Path, tmux_tmpdir: str) -> None:
        self.base_dir = base_dir
        self.fakes = fakes
        self.tmux_tmpdir = tmux_tmpdir
        self.environ = {**os.environ, "TMUX_TMPDIR": tmux_tmpdir}
        self.children: list[subprocess.Popen[bytes]] = []

    def node_dir(self, run: str = "demo", attempt: str = "a1", node_rank: int = 0) -> Path:
        return self.base_dir / "runs" / run / "attempts" / attempt / ("node-%d" % node_rank)

    def make(self, run: str = "demo", attempt: str = "a1", node_rank: int = 0, **files: str) -> Path:
        """The folder of an attempt with some files, C(run_json=…) being run.json, and the link to it."""
        folder = self.node_dir(run, attempt, node_rank)
        (folder / "beats").mkdir(parents=True, exist_ok=True)
        for name, text in files.items():
            (folder / name.replace("_json", ".json").replace("_log", ".log")).write_text(text)
        link = self.base_dir / "runs" / run / ("current-%d" % node_rank)
        with contextlib.suppress(FileNotFoundError):
            link.unlink()
        link.symlink_to("attempts/%s/node-%d" % (attempt, node_rank))
        return folder

    def env_text(self, **fake: Any) -> str:
        values = {"FAKE": json.dumps(fake), "PYTHONPATH": str(self.fakes), "PYTHONUNBUFFERED": "1"}
        return "".join("export %s=%s\n" % (name, shlex.quote(value)) for name, value in values.items())

    def script(self, folder: Path) -> str:
        return (
            "#!/usr/bin/env bash\nset -uo pipefail\nfolder=%s\n"
            '. "$folder/env"\n'
            '%s -m torch.distributed.run --nnodes=1 -m fake_worker 2>&1 | tee -a "$folder/train.log"\n'
            "code=${PIPESTATUS[0]}\n"
            'echo "$code" > "$folder/exit_code"\nexit "$code"\n'
        ) % (shlex.quote(str(folder)), shlex.quote(sys.executable))

    def agent(self, folder: Path, **fake: Any) -> subprocess.Popen[bytes]:
        """A fake torchrun alone, without tmux."""
        env = {**os.environ, "TORCHLAN_RUN_DIR": str(folder), "FAKE": json.dumps(fake), "PYTHONPATH": str(self.fakes)}
        return self.child([sys.executable, "-m", "torch.distributed.run", "-m", "fake_worker"], env)

    def child(self, argv: list[str], env: dict[str, str]) -> subprocess.Popen[bytes]:
        child = subprocess.Popen(argv, env=env, start_new_session=True, stdout=subprocess.DEVNULL)
        self.children.append(child)
        # Right after exec there is a moment without an environment, by which a run is known.
        eventually(lambda: child.poll() is not None or Path("/proc/%d/environ" % child.pid).read_bytes() != b"")
        return child

    def module(self, name: str, check: bool = False, diff: bool = False, **args: Any) -> dict[str, Any]:
        """Run a module as Ansible does: a process of its own that reads its arguments."""
        args = {"base_dir": str(self.base_dir), "run": "demo", "node_rank": 0, **args}
        args = {**args, "_ansible_check_mode": check, "_ansible_diff": diff}
        done = subprocess.run(
            [sys.executable, "-m", "ansible_collections.torchlan.nanochat.plugins.modules." + name],
            input=json.dumps({"ANSIBLE_MODULE_ARGS": args}),
            env={**self.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)},
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert done.stdout.strip(), done.stderr
        result: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
        return result

    def start(self, attempt: str = "a1", run: str = "demo", node_rank: int = 0, **more: Any) -> dict[str, Any]:
        """C(state=started) of C(training_run); C(fake=…) is what the fakes do."""
        folder = self.node_dir(run, attempt, node_rank)
        options = {key: more.pop(key) for key in ("check", "diff") if key in more}
        args = {
            "script": self.script(folder),
            "env": self.env_text(**more.pop("fake", {})),
            "record": {"schema": 1, "run": run, "attempt": attempt},
            **more,
        }
        return self.module(
            "training_run", state="started", run=run, attempt=attempt, node_rank=node_rank, **options, **args
        )

    def stop(self, **more: Any) -> dict[str, Any]:
        return self.module("training_run", **{"state": "stopped", "reason": "a test", **more})

    def tmux(self, *argv: str) -> str:
        done = subprocess.run(
            ["tmux", "-L", "torchlan", *argv], env=self.environ, capture_output=True, text=True, check=False
        )
        return done.stdout

    def pids(self, run: str | None = None, role: str | None = None) -> list[int]:
        return [
            process.pid
            for process in all_processes()
            if process.where.path.startswith(str(self.base_dir))
            and run in (None, process.where.run)
            and role in (None, process.role)
        ]

    def close(self) -> None:
        for pid in self.pids():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        for child in self.children:
            child.kill()
            child.wait()
        self.tmux("kill-server")
        shutil.rmtree(self.tmux_tmpdir, ignore_errors=True)


@pytest.fixture(name="lab")
def lab_fixture(tmp_path: Path) -> Iterator[Lab]:
    fakes = tmp_path / "fakes"
    for folder in ("torch", "torch/distributed"):
        (fakes / folder).mkdir(parents=True)
        (fakes / folder / "__init__.py").touch()
    (fakes / "torch" / "distributed" / "run.py").write_text(AGENT)
    (fakes / "torch" / "distributed" / "libtorch.so").write_text("something that maps like torch")
    (fakes / "fake_worker.py").write_text(WORKER)
    base_dir = tmp_path / BASE_NAME
    base_dir.mkdir()
    # Short: pytest's own folders can be too long for a socket.
    lab = Lab(base_dir, fakes, tempfile.mkdtemp(prefix="tl-"))
    try:
        yield lab
        assert not list(tmp_path.rglob("pwned")), "a shell ran a part of a path"
    finally:
        lab.close()


def eventually(condition: Callable[[], Any], seconds: float = 15.0) -> Any:
    """What the condition gives, as soon as that is true."""
    end = time.monotonic() + seconds
    while True:
        value = condition()
        if value:
            return value
        assert time.monotonic() < end, "did not happen within %g s" % seconds
        time.sleep(0.05)
