# Copyright (c) 2026, torchlan contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The loader after a resume gives what it would have given without one."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import pytest

from torchlan_runner import replay

META = {"total_batch_size": 2048, "max_seq_len": 256}


def loader(tokenizer: str, size: int, split: str, resume_state_dict: Any = None) -> Iterator[tuple[str, int]]:
    first = 0 if resume_state_dict is None else 1000
    return ((split, number) for number in itertools.count(first))


def test_replays_the_training_data_only() -> None:
    count = replay.batches(5, META, 2, 2)
    assert count == 10  # two micro-batches a step
    said: list[str] = []
    replaying = replay.replaying(loader, count, said.append)
    stream = replaying("t", 2, split="train", resume_state_dict={"pq_idx": 0})
    assert next(stream) == ("train", 10)
    assert next(stream) == ("train", 11)
    assert len(said) == 1 and said[0].startswith("replayed 10 batches of the data loader in ")
    assert next(replaying("t", 2, split="val")) == ("val", 0)
    assert len(said) == 1


@pytest.mark.parametrize("size, batches", [(1, 20), (2, 10), (4, 5)])
def test_counts_by_the_rows_of_now(size: int, batches: int) -> None:
    assert replay.batches(5, META, size, 2) == batches
