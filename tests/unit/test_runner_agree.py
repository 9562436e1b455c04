# Copyright (c) 2026, torchlan contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
from __future__ import annotations

import json
import socket
import threading
from typing import Any

import pytest

from torchlan_runner import agree, links
from torchlan_runner.facts import arguments, flat
from torchlan_runner.plan import Plan, PlanError, read_plan, script_and_args


class Store:
    """torch's store, as far as the board uses it."""

    def __init__(self) -> None:
        self.data: dict[str, bytes] = {}
        self.lock = threading.Lock()

    def set(self, key: str, value: str) -> None:
        with self.lock:
            self.data[key] = value.encode()

    def get(self, key: str) -> bytes:
        return self.data[key]

    def check(self, keys: list[str]) -> bool:
        return all(key in self.data for key in keys)

    def add(self, key: str, number: int) -> int:
        with self.lock:
            value = int(self.data.get(key, b"0")) + number
            self.data[key] = str(value).encode()
            return value


def plan(rank: int, world: int = 2, **changes: Any) -> Plan:
    raw: dict[str, Any] = {
        "run": "r",
        "attempt": "a",
        "device": "cpu",
        "host": f"h{rank}",
        "node_rank": rank,
        "nnodes": world,
        "world_size": world,
        "nodes": [{"node_rank": n, "host": f"h{n}", "address": "127.0.0.1", "nproc": 1} for n in range(world)],
        "join_timeout": 1,
    }
    raw.update(changes)
    env = {
        "RANK": str(rank),
        "WORLD_SIZE": str(world),
        "GROUP_WORLD_SIZE": str(world),
        "TORCHLAN_PLAN": json.dumps(raw),
    }
    return read_plan(env)


def in_all(calls: list[Any]) -> list[Any]:
    """Runs one call per rank at the same time; exceptions are results."""
    results: list[Any] = [None] * len(calls)

    def run(index: int) -> None:
        try:
            results[index] = calls[index]()
        except Exception as error:
            results[index] = error

    threads = [threading.Thread(target=run, args=(index,)) for index in range(len(calls))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    return results


def agreeing(store: Store, facts: list[dict[str, Any]], plans: list[Plan] | None = None) -> list[Any]:
    plans = plans or [plan(rank, len(facts)) for rank in range(len(facts))]
    return in_all([lambda p=p, f=f: agree.agree(agree.Board(store, p), f, 1) for p, f in zip(plans, facts)])


def test_equal_facts_agree() -> None:
    assert agreeing(Store(), [{"argument.--depth": "4"}] * 3) == [[], [], []]


def test_a_difference_ends_all_with_the_same_words() -> None:
    results = agreeing(Store(), [{"argument.--depth": "4"}, {"argument.--depth": "4"}, {"argument.--depth": "6"}])
    assert all(isinstance(result, agree.Ended) for result in results)
    assert len({result.table for result in results}) == 1
    first = results[0].causes[0]
    assert all(result.causes == [first] for result in results)
    assert first["code"] == "arguments_differ" and first["host"] == "h2" and first["rank"] == 2
    assert first["what"] == "argument --depth: 4 on h0, 6 on h2"
    assert results[0].table.splitlines()[0].split() == ["differs", "h0", "h1", "h2"]


def test_missing_options_are_shown_as_not_set() -> None:
    results = agreeing(Store(), [{"argument.--a": "1"}, {"argument.--b": "2"}])
    assert "(not set)" in results[0].table
    assert [entry["code"] for entry in results[0].causes] == ["arguments_differ"] * 2


def test_who_does_not_join_is_named_by_the_plan() -> None:
    (result,) = agreeing(Store(), [{}], [plan(0, 2)])
    assert isinstance(result, agree.Ended)
    assert [(c["code"], c["host"], c["rank"]) for c in result.causes] == [("rank_missing", "h1", 1)]


def test_two_claims_of_one_rank() -> None:
    results = agreeing(Store(), [{}, {}, {}], [plan(0), plan(1, host="one"), plan(1, host="two")])
    # Two may have agreed before the third came; the late one is refused either way.
    ended = [result for result in results if isinstance(result, agree.Ended)]
    assert ended and ended[0].causes[0]["code"] == "rank_duplicate"
    assert "host one" in ended[0].causes[0]["what"] and "host two" in ended[0].causes[0]["what"]


def test_a_rank_that_counts_more_ranks_is_not_waited_for() -> None:
    plans = [plan(0), plan(1, world=3)]
    results = agreeing(Store(), [{"world.WORLD_SIZE": 2}, {"world.WORLD_SIZE": 3}], plans)
    assert [result.causes[0]["code"] for result in results] == ["world_differs"] * 2


def test_builds_of_torch_only_warn_on_cpu() -> None:
    facts = [{"version.torch": "2.9.1", "version.torch build": build} for build in ("cpu", "cu128")]
    results = agreeing(Store(), facts)
    assert [entry["weight"] for entry in results[0]] == ["warning"]
    rows = agree.differences({r: {"who": {"host": str(r)}, "facts": f} for r, f in enumerate(facts)})
    assert agree.difference_causes(rows, "cuda")[0]["weight"] == "error"


def test_plan_facts_get_the_code_of_what_they_are_about() -> None:
    for key, code in (("commit", "versions_differ"), ("args.depth", "arguments_differ"), ("other", "arguments_differ")):
        results = agreeing(Store(), [{f"plan.{key}": 1}, {f"plan.{key}": 2}])
        assert results[0].causes[0]["code"] == code


def test_columns_per_rank_where_the_ranks_of_a_host_differ() -> None:
    who = {0: "a", 1: "a", 2: "b"}
    prints = {r: {"who": {"host": h}, "facts": {"argument.x": r, "argument.y": h}} for r, h in who.items()}
    table = agree.table(agree.differences(prints))
    assert table.splitlines()[0].split("  ")[-1] == "b" and "a rank 1" in table


def test_links_are_tried_both_ways() -> None:
    store = Store()
    plans = [plan(rank, 3) for rank in range(3)]
    for p in plans:
        agree.Board(store, p).put(f"print/{p.rank}", {})
    assert in_all([lambda p=p: links.check_links(agree.Board(store, p), p) for p in plans]) == [None] * 3


def test_a_blocked_link_ends_all(monkeypatch: pytest.MonkeyPatch) -> None:
    real = links.try_link

    def blocked(peer: Any, run_id: str, timeout: float = 1) -> str | None:
        return "Connection refused" if peer["address"] == "127.0.0.2" else real(peer, run_id, timeout)

    monkeypatch.setattr(links, "try_link", blocked)
    store = Store()
    nodes = [{"node_rank": n, "host": f"h{n}", "address": f"127.0.0.{n + 1}", "nproc": 1} for n in range(2)]
    plans = [plan(rank, 2, nodes=nodes) for rank in range(2)]
    for p in plans:
        agree.Board(store, p).put(f"print/{p.rank}", {})
    results = in_all([lambda p=p: links.check_links(agree.Board(store, p), p) for p in plans])
    for result in results:
        assert [entry["code"] for entry in result.causes] == ["link_blocked"]
        assert result.causes[0]["what"].startswith("h0 -> h1 blocked: TCP from 127.0.0.1 to 127.0.0.2 port ")


def test_somebody_else_behind_the_port_is_no_link() -> None:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        peer = {"address": "127.0.0.1", "port": listener.getsockname()[1], "nonce": "x"}
        answers: list[str | None] = []
        thread = threading.Thread(target=lambda: answers.append(links.try_link(peer, "r", 1)))
        thread.start()
        connection, _peer = listener.accept()
        connection.sendall(b"SSH-2.0-OpenSSH\n")
        thread.join(5)
        connection.close()
    assert answers == ["something else answered"]
    own = links.Listener("127.0.0.1", "r", 0)
    peer = {"address": "127.0.0.1", "port": own.port, "nonce": "x"}
    assert links.try_link(peer, "r", 1) == "another host or run answered"
    own.close()


def test_the_plan_places_ranks() -> None:
    nodes = [{"node_rank": 1, "host": "b", "nproc": 1}, {"node_rank": 0, "host": "a", "nproc": 3}]
    one = plan(0, 4, nodes=nodes, nnodes=2)
    assert [one.place(rank) for rank in (0, 2, 3, 4)] == [("a", 0), ("a", 0), ("b", 1), (None, None)]
    assert one.first_rank(1) == 3


@pytest.mark.parametrize("text", ["", "{", "[]", '{"run": 1}'])
def test_a_bad_plan_is_refused(text: str) -> None:
    with pytest.raises(PlanError, match="TORCHLAN_PLAN"):
        read_plan({"TORCHLAN_PLAN": text})


def test_the_separator_may_be_there_or_not() -> None:
    for words in (["s", "--", "--a=1", "--", "b"], ["s", "--a=1", "--", "b"], ["--", "s", "--", "--a=1", "--", "b"]):
        assert script_and_args(["x", *words]) == ("s", ["--a=1", "--", "b"])
    with pytest.raises(PlanError):
        script_and_args(["x", "--depth=4"])


def test_arguments_become_facts() -> None:
    assert arguments(["--a=1=2", "--flag", "--a=3", "word", "-x"]) == {
        "argument.--a": "1=2 3",
        "argument.--flag": "(flag)",
        "argument.word 1": "word",
        "argument.word 2": "-x",
    }
    assert flat("plan", {"b": {"c": 1}, "a": [2]}) == {"plan.a": [2], "plan.b.c": 1}
