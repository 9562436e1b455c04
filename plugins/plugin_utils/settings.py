# Copyright (c) 2026, torchlan contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The variables of one host, with the types that roles/nanochat/meta/argument_specs.yml gives them.

Values from the command line are strings (C(-e nanochat_relaunch=true)); role argument specs check types but do not
convert. So this is the one place where they are converted, and where names and paths are checked.
"""

from __future__ import annotations

import functools
import re
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml
from ansible.module_utils.common.arg_spec import ArgumentSpecValidator
from ansible_collections.torchlan.nanochat.plugins.module_utils.causes import cause

_SPEC_FILE = Path(__file__).resolve().parents[2] / "roles" / "nanochat" / "meta" / "argument_specs.yml"

# Never leaves the action that writes it to the host.
SECRET = "nanochat_secret_env"

_NAME = re.compile(r"[A-Za-z0-9_-]+\Z")
_ENV_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\Z")
_OPTION = re.compile(r"[A-Za-z0-9][A-Za-z0-9-]*\Z")
_MODULE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*(\.[A-Za-z_][A-Za-z0-9_]*)*\Z")
_KEY_LIKE = re.compile(r"(api[-_]?key|access[-_]?key|secret|token|passw(or)?d|credential)s?\Z", re.IGNORECASE)
# What C(fp8=true) on a command line means: a flag. No option of nanochat takes these words as its value.
_FLAGS: dict[str, Any] = {"true": True, "false": False}
_POSITIVE = (
    "nproc_per_node",
    "nanochat_omp_num_threads",
    "nanochat_join_timeout",
    "nanochat_first_step_timeout",
    "nanochat_hang_timeout",
)


@functools.cache
def spec() -> dict[str, dict[str, Any]]:
    """The options of the settings role, by variable name."""
    with open(_SPEC_FILE, encoding="utf-8") as file:
        options = yaml.safe_load(file)["argument_specs"]["main"]["options"]
    return {name: {key: value for key, value in option.items() if key != "description"} for name, option in options.items()}


def coerce(variables: Mapping[str, Any], host: str) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Convert and check the variables of one host.

    :param variables: templated values by variable name; names that are not in the spec are ignored.
    :param host: inventory name, for the causes.
    :returns: every setting of the spec but the secrets, and what is wrong. C(secret_names) lists the secrets' names.
    """
    given = {name: variables[name] for name in spec() if variables.get(name) is not None}
    # An empty string is how the command line says "unset".
    given = {name: value for name, value in given.items() if value != "" or spec()[name].get("type") == "dict"}
    # ArgumentSpecValidator reports the first bad option only; people want to correct all of them at once.
    causes = []
    settings: dict[str, Any] = {}
    for name, option in spec().items():
        checked = ArgumentSpecValidator({name: option}).validate({name: given[name]} if name in given else {})
        settings[name] = checked.validated_parameters.get(name)
        for message in checked.error_messages:
            text = f"{name} is not set" if name not in given else f"{name}={_quoted(name, given[name])}: {message}"
            code = "rank_invalid" if name == "node_rank" else "setting_invalid"
            causes.append(cause(code, f"{host}: {text}", host=host))
    secrets = settings.pop(SECRET) or {}
    settings["secret_names"] = sorted(str(name) for name in secrets)
    if not causes:
        _check(settings, host, causes)
    return settings, causes


def _quoted(name: str, value: Any) -> str:
    return "(hidden)" if name == SECRET else repr(value)


def _check(settings: dict[str, Any], host: str, causes: list[dict[str, Any]]) -> None:
    """Everything about the values of one host that the types alone cannot say; normalises the arguments in place."""

    def bad(what: str, fix: str | None = None, code: str = "setting_invalid") -> None:
        causes.append(cause(code, f"{host}: {what}", fix, host=host))

    for name in _POSITIVE:
        if settings[name] is not None and settings[name] < 1:
            bad(f"{name}={settings[name]} is less than 1")
    if not 1 <= settings["nanochat_master_port"] <= 65535:
        bad(f"nanochat_master_port={settings['nanochat_master_port']} is not a TCP port", "a free port from 1024 to 65535")
    run = settings["nanochat_run"]
    if run is not None and (not _NAME.match(run) or len(run) > 100):
        bad(f"nanochat_run={run!r} is not a run name", "letters, digits, _ and - only, at most 100 of them")
    if not _MODULE.match(settings["nanochat_script"]):
        bad(f"nanochat_script={settings['nanochat_script']!r} is no module name", "a dotted name such as scripts.base_train")
    for name in ("nanochat_dir", "nanochat_base_dir", "nanochat_data_dir", "nanochat_python"):
        path = settings[name]
        if path is not None and not path.startswith(("/", "~")):
            bad(f"{name}={path!r} is a relative path", "start it with / or ~/", code="path_invalid")
        elif path is not None and ("\n" in path or "\0" in path):
            bad(f"{name}={path!r} holds a line break", code="path_invalid")
    if settings["nanochat_install_method"] == "existing" and not settings["nanochat_python"]:
        bad("nanochat_install_method=existing without nanochat_python", "nanochat_python: /path/to/.venv/bin/python")
    for name in ("nanochat_env", "nanochat_install_env"):
        _check_env(name, list(settings[name]), bad)
        settings[name] = {str(key): _text(value) for key, value in settings[name].items()}
    _check_env(SECRET, settings["secret_names"], bad)
    for key in settings["nanochat_env"]:
        if _KEY_LIKE.search(key):
            bad(f"nanochat_env sets {key}, which looks like a key", code="secret_in_arguments")
    try:
        settings["nanochat_train_args"] = options(settings["nanochat_train_args"])
        settings["nanochat_extra_args"] = options(settings["nanochat_extra_args"] or {})
        settings["nanochat_tokenizer_args"] = options(settings["nanochat_tokenizer_args"])
    except ValueError as problem:
        bad(str(problem))
        return
    for key in {**settings["nanochat_train_args"], **settings["nanochat_extra_args"]}:
        if _KEY_LIKE.search(key) and key not in ("eval-tokens",):
            bad(f"the option --{key} looks like a key", code="secret_in_arguments")


def _check_env(setting: str, names: list[Any], bad: Any) -> None:
    for name in names:
        if not _ENV_NAME.match(str(name)):
            bad(f"{setting} sets {str(name)!r}, which is no name of an environment variable")


def _text(value: Any) -> str:
    """A value as the environment or a command line holds it; booleans as YAML writes them."""
    if isinstance(value, bool):
        return "true" if value else "false"
    return "" if value is None else str(value)


def options(value: Any) -> dict[str, Any]:
    """Options of a script by name, from a mapping or from C(key=value) words.

    C(_) becomes C(-) and leading dashes are dropped, so that C(max_seq_len), C(max-seq-len) and C(--max-seq-len) are one
    option. Scalars stay what they are; other values become text.

    :raises ValueError: it is neither, or a name cannot be an option.
    """
    if isinstance(value, str):
        pairs: list[tuple[str, Any]] = []
        for word in shlex.split(value):
            key, equals, text = word.partition("=")
            pairs.append((key, _FLAGS.get(text, text) if equals else True))
    elif isinstance(value, Mapping):
        pairs = [(str(key), item) for key, item in value.items()]
    else:
        raise ValueError(f"arguments are a mapping or key=value words, not {value!r}")
    result: dict[str, Any] = {}
    for key, item in pairs:
        name = str(key).lstrip("-").replace("_", "-")
        if not _OPTION.match(name):
            raise ValueError(f"{key!r} is no name of an option")
        result[name] = [_scalar(name, part) for part in item] if isinstance(item, list | tuple) else _scalar(name, item)
    return result


def _scalar(name: str, value: Any) -> Any:
    if isinstance(value, Mapping | list | tuple):
        raise ValueError(f"the option --{name} has a nested value: {value!r}")
    return value if value is None or isinstance(value, bool | int | float) else str(value)


def argv(arguments: Mapping[str, Any]) -> list[str]:
    """Options as a command line holds them.

    A scalar is C(--key=value); true or null is a bare flag; false is left out; a list repeats the option.
    """
    words: list[str] = []
    for key, value in arguments.items():
        for item in value if isinstance(value, list) else [value]:
            if item is True or item is None:
                words.append(f"--{key}")
            elif item is not False:
                words.append(f"--{key}={item}")
    return words
