# Copyright (c) 2026, torchlan contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Logs of several hosts as one: the real shell that is asked, what becomes of its answer, and how it is followed."""

from __future__ import annotations

import subprocess
import time
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

import pytest
from ansible.errors import AnsibleConnectionFailure
from test_actions import action

from ansible_collections.torchlan.nanochat.plugins.action import logs as logs_action
from ansible_collections.torchlan.nanochat.plugins.plugin_utils import logs
from ansible_collections.torchlan.nanochat.plugins.plugin_utils.logs import Entry

STEP = "step %05d/00010 (0.00%%) | loss: 8.316379 | lrm: 0.10 |"
NOISE = "W1201 03:43:58.601000 28316 api.py:1028] Sending process 28345 closing signal SIGTERM"


class Host:
    """One attempt's folder, below a base folder with a space and a quote in its name."""

    def __init__(self, home: Path, attempt: str = "a1", ranks: tuple[int, ...] = (0,)) -> None:
        self.base = home / "a 'base"
        self.attempt(attempt, ranks)

    def attempt(self, attempt: str, ranks: tuple[int, ...] = (0,)) -> None:
        self.folder = self.base / f"runs/demo/attempts/{attempt}/node-0"
        (self.folder / "beats").mkdir(parents=True)
        for rank in ranks:
            (self.folder / f"beats/rank-{rank}.json").write_text("{}")
        link = self.base / "runs/demo/current-0"
        link.unlink(missing_ok=True)
        link.symlink_to(f"attempts/{attempt}/node-0")

    def write(self, *lines: str, when: float | None = None, end: str = "\n") -> None:
        with open(self.folder / "train.log", "ab") as file:
            file.write("".join(line + end for line in lines).encode("utf-8", "surrogateescape"))
            size = file.tell()
        if when is not None:
            with open(self.folder / "train.times", "a") as file:
                file.write(f"{when:.1f} {size}\n")

    def ask(self, lines: int = 10, attempt: str = "", start: int = 0) -> logs.Part:
        done = self.shell(logs.command(str(self.base), "demo", 0, lines, attempt, start))
        part = logs.read(done["stdout"])
        assert part is not None, done
        return part

    def shell(self, command: str, **_more: Any) -> dict[str, Any]:
        done = subprocess.run(["/bin/sh", "-c", command], capture_output=True, check=False)
        return {"rc": done.returncode, "stdout": done.stdout.decode("utf-8", "surrogateescape"), "stderr": "no"}


@pytest.fixture(name="host")
def host_fixture(tmp_path: Path) -> Host:
    return Host(tmp_path)


def texts(found: list[Entry]) -> list[str]:
    return [entry.text for entry in found]


def test_lines_have_the_time_at_which_the_log_grew(host: Host) -> None:
    now = time.time()
    host.write("Distributed world size: 2", when=now - 50)
    host.write(STEP % 0, NOISE, "", when=now - 40)
    host.write(STEP % 1, when=now - 39)
    host.write(STEP % 2)  # within the last second
    part = host.ask()
    found, end = logs.entries(part, now, raw=False)
    assert texts(found) == ["Distributed world size: 2", STEP % 0, STEP % 1, STEP % 2]
    assert [round(now - (entry.time or 0)) for entry in found] == [50, 40, 39, 39]
    assert {entry.rank for entry in found} == {0}
    assert end == (host.folder / "train.log").stat().st_size
    assert (part.attempt, part.ended) == ("a1", False)
    assert NOISE in texts(logs.entries(part, now, raw=True)[0])


def test_only_the_times_of_what_is_new_come(host: Host) -> None:
    now = float(int(time.time()))
    for number in range(2000):
        host.write(f"line {number}", when=now - 2000 + number)
    size = (host.folder / "train.log").stat().st_size
    assert host.ask(10, "a1", size).stamps == [(now - 1, size)], "the last one is for what comes within its second"
    part = host.ask(10, "a1", size - 20)
    assert len(part.stamps) == 3
    assert [entry.time for entry in logs.entries(part, now, raw=False)[0]] == [now - 1]


@pytest.mark.parametrize(
    "text", ["", "\n", "no such file,", "1.2.3 7,", "17966444655 x,1796644465.5 y", "1796644465.5 7"]
)
def test_broken_times_are_none(text: str) -> None:
    whole = [(1796644465.5, 7)] if text.endswith("5 7") else []
    assert logs.stamps(text) == whole
    assert logs.Times(whole, 0.0).at(3) == (whole[0][0] if whole else None)


def test_a_clock_that_differs(host: Host) -> None:
    now = time.time() - 600  # the controller's is ten minutes behind
    host.write(STEP % 0, when=time.time() - 5)
    ((entry,), _end) = logs.entries(host.ask(), now, raw=False)
    assert abs((entry.time or 0) - (now - 5)) < 2


def test_without_the_runner_there_are_lines_and_no_times(host: Host) -> None:
    host.write(STEP % 0)
    assert logs.entries(host.ask(), time.time(), raw=False)[0] == [Entry(None, 0, STEP % 0)]


@pytest.mark.parametrize("name", ["exit_code", "stopped"])
def test_the_end(host: Host, name: str) -> None:
    host.write("the last words", end="")
    assert logs.entries(host.ask(), time.time(), raw=False) == ([], 0), "more of this line may come"
    (host.folder / name).write_text("1\n")
    part = host.ask()
    assert part.ended
    assert texts(logs.entries(part, time.time(), raw=False)[0]) == ["the last words"]


def test_several_ranks_of_one_host(tmp_path: Path) -> None:
    host = Host(tmp_path, ranks=(2, 3))
    host.write("[rank3]: RuntimeError: oh", "[default2]:hello", "who knows")
    found, _end = logs.entries(host.ask(), time.time(), raw=False)
    assert found == [
        Entry(None, 3, "RuntimeError: oh"),
        Entry(None, 2, "hello"),
        Entry(None, None, "who knows"),
    ]


def test_a_long_log_is_read_at_its_end_only_and_never_half_a_line(host: Host) -> None:
    host.write(*(f"{number:06d} {'x' * 93}" for number in range(5000)))
    part = host.ask(lines=10)
    assert part.start > 300_000
    found, end = logs.entries(part, time.time(), raw=False)
    assert all(len(entry.text) == 100 for entry in found)
    assert found[-1].text.startswith("004999") and end == 5000 * 101


def test_nothing_is_lost_or_repeated_over_many_looks(host: Host) -> None:
    attempt, start, seen = "a1", 0, []
    for number in range(40):
        host.write(f"line {number} é", *([f"half {number}"] if number % 3 else []), end="\n" if number % 4 else "")
        found, start = logs.entries(host.ask(10, attempt, start), time.time(), raw=True, begun=True)
        seen += texts(found)
    (host.folder / "exit_code").write_text("0")
    seen += texts(logs.entries(host.ask(10, attempt, start), time.time(), raw=True, begun=True)[0])
    assert "\n".join(seen) == (host.folder / "train.log").read_text().rstrip("\n")


def test_more_than_one_look_can_hold(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logs, "MOST_BYTES", 1000)
    host.write(*(f"line {number}" for number in range(1000)), "x" * 3000, "the end")
    start, seen = 0, []
    while True:
        found, end = logs.entries(host.ask(10, "a1", start), time.time(), raw=True, begun=True)
        if end == start:
            break
        start, seen = end, seen + texts(found)
    assert "".join(seen) == (host.folder / "train.log").read_text().replace("\n", "")


def test_bytes_that_are_no_text_and_a_cursor_that_is_not_moved(host: Host) -> None:
    host.write("10%\r50%\r100%", "\udcff\udcfe ok", "\x1b[2J\x07 cleared")
    found, end = logs.entries(host.ask(), time.time(), raw=False)
    assert end == (host.folder / "train.log").stat().st_size
    assert texts(found)[0] == "100%" and texts(found)[1].endswith(" ok")
    assert "\x1b" not in logs.line("h", found[2]) and "cleared" in logs.line("h", found[2])


def test_in_the_order_of_time_and_each_hosts_own_order_stays() -> None:
    by_host = {
        "workstation": [Entry(10.0, 0, "a"), Entry(12.0, 0, "c"), Entry(None, None, "d")],
        "laptop": [Entry(None, 1, "before all"), Entry(11.0, 1, "b"), Entry(11.0, 1, "b2"), Entry(12.0, 1, "e")],
    }
    shown = [line.rpartition("| ")[2] for line in logs.merged(by_host, 100)]
    assert shown == ["before all", "a", "b", "b2", "c", "d", "e"]
    assert [line.rpartition("| ")[2] for line in logs.merged(by_host, 2)] == ["d", "e"]
    names = [line[9:].partition(" |")[0] for line in logs.merged(by_host, 3)]
    assert names == ["workstation:0", "workstation  ", "laptop:1     "]
    assert logs.merged({}, 10) == []


def test_no_such_run_is_data(tmp_path: Path) -> None:
    made = told(tmp_path / "nothing", lambda command, **_more: {"rc": 2, "stdout": "", "stderr": "cd: no such"})
    assert made["nanochat_lost"]["code"] == "run_absent" and "cd: no such" in made["nanochat_lost"]["what"]


def told(base: Path, shell: Any, **args: Any) -> dict[str, Any]:
    """What the action answers over a connection whose shell this is."""
    one = action(logs_action.ActionModule, {"run": "demo", "base_dir": str(base), "node_rank": 0, **args})
    one._low_level_execute_command = shell
    one._remove_tmp_path = MagicMock()
    return dict(one.run(None, {"inventory_hostname": "laptop"}))


def test_followed_over_an_outage_and_a_new_attempt(
    host: Host, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(logs_action, "_EVERY_S", 0)
    host.write(STEP % 0, when=time.time())
    made = told(host.base, host.shell)
    assert [text for _time, _rank, text in made["entries"]] == [STEP % 0]
    looks = 0

    def shell(command: str, **_more: Any) -> dict[str, Any]:
        nonlocal looks
        looks += 1
        if looks in (2, 3):
            raise AnsibleConnectionFailure("no route")
        if looks == 1:
            host.write(STEP % 1)
        if looks == 4:
            host.write(STEP % 2)
        if looks == 6:
            host.attempt("a2")
            host.write("anew")
            (host.folder / "exit_code").write_text("0")
        return host.shell(command)

    after = {"attempt": made["attempt"], "next": made["next"]}
    made = told(host.base, shell, after=after)
    assert (made["ended"], made["attempt"]) == (True, "a2")
    lines = [line for line in capsys.readouterr().out.splitlines() if "|" in line or "answer" in line]
    assert [line.partition("| ")[2] if line.startswith(("0", "1", "2", " ")) else line[:24] for line in lines] == [
        STEP % 1,
        "laptop does not answer, ",
        "laptop answers again aft",
        STEP % 2,
        "anew",
    ]


def test_shown_without_a_host(capsys: pytest.CaptureFixture[str]) -> None:
    lost = {"nanochat_lost": {"what": "laptop (192.0.2.37): no route"}}
    show = {"workstation": {"entries": [[1.0, 0, "hello"]]}, "laptop": lost}
    one = action(logs_action.ActionModule, {"show": show, "lines": "5"})
    one._remove_tmp_path = MagicMock()
    assert one.run(None, {"inventory_hostname": "laptop"})["shown"] == ["workstation"]
    printed = capsys.readouterr()
    assert printed.out.rstrip().endswith("workstation:0 | hello")
    assert "laptop (192.0.2.37): no route" in printed.err
