# Copyright (c) 2026, torchlan contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The secret of an exchange: the same for all hosts of it, another for every exchange, in no verdict."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from ansible.errors import AnsibleFilterError

from ansible_collections.torchlan.nanochat.plugins.filter.exchange_token import FilterModule
from ansible_collections.torchlan.nanochat.plugins.plugin_utils import exchange


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path / "torchlan"


def test_a_secret_is_made_of_a_name_and_a_key_that_stays_here(cache: Path) -> None:
    token = FilterModule().filters()["exchange_token"]
    with pytest.raises(AnsibleFilterError, match="missing"):
        token("x")
    first, second = exchange.new(), exchange.new()
    assert first != second and token(first) == token(first) != token(second)
    assert len(token(first)) == 64 and int(token(first), 16) and first not in token(first)
    assert os.stat(cache / "exchange.key").st_mode & 0o777 == 0o600


def test_a_key_that_was_half_written_is_made_anew(cache: Path) -> None:
    name = exchange.new()
    before = exchange.token(name)
    (cache / "exchange.key").write_bytes(b"half")
    with pytest.raises(ValueError, match="missing"):
        exchange.token(name)
    exchange.new()
    assert exchange.token(name) != before
