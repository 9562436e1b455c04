# Copyright (c) 2026, torchlan contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What leaves a host of a run: everything but the values of its secrets."""

from __future__ import annotations

import base64
import json
import shlex
import zlib
from pathlib import Path
from typing import Any

import pytest

from ansible_collections.torchlan.nanochat.plugins.module_utils import collecting

SECRETS = {
    "PLAIN": "hunter2-very-secret",
    "LINES": "first line of it\nthe second one",
    "QUOTES": 'it\'s a "quoted" \\ one $(id) `id`',
    "LETTERS": "pässwörd-☃",
    "EQUALS": "a=b=c=d export X=1",
    "SHORT": "1",
}
OPEN = {"OMP_NUM_THREADS": "8", "PATH_OF": "/home/ada b/x"}


def write(folder: Path, record: Any = None, **files: str) -> collecting.Attempt:
    (folder / "beats").mkdir(parents=True, exist_ok=True)
    lines = [f"export {name}={shlex.quote(value)}\n" for name, value in {**OPEN, **SECRETS}.items()]
    (folder / "env").write_text("# It may hold secrets: mode 0600.\n" + "".join(lines), encoding="utf-8")
    if record is None:
        record = {"config": {"nodes": {"a": {"secret_names": list(SECRETS), "nproc": 2}, "b": {"secret_names": []}}}}
    (folder / "run.json").write_text(json.dumps(record))
    for name, text in files.items():
        (folder / name.replace("__", "/").replace("_", ".")).write_bytes(text.encode("utf-8"))
    return collecting.Attempt(str(folder))


def hidden(text: str) -> bool:
    """No secret, and no line of one, is in the text; one character tells nobody anything."""
    values = [line for value in SECRETS.values() if len(value) > 1 for line in value.splitlines()]
    return not any(form in text for value in values for form in (value, repr(value)[1:-1], json.dumps(value)[1:-1]))


def test_the_environment_without_the_secrets(tmp_path: Path) -> None:
    texts = write(tmp_path).texts()
    assert hidden(json.dumps(texts)) and hidden(texts["env"])
    shown = collecting.parsed(texts["env"])
    assert shown == {**OPEN, **dict.fromkeys(SECRETS, collecting.MASK)}


@pytest.mark.parametrize("record", [{}, {"config": {"nodes": []}}, {"config": {"nodes": {"a": {}}}}, []])
def test_where_nobody_knows_which_are_secret_all_are(tmp_path: Path, record: Any) -> None:
    shown = collecting.parsed(write(tmp_path, record).texts()["env"])
    assert shown == dict.fromkeys([*OPEN, *SECRETS], collecting.MASK)


def test_an_env_that_is_none_stays_on_the_host(tmp_path: Path) -> None:
    write(tmp_path)
    (tmp_path / "env").write_text("API=hunter2-very-secret\nexport B='unclosed")
    assert "env" not in collecting.Attempt(str(tmp_path)).texts()


def test_what_a_log_and_a_beat_repeat(tmp_path: Path) -> None:
    said = [form for value in SECRETS.values() for form in (value, repr(value), json.dumps(value))]
    log = "\n".join(["step 00001/00010", *said, "the end"]) + "\n"
    attempt = write(tmp_path, train_log=log, beats__rank_0=json.dumps({"rank": 0}), exit_code="0")
    (tmp_path / "beats/rank-0.json").write_text(json.dumps({"rank": 0, "last_line": SECRETS["QUOTES"]}))
    (tmp_path / "beats/rank-0.json.17.tmp").write_text("half")
    (tmp_path / "exit_code").write_text("0\n")
    texts = attempt.texts()
    assert "beats/rank-0.json" in texts and not any(name.endswith(".tmp") for name in texts)
    assert hidden(json.dumps(texts)) and json.loads(texts["beats/rank-0.json"])["rank"] == 0
    (wanted,) = attempt.log()
    content = collecting.read(str(tmp_path / "train.log"), 0, 1 << 20, wanted["size"], attempt.forms)
    assert len(content) == wanted["size"] == len(log.encode())
    assert hidden(content.decode("utf-8", "replace"))
    assert content.startswith(b"step 00001/00010\n") and content.endswith(b"the end\n"), (
        "the secret 1 is no secret here"
    )


@pytest.mark.parametrize("piece", [1, 2, 3, 5, 7, 64])
def test_pieces_are_masked_as_the_whole_is(tmp_path: Path, piece: int) -> None:
    path = tmp_path / "log"
    path.write_bytes(b"xx abcabcabcabca yy aaaaaaaaa" * 3 + b" abcab")
    forms, size = [b"abcabca", b"aaaaaa"], path.stat().st_size - 2
    whole = collecting.masked(path.read_bytes()[:size], forms)
    parts = [collecting.read(str(path), at, piece, size, forms) for at in range(0, size, piece)]
    assert b"".join(parts)[:size] == whole and b"abcabca" not in whole and whole.startswith(b"xx ***")


def test_a_log_that_grows_ends_with_a_line(tmp_path: Path) -> None:
    attempt = write(tmp_path, train_log="whole\nhunter2-ve")
    assert attempt.log()[0]["size"] == 6
    (tmp_path / "exit_code").write_text("1")
    assert attempt.log()[0]["size"] == 16
    (tmp_path / "train.log").unlink()
    assert attempt.log() == []


def test_a_look(tmp_path: Path) -> None:
    write(tmp_path / "a1", train_log="one\n")
    (found,) = collecting.look({"a1": str(tmp_path / "a1")})
    texts = json.loads(zlib.decompress(base64.b64decode(found["texts"])))
    assert found["attempt"] == "a1" and {"env", "run.json"} <= set(texts) and found["files"][0]["size"] == 4
    assert collecting.look({"a2": str(tmp_path / "nothing")})[0]["files"] == []


@pytest.mark.parametrize("tag", ["..", "a/b", "", "."])
def test_checkpoints_are_where_they_belong(tmp_path: Path, tag: str) -> None:
    config: dict[str, Any] = {"arguments": {"model-tag": tag}, "nodes": {"a": {"nproc": 2}, "b": {"nproc": "1"}}}
    write(tmp_path / "n", {"config": config})
    assert collecting.inventory(str(tmp_path), str(tmp_path / "n")) == {"tag": None, "world": 3, "files": {}}
    config["arguments"]["model-tag"] = "demo"
    write(tmp_path / "n", {"config": config})
    (tmp_path / "base_checkpoints/demo").mkdir(parents=True)
    (tmp_path / "base_checkpoints/demo/meta_000010.json").write_text("{}")
    (tmp_path / "base_checkpoints/demo/model_000010.pt").write_text("cut")
    files = collecting.inventory(str(tmp_path), str(tmp_path / "n"))["files"]
    assert files["meta_000010.json"] is None and "cut off" in files["model_000010.pt"]
