# Copyright (c) 2026, torchlan contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""One rank of a small exchange, for C(preflight.yml): the collectives that training uses, timed for a second or two.

Reads TORCHLAN_COLLECTIVE (JSON) and prints one line of JSON. It needs torch alone, writes no file, and a timer of the
kernel ends it, whatever happens.
"""

from __future__ import annotations

import datetime
import json
import os
import signal
import sys
import time
from typing import Any

BYTES = 8 * 1024 * 1024
TIMED_S = 0.5
MOST = 10


def main() -> int:
    told = json.loads(os.environ["TORCHLAN_COLLECTIVE"])
    signal.alarm(int(told["limit_s"]))
    import torch
    import torch.distributed as dist

    rank, world = told["rank"], told["world"]
    device = "cuda:0" if told["device"] == "cuda" else "cpu"
    dist.init_process_group(
        "nccl" if told["device"] == "cuda" else "gloo",
        init_method="tcp://" + told["meet"],
        rank=rank,
        world_size=world,
        timeout=datetime.timedelta(seconds=told["limit_s"] - 2),
    )
    part = torch.ones(BYTES // 4 // world, device=device)
    whole = torch.ones(part.numel() * world, device=device)

    def exchange() -> None:
        dist.reduce_scatter_tensor(part, whole)
        dist.all_gather_into_tensor(whole, part)

    exchange()  # opens the connections
    whole.fill_(rank + 1)
    dist.reduce_scatter_tensor(part, whole)
    right = bool((part == world * (world + 1) / 2).all())
    ready = torch.zeros(1, device=device)
    dist.all_reduce(ready)
    float(ready)
    begun = time.perf_counter()
    exchange()
    once = torch.tensor([time.perf_counter() - begun], device=device)
    dist.all_reduce(once, op=dist.ReduceOp.MAX)  # all must do equally many
    times = max(1, min(MOST, int(TIMED_S / max(float(once), 1e-6))))
    begun = time.perf_counter()
    for _time in range(times):
        exchange()
    dist.all_reduce(ready)
    float(ready)
    seconds = (time.perf_counter() - begun) / times
    # what each rank must at least send, and receive, for both halves
    each_way = 2 * BYTES * (world - 1) / world
    found: dict[str, Any] = {"right": right, "seconds": seconds, "mbps": each_way * 8 / seconds / 1e6}
    print(json.dumps(found), flush=True)
    dist.destroy_process_group()
    return 0


if __name__ == "__main__":
    sys.exit(main())
