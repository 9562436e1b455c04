# Copyright (c) 2026, torchlan contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Brings up Gloo on CPUs, gives its handles the get_future() that nanochat's optimizer calls, and counts collectives.

Only names in `torch.distributed` are replaced: what torch calls inside itself stays as it is, nothing counts twice.
"""

from __future__ import annotations

import functools
import os
import threading
import time
from collections import deque
from datetime import timedelta
from typing import Any, Callable

import torch
import torch.distributed as dist

from torchlan_runner import exchange
from torchlan_runner.beat import Beat, Counters
from torchlan_runner.plan import Plan

CONNECT_TIMEOUT = timedelta(seconds=60)

# name -> which arguments carry the payload (position, keyword)
_PAYLOAD: dict[str, tuple[int, str] | None] = {
    "all_reduce": (0, "tensor"),
    "all_reduce_coalesced": (0, "tensors"),
    "reduce": (0, "tensor"),
    "broadcast": (0, "tensor"),
    "reduce_scatter_tensor": (1, "input"),
    "reduce_scatter_single": (1, "input"),
    "reduce_scatter": (1, "input_list"),
    "all_gather_into_tensor": (0, "output_tensor"),
    "all_gather_single": (0, "output_tensor"),
    "all_gather": (0, "tensor_list"),
    "all_to_all_single": (1, "input"),
    "all_to_all": (1, "input_tensor_list"),
    "gather": (0, "tensor"),
    "scatter": (0, "tensor"),
    "barrier": None,
    "monitored_barrier": None,
    "all_gather_object": None,
    "gather_object": None,
    "broadcast_object_list": None,
    "scatter_object_list": None,
}


class WorkFuture(torch.futures.Future):
    """A future for a work handle whose backend has none; waiting for it waits for the work."""

    def __init__(self, work: CountedWork, result: Any) -> None:
        super().__init__()
        self._work = work
        self._result = result
        self._lock = threading.Lock()
        self._set = False

    def wait(self) -> Any:
        self._work.wait()
        with self._lock:
            if not self._set:
                self._set = True
                self.set_result(self._result)
        return super().wait()

    def done(self) -> bool:
        if not self._set and self._work.is_completed():
            self.wait()
        return bool(super().done())

    def value(self) -> Any:
        if self._work.is_completed():
            self.wait()
        return super().value()

    def then(self, callback: Callable[..., Any]) -> Any:
        child = super().then(callback)
        self._wait_aside()
        return child

    def add_done_callback(self, callback: Callable[..., Any]) -> None:
        super().add_done_callback(callback)
        self._wait_aside()

    def _wait_aside(self) -> None:
        if not self._set:  # somebody must wait for the work, or the callback never runs
            threading.Thread(target=self.wait, name="torchlan-future", daemon=True).start()


class Waiting:
    """While it is open, the rank waits in a collective; the outermost one's time counts."""

    def __init__(self, counters: Counters, op: str, number: int) -> None:
        self._counters, self._what = counters, (op, number, time.time())

    def __enter__(self) -> None:
        counters = self._counters
        self._before = counters.waiting_in
        counters.waiting_in = self._what
        if self._before is None:
            counters.waiting_since = time.monotonic()

    def __exit__(self, *_error: object) -> None:
        counters = self._counters
        counters.waiting_in = self._before
        if self._before is None and counters.waiting_since is not None:
            counters.waited += time.monotonic() - counters.waiting_since
            counters.waiting_since = None


class CountedWork:
    """A work handle that says when it is waited for. Everything else is the backend's own handle."""

    def __init__(self, work: Any, op: str, number: int, counters: Counters, result: Any, own_future: bool) -> None:
        self._work, self._op, self._number, self._counters = work, op, number, counters
        self._result, self._own_future, self._finished = result, own_future, False

    def wait(self, *args: Any, **kwargs: Any) -> Any:
        with Waiting(self._counters, self._op, self._number):
            answer = self._work.wait(*args, **kwargs)
        self._done()
        return answer

    def is_completed(self) -> bool:
        return bool(self._work.is_completed())

    def get_future(self) -> Any:
        if self._own_future:
            return WorkFuture(self, self._result)
        return self._work.get_future()

    def _done(self) -> None:
        if not self._finished:
            self._finished = True
            self._counters.finished += 1

    def __getattr__(self, name: str) -> Any:
        return getattr(self._work, name)

    def __del__(self) -> None:
        if not self.__dict__.get("_finished", True):  # dropped without waiting
            self._done()


def nbytes(value: Any) -> int:
    if isinstance(value, torch.Tensor):
        return value.numel() * value.element_size()
    if isinstance(value, (list, tuple)):
        return sum(nbytes(item) for item in value)
    return 0


def counted(name: str, original: Callable[..., Any], counters: Counters, own_future: bool) -> Callable[..., Any]:
    where = _PAYLOAD[name]

    @functools.wraps(original)
    def collective(*args: Any, **kwargs: Any) -> Any:
        if torch.compiler.is_compiling():  # a constant for dynamo: it sees the original only
            return original(*args, **kwargs)
        payload = None
        if where is not None:
            payload = args[where[0]] if len(args) > where[0] else kwargs.get(where[1])
        size = nbytes(payload)
        counters.begun += 1
        number = counters.begun
        with Waiting(counters, name, number):
            work = original(*args, **kwargs)
        counters.bytes += size
        if work is None or not hasattr(work, "wait"):
            counters.finished += 1
            return work
        result = args[0] if args else kwargs.get("output", kwargs.get("output_tensor", kwargs.get("tensor")))
        return CountedWork(
            work, name, number, counters, list(result) if isinstance(result, (list, tuple)) else [result], own_future
        )

    return collective


class CudaProgress:
    """On cuda a returned call is only queued: an event per step says what the GPU has finished, and holds no tensor."""

    def __init__(self, counters: Counters) -> None:
        self.counters = counters
        self.pending: deque[tuple[int, Any]] = deque(maxlen=256)

    def mark(self) -> None:
        event = torch.cuda.Event()
        event.record()
        self.pending.append((self.counters.begun, event))

    def look(self) -> None:
        while self.pending and self.pending[0][1].query():
            self.counters.finished = max(self.counters.finished, self.pending.popleft()[0])


def install_counters(beat: Beat) -> None:
    own_future = beat.plan.device == "cpu"
    exchange.install(beat.plan)
    for name in _PAYLOAD:
        original = getattr(dist, name, None)
        if callable(original):
            setattr(dist, name, counted(name, original, beat.counters, own_future))

    destroy = dist.destroy_process_group

    @functools.wraps(destroy)
    def destroy_process_group(*args: Any, **kwargs: Any) -> Any:
        beat.sample_sockets()  # afterwards the evidence is gone
        return destroy(*args, **kwargs)

    dist.destroy_process_group = destroy_process_group

    init = dist.init_process_group

    @functools.wraps(init)
    def init_process_group(*args: Any, **kwargs: Any) -> Any:
        answer = init(*args, **kwargs)
        beat.backend = backend_name()
        return answer

    dist.init_process_group = init_process_group


def backend_name() -> str | None:
    try:
        return str(dist.get_backend()) if dist.is_initialized() else None
    except Exception:
        return None


def start_gloo(plan: Plan, beat: Beat) -> None:
    """The process group that upstream nanochat never makes on CPUs, and a later init by a fork becomes a no-op."""
    if plan.env_world_size == 1 and "RANK" not in os.environ:
        return
    real = dist.init_process_group
    real("gloo", timeout=CONNECT_TIMEOUT)  # connecting must not hang for half an hour
    try:
        dist.distributed_c10d._set_pg_timeout(exchange.TIMEOUT)
    except Exception as error:
        beat.say_once("the collectives' timeout stays at %s: %s" % (CONNECT_TIMEOUT, error))
    beat.backend = backend_name()

    @functools.wraps(real)
    def init_process_group(backend: Any = None, *args: Any, **kwargs: Any) -> Any:
        if dist.is_initialized() and compatible(backend, kwargs, plan):
            return None
        return real(backend, *args, **kwargs)

    dist.init_process_group = init_process_group


def compatible(backend: Any, kwargs: dict[str, Any], plan: Plan) -> bool:
    """Whether the script asks for what is already there."""
    wanted = str(backend or kwargs.get("backend") or "gloo").lower()
    parts: dict[str, str] = {}
    for part in wanted.split(","):
        device, colon, name = part.partition(":")
        parts[device if colon else "cpu"] = name if colon else part
    if parts.get("cpu", "gloo") not in ("gloo", "undefined"):
        return False
    if kwargs.get("store") is not None or kwargs.get("rank", -1) not in (-1, plan.rank):
        return False
    return kwargs.get("world_size", -1) in (-1, plan.env_world_size)
