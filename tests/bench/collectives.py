#!/usr/bin/env python3
# Copyright (c) 2026, torchlan contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The runner's exchange against Gloo's own collectives and iperf3 on the same links. Run by hand, as root::

    sudo ./dev bench collectives --rate 1gbit --ranks 1,1 --json collectives.json

Every size is measured in pairs, one right after the other, and the medians of both are shown. A pair is a
reduce_scatter_tensor and an all_gather_into_tensor, as in one step of nanochat.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from wires import address, build, inside, iperf3, namespace, tear_down

ROOT = Path(__file__).resolve().parents[2]

RANK = """
import json, os, statistics, sys, time
import torch, torch.distributed as dist
from torchlan_runner import exchange

hosts, sizes, pairs = json.loads(sys.argv[1])
rank, world = int(os.environ["RANK"]), len(hosts)
torch.set_num_threads(1)
dist.init_process_group("gloo")
names = ("reduce_scatter_tensor", "all_gather_into_tensor")
gloo = {name: getattr(dist, name) for name in names}
exchange.replace(exchange.Layout(rank, hosts))
ours = {name: getattr(dist, name) for name in names}
for size in sizes:
    part = size // 4 // world
    whole, mine = torch.ones(part * world), torch.empty(part)
    seconds = {"gloo": [], "ours": []}
    for number in range(pairs + 1):
        both = [("gloo", gloo), ("ours", ours)]
        for name, calls in both if number % 2 else both[::-1]:  # who is second finds a link that is less rested
            dist.barrier()
            before = time.perf_counter()
            calls["reduce_scatter_tensor"](mine, whole)
            between = time.perf_counter()
            calls["all_gather_into_tensor"](whole, mine)
            after = time.perf_counter()
            took = torch.tensor([between - before, after - between])
            dist.all_reduce(took, op=dist.ReduceOp.MAX)
            whole.fill_(1.0)
            if number:  # the first is for the connections
                seconds[name].append(took.tolist())
    if rank == 0:
        medians = {name: [statistics.median(column) for column in zip(*rows)] for name, rows in seconds.items()}
        print(json.dumps({"bytes": size, **medians}), flush=True)
dist.barrier()
dist.destroy_process_group()
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rate", default="1gbit", help="of each link, as tc understands it")
    parser.add_argument("--ranks", default="1,1", help="processes on each host")
    parser.add_argument("--megabytes", default="0.064,0.25,1,4,16,64", help="sizes of the whole tensor")
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--python", default=str(ROOT / ".dev/torch/bin/python"), help="with torch")
    parser.add_argument("--json", metavar="PATH")
    args = parser.parse_args()
    counts = [int(word) for word in args.ranks.split(",")]
    sizes = [int(float(word) * 1e6) // 1024 * 1024 for word in args.megabytes.split(",")]
    try:
        build(len(counts), args.rate)
        line = iperf3(4, both_ways=True)
        print(f"iperf3, both ways at once: {line / 1e6:.1f} MB/s each way")
        rows = measure(counts, sizes, args.pairs, args.python)
    finally:
        tear_down()
    show(rows, counts, line)
    if args.json:
        report = {"rate": args.rate, "ranks": counts, "iperf3_bytes_per_second": line, "rows": rows}
        Path(args.json).write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")


def measure(counts: list[int], sizes: list[int], pairs: int, python: str) -> list[dict[str, Any]]:
    hosts = [host for host, count in enumerate(counts) for _one in range(count)]
    started = []
    for rank, host in enumerate(hosts):
        env = {
            **os.environ,
            "RANK": str(rank),
            "WORLD_SIZE": str(len(hosts)),
            "MASTER_ADDR": address(0),
            "MASTER_PORT": "29500",
            "GLOO_SOCKET_IFNAME": "eth0",
            "OMP_NUM_THREADS": "1",
            "PYTHONPATH": str(ROOT / "runner"),
            "PYTHONWARNINGS": "ignore",
        }
        argv = [*inside(namespace(host)), python, "-c", RANK, json.dumps([hosts, sizes, pairs])]
        started.append(subprocess.Popen(argv, env=env, stdout=subprocess.PIPE if rank == 0 else subprocess.DEVNULL))
    told, _nothing = started[0].communicate(timeout=1800)
    if any(process.wait(60) for process in started):
        raise SystemExit("a rank failed")
    return [json.loads(line) for line in told.decode().splitlines() if line.startswith("{")]


def show(rows: list[dict[str, Any]], counts: list[int], line: float) -> None:
    """C(of iperf3): the bytes that the busiest link has to carry one way, by the time that they took."""
    world = sum(counts)
    print(f"{'MB':>8} {'gloo ms':>16} {'ours ms':>16} {'faster':>7} {'of iperf3':>9}")
    for row in rows:
        gloo, ours = sum(row["gloo"]), sum(row["ours"])
        # Of each slice one copy goes to each other host, whoever holds it.
        away = max(max(count, world - count) for count in counts) if len(counts) > 1 else 0
        ideal = 2 * row["bytes"] * away / world / line
        row.update(faster=gloo / ours, of_iperf3=ideal / ours)
        texts = ["{:.1f} + {:.1f}".format(*(1e3 * value for value in row[name])) for name in ("gloo", "ours")]
        print(f"{row['bytes'] / 1e6:8.2f} {texts[0]:>16} {texts[1]:>16} {gloo / ours:6.2f}x {row['of_iperf3']:9.0%}")


if __name__ == "__main__":
    if os.geteuid():
        sys.exit("network namespaces need root: sudo ./dev bench collectives")
    main()
