# Copyright (c) 2026, torchlan contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The guards' rules, and what goes between them; tests/smoke/test_guard.py has them under real agents."""

from __future__ import annotations

import select
import socket
import time
from collections.abc import Callable
from typing import Any

import pytest
from test_runner_agree import plan

from torchlan_runner import processes, watch
from torchlan_runner.transport import Lines, Link, Members

HANG = 8.0  # what is left of ten seconds for the decision


def own(**changes: Any) -> watch.Own:
    one = plan(1, hang_timeout=10, **changes)
    return watch.Own(one, watch.Limits(one))


def waits(number: int | None, begun: int = 4, state: str = "training") -> dict[str, Any]:
    within = {"op": "all_gather", "n": number, "since": 0} if number is not None else None
    return {"state": state, "waiting_in": within, "collectives_begun": begun, "host": "h", "pid": 7, "step": 3}


def socket_with(sent: int, **values: Any) -> dict[str, Any]:
    ends = {"local": "127.0.0.1", "local_port": 40000, "remote": "127.0.0.1", "remote_port": 40001}
    return {**ends, "bytes_sent": sent, "bytes_received": 5, "timer": 0, "unacked": 0, "backoff": 0, **values}


def test_limits_leave_time_to_end_within_the_timeout() -> None:
    for whole in (5, 10, 60, 600):
        limits = watch.Limits(plan(0, hang_timeout=whole))
        assert limits.hang + limits.ask < whole
    assert watch.Limits(plan(0)).hang == 55 and watch.Limits(plan(0)).busy == 1800


def test_a_process_that_stands_still() -> None:
    worker = own()
    worker.heard(waits(None), 100.0)
    assert worker.frozen("S", 50, 100.0) is None
    assert worker.frozen("T", 50, 100.0 + HANG - 0.5) is None
    cause = worker.frozen("T", 50, 100.0 + HANG + 0.5)
    assert cause is not None and cause["code"] == "rank_frozen" and (cause["host"], cause["rank"]) == ("h1", 1)
    assert "stopped by a signal" in cause["what"]


def test_one_that_computes_without_a_beat_has_the_longer_limit() -> None:
    worker = own()
    worker.heard(waits(None), 0.0)
    for second in range(1800):
        assert worker.frozen("R", second, float(second)) is None
    assert worker.frozen("R", 1800, 1800.0) is not None


def test_one_that_beats_is_never_frozen() -> None:
    worker = own()
    for second in range(200):
        worker.heard(waits(4), float(second))
        assert worker.frozen("D", 1, second + 0.5) is None


def test_only_what_is_repeated_without_an_answer_is_a_lost_link() -> None:
    unanswered = {"timer": 1, "unacked": 3, "backoff": 5}
    full = {"timer": 4, "unacked": 0, "backoff": 5}  # the other end samples for minutes and does not read
    for values, code in ((unanswered, "link_lost"), (full, None), ({}, None)):
        worker = own()
        found = [worker.sockets([socket_with(1000, **values)], float(second)) for second in range(12)]
        assert [cause["code"] for cause in found if cause] == ([code] * 4 if code else [])
    worker = own()  # a crawl: it repeats much, and a little arrives
    assert not any(worker.sockets([socket_with(n, **unanswered)], float(n)) for n in range(100))


def stuck(beats: list[dict[str, Any]], signs: list[tuple[float, float | None]]) -> dict[str, Any] | None:
    one = plan(0, hang_timeout=10)
    told = {rank: {"waiting": waiting, "still": still} for rank, (waiting, still) in enumerate(signs)}
    return watch.stuck(one, watch.Limits(one), dict(enumerate(beats)), told)


def test_all_ranks_wait_and_no_byte_moves() -> None:
    cause = stuck([waits(4), waits(5, begun=5)], [(9, 9), (9, 9)])
    assert cause is not None and cause["code"] == "collective_stuck" and cause["rank"] == 0
    assert "all_gather 4" in cause["what"] and "all_gather 5" in cause["what"]


@pytest.mark.parametrize(
    "signs",
    [
        [(0, 400), (400, 400)],  # rank 0 samples alone
        [(9, 9), (9, 2)],  # a crawl
        [(9, None), (9, None)],  # a kernel that does not tell
        [(0, 400), (1700, 400)],
    ],
)
def test_waiting_alone_is_no_hang(signs: list[tuple[float, float | None]]) -> None:
    assert stuck([waits(4), waits(5, begun=5)], signs) is None


def test_who_makes_the_others_wait_has_a_limit() -> None:
    cause = stuck([waits(None), waits(5, begun=5)], [(0, 1900), (1900, 1900)])
    assert cause is not None and cause["rank"] == 0 and "rank 0 on h is in none" in cause["what"]


def test_waiting_is_counted_by_collective() -> None:
    worker = own()
    worker.heard(waits(4), 0.0)
    worker.heard(waits(4), 5.0)
    assert worker.waiting(6.0) == 6.0 and worker.suspicious(6.0)
    worker.heard(waits(6, begun=6), 7.0)
    assert worker.waiting(7.5) == 0.5 and not worker.suspicious(7.5)
    worker.heard(waits(None, begun=6, state="compiling"), 8.0)
    assert worker.waiting(500.0) == 0.0


def test_who_was_paused_does_not_count_it(monkeypatch: pytest.MonkeyPatch) -> None:
    at = [1000.0]
    monkeypatch.setattr(time, "monotonic", lambda: at[0])
    clock = watch.Clock()
    for step in (0.25, 3600.0, 0.25):
        at[0] += step
        clock.tick()
    assert clock.now == 1.5


def test_silence_names_the_link_or_the_host() -> None:
    one = plan(0)
    assert watch.silent(one, 1, 9, unanswered=True)["code"] == "link_lost"
    assert watch.silent(one, 1, 9, unanswered=False)["code"] == "rank_silent"


def until(check: Callable[[], Any], seconds: float = 5) -> Any:
    deadline = time.monotonic() + seconds
    while not (value := check()):
        assert time.monotonic() < deadline
        time.sleep(0.01)
    return value


def members() -> tuple[Members, dict[str, Any]]:
    listener = socket.create_server(("127.0.0.1", 0))
    where = {"address": "127.0.0.1", "port": listener.getsockname()[1], "token": "secret"}
    return Members(listener, "secret", "run"), where


def test_messages_reach_rank_0_and_its_own_come_back() -> None:
    center, where = members()
    link = Link(where, "run", 3)
    got: list[tuple[int, dict[str, Any]]] = []

    def turn() -> bool:
        link.receive()
        got.extend(center.receive())
        return link.joined and 3 in center.lines

    until(turn)
    link.send({"beat": {"n": 1}})
    until(lambda: (turn(), (3, {"beat": {"n": 1}}) in got)[1])
    center.send({"end": "x"}, must=True)
    assert until(lambda: link.receive()) == [{"end": "x"}]
    center.lines[3].close()  # a broken connection: it comes again
    until(lambda: (turn(), not link.joined)[1])
    until(turn)
    center.close()
    until(lambda: (link.receive(), link.refused_since)[1])
    assert not link.joined and link.unanswered()


def test_strangers_are_not_listened_to() -> None:
    center, where = members()
    for wrong in (dict(where, token="other"), where):
        link = Link(wrong, "run" if wrong is not where else "another", 1)
        until(lambda link=link: (link.receive(), center.receive(), link.refused_since)[2])
    assert center.lines == {}
    center.close()


def test_a_slow_connection_drops_what_comes_again_and_keeps_what_must_arrive() -> None:
    ours, theirs = socket.socketpair()
    line = Lines(ours)
    for number in range(5000):
        line.send({"beat": number, "fill": "x" * 1000})
    line.send({"end": 1}, must=True)
    assert line.waiting
    other, got = Lines(theirs), []
    while not got or got[-1] != {"end": 1}:
        got += other.receive()
        line.flush()
    assert 10 < len(got) < 5000
    line.close()
    select.select([theirs], [], [], 5)
    assert other.receive() == [] and not other.open


def test_no_interface_and_no_process_by_accident() -> None:
    assert processes.interface_problem("lo") is None and processes.interface_problem(None) is None
    assert processes.interface_problem("no-such0") == "there is no interface no-such0 any more"
    gone = processes.Process(2**22 - 1)
    assert gone.look() is None
    gone.send(9)
