# Copyright (c) 2026, torchlan contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The proof, every clause failing on its own."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from ansible_collections.torchlan.nanochat.plugins.module_utils.causes import cause
from ansible_collections.torchlan.nanochat.plugins.module_utils.proof import (
    expected_each_way,
    judge,
    ranks_of,
    sockets_of,
)

PARAM_BYTES = 40_000_000
STEPS = 3
IPS = {0: "192.0.2.36", 1: "192.0.2.37", 2: "192.0.2.38"}


def beat(rank: int, **values: Any) -> dict[str, Any]:
    return {
        "rank": rank,
        "host": "host%d" % rank,
        "node_rank": rank,
        "world_size": 2,
        "state": "training",
        "step": STEPS,
        "param_bytes": PARAM_BYTES,
        "backend": "gloo",
        "collectives_begun": 12,
        "collectives_finished": 12,
        "collective_bytes": 2 * PARAM_BYTES * STEPS,
        "checksums": {"1": "aa", "2": "bb", "3": "cc"},
        "sockets": None,
        "time": 100.0,
        **values,
    }


def connection(local: str, remote: str, sent: int, received: int) -> dict[str, Any]:
    """In the notation of C(tcp_sockets)."""
    ends = {}
    for side, text in (("local", local), ("remote", remote)):
        address, _colon, port = text.rpartition(":")
        ends.update({side: address, side + "_port": int(port)})
    return {"pid": 1, **ends, "bytes_sent": sent, "bytes_received": received}


FULL = expected_each_way(2, PARAM_BYTES) * STEPS


def pair(
    sent: int = FULL, received: int = FULL, zero: str = IPS[0], one: str = IPS[1]
) -> dict[int, list[dict[str, Any]]]:
    return {
        0: [connection(zero + ":40001", one + ":40002", sent, received)],
        1: [connection(one + ":40002", zero + ":40001", received, sent)],
    }


def good() -> dict[str, Any]:
    """Everything that a proof of two ranks on two hosts needs."""
    return {
        "world_size": 2,
        "backend": "gloo",
        "ranks": [beat(0), beat(1)],
        "sockets_by_rank": pair(),
        "expected_bytes_per_step": None,
        "min_steps": 2,
        "runner": True,
        "ifname_by_rank": {0: "enp4s0", 1: "eth0"},
        "addresses": {0: IPS[0], 1: IPS[1]},
        "store_port": 29500,
    }


def judged(**changes: Any) -> tuple[str, list[str], dict[str, Any]]:
    result = judge(**{**copy.deepcopy(good()), **changes})
    return result["verdict"], [one["code"] for one in result["causes"]], result


def with_beat(rank: int, **values: Any) -> list[dict[str, Any]]:
    return [beat(one, **(values if one == rank else {})) for one in (0, 1)]


def test_all_clauses_hold() -> None:
    verdict, codes, result = judged()
    assert (verdict, codes) == ("proven", [])
    evidence = result["evidence"]
    assert evidence["waiting_for"] == []
    assert evidence["equal_parameters"] == {"step": 3, "equal": True}
    assert [row["bytes_sent"] for row in evidence["ranks"]] == [FULL, FULL]
    assert [row["peers"] for row in evidence["ranks"]] == [[1], [0]]
    assert [row["seen_by"] for row in evidence["ranks"]] == ["host", "host"]


def test_the_bytes_that_a_step_needs() -> None:
    assert expected_each_way(1, 100) == 0
    assert expected_each_way(2, 100) == 100
    assert expected_each_way(4, 100) == 150


# ---- steps ----


@pytest.mark.parametrize("rank", [0, 1])
def test_too_few_steps_on_one_rank(rank: int) -> None:
    verdict, codes, result = judged(ranks=with_beat(rank, step=1))
    assert (verdict, codes) == ("not_yet", [])
    assert result["evidence"]["waiting_for"] == ["rank %d (host%d) has done 1 of 2 steps" % (rank, rank)]


@pytest.mark.parametrize(
    "ranks", [[beat(0)], [beat(0), {"rank": 1, "node_rank": 1, "host": "host1", "state": "missing"}]]
)
def test_a_rank_that_is_not_there(ranks: list[dict[str, Any]]) -> None:
    verdict, codes, result = judged(ranks=ranks)
    assert (verdict, codes) == ("not_yet", [])
    assert "rank 1 not seen" in result["evidence"]["waiting_for"]


def test_min_steps_is_heeded() -> None:
    assert judged(min_steps=STEPS)[0] == "proven"
    assert judged(min_steps=STEPS + 1)[0] == "not_yet"


def test_the_newest_of_two_beats_counts() -> None:
    assert judged(ranks=[beat(0), beat(1), beat(1, step=0, time=1.0)])[0] == "proven"
    assert judged(ranks=[beat(0), beat(1), beat(1, step=0, time=200.0)])[0] == "not_yet"


# ---- bytes ----


def test_half_of_the_bytes_suffices_and_less_does_not() -> None:
    half = FULL // 2
    assert judged(sockets_by_rank=pair(half, half))[0] == "proven"
    assert judged(sockets_by_rank=pair(half - 1, half - 1))[1] == ["too_few_bytes", "too_few_bytes"]


@pytest.mark.parametrize(("sent", "received"), [(FULL, 1000), (1000, FULL)])
def test_one_direction_is_not_an_exchange(sent: int, received: int) -> None:
    assert judged(sockets_by_rank=pair(sent, received))[:2] == ("failed", ["too_few_bytes", "too_few_bytes"])


def test_one_rank_that_exchanges_too_little() -> None:
    ips, full = IPS, expected_each_way(3, PARAM_BYTES) * STEPS
    ranks = [beat(rank, world_size=3) for rank in range(3)]
    sockets = pair(full, full)
    sockets[0].append(connection(ips[0] + ":40003", ips[2] + ":40004", 5000, 5000))
    sockets[2] = [connection(ips[2] + ":40004", ips[0] + ":40003", 5000, 5000)]
    verdict, codes, result = judged(world_size=3, ranks=ranks, sockets_by_rank=sockets, addresses=ips)
    assert (verdict, codes) == ("failed", ["too_few_bytes"])
    assert result["causes"][0]["rank"] == 2
    assert result["causes"][0]["host"] == "host2"


def test_bytes_count_for_all_steps() -> None:
    ranks = [beat(0, step=100, checksums={"99": "x"}), beat(1, step=100, checksums={"99": "x"})]
    assert judged(ranks=ranks)[1] == ["too_few_bytes", "too_few_bytes"]


def test_param_bytes_beat_the_expectation() -> None:
    assert judged(expected_bytes_per_step=10**12)[0] == "proven"


def test_the_expectation_serves_without_param_bytes() -> None:
    ranks = [beat(0, param_bytes=None), beat(1, param_bytes=None)]
    assert judged(ranks=ranks, expected_bytes_per_step=PARAM_BYTES)[0] == "proven"
    assert judged(ranks=ranks, expected_bytes_per_step=10**12)[1] == ["too_few_bytes", "too_few_bytes"]
    verdict, codes, result = judged(ranks=ranks)
    assert (verdict, codes) == ("not_yet", [])
    assert "is not known" in result["evidence"]["waiting_for"][0]


def test_few_bytes_before_enough_steps_are_no_failure() -> None:
    verdict, codes, _result = judged(ranks=[beat(0, step=1), beat(1, step=1)], sockets_by_rank=pair(10, 10))
    assert (verdict, codes) == ("not_yet", [])


def test_a_connection_that_was_seen_twice_counts_once() -> None:
    third = FULL // 3
    sockets = {rank: entries * 2 for rank, entries in pair(third, third).items()}
    assert judged(sockets_by_rank=sockets)[1] == ["too_few_bytes", "too_few_bytes"]


def test_a_kernel_that_does_not_tell_bytes() -> None:
    sockets: dict[int, list[dict[str, Any]]] = {
        rank: [dict(one, bytes_sent=None, bytes_received=None) for one in entries] for rank, entries in pair().items()
    }
    assert judged(sockets_by_rank=sockets)[0] == "proven"  # connected, the runner counted, parameters are equal
    ranks = [beat(0, collective_bytes=5), beat(1, collective_bytes=5)]
    assert judged(sockets_by_rank=sockets, ranks=ranks)[:2] == ("not_yet", [])
    without = [{"rank": rank, "host": "h", "node_rank": rank, "step": 3} for rank in (0, 1)]
    assert judged(
        sockets_by_rank=sockets, ranks=without, runner=False, expected_bytes_per_step=PARAM_BYTES
    )[:2] == ("not_yet", [])  # fmt: skip


# ---- connections ----


@pytest.mark.parametrize("step", [1, 2])
def test_a_worker_without_any_socket_is_not_distributed_at_once(step: int) -> None:
    verdict, codes, result = judged(ranks=[beat(0, step=step), beat(1, step=step)], sockets_by_rank={0: [], 1: []})
    assert (verdict, codes) == ("failed", ["not_distributed", "not_distributed"])
    assert "no TCP connection at all" in result["causes"][0]["what"]


def test_without_a_socket_before_the_first_step_nothing_is_said() -> None:
    ranks = [beat(rank, step=0, backend=None, checksums={}) for rank in (0, 1)]
    assert judged(ranks=ranks, sockets_by_rank={0: [], 1: []})[:2] == ("not_yet", [])


def test_connections_to_the_store_and_the_internet_are_none_with_ranks() -> None:
    sockets = {
        rank: [
            connection(IPS[rank] + ":50000", IPS[0] + ":29500", FULL, FULL),
            connection(IPS[rank] + ":50001", "203.0.113.9:443", FULL, FULL),
        ]
        for rank in (0, 1)
    }
    verdict, codes, result = judged(sockets_by_rank=sockets)
    assert (verdict, codes) == ("failed", ["not_distributed", "not_distributed"])
    assert "no TCP connection with another rank" in result["causes"][0]["what"]
    assert judged(sockets_by_rank=sockets, ranks=[beat(0, step=1), beat(1, step=1)])[:2] == ("not_yet", [])


def test_a_guards_connection_does_not_count() -> None:
    """It is not in the worker's list; only its far end's address would fit."""
    sockets = pair()
    sockets[0] = [connection(IPS[0] + ":41000", IPS[1] + ":41001", FULL, FULL)]
    assert judged(sockets_by_rank=sockets)[1] == ["not_distributed", "not_distributed"]


def test_a_rank_that_was_not_looked_at_is_matched_by_address() -> None:
    sockets = {0: pair()[0], 1: None}
    verdict, codes, result = judged(sockets_by_rank=sockets)
    assert (verdict, codes) == ("not_yet", [])
    assert result["evidence"]["ranks"][0]["bytes_sent"] == FULL
    assert result["evidence"]["waiting_for"] == ["the sockets of rank 1 (host1) were not looked at"]


def test_what_may_be_hidden_is_no_failure() -> None:
    sockets = {0: [connection(IPS[0] + ":1", "192.0.2.99:2", FULL, FULL)]}
    assert judged(sockets_by_rank=sockets)[:2] == ("not_yet", [])  # much goes to somebody: rank 1 over another address?
    sockets = {0: [connection(IPS[0] + ":1", "192.0.2.99:2", 5, 5)]}
    assert judged(sockets_by_rank=sockets)[1] == ["not_distributed"]
    assert judged(sockets_by_rank=sockets, addresses={0: IPS[0], 1: "laptop.local"})[:2] == ("not_yet", [])
    assert judged(sockets_by_rank=sockets, addresses=None)[:2] == ("not_yet", [])


def test_beats_own_sockets_serve_where_the_host_was_not_looked_at() -> None:
    ranks = [
        beat(
            rank,
            sockets=[
                {
                    "local": "%s:%d" % (one["local"], one["local_port"]),
                    "remote": "%s:%d" % (one["remote"], one["remote_port"]),
                    "bytes_sent": one["bytes_sent"],
                    "bytes_received": one["bytes_received"],
                }
                for one in pair()[rank]
            ],
        )
        for rank in (0, 1)
    ]
    verdict, codes, result = judged(ranks=ranks, sockets_by_rank=None)
    assert (verdict, codes) == ("proven", [])
    assert [row["seen_by"] for row in result["evidence"]["ranks"]] == ["beat", "beat"]
    for one in ranks:
        one["state"] = "finished"  # the processes are gone: what the host shows is empty
    assert judged(ranks=ranks, sockets_by_rank={0: [], 1: []})[0] == "proven"


def test_an_ended_rank_without_sockets_cannot_be_told() -> None:
    ranks = [beat(0, state="finished", sockets=[]), beat(1, state="finished", sockets=[])]
    assert judged(ranks=ranks, sockets_by_rank={0: [], 1: []})[:2] == ("not_yet", [])
    ranks = [dict(one, collectives_begun=0) for one in ranks]
    assert judged(ranks=ranks, sockets_by_rank=None)[1] == ["not_distributed", "not_distributed"]


@pytest.mark.parametrize(
    ("zero", "one"),
    [("::ffff:192.0.2.36", "[::ffff:192.0.2.37]"), ("fe80::1%eth0", "fe80::2"), ("127.0.0.1", "127.0.0.1")],
)
def test_spellings_of_addresses(zero: str, one: str) -> None:
    sockets = pair(zero=zero, one=one)
    assert judged(sockets_by_rank=sockets, addresses={0: zero, 1: one})[0] == "proven"


def test_broken_socket_entries_are_left_out() -> None:
    sockets = pair()
    sockets[0] += [{"local": "x", "remote": None}, {}, {"local": "not-an-ip:1", "remote": "1.2.3.4:5"}]
    assert judged(sockets_by_rank=sockets)[0] == "proven"


# ---- interface ----


def test_traffic_between_hosts_over_another_interface() -> None:
    verdict, codes, result = judged(sockets_by_rank=pair(zero="10.8.0.1", one="10.8.0.2"))
    assert verdict == "failed"
    assert set(codes) == {"wrong_interface"}
    assert "10.8.0.1" in result["causes"][0]["what"]
    assert "192.0.2.36 (enp4s0)" in result["causes"][0]["what"]


def test_on_one_host_any_interface_will_do() -> None:
    ranks = [beat(0, node_rank=0, host="a"), beat(1, node_rank=0, host="a")]
    sockets = pair(zero="127.0.0.1", one="127.0.0.1")
    assert judged(ranks=ranks, sockets_by_rank=sockets, addresses={0: IPS[0], 1: IPS[0]})[0] == "proven"


def test_another_family_and_a_trickle_are_not_judged() -> None:
    assert judged(sockets_by_rank=pair(zero="2001:db8::1", one="2001:db8::2"))[0] == "proven"
    sockets = pair()
    sockets[0].append(connection("10.8.0.1:1", "10.8.0.2:2", 500, 500))
    sockets[1].append(connection("10.8.0.2:2", "10.8.0.1:1", 500, 500))
    assert judged(sockets_by_rank=sockets)[0] == "proven"


# ---- what the runner adds ----


def test_different_parameters() -> None:
    verdict, codes, result = judged(ranks=with_beat(1, checksums={"1": "aa", "2": "bb", "3": "XX"}))
    assert (verdict, codes) == ("failed", ["parameters_differ"])
    assert "after step 3" in result["causes"][0]["what"]
    assert result["evidence"]["equal_parameters"] == {"step": 3, "equal": False}


@pytest.mark.parametrize("sums", [{}, None, {"7": "aa"}, {"0": "aa"}])
def test_no_step_to_compare(sums: Any) -> None:
    verdict, codes, result = judged(ranks=[beat(0, checksums={"0": "aa", "2": "bb"}), beat(1, checksums=sums)])
    assert (verdict, codes) == ("not_yet", [])
    assert "no step yet" in result["evidence"]["waiting_for"][0]


def test_no_process_group() -> None:
    assert judged(ranks=with_beat(1, backend=None))[:2] == ("failed", ["not_distributed"])


def test_a_world_of_its_own() -> None:
    verdict, codes, _result = judged(ranks=with_beat(1, world_size=1))
    assert (verdict, codes) == ("failed", ["world_differs"])


def test_the_earliest_error_comes_first() -> None:
    ranks = [
        beat(0, state="failed", error={"type": "RuntimeError", "message": "Connection closed by peer", "time": 20}),
        beat(1, state="failed", error={"type": "FileNotFoundError", "message": "tokenizer.pkl", "time": 10}),
    ]
    verdict, codes, result = judged(ranks=ranks)
    assert (verdict, codes) == ("failed", ["exception", "exception"])
    assert result["causes"][0]["rank"] == 1
    assert "tokenizer.pkl" in result["causes"][0]["what"]


def test_a_rank_that_died_and_one_that_was_stopped() -> None:
    assert judged(ranks=with_beat(1, state="failed", exit_code=-9))[1] == ["rank_died"]
    assert judged(ranks=with_beat(1, state="stopped"))[1] == ["not_proven"]


def test_a_rank_that_its_guard_ended_says_why_and_not_how() -> None:
    reason = cause("exception", "rank 0 on workstation: OSError", host="workstation", rank=0)
    verdict, codes, result = judged(ranks=with_beat(1, state="failed", exit_code=79, causes=[reason]))
    assert (verdict, codes, result["causes"][0]["rank"]) == ("failed", ["exception"], 0)


# ---- a world of one ----


def test_a_world_of_one_says_so() -> None:
    alone = [beat(0, world_size=1, backend=None, checksums={})]
    verdict, codes, result = judged(world_size=1, ranks=alone, sockets_by_rank={0: []})
    assert (verdict, codes) == ("proven", ["world_of_one"])
    assert result["causes"][0]["weight"] == "note"
    assert judged(world_size=1, ranks=[dict(alone[0], step=1)])[:2] == ("not_yet", ["world_of_one"])
    assert judged(world_size=1, ranks=[dict(alone[0], state="failed")])[:2] == ("failed", ["rank_died"])


# ---- NCCL ----


def test_nccl_needs_no_tcp() -> None:
    ranks = [beat(0, backend="nccl"), beat(1, backend="nccl")]
    assert judged(backend="nccl", ranks=ranks, sockets_by_rank={0: [], 1: []})[0] == "proven"
    assert judged(backend=None, ranks=ranks, sockets_by_rank=None)[0] == "proven"


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"collectives_finished": 0}, "not_distributed"),
        ({"collective_bytes": 1000}, "too_few_bytes"),
        ({"collective_bytes": None}, "too_few_bytes"),
        ({"checksums": {"3": "XX"}}, "parameters_differ"),
    ],
)
def test_on_nccl_the_runner_decides(changes: dict[str, Any], code: str) -> None:
    ranks = [beat(0, backend="nccl"), beat(1, backend="nccl", **changes)]
    assert judged(backend="nccl", ranks=ranks, sockets_by_rank=None)[:2] == ("failed", [code])


def test_nccl_without_the_runner_is_shown_by_tcp_only() -> None:
    ranks = [{"rank": rank, "host": "host%d" % rank, "node_rank": rank, "step": 3} for rank in (0, 1)]
    plain: dict[str, Any] = {"backend": "nccl", "ranks": ranks, "runner": False, "expected_bytes_per_step": PARAM_BYTES}
    assert judged(**plain)[0] == "proven"
    assert judged(**plain, sockets_by_rank={0: [], 1: []})[:2] == ("not_yet", [])


# ---- without the runner ----


def plain_ranks() -> list[dict[str, Any]]:
    workers = [{"role": "worker", "rank": 0, "pid": 11}, {"role": "agent", "rank": None, "pid": 10}]
    others = [{"role": "worker", "rank": 1, "pid": 21}, {"role": "helper", "rank": 1, "pid": 22}]
    return ranks_of(workers, "host0", 0, step=3) + ranks_of(others, "host1", 1)


def test_without_the_runner_sockets_alone_decide() -> None:
    plain: dict[str, Any] = {"ranks": plain_ranks(), "runner": False, "expected_bytes_per_step": PARAM_BYTES}
    verdict, codes, result = judged(**plain)
    assert (verdict, codes) == ("proven", [])
    assert [row["step"] for row in result["evidence"]["ranks"]] == [3, 3]
    assert judged(**plain, sockets_by_rank=pair(5, 5))[1] == ["too_few_bytes", "too_few_bytes"]
    assert judged(**plain, sockets_by_rank={0: [], 1: []})[1] == ["not_distributed", "not_distributed"]
    assert judged(**plain, sockets_by_rank={0: pair()[0]})[:2] == ("not_yet", [])


def test_sockets_by_rank_keep_the_worker_that_has_none() -> None:
    processes = [{"role": "worker", "rank": 0, "pid": 11}, {"role": "worker", "rank": 1, "pid": 12}]
    entry = dict(pair()[0][0], pid=11)
    assert sockets_of(processes, [entry, dict(entry, pid=99)]) == {0: [entry], 1: []}


def test_keys_may_be_texts_as_they_are_after_json() -> None:
    changes: dict[str, Any] = {
        "sockets_by_rank": {str(rank): entries for rank, entries in pair(zero="10.8.0.1", one="10.8.0.2").items()},
        "addresses": {str(rank): [ip] for rank, ip in IPS.items()},
        "ifname_by_rank": {"0": "enp4s0", "1": "eth0"},
    }
    assert set(judged(**changes)[1]) == {"wrong_interface"}
