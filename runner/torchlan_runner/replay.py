# Copyright (c) 2026, torchlan contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""After a resume the data goes on where an unbroken run would be: the loader is run from its start, unseen.

nanochat drops its buffer of documents on resume and keeps rank 0's place only, so the losses would not continue.
"""

from __future__ import annotations

import functools
import inspect
import itertools
import time
from collections.abc import Iterator
from typing import Any, Callable

from torchlan_runner.hooks import after_import
from torchlan_runner.plan import warn

_LOADER = "tokenizing_distributed_data_loader_with_state_bos_bestfit"


def batches(step: int, meta: dict[str, Any], device_batch_size: int, world: int) -> int:
    """Micro-batches that a rank read before this step."""
    per_batch = device_batch_size * int(meta["max_seq_len"]) * world
    return step * int(meta["total_batch_size"]) // per_batch


def install(count: int, say: Callable[[str], None] = warn) -> None:
    def wrap(module: Any) -> None:
        original = getattr(module, _LOADER, None)
        if original is not None:
            setattr(module, _LOADER, replaying(original, count, say))

    after_import.add("nanochat.dataloader", wrap)


def replaying(original: Callable[..., Any], count: int, say: Callable[[str], None]) -> Callable[..., Any]:
    signature = inspect.signature(original)

    @functools.wraps(original)
    def loader(*args: Any, **kwargs: Any) -> Any:
        bound = signature.bind(*args, **kwargs)
        if bound.arguments.get("resume_state_dict") is None:
            return original(*args, **kwargs)
        bound.arguments["resume_state_dict"] = None
        return _after(original(*bound.args, **bound.kwargs), count, say)

    return loader


def _after(stream: Iterator[Any], count: int, say: Callable[[str], None]) -> Iterator[Any]:
    began = time.monotonic()
    for _batch in itertools.islice(stream, count):
        pass
    say("replayed %d batches of the data loader in %.1f s" % (count, time.monotonic() - began))
    yield from stream
