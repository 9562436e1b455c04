# Copyright (c) 2026, torchlan contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What a person wants to see of a rank: how long a step takes, how much of it is waiting, what it does instead."""

from __future__ import annotations

import functools
import os
import time
from collections import deque
from typing import Any, Callable

WINDOW_S = 60.0  # a figure is about the last minute: what is, not what was


class Pace:
    """Looked at with every beat."""

    def __init__(self) -> None:
        self._seen: deque[tuple[float, int, float]] = deque()

    def look(self, now: float, step: int, waited: float) -> dict[str, float | None]:
        """
        :param now: seconds of a clock that only goes forward.
        :param waited: seconds spent in collectives so far, the one that is waited in included.
        :returns: C(step_s), seconds a step, and C(communication_share), 0 to 1; null until a step was seen.
        """
        seen = self._seen
        seen.append((now, step, waited))
        while len(seen) > 2 and now - seen[1][0] >= WINDOW_S:
            seen.popleft()
        first = seen[0]
        elapsed, steps = now - first[0], step - first[1]
        if steps <= 0 or elapsed <= 0:
            return {"step_s": None, "communication_share": None}
        share = min(1.0, max(0.0, (waited - first[2]) / elapsed))
        return {"step_s": round(elapsed / steps, 4), "communication_share": round(share, 3)}


def memory_bytes() -> int | None:
    """Resident memory of this process."""
    try:
        with open("/proc/self/statm", encoding="ascii") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError, IndexError):
        return None


def install(counters: Any) -> None:
    """Notice evaluation by the model that is told of it, and saving by torch.save."""
    import torch

    train = torch.nn.Module.train

    @functools.wraps(train)
    def told(module: Any, mode: bool = True) -> Any:
        counters.evaluating = not mode
        return train(module, mode)

    torch.nn.Module.train = told
    torch.save = _during(torch.save, counters)


def _during(save: Callable[..., Any], counters: Any) -> Callable[..., Any]:
    @functools.wraps(save)
    def saving(*args: Any, **kwargs: Any) -> Any:
        counters.saving = True
        try:
            return save(*args, **kwargs)
        finally:
            counters.saving = False

    return saving


def waited(counters: Any) -> float:
    """Seconds in collectives, the open one included."""
    since = counters.waiting_since
    return counters.waited + (time.monotonic() - since if since is not None else 0.0)
