# Copyright (c) 2026, torchlan contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The exchange between ranks against Gloo's own collectives and against sums formed by hand, bit for bit."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest
from agents import ROOT, free_port

PYTHONS = [p for p in (os.environ.get("TORCHLAN_TORCH_PYTHON"), os.environ.get("TORCHLAN_OTHER_TORCH_PYTHON")) if p]

pytestmark = pytest.mark.skipif(not PYTHONS, reason="TORCHLAN_TORCH_PYTHON is not set")

CODE = """
import functools, itertools, sys
import torch, torch.distributed as dist
from torchlan_runner import exchange

hosts = [int(word) for word in sys.argv[1].split(",")]
dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
own_scatter, own_gather = dist.reduce_scatter_tensor, dist.all_gather_into_tensor
exchange.CHUNK, exchange.SMALL = 1 << 12, 0
exchange.replace(exchange.Layout(rank, hosts))
assert dist.reduce_scatter_tensor is not own_scatter and dist.all_gather_into_tensor is not own_gather
torch.manual_seed(rank)

def in_order(parts):
    "Added as the module says: rank by rank in a host, then host by host."
    of = {host: [part for part, here in zip(parts, hosts) if here == host] for host in hosts}
    return functools.reduce(torch.add, [functools.reduce(torch.add, those) for those in of.values()])

dtypes = (torch.float32, torch.bfloat16, torch.float16, torch.float64)
for dtype, size, op in itertools.product(dtypes, (1, 1023, 1024, 5001), (dist.ReduceOp.SUM, dist.ReduceOp.AVG)):
    mine = torch.randn(size * world).to(dtype)
    everybody = [torch.empty_like(mine) for _ in range(world)]
    dist.all_gather(everybody, mine)
    wanted = in_order([one.chunk(world)[rank] for one in everybody])
    wanted = wanted.div(world) if op == dist.ReduceOp.AVG else wanted
    got, gloo = torch.empty(size, dtype=dtype), torch.empty(size, dtype=dtype)
    work = dist.reduce_scatter_tensor(got, mine, op=op, async_op=True)
    assert work.wait() and work.is_completed() and work.is_success() and work.exception() is None
    assert torch.equal(got, wanted), (dtype, size, op)
    own_scatter(gloo, mine, op=op)
    assert torch.equal(got, gloo) if world == 2 else torch.allclose(got, gloo, rtol=0.05, atol=0.1), (dtype, size)

for dtype, size in itertools.product((*dtypes, torch.int64, torch.bool, torch.complex64), (1, 1000, 5001)):
    mine = (torch.randn(size) * 50).to(dtype)
    got, gloo = torch.empty(size * world, dtype=dtype), torch.empty(size * world, dtype=dtype)
    assert dist.all_gather_into_tensor(got, mine) is None
    own_gather(gloo, mine)
    assert torch.equal(got, gloo), (dtype, size)
    inplace = torch.zeros(size * world, dtype=dtype)  # the input is a part of the output, as in nanochat
    part = inplace.chunk(world)[rank]
    part.copy_(mine)
    dist.all_gather_into_tensor(inplace, part)
    assert torch.equal(inplace, gloo), (dtype, size)

# many under way, waited for in another order, among Gloo's own
given = [torch.randn(3000 * world) for _ in range(30)]
out = [torch.empty(3000) for _ in given]
works = []
for number, (whole, part) in enumerate(zip(given, out)):
    works.append(dist.reduce_scatter_tensor(part, whole, async_op=True))
    if number % 7 == 0:
        dist.all_reduce(torch.ones(3))
for work in reversed(works):
    work.wait()
for whole, part in zip(given, out):
    gloo = torch.empty(3000)
    own_scatter(gloo, whole)
    assert torch.allclose(gloo, part, atol=1e-5)

# parameters that need gradients
weight = torch.nn.Parameter(torch.zeros(4 * world))
dist.all_gather_into_tensor(weight, torch.full((4,), float(rank)))
assert weight.tolist() == [float(one) for one in range(world) for _ in range(4)]

# what it cannot do is Gloo's, with Gloo's own answer or error
exchange.SMALL = 1 << 40
whole = torch.arange(float(4 * world))
part = torch.empty(4)
dist.reduce_scatter_tensor(part, whole)
assert torch.equal(part, whole.chunk(world)[rank] * world)
exchange.SMALL = 0
dist.reduce_scatter_tensor(part, whole, op=dist.ReduceOp.MAX)
assert torch.equal(part, whole.chunk(world)[rank])
whole = torch.arange(4 * world)
part = torch.empty(4, dtype=torch.int64)
dist.reduce_scatter_tensor(part, whole)
assert torch.equal(part, whole.chunk(world)[rank] * world)
try:
    dist.reduce_scatter_tensor("x", "y")
    raise SystemExit("no error")
except (RuntimeError, TypeError, ValueError, AttributeError):
    pass
group = dist.new_group()
dist.all_gather_into_tensor(torch.empty(world), torch.ones(1), group=group)
if hasattr(dist, "all_gather_single"):
    got = torch.empty(world)
    dist.all_gather_single(got, torch.full((1,), float(rank)))
    assert got.tolist() == [float(one) for one in range(world)]
dist.barrier()

# an error is the waiting one's
exchange_of = exchange.Exchange(exchange.Layout(rank, hosts))
def broken():
    yield
    raise OSError("cut")
handle = exchange_of.start(broken())
try:
    handle.wait()
    raise SystemExit("no error")
except OSError:
    assert handle.is_completed() and not handle.is_success()

# gradients rounded on their way: each rank's part once, the sums in float32
exchange_of = exchange.Exchange(exchange.Layout(rank, hosts), torch.bfloat16)
mine, got = torch.randn(5001 * world), torch.empty(5001)
everybody = [torch.empty_like(mine) for _ in range(world)]
dist.all_gather(everybody, mine)
exchange_of.start(exchange_of.reduce_scatter(got, mine, False)).wait()
exact = in_order([one.chunk(world)[rank] for one in everybody])
assert not torch.equal(got, exact) and torch.allclose(got, exact, rtol=0.02, atol=0.05)
print("rank", rank, "all good", flush=True)
dist.barrier()
dist.destroy_process_group()
"""


LATE = """
import sys, time
from datetime import timedelta
import torch, torch.distributed as dist
from torchlan_runner import exchange

dist.init_process_group("gloo", timeout=timedelta(seconds=2))
dist.distributed_c10d._set_pg_timeout(exchange.TIMEOUT)
rank = dist.get_rank()
exchange.SMALL = 0
exchange.replace(exchange.Layout(rank, [int(word) for word in sys.argv[1].split(",")]))
for collective in (dist.reduce_scatter_tensor, lambda part, whole: dist.all_gather_into_tensor(whole, part)):
    part, whole = torch.full((500,), float(rank)), torch.full((1000,), float(rank))
    if rank == 0:
        time.sleep(4)  # it saves, or samples
    collective(part, whole)
    assert part.tolist() == [1.0] * 500 or whole.tolist() == [0.0] * 500 + [1.0] * 500
print("rank", rank, "all good", flush=True)
dist.destroy_process_group()
"""


def run(python: str, code: str, hosts: str, folder: Path) -> None:
    world = len(hosts.split(","))
    (folder / "ranks.py").write_text(code)
    agent = [python, "-m", "torch.distributed.run", f"--nproc_per_node={world}", f"--master_port={free_port()}"]
    env = {name: value for name, value in os.environ.items() if not name.startswith("TORCH")}
    env |= {"PYTHONPATH": str(ROOT / "runner"), "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
    env |= {"PYTHONWARNINGS": "ignore::FutureWarning"}  # torch 2.13 has new names for both
    done = subprocess.run(
        [*agent, "ranks.py", hosts], env=env, cwd=folder, capture_output=True, text=True, timeout=300, check=False
    )
    assert done.stdout.count("all good") == world, done.stdout + done.stderr[-4000:]
    assert done.returncode == 0, done.stderr[-4000:]


@pytest.mark.parametrize("hosts", ["0,1", "0,0", "0,1,2", "0,0,0,1", "0,0,1,1", "0,0,0,1,2,2"])
@pytest.mark.parametrize("python", PYTHONS)
def test_bit_for_bit(python: str, hosts: str, tmp_path: Path) -> None:
    run(python, CODE, hosts, tmp_path)


@pytest.mark.parametrize("hosts", ["0,1", "0,0"])
def test_who_is_late_is_waited_for_longer_than_for_a_connection(hosts: str, tmp_path: Path) -> None:
    run(PYTHONS[0], LATE, hosts, tmp_path)
