# Copyright (c) 2026, torchlan contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What all beats together say of a run."""

from __future__ import annotations

from typing import Any

import pytest
from builders import beat

from ansible_collections.torchlan.nanochat.plugins.plugin_utils import progress


def inside(n: int, since: float) -> dict[str, Any]:
    return {"waiting_in": {"op": "all_gather", "n": n, "since": since}}


@pytest.mark.parametrize(
    ("first", "second", "words"),
    [
        ({}, {}, ["training", "training"]),
        ({"doing": "evaluating"}, {}, ["evaluating", "training"]),
        ({"state": "compiling"}, {"state": "failed", "doing": "saving"}, ["compiling", "failed"]),
        (inside(7, 900), {"collectives_begun": 6}, ["waiting for rank 1", "training"]),
        (inside(7, 900), {"collectives_begun": 7}, ["waiting in all_gather", "training"]),
        (inside(7, 999), {"collectives_begun": 6}, ["training", "training"]),
        ({"doing": "saving", "collectives_begun": 6}, inside(7, 900), ["saving", "waiting for rank 0"]),
    ],
)
def test_words(first: dict[str, Any], second: dict[str, Any], words: list[str]) -> None:
    beats = [beat(0, **{"collectives_begun": 9, **first}), beat(1, **{"collectives_begun": 9, **second})]
    assert list(progress.doing(beats).values()) == words


def test_many_that_are_waited_for_are_counted() -> None:
    late = [{**beat(1), "rank": rank, "collectives_begun": 0} for rank in range(1, 6)]
    assert progress.doing([beat(0, **inside(1, 0)), *late])[0] == "waiting for 5 ranks"
    assert progress.doing([beat(0, **inside(1, 0)), *late[:2]])[0] == "waiting for ranks 1, 2"


def test_the_slowest_rank_sets_the_pace() -> None:
    seen = progress.total([beat(0, step_s=2.0, communication_share=0.5), beat(1, step=2, step_s=3.0)])
    assert (seen["step"], seen["steps"], seen["step_s"], seen["eta_s"]) == (2, 10, 3.0, 24.0)
    assert seen["communication_share"] == 0.5


def test_a_resumed_run_counts_from_where_it_went_on() -> None:
    seen = progress.total([beat(0, began_at=5, step_s=1.0), beat(1, step_s=1.0)])
    assert (seen["step"], seen["eta_s"]) == (8, 2.0)


def test_nothing_is_promised_of_what_is_over_or_unknown() -> None:
    done = {"state": "finished", "step": 10, "step_s": 1.0}
    assert progress.total([beat(0, **done), beat(1, **done)])["eta_s"] is None
    assert progress.total([beat(0, step_s=1.0), beat(1, state="failed")])["eta_s"] is None
    assert progress.total([])["step"] is None
    assert progress.progress_bar(3, None, 20) == "" and progress.progress_bar(12, 10, 4) == "[####]"


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(None, "-"), (45.4, "45 s"), (720, "12 min"), (3600 * 3 + 300, "3 h 05 min"), (86400 * 4 + 7200, "4 d 2 h")],
)
def test_durations(seconds: float | None, text: str) -> None:
    assert progress.duration(seconds) == text
