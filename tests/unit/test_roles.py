# Copyright (c) 2026, torchlan contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Every role has the same shape, and its argument specs say what its defaults are."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

yaml = pytest.importorskip("yaml")

ROOT = Path(__file__).resolve().parents[2]
ROLES = sorted(path for path in (ROOT / "roles").iterdir() if path.is_dir())
# These describe a host, not this collection, and keep the names that torchrun gives them.
UNPREFIXED = {"node_rank", "nproc_per_node"}


def load(path: Path) -> Any:
    return yaml.safe_load(path.read_text(encoding="utf-8")) or {}


def options(role: Path) -> dict[str, Any]:
    entries = load(role / "meta/argument_specs.yml")["argument_specs"].values()
    return {name: option for entry in entries for name, option in (entry.get("options") or {}).items()}


@pytest.mark.parametrize("role", ROLES, ids=lambda role: role.name)
def test_shape(role: Path) -> None:
    wanted = ("defaults/main.yml", "meta/argument_specs.yml", "meta/main.yml", "tasks/main.yml", "README.md")
    assert [name for name in wanted if not (role / name).is_file()] == []


@pytest.mark.parametrize("role", ROLES, ids=lambda role: role.name)
def test_specs_equal_defaults(role: Path) -> None:
    specs = {name: option["default"] for name, option in options(role).items() if "default" in option}
    defaults = load(role / "defaults/main.yml")
    assert defaults == specs, "defaults/main.yml and the defaults of meta/argument_specs.yml differ"
    # YAML's 1, 1.0 and true are equal in Python but not for a user.
    assert {k: type(v) for k, v in defaults.items()} == {k: type(v) for k, v in specs.items()}


@pytest.mark.parametrize("role", ROLES, ids=lambda role: role.name)
def test_options_are_described(role: Path) -> None:
    for name, option in options(role).items():
        assert option.get("type"), f"{name} has no type"
        assert option.get("description"), f"{name} has no description"
        assert not (option.get("required") and "default" in option), f"{name} is required and has a default"


def test_the_public_variables_are_in_one_role() -> None:
    names = [name for role in ROLES for name in options(role)]
    assert sorted(names) == sorted(set(names)), "a variable is described in two roles"
    wrong = [name for role in ROLES for name in options(role) if not name.startswith(f"{role.name}_")]
    assert set(wrong) <= UNPREFIXED, "a role's variables start with its name"
