# Copyright (c) 2026, torchlan contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What a host is given to run: its environment, its run.sh, and the record of both."""

from __future__ import annotations

import hashlib
import json
import shlex
from collections.abc import Mapping
from typing import Any

from ansible_collections.torchlan.nanochat.plugins.plugin_utils import plan as planning
from ansible_collections.torchlan.nanochat.plugins.plugin_utils import settings as settings_util

_SCRIPT = """\
#!/usr/bin/env bash
# Run {run}, attempt {attempt}: node {node_rank} of {nnodes}, on {host}. Written by torchlan.nanochat.
# tmux runs it; by hand:  env TORCHLAN_RUN_DIR={folder} bash {folder}/run.sh
set -uo pipefail
folder={folder}
rm -f "$folder/exit_code"
cd -- {directory} || exit

set -- \\
{command}
# The environment is the program's alone: no name in it can change what this script does.
(. "$folder/env" && exec "$@") 2>&1 | tee -a "$folder/train.log"
code=${{PIPESTATUS[0]}}
printf '%s\\n' "$code" > "$folder/exit_code.new" && mv "$folder/exit_code.new" "$folder/exit_code"
{notify}exit "$code"
"""

# Its words are the user's. It is no part of the run: nobody finds it by TORCHLAN_RUN_DIR, and nothing waits for it.
_NOTIFY = """\
set -- \\
{words}
[ -e "$folder/stopped" ] || (
  export TORCHLAN_RUN={run} TORCHLAN_FOLDER="$folder" TORCHLAN_EXIT_CODE="$code"
  . "$folder/env" && exec env -u TORCHLAN_RUN_DIR timeout {seconds} "$@"
) > "$folder/notify.log" 2>&1 < /dev/null
"""
_NOTIFY_S = 60


def environment(
    plan: planning.Plan, settings: Mapping[str, Any], node: Mapping[str, Any], network: Mapping[str, Any], folder: str
) -> dict[str, str]:
    """Environment of one host's part of a run, without the secrets and without TORCHLAN_PLAN.

    :param network: the choice for this host: C(interface) and C(address).
    :param folder: the attempt's folder on the host, absolute.
    """
    host = node["host"]
    processes = plan.nproc[settings["host"]] or 1
    threads = settings["nanochat_omp_num_threads"] or max(1, int(host["cores_physical"]) // processes)
    result = {
        "PYTHONUNBUFFERED": "1",
        "PYTHONPATH": f"{folder}/runner.zip",
        "OMP_NUM_THREADS": str(threads),
        "GLOO_SOCKET_IFNAME": network["interface"],
        "NCCL_SOCKET_IFNAME": network["interface"],
        "NANOCHAT_BASE_DIR": node["paths"]["base_dir"],
    }
    compiled = f"{node['paths']['base_dir']}/compiled"
    if shlex.quote(compiled) == compiled:  # torch gives the path to a compiler unquoted
        # Its default is in /tmp: after a reboot the first step would compile for minutes again.
        result["TORCHINDUCTOR_CACHE_DIR"] = compiled
    if settings["nanochat_data_dir"]:
        result["NANOCHAT_DATA_DIR"] = node["paths"]["data_dir"]
    if plan.device == "cpu":
        # nanochat follows torch.cuda.is_available(), and would compute in bfloat16 on a CPU beside an idle GPU.
        result["NANOCHAT_DTYPE"] = "float32"
    mine = settings["nanochat_env"]
    if "PYTHONPATH" in mine:
        mine = {**mine, "PYTHONPATH": f"{result['PYTHONPATH']}:{mine['PYTHONPATH']}"}
    return {**result, **mine}


def env_file(variables: Mapping[str, str]) -> str:
    """Text of the file that run.sh sources: values reach the program byte for byte, and no shell runs any of them.

    :raises ValueError: a value holds a NUL, which no environment can hold.
    """
    for name, value in variables.items():
        if "\0" in value:
            raise ValueError(f"{name} holds a NUL character")
    lines = [f"export {name}={shlex.quote(value)}" for name, value in variables.items()]
    return "# Environment of the run, sourced by run.sh. It may hold secrets: mode 0600.\n" + "\n".join(lines) + "\n"


def torchrun(
    plan: planning.Plan, settings: Mapping[str, Any], python: str, master_addr: str, attempt: str
) -> list[str]:
    """The agent's command line on one host.

    torch.distributed.run is torchrun without its launcher script, whose first line breaks on paths with a space.
    """
    again = settings["nanochat_auto_resume"]
    supervisor = [python, "-m", "torchlan_runner.again", f"--times={again}", "--"] if again else []
    script = ["-m", "torchlan_runner", plan.script] if settings["nanochat_runner"] else ["-m", plan.script]
    return [
        *supervisor,
        python,
        "-m",
        "torch.distributed.run",
        f"--nnodes={plan.nnodes}",
        f"--nproc_per_node={plan.nproc[settings['host']]}",
        f"--node_rank={settings['node_rank']}",
        f"--master_addr={master_addr}",
        f"--master_port={settings['nanochat_master_port']}",
        f"--rdzv_id={plan.run}.{attempt}",
        f"--rdzv-conf=timeout={settings['nanochat_join_timeout']}",
        *script,
        # Without it torchrun takes --run for its own --run-path.
        "--",
        *settings_util.argv(plan.arguments),
    ]


def script(
    plan: planning.Plan, settings: Mapping[str, Any], folder: str, directory: str, command: list[str], attempt: str
) -> str:
    """Text of run.sh, a word a line so that it can be read."""
    told = settings["nanochat_notify"] if settings["node_rank"] == 0 else []
    notify = _NOTIFY.format(words=_lines(told, 1), run=plan.run, seconds=_NOTIFY_S) if told else ""
    return _SCRIPT.format(
        run=plan.run,
        attempt=attempt,
        node_rank=settings["node_rank"],
        nnodes=plan.nnodes,
        host=_comment(settings["host"]),
        folder=shlex.quote(folder),
        directory=shlex.quote(directory),
        command=_lines(command, 3),
        notify=notify,
    )


def _lines(words: list[str], head: int) -> str:
    """Words for a shell, a line each after the first C(head) ones."""
    lines = [" ".join(shlex.quote(word) for word in words[:head]), *map(shlex.quote, words[head:])]
    return " \\\n".join("  " + line for line in lines)


def sample(plan: planning.Plan, python: str, directory: str, folder: str) -> str | None:
    """A line for the master's shell that lets the newest checkpoint talk; None for a script that saves none."""
    if plan.script != planning.BASE_TRAIN:
        return None
    tag, device = (f"--{name}={plan.arguments[name]}" for name in ("model-tag", "device-type"))
    words = [python, "-m", "scripts.base_eval", "--eval=sample", tag, device]
    return f"(cd {shlex.quote(directory)} && . {shlex.quote(folder + '/env')} && {shlex.join(words)})"


def _comment(text: str) -> str:
    return " ".join(text.split())


def config(plan: planning.Plan, settings: Mapping[str, dict[str, Any]], commit: str | None) -> dict[str, Any]:
    """What makes a run this run and not another; never secrets, and nothing that is found anew at each launch."""
    shared = settings[plan.hosts[0]]
    return {
        "run": plan.run,
        "script": plan.script,
        "arguments": plan.arguments,
        "device": plan.device,
        "source": shared["nanochat_source"],
        "commit": commit,
        "runner": shared["nanochat_runner"],
        "exchange": shared["nanochat_exchange"],
        "wire_dtype": shared["nanochat_wire_dtype"],
        "auto_resume": shared["nanochat_auto_resume"],
        "master_port": shared["nanochat_master_port"],
        "nodes": {
            host: {
                "node_rank": settings[host]["node_rank"],
                "nproc": plan.nproc[host],
                "omp_num_threads": settings[host]["nanochat_omp_num_threads"],
                "env": settings[host]["nanochat_env"],
                "secret_names": settings[host]["secret_names"],
            }
            for host in plan.hosts
        },
    }


def fingerprint(configuration: Mapping[str, Any]) -> str:
    """One word for a configuration; equal configurations have equal words."""
    text = json.dumps(configuration, sort_keys=True, separators=(",", ":"), default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def differences(old: Any, new: Any, path: str = "") -> list[str]:
    """What differs between two configurations, one line each: C(arguments.depth: 4 -> 8)."""
    if isinstance(old, Mapping) and isinstance(new, Mapping):
        lines = []
        for key in sorted({*old, *new}, key=str):
            lines += differences(
                old.get(key, "(unset)"), new.get(key, "(unset)"), f"{path}.{key}" if path else str(key)
            )
        return lines
    shown = ["(set)" if isinstance(value, Mapping) else value for value in (old, new)]
    return [] if old == new else [f"{path}: {shown[0]} -> {shown[1]}"]
