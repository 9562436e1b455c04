# Copyright (c) 2026, torchlan contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The runner's wrappers around torch, in one process per version of torch."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest
from agents import ROOT, free_port

PYTHONS = [p for p in (os.environ.get("TORCHLAN_TORCH_PYTHON"), os.environ.get("TORCHLAN_OTHER_TORCH_PYTHON")) if p]

pytestmark = pytest.mark.skipif(not PYTHONS, reason="TORCHLAN_TORCH_PYTHON is not set")

CODE = """
import os, sys, threading
import torch, torch.distributed as dist
from torchlan_runner import backend, steps
from torchlan_runner.beat import Beat
from torchlan_runner.plan import read_plan

plan = read_plan(os.environ)
beat = Beat(plan)
original = dist.init_process_group
backend.install_counters(beat)
backend.start_gloo(plan, beat)
c = beat.counters
assert beat.backend == "gloo"

# what a fork of nanochat does later is a no-op; what it can't mean is not swallowed
assert dist.init_process_group(backend="gloo") is None and dist.init_process_group() is None
try:
    dist.init_process_group("nccl")
    raise SystemExit("nccl was swallowed")
except (ValueError, RuntimeError):
    pass

# get_future on every handle, also where Gloo has none
x = torch.arange(8.0)
out = torch.empty(8)
future = dist.reduce_scatter_tensor(out, x, op=dist.ReduceOp.AVG, async_op=True).get_future()
assert isinstance(future, torch.futures.Future)
assert future.wait()[0] is out and torch.equal(out, x) and future.done() and future.value()[0] is out
done = threading.Event()
work = dist.reduce_scatter_tensor(out, x, async_op=True)
child = work.get_future().then(lambda f: done.set() or 7)
assert child.wait() == 7 and done.is_set()
for call in (lambda: dist.all_gather_into_tensor(out, x, async_op=True), lambda: dist.all_reduce(x, async_op=True)):
    call().get_future().wait()
assert c.begun == c.finished == 4, (c.begun, c.finished)
assert c.bytes == 4 * 32 and c.waiting_in is None
if hasattr(dist, "reduce_scatter_single"):
    dist.reduce_scatter_single(out, x)
    assert (c.begun, c.bytes) == (5, 5 * 32)
dist.all_reduce(x)
dist.barrier()
dist.all_gather([out], x)
dist.all_reduce(x, async_op=True)  # nobody waits for it
assert c.begun == c.finished
try:
    dist.all_reduce("no tensor")
except Exception:
    pass
assert c.waiting_in is None

# checksums: equal for equal bits, different for another place or another bit
def params():
    torch.manual_seed(1)
    return [torch.randn(64, 64), torch.randn(2048).bfloat16(), torch.randn(4)]
a, b = params(), params()
assert steps.checksum(a) == steps.checksum(b)
b[2][0] += 1  # small ones are not gathered
assert steps.checksum(a) == steps.checksum(b)
b[0][0, 0] = torch.nextafter(b[0][0, 0], torch.tensor(9.0))
assert steps.checksum(a) != steps.checksum(b)
b = params(); b[0][0, 0], b[0][0, 1] = a[0][0, 1], a[0][0, 0]
assert steps.checksum(a) != steps.checksum(b) and steps._on_device(torch, a[0]) != steps._on_device(torch, b[0])
assert steps._on_device(torch, a[1]) == steps._on_device(torch, params()[1])
assert steps.checksum([torch.zeros(4)]) != steps.checksum([torch.ones(4)])

# steps of any optimizer are counted, a second optimizer of the same training step is not
steps.Steps(beat).install()
p, q = torch.nn.Parameter(torch.zeros(2000)), torch.nn.Parameter(torch.zeros(3))
o1, o2 = torch.optim.SGD([p], lr=1.0), torch.optim.AdamW([q], lr=1.0)
for _ in range(3):
    (p.sum() + q.sum()).backward()
    o1.step(); o2.step()
assert c.step == 3 and c.param_bytes == 8012 and sorted(c.checksums) == ["1", "2", "3"]

# compiling is seen, and dynamo sees through the wrappers
seen = []
def eager(graph, inputs):
    seen.append(beat.snapshot()["state"])
    return graph
beat.state = "training"
f = torch.compile(lambda t: t * 2 + 1, backend=eager)
f(torch.ones(3))
assert seen == ["compiling"] and beat.snapshot()["state"] == "training", seen
def reduced(t):
    dist.all_reduce(t)
    return t + 1
assert torch.equal(torch.compile(reduced, backend="eager")(torch.ones(3)), torch.full((3,), 2.0))
beat.sample_sockets()
dist.destroy_process_group()
assert not dist.is_initialized()
dist.init_process_group("gloo")
dist.destroy_process_group()
print("all good", torch.__version__)
"""


@pytest.mark.parametrize("python", PYTHONS)
def test_wrappers(python: str, tmp_path: Path) -> None:
    node = {"node_rank": 0, "host": "h", "address": "127.0.0.1", "nproc": 1}
    plan = {"run": "r", "attempt": "a", "host": "h", "node_rank": 0, "nnodes": 1, "world_size": 1, "nodes": [node]}
    env = {
        **{name: value for name, value in os.environ.items() if not name.startswith("TORCH")},
        "PYTHONPATH": str(ROOT / "runner"),
        "TORCHLAN_PLAN": json.dumps(plan),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(free_port()),
        "RANK": "0",
        "WORLD_SIZE": "1",
        "GLOO_SOCKET_IFNAME": "lo",
        "OMP_NUM_THREADS": "1",
    }
    done = subprocess.run(
        [python, "-c", CODE], env=env, cwd=tmp_path, capture_output=True, text=True, timeout=300, check=False
    )
    assert "all good" in done.stdout, done.stdout + done.stderr
