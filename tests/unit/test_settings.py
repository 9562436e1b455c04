# Copyright (c) 2026, torchlan contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Variables become settings: command line strings, YAML's traps, names, paths, secrets, options."""

from __future__ import annotations

import json
from datetime import date
from typing import Any

import pytest
import yaml
from builders import SECRET, coerced, problems

from ansible_collections.torchlan.nanochat.plugins.plugin_utils import settings

# ---- strings of the command line, for every typed option ----

STRINGS: list[tuple[str, Any, Any]] = [
    *(
        (name, text, number)
        for name in ("node_rank", "nproc_per_node")
        for text, number in (("2", 2), (" 2", 2), (2, 2))
    ),
    *(
        (name, "25", 25)
        for name in (
            "nanochat_omp_num_threads",
            "nanochat_dataset_shards",
            "nanochat_master_port",
            "nanochat_join_timeout",
            "nanochat_first_step_timeout",
            "nanochat_hang_timeout",
            "nanochat_auto_resume",
            "nanochat_keep_checkpoints",
        )
    ),
    *(
        (name, text, value)
        for name in (
            "nanochat_runner",
            "nanochat_exchange",
            "nanochat_relaunch",
            "nanochat_resume_replay",
            "nanochat_watch",
            "nanochat_json",
            "nanochat_keep_failed",
            "nanochat_dataset_repair",
            "nanochat_preflight_collective",
        )
        for text, value in (
            ("true", True),
            ("True", True),
            ("yes", True),
            ("1", True),
            ("false", False),
            ("no", False),
            ("0", False),
            (True, True),
            (False, False),
        )
    ),
    ("nanochat_hosts", "a,b", ["a", "b"]),
    ("nanochat_hosts", ["a"], ["a"]),
    ("nanochat_preflight_ignore", "versions_differ,port_in_use", ["versions_differ", "port_in_use"]),
    ("nanochat_notify", ["sh", "-c", "echo 'a, b'"], ["sh", "-c", "echo 'a, b'"]),
    ("nanochat_pip_args", "--find-links=/srv/my wheels", ["--find-links=/srv/my wheels"]),
    ("nanochat_train_args", "depth=8 model_tag='a b' fp8=true", {"depth": "8", "model-tag": "a b", "fp8": True}),
    ("nanochat_train_args", '{"depth": 8, "fp8": true}', {"depth": "8", "fp8": True}),
    ("nanochat_tokenizer_args", "vocab-size=512", {"vocab-size": "512"}),
    ("nanochat_extra_args", "depth=8", {"depth": "8"}),
    ("nanochat_extra_args", "--depth=8 --max_seq_len=64", {"depth": "8", "max-seq-len": "64"}),
    ("nanochat_extra_args", "fp8", {"fp8": True}),
    ("nanochat_extra_args", "fp8=false", {"fp8": False}),
    ("nanochat_extra_args", "run='it=is' x=", {"run": "it=is", "x": ""}),
    ("nanochat_extra_args", '{"depth": 8, "betas": [0.9, 0.95]}', {"depth": "8", "betas": ["0.9", "0.95"]}),
    ("nanochat_extra_args", "{'depth': 8, 'fp8': True}", {"depth": "8", "fp8": True}),
    ("nanochat_env", "A=b C='d e'", {"A": "b", "C": "d e"}),
    ("nanochat_env", '{"A": "b, c", "B": true}', {"A": "b, c", "B": "true"}),
    ("nanochat_install_env", "https_proxy=http://proxy:3128", {"https_proxy": "http://proxy:3128"}),
    ("nanochat_device_type", "cuda", "cuda"),
    ("nanochat_source", "smoke", "smoke"),
    ("nanochat_wire_dtype", "bfloat16", "bfloat16"),
    ("nanochat_install_method", "pip", "pip"),
    ("nanochat_tracker", "wandb", "wandb"),
]


@pytest.mark.parametrize(("name", "given", "value"), STRINGS)
def test_command_line(name: str, given: Any, value: Any) -> None:
    result, causes = settings.coerce({"node_rank": 0, name: given}, "h")
    assert causes == []
    assert result[name] == value
    assert type(result[name]) is type(value)


def test_every_typed_option_is_tried_as_a_string() -> None:
    typed = {name for name, option in settings.spec().items() if option["type"] != "str" or "choices" in option}
    assert typed - {settings.SECRET} == {name for name, _given, _value in STRINGS}


@pytest.mark.parametrize("name", sorted(settings.spec()))
def test_an_empty_string_means_unset(name: str) -> None:
    if settings.spec()[name]["type"] == "dict":
        assert [cause["code"] for cause in problems(**{name: ""})] == ["setting_invalid"]
    elif name != "node_rank":
        assert coerced(**{name: ""})[name] == coerced()[name]


def test_defaults_have_the_form_of_given_values() -> None:
    result = coerced()
    assert result["nanochat_train_args"]["depth"] == "4"
    assert settings.argv(result["nanochat_train_args"])[:2] == ["--depth=4", "--aspect-ratio=64"]
    assert (result["nanochat_extra_args"], result["nanochat_env"], result["nproc_per_node"]) == ({}, {}, None)


# ---- what cannot be used ----


@pytest.mark.parametrize(
    ("name", "value", "says"),
    [
        ("node_rank", None, "node_rank is not set"),
        ("node_rank", "first", "node_rank='first': argument"),
        ("node_rank", 1.5, "node_rank=1.5: argument"),
        ("nproc_per_node", 0, "nproc_per_node=0 is less than 1"),
        ("nproc_per_node", -1, "nproc_per_node=-1 is less than 1"),
        ("nanochat_omp_num_threads", "0", "nanochat_omp_num_threads=0 is less than 1"),
        ("nanochat_join_timeout", "0", "nanochat_join_timeout=0 is less than 1"),
        ("nanochat_first_step_timeout", 0, "nanochat_first_step_timeout=0 is less than 1"),
        ("nanochat_hang_timeout", -5, "nanochat_hang_timeout=-5 is less than 1"),
        ("nanochat_master_port", 0, "nanochat_master_port=0 is not a TCP port"),
        ("nanochat_master_port", "65536", "nanochat_master_port=65536 is not a TCP port"),
        ("nanochat_resume", "newest", "neither latest nor a step"),
        ("nanochat_auto_resume", -1, "nanochat_auto_resume=-1 is less than 0"),
        ("nanochat_keep_checkpoints", "-1", "nanochat_keep_checkpoints=-1 is less than 0"),
        ("nanochat_keep_checkpoints", "all", "nanochat_keep_checkpoints='all': argument"),
        ("nanochat_relaunch", "maybe", "nanochat_relaunch='maybe': argument"),
        ("nanochat_runner", "2", "nanochat_runner='2': argument"),
        ("nanochat_device_type", "tpu", "must be one of: cpu, cuda"),
        ("nanochat_run", "two words", "nanochat_run='two words' is not a run name"),
        ("nanochat_run", "../up", "'../up' is not a run name"),
        ("nanochat_run", "a\n", r"'a\n' is not a run name"),
        ("nanochat_run", "ü", "'ü' is not a run name"),
        ("nanochat_run", "a" * 101, "is not a run name"),
        ("nanochat_script", "scripts/base_train.py", "is no module name"),
        ("nanochat_script", "-c", "is no module name"),
        ("nanochat_script", "a; touch b", "is no module name"),
        ("nanochat_install_method", "existing", "nanochat_install_method=existing without nanochat_python"),
        ("nanochat_master_addr", "a\0b", "nanochat_master_addr holds a NUL"),
        ("nanochat_env", "A=b,c", "nanochat_env='A=b,c': argument"),
        ("nanochat_env", {"NOT A NAME": 1}, "nanochat_env sets 'NOT A NAME', which is no name"),
        ("nanochat_env", {"A=B": 1}, "nanochat_env sets 'A=B', which is no name"),
        ("nanochat_env", {"A;touch b": 1}, "which is no name"),
        ("nanochat_env", {"A": "x\0y"}, "nanochat_env gives A a value with a NUL"),
        ("nanochat_env", {"A": ["x"]}, "nanochat_env gives A a nested value"),
        ("nanochat_env", {"TORCHLAN_PLAN": "{}"}, "nanochat_env sets TORCHLAN_PLAN, which belongs to the collection"),
        ("nanochat_env", {"UID": "0"}, "nanochat_env sets UID, which belongs to bash"),
        ("nanochat_secret_env", {"TORCHLAN_PLAN": "{}"}, "nanochat_secret_env sets TORCHLAN_PLAN"),
        ("nanochat_secret_env", {"A": "x\0y"}, "nanochat_secret_env gives A a value with a NUL"),
        ("nanochat_install_env", {"-A": 1}, "nanochat_install_env sets '-A', which is no name"),
        ("nanochat_extra_args", "depth=8 'half", 'nanochat_extra_args="depth=8 \'half": No closing quotation'),
        ("nanochat_extra_args", "{depth", "it cannot be read as a mapping"),
        ("nanochat_extra_args", 5, "a mapping or key=value words, not 5"),
        ("nanochat_extra_args", ["depth=8"], "a mapping or key=value words, not ['depth=8']"),
        ("nanochat_extra_args", "=8", "'' is no name of an option"),
        ("nanochat_train_args", {"two words": 1}, "'two words' is no name of an option"),
        ("nanochat_train_args", {"depth=8;": 1}, "is no name of an option"),
        ("nanochat_train_args", {"depth": {"a": 1}}, "the option --depth has a nested value"),
        ("nanochat_train_args", {"depth": [[1]]}, "the option --depth has a nested value"),
        ("nanochat_train_args", {"model-tag": "a\0b"}, "the option --model-tag holds a NUL"),
    ],
)
def test_refused(name: str, value: Any, says: str) -> None:
    causes = problems(**{name: value})
    assert len(causes) == 1
    assert causes[0]["what"].startswith("h: ") and says in causes[0]["what"]
    assert causes[0]["host"] == "h" and causes[0]["weight"] == "error"
    assert causes[0]["code"] == ("rank_invalid" if name == "node_rank" else "setting_invalid")


@pytest.mark.parametrize("name", ["nanochat_dir", "nanochat_base_dir", "nanochat_data_dir", "nanochat_python"])
def test_paths(name: str) -> None:
    for good in ("/srv/my data/$(x)'", "~/nano", "~ann/nano"):
        assert coerced(**{name: good})[name] == good
    for bad, says in (
        ("nano", "is a relative path"),
        ("./nano", "is a relative path"),
        ("/a\nb", "holds a line break"),
    ):
        (cause,) = problems(**{name: bad})
        assert cause["code"] == "path_invalid" and says in cause["what"] and name in cause["what"]


def test_all_bad_values_are_reported_at_once() -> None:
    whats = [cause["what"] for cause in problems(node_rank="x", nanochat_relaunch="x", nanochat_train_args={"a b": 1})]
    assert ["node_rank" in whats[0], "train_args" in whats[1], "relaunch" in whats[2]] == [True, True, True]


def test_other_variables_are_not_ours() -> None:
    assert "ansible_user" not in coerced(ansible_user="x")


# ---- YAML's traps ----


def read(text: str) -> dict[str, Any]:
    """Settings of an inventory file with these lines."""
    return coerced(**yaml.safe_load(text))


@pytest.mark.parametrize("word", ["yes", "on", "true"])
def test_a_number_that_yaml_takes_for_true(word: str) -> None:
    for name in ("node_rank", "nproc_per_node", "nanochat_master_port"):
        (cause,) = problems(**yaml.safe_load(f"{name}: {word}"))
        assert cause["what"] == f"h: {name}=True: a number is needed"


def test_an_environment_value_is_what_a_person_wrote() -> None:
    env = read("nanochat_env: {A: on, B: off, C: 1e-3, D: 10, E: 0.10, F: null, G: 2026-11-30, H: '010', I: ''}")[
        "nanochat_env"
    ]
    assert env == {
        "A": "true",
        "B": "false",
        "C": "1e-3",
        "D": "10",
        "E": "0.1",
        "F": "",
        "G": "2026-11-30",
        "H": "010",
        "I": "",
    }


def test_options_are_what_a_person_wrote() -> None:
    options = read(
        "nanochat_train_args: {matrix-lr: 1e-3, weight-decay: 0.20, run: 'true', fp8: yes, save: null, x: no}"
    )
    assert settings.argv(options["nanochat_train_args"]) == [
        "--matrix-lr=1e-3",
        "--weight-decay=0.2",
        "--run=true",
        "--fp8",
        "--save",
    ]


def test_names_that_yaml_reads_as_numbers() -> None:
    assert read("nanochat_run: 2026")["nanochat_run"] == "2026"
    assert read("nanochat_version: 1234567")["nanochat_version"] == "1234567"
    assert read("nanochat_tracker: none")["nanochat_tracker"] == "none"
    (cause,) = problems(**yaml.safe_load("nanochat_tracker: off"))
    assert "must be one of: none, wandb, mlflow" in cause["what"]


def test_null_means_unset() -> None:
    assert read("nanochat_master_port: null\nnanochat_train_args: ~")["nanochat_master_port"] == 29500


# ---- secrets ----


def test_secrets_are_names_only() -> None:
    result, causes = settings.coerce({"node_rank": 0, settings.SECRET: {"WANDB_API_KEY": SECRET, "A": "1"}}, "h")
    assert causes == []
    assert result["secret_names"] == ["A", "WANDB_API_KEY"]
    assert settings.SECRET not in result
    assert SECRET not in json.dumps(result)


@pytest.mark.parametrize(
    "value",
    [
        SECRET,
        [SECRET],
        {"BAD NAME": SECRET},
        {"A": SECRET + "\0"},
        {"A": [SECRET]},
        {"TORCHLAN_X": SECRET},
        f"A=b,{SECRET}",
        f'{{"A": {SECRET}',
    ],
)
def test_no_refusal_shows_a_secret(value: Any) -> None:
    result, causes = settings.coerce({"node_rank": 0, settings.SECRET: value}, "h")
    assert len(causes) == 1
    assert SECRET not in json.dumps([result, causes])


@pytest.mark.parametrize(
    ("value", "variables"),
    [
        (None, {}),
        ("", {}),
        ({}, {}),
        ({"A": "$(x) 'y'\n", "B": 5, "C": True, "D": None}, {"A": "$(x) 'y'\n", "B": "5", "C": "true", "D": ""}),
        ("A=b C='d e'", {"A": "b", "C": "d e"}),
        ('{"A": "b, c"}', {"A": "b, c"}),
    ],
)
def test_secret_env(value: Any, variables: dict[str, str]) -> None:
    """The action that writes them reads them as the check did, from the command line too."""
    assert settings.secret_env(value) == variables
    assert coerced(nanochat_secret_env=value or {})["secret_names"] == sorted(variables)


@pytest.mark.parametrize(
    "name", ["WANDB_API_KEY", "wandb_api_key", "HF_TOKEN", "AWS_SECRET", "DB_PASSWORD", "AWS_ACCESS_KEY"]
)
def test_a_visible_variable_that_looks_like_a_key(name: str) -> None:
    (cause,) = problems(nanochat_env={name: SECRET})
    assert cause["code"] == "secret_in_arguments" and name in cause["what"] and SECRET not in json.dumps(cause)


@pytest.mark.parametrize("name", ["api-key", "wandb_api_key", "hf-token"])
def test_an_option_that_looks_like_a_key(name: str) -> None:
    (cause,) = problems(nanochat_extra_args={name: SECRET})
    assert cause["code"] == "secret_in_arguments" and SECRET not in json.dumps(cause)


def test_counts_of_tokens_are_no_keys() -> None:
    coerced(nanochat_env={"MAX_TOKENS": 5, "TOKENIZERS_PARALLELISM": "false"}, nanochat_extra_args="eval-tokens=64")


# ---- options and words ----


@pytest.mark.parametrize("name", ["max_seq_len", "max-seq-len", "--max-seq-len", "--max_seq_len"])
def test_one_option_has_one_name(name: str) -> None:
    assert settings.options({name: 64}) == {"max-seq-len": "64"}
    assert settings.options(f"{name}=64") == {"max-seq-len": "64"}


def test_later_words_win() -> None:
    assert settings.options("depth=4 --depth=8") == {"depth": "8"}


def test_inventory_and_command_line_give_the_same() -> None:
    assert settings.options({"depth": 8, "matrix-lr": 0.02, "fp8": True}) == settings.options(
        "depth=8 matrix-lr=0.02 fp8=true"
    )


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"depth": 4}, ["--depth=4"]),
        ({"fp8": True}, ["--fp8"]),
        ({"fp8": None}, ["--fp8"]),
        ({"fp8": False}, []),
        ({"tag": ["a", "b"]}, ["--tag=a", "--tag=b"]),
        ({"tag": ["a", True, False, None]}, ["--tag=a", "--tag", "--tag"]),
        ({"tag": []}, []),
        ({"tag": ""}, ["--tag="]),
        ({"eval-every": -1}, ["--eval-every=-1"]),
        ({"run": "--help; $(x)"}, ["--run=--help; $(x)"]),
        ({"day": date(2026, 11, 30)}, ["--day=2026-11-30"]),
        ({"b": 1, "a": 2}, ["--b=1", "--a=2"]),
    ],
)
def test_argv(arguments: dict[str, Any], words: list[str]) -> None:
    assert settings.argv(settings.options(arguments)) == words
