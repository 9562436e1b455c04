# Copyright (c) 2026, torchlan contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Optimizer steps, parameter checksums, step lines and compiling, seen from outside the script."""

from __future__ import annotations

import ctypes
import hashlib
from typing import Any, Callable

from torchlan_runner.beat import Beat, Counters
from torchlan_runner.hooks import after_import
from torchlan_runner.printed import STEP, VALIDATION

KEEP_CHECKSUMS = 6
# Smaller tensors are updated by every rank for itself (nanochat: under 1024 elements): another CPU may round their last
# bit differently, which is no sign of separate training.
GATHERED = 1024


def checksum_due(step: int) -> bool:
    return step <= 3 or step % 100 == 0


def parse_line(line: str, counters: Counters) -> None:
    """Takes loss, speed and progress from nanochat's own step lines."""
    match = STEP.search(line)
    if match:
        counters.last_line = line.strip()[:400]
        counters.step_of = int(match.group(2))
        counters.began_at = max(0, int(match.group(1)) + 1 - counters.step)  # the line comes after the step
        counters.loss = float(match.group(3))
        if match.group(4):
            counters.tokens_per_s = float(match.group(4).replace(",", ""))
        return
    match = VALIDATION.search(line)
    if match:
        counters.val_bpb = float(match.group(2))


class Tee:
    """Stands in for stdout: passes everything on unchanged and reads along."""

    def __init__(self, stream: Any, read: Callable[[str], None]) -> None:
        self._stream, self._read, self._rest = stream, read, ""

    def write(self, text: str) -> Any:
        answer = self._stream.write(text)
        try:
            if "\n" in text:
                lines = (self._rest + text).split("\n")
                self._rest = lines.pop()[-2000:]
                for line in lines:
                    self._read(line)
            else:
                self._rest = (self._rest + text)[-2000:]
        except Exception:
            self._rest = ""
        return answer

    def writelines(self, lines: Any) -> None:
        for line in lines:
            self.write(line)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def __iter__(self) -> Any:
        return iter(self._stream)


def checksum(parameters: list[Any]) -> str:
    """Equal if and only if every bit of the gathered parameters is equal, in order."""
    import torch

    digest = hashlib.blake2b(digest_size=12)
    large = [p for p in parameters if p.numel() >= GATHERED] or parameters
    for parameter in large:
        tensor = parameter.detach()
        digest.update(("%s%s" % (tuple(tensor.shape), tensor.dtype)).encode())
        if tensor.numel() == 0:
            continue
        tensor = tensor.contiguous()
        if tensor.device.type == "cpu":
            size = tensor.numel() * tensor.element_size()
            digest.update((ctypes.c_ubyte * size).from_address(tensor.data_ptr()))
        else:
            digest.update(_on_device(torch, tensor).to_bytes(8, "little", signed=True))
    return digest.hexdigest()


def _on_device(torch: Any, tensor: Any) -> int:
    """Sum of all words, each times an odd number made from its place, modulo 2**64: only the sum leaves the GPU."""
    word = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[tensor.element_size()]
    flat = tensor.view(-1).view(word)
    total = torch.zeros((), dtype=torch.int64, device=tensor.device)
    chunk = 1 << 22
    for start in range(0, flat.numel(), chunk):
        part = flat[start : start + chunk].to(torch.int64)
        place = torch.arange(start + 1, start + 1 + part.numel(), dtype=torch.int64, device=tensor.device)
        mixed = place * -7046029254386353131
        mixed = (mixed ^ (mixed >> 29)) * -4658895280553007687
        total += (part * ((mixed ^ (mixed >> 32)) | 1)).sum()
    return int(total.item())


class Steps:
    def __init__(self, beat: Beat, after_step: Callable[[], None] | None = None) -> None:
        self.beat = beat
        self.counts: dict[int, int] = {}
        self.after_step = after_step

    def install(self) -> None:
        from torch.optim.optimizer import register_optimizer_step_post_hook

        register_optimizer_step_post_hook(self._stepped)
        after_import.add("torch._dynamo.callback", self._watch_compiling)

    def _stepped(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        try:
            self._count(optimizer)
        except Exception as error:
            self.beat.say_once("after an optimizer step: %s: %s" % (type(error).__name__, error))

    def _count(self, optimizer: Any) -> None:
        counters = self.beat.counters
        number = self.counts.get(id(optimizer), 0) + 1  # several optimizers in one training step count once
        self.counts[id(optimizer)] = number
        first = next(iter(self.counts)) == id(optimizer)
        if number == 1:
            size = sum(p.numel() * p.element_size() for group in optimizer.param_groups for p in group["params"])
            counters.param_bytes = (counters.param_bytes or 0) + size
        if first and checksum_due(number):
            value = checksum([p for group in optimizer.param_groups for p in group["params"]])
            sums = dict(counters.checksums)
            sums[str(number)] = value
            for old in list(sums)[:-KEEP_CHECKSUMS]:
                del sums[old]
            counters.checksums = sums
        if self.after_step is not None:
            self.after_step()
        counters.step = max(counters.step, number)
        counters.evaluating = False  # whatever is said of the model's mode, this is training
        if first and checksum_due(number):
            self.beat.hurry()  # somebody is waiting for this proof

    def _watch_compiling(self, module: Any) -> None:
        counters = self.beat.counters

        def begin(*_args: Any) -> None:
            counters.compiling = 1

        def end(*_args: Any) -> None:
            counters.compiling = 0

        try:
            module.callback_handler.register_start_callback(begin)
            module.callback_handler.register_end_callback(end)
        except Exception as error:
            self.beat.say_once("compiling can't be seen: %s" % error)
