# Copyright (c) 2026, torchlan contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The catalogue of known messages: every example of every entry, and what must not be taken for one."""

from __future__ import annotations

import re

import pytest

from ansible_collections.torchlan.nanochat.plugins.module_utils.causes import CODES
from ansible_collections.torchlan.nanochat.plugins.module_utils.messages import (
    MESSAGES,
    NOISE,
    SIGNALS,
    classify,
    is_noise,
    readable,
)

EXAMPLES = [(entry, text) for entry in MESSAGES for text in entry.examples]


@pytest.mark.parametrize(("entry", "text"), EXAMPLES, ids=[text[:60] for _entry, text in EXAMPLES])
def test_every_example_is_known_as_what_it_is(entry, text) -> None:
    assert classify(text) is entry
    # In the middle of a log, too.
    assert classify(f"something\n{text}\nmore") is entry
    assert not is_noise(text)


@pytest.mark.parametrize("entry", [*MESSAGES, *SIGNALS.values()], ids=lambda entry: entry.what[:40])
def test_every_entry_has_a_code_that_is_documented_and_a_cure(entry) -> None:
    assert entry.code in CODES
    assert entry.what and entry.fix and not entry.what.endswith(".")


def test_every_pattern_has_an_example() -> None:
    for entry in MESSAGES:
        for pattern in entry.match:
            assert any(re.search(pattern, text, re.MULTILINE) for text in entry.examples), pattern


@pytest.mark.parametrize(
    "text",
    [
        "ValueError: shapes do not match: 3 and 4",
        "KeyError: 'memory'",
        "AssertionError: total_batch_size must be divisible",
        "requests.exceptions.ConnectionError: HTTPConnectionPool(host='192.0.2.9'): Connection refused",
        "step 00003/00010 (30.00%) | loss: 8.316379 | lrm: 0.10 | dt: 1137.06ms | tok/sec: 1,801",
        "",
    ],
)
def test_what_is_not_known_is_not_guessed(text: str) -> None:
    assert classify(text) is None
    assert not is_noise(text)


@pytest.mark.parametrize("line", [line for _pattern, line in NOISE])
def test_noise_of_healthy_runs(line: str) -> None:
    assert is_noise(line)


def test_ports_that_gloo_prints_the_wrong_way_round() -> None:
    text = "RuntimeError: [../gloo/transport/tcp/pair.cc:553] Connection closed by peer [127.0.0.1]:7821. This is"
    assert readable(text) == text.replace("]:7821.", "]:36126.")
    # Others print ports as they are, and there is no port above 65535.
    for same in (
        "tried to connect to (192.0.2.36, 29500)",
        "[192.0.2.36]:7821",
        "gloo/transport/tcp/pair.cc:5 [::1]:99999",
    ):
        assert readable(same) == same
