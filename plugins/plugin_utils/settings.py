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
SECRET = "nanochat_secret_env"  # noqa: S105 - the name of the variable

_NAME = re.compile(r"[A-Za-z0-9_-]+\Z")
_ENV_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\Z")
_OPTION = re.compile(r"[A-Za-z0-9][A-Za-z0-9-]*\Z")
_MODULE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*(\.[A-Za-z_][A-Za-z0-9_]*)*\Z")
# Not "tokens": eval-tokens is a number of them.
_KEY_LIKE = re.compile(r"((api[-_]?key|access[-_]?key|secret|passw(or)?d|credential)s?|token)\Z", re.IGNORECASE)
# What C(fp8=true) on a command line means: a flag. No option of nanochat takes these words as its value.
_FLAGS: dict[str, Any] = {"true": True, "false": False}
# bash lets nobody set these.
_SHELL_OWN = ("BASHOPTS", "BASH_VERSINFO", "EUID", "PPID", "SHELLOPTS", "UID")
_OPTIONS = ("nanochat_train_args", "nanochat_extra_args", "nanochat_tokenizer_args")
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
    return {
        name: {key: value for key, value in option.items() if key != "description"} for name, option in options.items()
    }


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
        messages = []
        try:
            if name in _OPTIONS and given.get(name):
                given[name] = options(given[name])
        except ValueError as problem:
            messages = [str(problem)]
        if option["type"] == "int" and isinstance(given.get(name), bool):
            messages = ["a number is needed"]  # Python takes true for 1, and torchrun is given the word
        if not messages:
            checked = ArgumentSpecValidator({name: option}).validate({name: given[name]} if name in given else {})
            messages = checked.error_messages
            settings[name] = checked.validated_parameters.get(name)
        for message in messages:
            settings[name] = None
            text = f"{name} is not set" if name not in given else f"{name}={_quoted(name, given[name])}: {message}"
            code = "rank_invalid" if name == "node_rank" else "setting_invalid"
            causes.append(cause(code, f"{host}: {text}", host=host))
    secrets = settings.pop(SECRET) or {}
    settings["secret_names"] = sorted(str(name) for name in secrets)
    if not causes:
        _check(settings, host, causes)
        causes += [cause("setting_invalid", f"{host}: {text}", host=host) for text in _bad_values(SECRET, secrets)]
    return settings, causes


def secret_env(value: Any) -> dict[str, str]:
    """The secrets of one host as its environment holds them; C(coerce) has accepted the value."""
    checked = ArgumentSpecValidator({SECRET: spec()[SECRET]}).validate({} if value in (None, "") else {SECRET: value})
    return {str(name): _text(item) for name, item in (checked.validated_parameters.get(SECRET) or {}).items()}


def is_run_name(text: str) -> bool:
    """Whether a run can have this name: it becomes part of paths and of the name of a tmux session."""
    return bool(_NAME.match(text)) and len(text) <= 100


def _quoted(name: str, value: Any) -> str:
    return "(hidden)" if name == SECRET else repr(value)


def _check(settings: dict[str, Any], host: str, causes: list[dict[str, Any]]) -> None:
    """Everything about the values of one host that the types alone cannot say; normalises the arguments in place."""

    def bad(what: str, fix: str | None = None, code: str = "setting_invalid") -> None:
        causes.append(cause(code, f"{host}: {what}", fix, host=host))

    for name in _POSITIVE:
        if settings[name] is not None and settings[name] < 1:
            bad(f"{name}={settings[name]} is less than 1")
    for name, fix in (("nanochat_auto_resume", "0 for no other start"), ("nanochat_keep_checkpoints", "0 keeps all")):
        if settings[name] < 0:
            bad(f"{name}={settings[name]} is less than 0", f"1 or more; {fix}")
    if not 1 <= settings["nanochat_master_port"] <= 65535:
        bad(
            f"nanochat_master_port={settings['nanochat_master_port']} is not a TCP port",
            "a free port from 1024 to 65535",
        )
    run = settings["nanochat_run"]
    if run is not None and not is_run_name(run):
        bad(f"nanochat_run={run!r} is not a run name", "letters, digits, _ and - only, at most 100 of them")
    resume = settings["nanochat_resume"]
    if resume is not None and resume != "latest" and not (resume.isascii() and resume.isdigit()):
        bad(
            f"nanochat_resume={resume!r} is neither latest nor a step", "nanochat_resume: latest, or a step such as 500"
        )
    if not _MODULE.match(settings["nanochat_script"]):
        bad(
            f"nanochat_script={settings['nanochat_script']!r} is no module name",
            "a dotted name such as scripts.base_train",
        )
    for name in ("nanochat_dir", "nanochat_base_dir", "nanochat_data_dir", "nanochat_python"):
        path = settings[name]
        if path is not None and not path.startswith(("/", "~")):
            bad(f"{name}={path!r} is a relative path", "start it with / or ~/", code="path_invalid")
        elif path is not None and "~" in path.split("/")[1:]:
            fix = f"{name}: {'~' + path.rpartition('~')[2]}   (~ is the home folder at the beginning only, unquoted)"
            bad(f"{name}={path!r} has a ~ that is no home folder, but a folder of that name", fix, code="path_invalid")
        elif path is not None and "\n" in path:
            bad(f"{name}={path!r} holds a line break", code="path_invalid")
    if settings["nanochat_install_method"] == "existing" and not settings["nanochat_python"]:
        bad("nanochat_install_method=existing without nanochat_python", "nanochat_python: /path/to/.venv/bin/python")
    for name, value in settings.items():
        if isinstance(value, str) and "\0" in value:
            bad(f"{name} holds a NUL character")
    for name in ("nanochat_env", "nanochat_install_env"):
        _check_env(name, list(settings[name]), bad)
        for text in _bad_values(name, settings[name]):
            bad(text)
        settings[name] = {str(key): _text(value) for key, value in settings[name].items()}
    _check_env(SECRET, settings["secret_names"], bad)
    for key in settings["nanochat_env"]:
        if _KEY_LIKE.search(key):
            bad(f"nanochat_env sets {key}, which looks like a key", code="secret_in_arguments")
    for name in _OPTIONS:
        settings[name] = options(settings[name] or {})
    for key in {**settings["nanochat_train_args"], **settings["nanochat_extra_args"]}:
        if _KEY_LIKE.search(key):
            bad(f"the option --{key} looks like a key", code="secret_in_arguments")


def _check_env(setting: str, names: list[Any], bad: Any) -> None:
    for name in names:
        if not _ENV_NAME.match(str(name)):
            bad(f"{setting} sets {str(name)!r}, which is no name of an environment variable")
        elif str(name).startswith("TORCHLAN_") or str(name) in _SHELL_OWN:
            bad(f"{setting} sets {name}, which belongs to {'bash' if str(name) in _SHELL_OWN else 'the collection'}")


def _bad_values(setting: str, values: Mapping[Any, Any]) -> list[str]:
    """What no environment can hold, without the values: they may be secrets."""
    found = []
    for key, value in values.items():
        if isinstance(value, Mapping | list | tuple):
            found.append(f"{setting} gives {key} a nested value; text is needed")
        elif "\0" in _text(value):
            found.append(f"{setting} gives {key} a value with a NUL character")
    return found


def _text(value: Any) -> str:
    """A value as the environment or a command line holds it; booleans as YAML writes them."""
    if isinstance(value, bool):
        return "true" if value else "false"
    return "" if value is None else str(value)


def options(value: Any) -> dict[str, Any]:
    """Options of a script by name, from a mapping or from C(key=value) words.

    C(_) becomes C(-) and leading dashes are dropped, so that C(max_seq_len), C(max-seq-len) and C(--max-seq-len) are
    one option. Flags stay true, false or null; other scalars become text, so that 8 of an inventory and 8 of a command
    line are the same run.

    :raises ValueError: it is neither, a name cannot be an option, or a value cannot be a word.
    """
    if isinstance(value, str) and value.lstrip().startswith("{"):
        try:
            value = yaml.safe_load(value)  # JSON, or what YAML and Python make of it
        except yaml.YAMLError as problem:
            raise ValueError(f"it cannot be read as a mapping: {' '.join(str(problem).split())}") from problem
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
    if value is None or isinstance(value, bool):
        return value
    if "\0" in str(value):
        raise ValueError(f"the option --{name} holds a NUL character")
    return str(value)


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
