# Copyright (c) 2026, torchlan contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What is refused before any host is asked, with its arithmetic, and the derived figures."""

from __future__ import annotations

from typing import Any

import pytest
from builders import HOSTS, coerced, pair, planned, smoke

from ansible_collections.torchlan.nanochat.plugins.plugin_utils import plan

GROUPS = {"nanochat": HOSTS, "master": ["workstation"], "workers": ["laptop"]}


def said(causes: list[dict[str, Any]]) -> list[tuple[str, str | None, str]]:
    return [(cause["code"], cause["host"], cause["what"]) for cause in causes]


def ranks(*given: int | None) -> dict[str, dict[str, Any]]:
    """Hosts a, b, … with these node ranks."""
    return {name: {**coerced(name), "node_rank": rank} for name, rank in zip("abc", given)}


# ---- the cluster ----


def test_a_good_cluster() -> None:
    assert plan.check_cluster(HOSTS, pair(), GROUPS) == []
    assert plan.check_cluster(HOSTS, pair(), {"nanochat": HOSTS}) == []


@pytest.mark.parametrize(
    ("given", "wrong"),
    [
        ((0, 0), ("rank_invalid", "b", "node_rank 0 is used by a and b")),
        ((1, 1, 0), ("rank_invalid", "b", "node_rank 1 is used by a and b")),
        ((0, 2), ("rank_invalid", "b", "b has node_rank 2; a cluster of 2 has the ranks 0 to 1")),
        ((0, -1), ("rank_invalid", "b", "b has node_rank -1; a cluster of 2 has the ranks 0 to 1")),
        ((1,), ("rank_invalid", "a", "a has node_rank 1; a cluster of 1 has the ranks 0 to 0")),
        ((0, None), ("rank_invalid", None, "no host has node_rank 1")),
        ((None, 1), ("rank_invalid", None, "no host has node_rank 0")),
    ],
)
def test_ranks(given: tuple[int | None, ...], wrong: tuple[str, str | None, str]) -> None:
    settings = ranks(*given)
    assert said(plan.check_cluster(list(settings), settings, {})) == [wrong]


def test_every_clash_is_named() -> None:
    settings = {**ranks(0, 0, 5), "d": {**coerced("d"), "node_rank": 5}}
    assert [what for _code, _host, what in said(plan.check_cluster(list("abcd"), settings, {}))] == [
        "node_rank 0 is used by a and b",
        "node_rank 5 is used by c and d",
    ]


def test_who_is_missing() -> None:
    settings = {"laptop": pair()["laptop"]}
    assert said(plan.check_cluster(HOSTS, settings, GROUPS)) == [
        ("host_excluded", "workstation", "workstation belongs to the cluster and does not take part")
    ]
    assert plan.check_cluster(HOSTS, settings, GROUPS, partial=True) == []


def test_a_part_of_the_cluster_is_still_checked() -> None:
    assert [code for code, *_rest in said(plan.check_cluster(list("abc"), ranks(0, 0), {}, partial=True))] == [
        "rank_invalid"
    ]


def test_groups_that_contradict_ranks() -> None:
    groups = {"master": ["laptop", "elsewhere"], "workers": ["workstation"]}
    assert said(plan.check_cluster(HOSTS, pair(), groups)) == [
        ("group_mismatch", "laptop", "laptop is in the group master and has node_rank 1"),
        ("group_mismatch", "workstation", "workstation is in the group workers and has node_rank 0"),
    ]


@pytest.mark.parametrize(
    ("name", "one", "other", "what"),
    [
        ("nanochat_run", "a", "b", "nanochat_run is a on workstation, b on laptop"),
        ("nanochat_master_port", 1, 2, "nanochat_master_port is 1 on workstation, 2 on laptop"),
        (
            "nanochat_train_args",
            {"depth": 4, "head-dim": 64},
            {"depth": 8, "head_dim": "64"},
            "nanochat_train_args: depth is 4 on workstation, 8 on laptop",
        ),
        (
            "nanochat_extra_args",
            "matrix-lr=0.1",
            {},
            "nanochat_extra_args: matrix-lr is 0.1 on workstation, (unset) on laptop",
        ),
    ],
)
def test_settings_that_must_be_equal(name: str, one: Any, other: Any, what: str) -> None:
    settings = {
        "workstation": coerced("workstation", 0, **{name: one}),
        "laptop": coerced("laptop", 1, **{name: other}),
    }
    assert said(plan.check_cluster(HOSTS, settings, GROUPS)) == [("arguments_differ", None, what)]


def test_what_hosts_may_have_of_their_own() -> None:
    own = {"nproc_per_node": 2, "nanochat_dir": "/x", "nanochat_env": {"A": "b"}, "nanochat_omp_num_threads": 3}
    settings = {"workstation": coerced("workstation", 0), "laptop": coerced("laptop", 1, **own)}
    assert plan.check_cluster(HOSTS, settings, GROUPS) == []


# ---- the run ----


def test_hosts_are_in_the_order_of_ranks() -> None:
    settings = dict(reversed(list(pair().items())))
    made = planned(settings)
    assert made.hosts == ["workstation", "laptop"]
    assert made.ranks() == [
        {"rank": 0, "host": "workstation", "node_rank": 0, "local_rank": 0},
        {"rank": 1, "host": "laptop", "node_rank": 1, "local_rank": 0},
    ]


def test_hosts_with_different_numbers_of_processes() -> None:
    settings = smoke(nanochat_extra_args="total-batch-size=3072 eval-tokens=3072")
    settings["laptop"]["nproc_per_node"] = 2
    made = planned(settings)
    assert (made.world_size, made.nnodes) == (3, 2)
    assert [(entry["host"], entry["local_rank"]) for entry in made.ranks()] == [
        ("workstation", 0),
        ("laptop", 0),
        ("laptop", 1),
    ]


@pytest.mark.parametrize(
    ("shared", "name"),
    [({}, "dist-cpu-2node"), ({"nanochat_device_type": "cuda"}, "dist-cuda-2node"), ({"nanochat_run": "mine"}, "mine")],
)
def test_the_name_of_the_run(shared: dict[str, Any], name: str) -> None:
    made, _causes = plan.make(pair(**shared))
    assert made.run == name == made.arguments["model-tag"]


@pytest.mark.parametrize(
    ("shared", "options"),
    [
        ({}, {"device-type": "cpu", "run": "dummy", "model-tag": "r"}),
        ({"nanochat_tracker": "wandb"}, {"run": "r"}),
        ({"nanochat_tracker": "mlflow"}, {"run": "r", "tracker": "mlflow"}),
        ({"nanochat_extra_args": "model-tag=mine run=other"}, {"model-tag": "mine", "run": "other"}),
        ({"nanochat_train_args": {"depth": 4}, "nanochat_extra_args": "depth=2"}, {"depth": "2"}),
    ],
)
def test_options_and_whose_word_is_last(shared: dict[str, Any], options: dict[str, str]) -> None:
    made, _causes = plan.make(pair(nanochat_run="r", **shared))
    assert {name: made.arguments.get(name) for name in options} == options
    assert ("tracker" in made.arguments) == ("tracker" in options)


def test_another_script_gets_no_model_tag_and_no_arithmetic() -> None:
    made = planned(pair(nanochat_script="scripts.chat_sft", nanochat_extra_args="total-batch-size=7"))
    assert "model-tag" not in made.arguments
    assert made.numbers == {}


def test_a_device_given_twice() -> None:
    _plan, causes = plan.make(pair(nanochat_extra_args="device_type=cuda"))
    assert said(causes) == [("setting_invalid", None, "--device-type=cuda against nanochat_device_type=cpu")]
    planned(pair(nanochat_extra_args="device_type=cpu"))


@pytest.mark.parametrize("asked", [{"nanochat_resume": "latest"}, {"nanochat_auto_resume": 3}])
@pytest.mark.parametrize(
    "against",
    [
        {"nanochat_runner": False},
        {"nanochat_script": "scripts.mid_train"},
        {"nanochat_extra_args": "resume-from-step=5"},
    ],
)
def test_who_can_resume(asked: dict[str, Any], against: dict[str, Any]) -> None:
    assert plan.make(pair(**asked))[1] == []
    ((code, _host, what),) = said(plan.make(pair(**asked, **against))[1])
    assert code == "setting_invalid" and next(iter(asked)) in what


@pytest.mark.parametrize("without", [{"nanochat_runner": False}, {"nanochat_script": "scripts.mid_train"}])
def test_who_keeps_checkpoints(without: dict[str, Any]) -> None:
    assert plan.make(pair(nanochat_keep_checkpoints=2))[1] == plan.make(pair(**without))[1] == []
    ((code, _host, what),) = said(plan.make(pair(nanochat_keep_checkpoints=2, **without))[1])
    assert code == "setting_invalid" and what.startswith("nanochat_keep_checkpoints=2 needs the runner and scripts.b")


@pytest.mark.parametrize("address", ["127.0.0.1", "127.0.1.1", "localhost", "::1", "0.0.0.0", "::", " "])
def test_a_master_address_that_reaches_nobody_else(address: str) -> None:
    _plan, causes = plan.make(pair(nanochat_master_addr=address))
    what = f"nanochat_master_addr={address!r} cannot be reached from the other 1 hosts"
    assert said(causes) == [("master_addr_invalid", None, what)]


def test_master_addresses_that_are_fine() -> None:
    planned(pair(nanochat_master_addr="192.0.2.36"))
    planned(pair(nanochat_master_addr="127.0.0.1", nanochat_socket_ifname="lo"))
    planned({"workstation": coerced(nanochat_master_addr="localhost", nanochat_extra_args="eval-tokens=2048")})
    _plan, causes = plan.make(pair(nanochat_master_addr="0.0.0.0", nanochat_socket_ifname="lo"))
    assert [cause["code"] for cause in causes] == ["master_addr_invalid"]


# ---- arithmetic ----


def test_the_figures_of_the_two_node_default() -> None:
    made = planned(pair())
    assert made.numbers == {
        "depth": 4,
        "model dim": 256,
        "heads": 4,
        "world size": 2,
        "tokens per micro-batch and rank": 1024,
        "tokens per step": 2048,
        "tokens per step and rank": 1024,
        "gradient accumulation": 1,
        "parameters": 36_700_160,
        "vocabulary": 32768,
        "bytes per step and rank, each way": 146_800_640,
    }
    assert made.expected_bytes_per_step == 4 * 36_700_160


def test_smoke_has_no_vocabulary() -> None:
    made = planned(smoke())
    assert made.expected_bytes_per_step is None
    assert made.numbers["iterations"] == 10 and "parameters" not in made.numbers


SIZES = "device-batch-size 2 x max-seq-len 512 x world size 2"


@pytest.mark.parametrize(
    ("words", "code", "what", "fix"),
    [
        (
            "total-batch-size=3000",
            "batch_indivisible",
            f"total-batch-size 3000 is not a multiple of {SIZES} = 2048",
            "total-batch-size: 2048 or 4096",
        ),
        (
            "total-batch-size=100",
            "batch_indivisible",
            f"total-batch-size 100 is not a multiple of {SIZES} = 2048",
            "total-batch-size: 2048",
        ),
        (
            "eval-tokens=2047",
            "eval_tokens_small",
            f"eval-tokens 2047 / ({SIZES} = 2048) is less than one step",
            "eval-tokens: 2048 or more, or eval-every: -1",
        ),
        ("depth=four", "setting_invalid", "--depth=four is not a whole number", None),
        ("depth=4.0", "setting_invalid", "--depth=4.0 is not a whole number", None),
        ("depth", "setting_invalid", "--depth=True is not a whole number", None),
        ("head-dim=0", "setting_invalid", "--head-dim=0 is less than 1", None),
        ("device-batch-size=-2", "setting_invalid", "--device-batch-size=-2 is less than 1", None),
        ("max-seq-len=0", "setting_invalid", "--max-seq-len=0 is less than 1", None),
        ("depth=0", "setting_invalid", "--depth=0 is less than 1", None),
        ("aspect-ratio=0", "setting_invalid", "--aspect-ratio=0 is less than 1", None),
    ],
)
@pytest.mark.parametrize("source", ["git", "smoke"])
def test_hyper_parameters_that_cannot_work(source: str, words: str, code: str, what: str, fix: str | None) -> None:
    _plan, causes = plan.make(pair(nanochat_source=source, nanochat_extra_args=words))
    assert said(causes) == [(code, None, what)]
    assert fix is None or causes[0]["fix"] == fix


def test_no_evaluation_needs_no_tokens() -> None:
    planned(pair(nanochat_extra_args="eval-tokens=1 eval-every=-1"))


def test_an_automatic_batch_size() -> None:
    made = planned(pair(nanochat_extra_args="total-batch-size=-1"))
    assert "tokens per step" not in made.numbers


def test_the_vocabulary_and_the_world() -> None:
    settings = pair(nanochat_extra_args="total-batch-size=3072 eval-tokens=3072")
    settings["laptop"]["nproc_per_node"] = 2
    _plan, causes = plan.make(settings)
    what = "vocabulary 32768 % world size 3 = 2: the optimizer cannot split the embeddings"
    assert said(causes) == [("vocab_indivisible", None, what)]
    assert causes[0]["fix"] == "a world size of 2, or another vocab-size"
    # 192 = 3 x 64, after padding
    assert plan.make(settings, vocabulary=190)[1] == []
    settings["workstation"]["nanochat_tokenizer_args"] = {"vocab-size": "190"}
    assert plan.make(settings)[1] == []


def test_gradient_accumulation() -> None:
    assert planned(pair(nanochat_extra_args="total-batch-size=8192")).numbers["gradient accumulation"] == 4


def test_model_dim_is_rounded_up_to_whole_heads() -> None:
    numbers = planned(pair(nanochat_extra_args="depth=5 head-dim=128")).numbers
    assert (numbers["model dim"], numbers["heads"]) == (384, 3)


@pytest.mark.parametrize(("world_size", "count"), [(1, 0), (2, 100), (4, 150), (8, 175)])
def test_bytes_per_step(world_size: int, count: int) -> None:
    assert plan.expected_each_way(world_size, 100) == count


def test_parameters() -> None:
    # two embeddings and value embeddings on layers 0 and 2; 12 model_dim squared a layer
    assert plan.count_parameters(3, 10, 100) == (2 + 2) * 1000 + 3 * 1200


# ---- GPUs ----


def test_before_the_gpus_are_known() -> None:
    made = planned(pair(nanochat_device_type="cuda"))
    assert (made.world_size, made.numbers.get("world size")) == (None, None)
    assert made.numbers["model dim"] == 256


def test_one_process_a_gpu() -> None:
    settings = pair(nanochat_device_type="cuda", nanochat_extra_args="total-batch-size=8192 eval-tokens=8192")
    made, causes = plan.make(settings, {"workstation": 2, "laptop": 2})
    assert causes == []
    assert (made.world_size, made.nproc) == (4, {"workstation": 2, "laptop": 2})


@pytest.mark.parametrize("gpus", [{"workstation": 0, "laptop": 0}, {"workstation": 2, "laptop": 0}])
def test_hosts_without_a_gpu_are_no_arithmetic(gpus: dict[str, int]) -> None:
    made, causes = plan.make(pair(nanochat_device_type="cuda"), gpus)
    assert causes == []
    assert made.world_size is None and len(made.ranks()) >= 2
