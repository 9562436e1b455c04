# Copyright (c) 2026, torchlan contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""How what a run has left comes to the controller: in pieces, over outages, and never as something else."""

from __future__ import annotations

import base64
import hashlib
import json
import subprocess
import zlib
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

import pytest
from ansible.errors import AnsibleConnectionFailure
from test_actions import action

from ansible_collections.torchlan.nanochat.plugins.action import collect, page
from ansible_collections.torchlan.nanochat.plugins.module_utils.causes import cause
from ansible_collections.torchlan.nanochat.plugins.plugin_utils import collected
from ansible_collections.torchlan.nanochat.plugins.plugin_utils import page as drawn
from ansible_collections.torchlan.nanochat.plugins.plugin_utils.remote import Lost


def weighed(content: bytes) -> dict[str, Any]:
    return {"size": len(content), "sha256": hashlib.sha256(content).hexdigest()}


class Remote:
    """A file on a host, and a connection that breaks after so many pieces."""

    def __init__(self, content: bytes, breaks_after: int = 1 << 30) -> None:
        self.content, self.left, self.asked = content, breaks_after, []

    def read(self, offset: int, count: int) -> bytes:
        if not self.left:
            raise ConnectionError
        self.left -= 1
        self.asked.append(offset)
        return self.content[offset : offset + count]


@pytest.fixture(autouse=True)
def small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(collected, "PIECE", 10)


def test_an_interrupted_copy_goes_on(tmp_path: Path) -> None:
    path, content = tmp_path / "x/model.pt", bytes(range(95))
    with pytest.raises(ConnectionError):
        collected.bring(path, weighed(content), Remote(content, 4).read)
    assert not path.exists() and (tmp_path / "x/model.pt.part").stat().st_size == 40
    remote = Remote(content)
    assert collected.bring(path, weighed(content), remote.read) == 55
    assert remote.asked[0] == 40 and path.read_bytes() == content
    assert collected.bring(path, weighed(content), Remote(content, 0).read) == 0, "it is there"
    assert [one.name for one in (tmp_path / "x").iterdir()] == ["model.pt"]


def test_a_log_that_has_grown_goes_on(tmp_path: Path) -> None:
    path, content = tmp_path / "train.log", b"line\n" * 20
    path.write_bytes(content[:50])
    remote = Remote(content)
    assert collected.bring(path, weighed(content), remote.read) == 50
    assert min(remote.asked) == 50 and path.read_bytes() == content


@pytest.mark.parametrize("there", [b"another one, longer than that of the host" * 9, b"another", b"x" * 95])
def test_what_began_as_another_file_begins_anew(tmp_path: Path, there: bytes) -> None:
    path, content = tmp_path / "train.log", bytes(range(95))
    path.write_bytes(there)
    collected.bring(path, weighed(content), Remote(content).read)
    assert path.read_bytes() == content
    (tmp_path / "train.log.part").write_bytes(there)
    collected.bring(path, weighed(content), Remote(content, 0).read)
    path.unlink()
    collected.bring(path, weighed(content), Remote(content).read)
    assert path.read_bytes() == content


@pytest.mark.parametrize("now", [b"other" * 19, b"short"])
def test_a_file_that_changes_is_not_taken(tmp_path: Path, now: bytes) -> None:
    path = tmp_path / "train.log"
    with pytest.raises(collected.Changed):
        collected.bring(path, weighed(bytes(95)), Remote(now).read)
    assert not path.exists()


def test_two_at_once(tmp_path: Path) -> None:
    path, content = tmp_path / "model.pt", bytes(range(95))
    remote = Remote(content)

    def read(offset: int, count: int) -> bytes:
        with pytest.raises(collected.Busy):
            collected.bring(path, weighed(content), Remote(content, 0).read)
        return remote.read(offset, count)

    assert collected.bring(path, weighed(content), read) == 95
    assert collected.bring(path, weighed(content), Remote(content, 0).read) == 0


def test_another_one_was_faster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, content = tmp_path / "model.pt", bytes(range(95))
    path.write_bytes(content)
    answers = iter([False, True])
    monkeypatch.setattr(collected, "same", lambda *_args: next(answers))
    assert collected.bring(path, weighed(content), Remote(content, 0).read) == 0
    assert [one.name for one in tmp_path.iterdir()] == ["model.pt"]


def packed(files: Any) -> str:
    return base64.b64encode(zlib.compress(json.dumps(files).encode())).decode()


@pytest.mark.parametrize(
    "answer",
    [
        *(packed({name: "x"}) for name in ("../x", "/etc/x", "beats/../../x", "a/b", "", "x\n", "..")),
        packed(["x"]),
        packed({"x": 1}),
        "no base64!",
        base64.b64encode(b"no zlib").decode(),
    ],
)
def test_a_host_that_sends_something_else(answer: str) -> None:
    with pytest.raises(ValueError):
        collected.unpack(answer)
    assert collected.unpack(packed({"env": "a", "beats/rank-0.jsonl": "b"})) == {"env": "a", "beats/rank-0.jsonl": "b"}


def test_folders_of_hosts(tmp_path: Path) -> None:
    for host in ("../../etc", "fe80::1", ".hidden", "a b", ".."):
        folder = collected.host_folder(str(tmp_path), "demo", host)
        assert folder.parent == tmp_path / "demo/collected" and not folder.name.startswith(".")
    with pytest.raises(ValueError, match="no name of a run"):
        collected.run_folder(str(tmp_path), "../x")


def have(rank: int, *steps: int, world: int = 2, broken: tuple[str, ...] = ()) -> dict[str, Any]:
    names = [f"optim_{step:06d}_rank{rank}.pt" for step in steps]
    if rank == 0:
        names += [name for step in steps for name in (f"model_{step:06d}.pt", f"meta_{step:06d}.json")]
    files = {name: "cut off" if name in broken else None for name in names}
    return {"node_rank": rank, "checkpoints": {"tag": "demo", "world": world, "files": files}}


def test_which_checkpoint() -> None:
    both = {"a": have(0, 5, 10), "b": have(1, 5, 10, broken=("optim_000010_rank1.pt",))}
    found = collected.choice(both, "latest")
    assert (found.step, found.source["optim_000005_rank1.pt"]) == (5, 1) and "on b cut off" in found.skipped[0]
    assert collected.choice(both, "10").step is None
    assert collected.choice(both, "7").skipped == ["there is none of step 7"]
    assert collected.choice({"a": have(0), "b": have(1)}, "latest").skipped == ["there is none"]
    assert collected.choice({"a": have(0, 5), "b": {"nanochat_lost": {}}}, "latest").step is None
    assert "no host that answered" in collected.choice({"b": {"nanochat_lost": {}}}, "latest").skipped[0]
    assert "neither latest nor a step" in collected.choice(both, "lates").skipped[0]


# ---- the action, over a host that is a function ----


class Host:
    """Answers as the module does, for one attempt whose log is C(log)."""

    def __init__(self, log: bytes) -> None:
        self.log, self.seen, self.breaks_at = log, [], 1 << 30
        self.before = b""  # what the first looks see

    def answer(self, args: dict[str, Any], _vars: Any) -> dict[str, Any]:
        self.seen.append(args)
        if args.get("step") == "read":
            if args["offset"] >= self.breaks_at:
                raise Lost(cause("host_unreachable", "gone", host="laptop"))
            data = self.log[args["offset"] : min(args["size"], args["offset"] + args["count"])]
            return {"data": base64.b64encode(zlib.compress(data)).decode()}
        log, self.before = self.before or self.log, b""
        files = [{"name": "train.log", **weighed(log)}]
        texts = packed({"env": "export A='(masked)'\n", "run.json": "{}"})
        return {"attempts": [{"attempt": "a1", "texts": texts, "files": files}], "clock": 0.0}


def told(host: Host, folder: Path, check_mode: bool = False, **args: Any) -> dict[str, Any]:
    where = {"run": "demo", "base_dir": "~/x", "node_rank": 1, "folder": str(folder), "checkpoints": ""}
    one = action(collect.ActionModule, {**where, **args}, check_mode)
    one.remote, one._remove_tmp_path = host.answer, MagicMock()
    return dict(one.run(None, {"inventory_hostname": "laptop"}))


def test_brought_once(tmp_path: Path) -> None:
    host = Host(bytes(100))
    assert told(host, tmp_path, check_mode=True)["changed"] and not (tmp_path / "demo").exists()
    made = told(host, tmp_path)
    assert (made["changed"], made["bytes_read"], made["files"], made["attempts"]) == (True, 100, 4, ["a1"])
    assert (tmp_path / "demo/collected/laptop/a1/train.log").read_bytes() == bytes(100)
    made = told(host, tmp_path)
    assert (made["changed"], made["bytes_read"], made["ok"]) == (False, 0, True)


def test_a_host_that_goes_away_and_comes_back(tmp_path: Path) -> None:
    host = Host(bytes(range(100)))
    host.breaks_at = 50
    assert told(host, tmp_path)["nanochat_lost"]["code"] == "host_unreachable"
    host.breaks_at, host.seen = 1000, []
    assert told(host, tmp_path)["bytes_read"] == 50
    assert min(args["offset"] for args in host.seen if "offset" in args) == 50


def test_a_log_that_began_anew_is_looked_at_again(tmp_path: Path) -> None:
    host = Host(b"new" * 30)
    host.before = b"old" * 50
    assert told(host, tmp_path)["ok"]
    assert (tmp_path / "demo/collected/laptop/a1/train.log").read_bytes() == host.log


def test_each_file_of_a_checkpoint_comes_from_one_host(tmp_path: Path) -> None:
    there = tmp_path / "it's a/optim_000005_rank1.pt"
    there.parent.mkdir()
    there.write_bytes(bytes(range(256)))
    asked: list[str] = []

    def answer(args: dict[str, Any], _vars: Any) -> dict[str, Any]:
        assert args["names"] == [there.name]
        return {"files": [{"name": there.name, "path": str(there), **weighed(bytes(range(256)))}]}

    def shell(command: str, **_more: Any) -> dict[str, Any]:
        asked.append(command)
        if len(asked) == 10:
            raise AnsibleConnectionFailure("no route")
        return {"stdout": subprocess.run(command, shell=True, capture_output=True, text=True, check=True).stdout}

    found = {"workstation": have(0, 5), "laptop": have(1, 5)}
    args = {"run": "demo", "base_dir": "~/x", "node_rank": 1, "folder": str(tmp_path), "checkpoints": "latest"}
    for _try in range(2):
        one = action(collect.ActionModule, {**args, "collected": found})
        one.remote, one._low_level_execute_command, one._remove_tmp_path = answer, shell, MagicMock()
        made = one.run(None, {"inventory_hostname": "laptop"})
        if "nanochat_lost" in made:
            assert made["nanochat_lost"]["code"] == "host_unreachable" and len(asked) == 10
    assert (made["chosen"], made["bytes_read"], made["changed"]) == (5, 256 - 90, True)
    assert (tmp_path / "demo/checkpoints" / there.name).read_bytes() == there.read_bytes()


def test_a_folder_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "demo").write_text("a file")
    assert told(Host(b"x"), tmp_path)["nanochat_lost"]["code"] == "path_invalid"


def show(folder: Path, found: dict[str, Any], **more: Any) -> dict[str, Any]:
    args = {"run": "demo", "folder": str(folder), "collected": found, **more}
    return dict(action(page.ActionModule, args).run(None, {}))


def test_what_is_said_of_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def without(*_args: Any) -> str:
        raise drawn.NoPlotly("no plotly")

    monkeypatch.setattr(drawn, "make", without)
    lost = {"nanochat_lost": {"what": "workstation (192.0.2.36): no route"}}
    found = {"laptop": told(Host(b"x"), tmp_path), "workstation": lost}
    chosen = {"laptop": {"chosen": None, "why_not": ["step 5: model_000005.pt is on no host"], "folder": "f"}}
    assert show(tmp_path, found, checkpoints=chosen)["attempts"] == ["a1"]
    printed = capsys.readouterr()
    assert "from 1 of 2 hosts" in printed.out and "pip install plotly" in printed.out
    assert "192.0.2.36" in printed.err and "model_000005.pt is on" in " ".join(printed.err.split())
    assert (tmp_path / "demo/metrics.csv").exists() and not (tmp_path / "demo/report.html").exists()
    made = show(tmp_path, {"workstation": lost})
    assert made["failed"] and "no host gave anything of run demo" in made["msg"]
