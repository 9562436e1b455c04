# Copyright (c) 2026, torchlan contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The table of causes is the one that the code uses: no code unknown, none unused."""

from __future__ import annotations

import ast
import functools
import re
from pathlib import Path

import pytest

from ansible_collections.torchlan.nanochat.plugins.module_utils.causes import CODES, WEIGHTS, cause, errors

ROOT = Path(__file__).resolve().parents[2]
SOURCES = sorted([*(ROOT / "plugins").rglob("*.py"), *(ROOT / "runner").rglob("*.py")])
TABLE = ROOT / "plugins" / "module_utils" / "causes.py"
LIKE_A_CODE = re.compile(r"(?!nanochat_|causes_|code\Z)[a-z]+(_[a-z]+)*\Z")
# codes in tables, from which causes are made later
ENDS_LIKE_A_CODE = re.compile(r"._(differs?|missing|lost)\Z")


def strings(node: ast.expr) -> list[str]:
    """The texts that an expression can be: a constant, or the branches of a condition."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return [node.value]
    if isinstance(node, ast.IfExp):
        return strings(node.body) + strings(node.orelse)
    if isinstance(node, ast.BoolOp):
        return [text for value in node.values for text in strings(value)]
    return []


@functools.cache
def tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


def makers(module: ast.Module) -> dict[str, int]:
    """Functions and classes that are given a code, and as which argument."""
    found = {"cause": 0, "SourceError": 0}
    for node in ast.walk(module):
        name = node.name if isinstance(node, ast.ClassDef) else ""
        for one in node.body if isinstance(node, (ast.ClassDef, ast.Module)) else ():
            if isinstance(one, ast.FunctionDef):
                names = [arg.arg for arg in one.args.args if arg.arg != "self"]
                if "code" in names:
                    found[name if one.name == "__init__" else one.name] = names.index("code")
    return found


def made(path: Path) -> set[str]:
    """Codes that a file makes causes of, by calls and by dictionaries with the key "code"."""
    module = tree(path)
    places = makers(module)
    found: set[str] = set()
    for node in ast.walk(module):
        if isinstance(node, ast.Call):
            name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
            if name in places and len(node.args) > places[name]:
                found.update(strings(node.args[places[name]]))
            found.update(text for one in node.keywords if one.arg == "code" for text in strings(one.value))
        elif isinstance(node, ast.Dict):
            for key, value in zip(node.keys, node.values):
                if isinstance(key, ast.Constant) and key.value == "code":
                    found.update(strings(value))
        elif isinstance(node, ast.Assign) and any(
            isinstance(one, ast.Name) and one.id == "code" for one in node.targets
        ):
            found.update(strings(node.value))
    found |= {text for text in constants(module) if ENDS_LIKE_A_CODE.search(text)}
    return {text for text in found if LIKE_A_CODE.match(text)}


def constants(module: ast.Module) -> set[str]:
    return {node.value for node in ast.walk(module) if isinstance(node, ast.Constant) and isinstance(node.value, str)}


def test_every_code_that_is_made_is_in_the_table() -> None:
    unknown = {path.name: made(path) - set(CODES) for path in SOURCES if path != TABLE}
    assert {name: codes for name, codes in unknown.items() if codes} == {}


def test_the_search_finds_codes_at_all() -> None:
    found = set().union(*(made(path) for path in SOURCES if path != TABLE))
    assert {"half_alive", "host_unreachable", "rank_missing", "secret_in_arguments"} <= found


def test_every_code_of_the_table_is_used() -> None:
    used = set().union(*(constants(tree(path)) for path in SOURCES if path != TABLE))
    # the filter of hosts: has no causes, only errors with the code in front
    used |= set(re.findall(r"([a-z_]+): ", (ROOT / "plugins/filter/cluster.py").read_text(encoding="utf-8")))
    assert sorted(set(CODES) - used) == []


def test_texts_for_people() -> None:
    for code, texts in CODES.items():
        assert re.fullmatch(r"[a-z]+(_[a-z]+)*", code)
        assert [text for text in texts if "\n" in text or not text.endswith((".", "?"))] == [], code


def test_cause() -> None:
    assert cause("port_in_use", "taken", "free it", host="a", rank=1, weight="warning") == {
        "code": "port_in_use",
        "weight": "warning",
        "host": "a",
        "rank": 1,
        "what": "taken",
        "fix": "free it",
    }
    assert cause("port_in_use", "taken")["fix"] == CODES["port_in_use"][1]
    assert (cause("note", "x")["host"], cause("note", "x")["rank"], cause("note", "x")["weight"]) == (
        None,
        None,
        "error",
    )


def test_undocumented_codes_and_weights_are_refused() -> None:
    with pytest.raises(KeyError):
        cause("no_such_code", "x")
    with pytest.raises(ValueError, match=r"'fatal' is none of error, warning, note"):
        cause("note", "x", weight="fatal")


def test_errors() -> None:
    entries = [cause("note", weight, weight=weight) for weight in WEIGHTS]
    assert [entry["what"] for entry in errors(entries)] == ["error"]
