# Copyright (c) 2026, torchlan contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What can be wrong, each kind with a stable code.

A cause is plain data, made on hosts, in ranks and on the controller alike::

    {"code": "port_in_use", "weight": "error", "host": "workstation", "rank": None, "what": "…",
     "fix": "…"}

C(what) and C(fix) are written where the cause is found, with its names and numbers. This table gives each code's
meaning and cure in general; C(docs/causes.md) is generated from it.
"""

from __future__ import annotations

from typing import Any

WEIGHTS = ("error", "warning", "note")

CODES: dict[str, tuple[str, str]] = {
    # inventory and settings, known without a host
    "group_missing": (
        "The inventory has no host in the cluster's group.",
        "Put the hosts, or a group of yours, into the group `nanochat`; or `-e nanochat_hosts=HOST,GROUP`.",
    ),
    "host_excluded": (
        "A host of the cluster is not part of this play, because of `--limit` or an earlier failure.",
        "Run without `--limit`; a training run needs every host of the cluster.",
    ),
    "group_mismatch": (
        "The groups `master` and `workers` contradict `node_rank`.",
        "The host with `node_rank: 0` is the master; every other host is a worker.",
    ),
    "rank_invalid": (
        "The node ranks are not 0 … N-1, each used once.",
        "Give every host of the cluster its own `node_rank`, starting with 0.",
    ),
    "setting_invalid": ("A variable has a value that cannot be used.", "Correct the variable where it is set."),
    "master_addr_invalid": (
        "The master address is empty, or a loopback address in a cluster of several machines.",
        "Leave `nanochat_master_addr` unset: the address is found by connecting.",
    ),
    "batch_indivisible": (
        "`total-batch-size` is not a multiple of `device-batch-size` x `max-seq-len` x world size.",
        "Change one of the three so that it divides.",
    ),
    "vocab_indivisible": (
        "The vocabulary does not divide by the world size; nanochat's optimizer would die at its first step.",
        "Use a world size that divides the padded vocabulary (a power of two always does).",
    ),
    "eval_tokens_small": (
        "`eval-tokens` is too small for one evaluation step on every rank.",
        "Raise `eval-tokens`, or switch evaluation off with `eval-every: -1`.",
    ),
    "secret_in_arguments": (
        "An argument or a visible environment variable looks like a key.",
        "Put it into `nanochat_secret_env`; it is then written to a 0600 file and appears nowhere else.",
    ),
    # reaching the hosts
    "host_unreachable": (
        "ssh cannot reach the host.",
        "Start the host, or correct `ansible_host`; then `ssh HOST` by hand.",
    ),
    "host_key_unknown": (
        "The host's ssh key is not known, or has changed.",
        "`ssh HOST` once by hand and compare the fingerprint.",
    ),
    "ssh_refused": (
        "ssh reaches the host, but it does not let this user in.",
        "`ssh-copy-id USER@HOST`, or correct `ansible_user`.",
    ),
    "sudo_password": (
        "sudo asks for a password, and nobody can type it.",
        "Unset `ansible_become`: nothing here needs root; or add `--ask-become-pass`.",
    ),
    "python_missing": (
        "The host has no Python 3.9 or newer that Ansible finds.",
        "Install python3, or set `ansible_python_interpreter`.",
    ),
    "module_failed": (
        "A module of the collection broke on a host.",
        "Run again with `-vvv` and report what it prints.",
    ),
    # software and data on a host
    "path_invalid": ("A path cannot be used on the host.", "Give an absolute path, or one that starts with `~/`."),
    "packages_missing": (
        "System packages that the run needs are not installed, and this user cannot install them.",
        "An administrator of the host runs the one command that is named.",
    ),
    "compiler_missing": (
        "There is no C++ compiler, or the C headers of Python are missing: torch.compile fails at the first step.",
        "Install them, or set `TORCHDYNAMO_DISABLE: 1` in `nanochat_env`, which trains slower.",
    ),
    "index_unreachable": (
        "Neither the host nor the controller reaches a package index with what is needed.",
        "Set `nanochat_install_env` (proxies, mirrors) or `nanochat_pip_args`, or give the controller a way out.",
    ),
    "tmux_missing": ("tmux is not installed.", "Install the package `tmux`."),
    "git_missing": ("git is not installed, and the checkout needs it.", "Install the package `git`."),
    "uv_missing": (
        "uv is not installed, and the controller cannot bring it.",
        "Install pip or uv on the controller, or set `nanochat_install_method: pip`.",
    ),
    "venv_missing": ("python3 cannot make virtual environments.", "Install the package `python3-venv`."),
    "repo_unreachable": (
        "The git source cannot be read.",
        "Correct `nanochat_repo`, or give a path on the controller.",
    ),
    "repo_dirty": (
        "The source on the controller has uncommitted changes, which are not carried along.",
        "Commit them, if the run should have them.",
    ),
    "version_unknown": ("The git source has no such branch, tag or commit.", "Correct `nanochat_version`."),
    "checkout_dirty": (
        "The checkout has uncommitted changes, which are never overwritten.",
        "Commit, stash or discard them, or name another `nanochat_dir`.",
    ),
    "checkout_foreign": (
        "`nanochat_dir` exists and is not a git checkout.",
        "Name another `nanochat_dir`, or move the folder away.",
    ),
    "install_failed": ("The environment could not be made.", "Read the last lines; correct; launch again."),
    "environment_missing": (
        "There is no Python environment with torch.",
        "Let `install.yml` make one, or correct `nanochat_python`.",
    ),
    "versions_differ": (
        "Python, torch or the commit differ between hosts.",
        "Run `install.yml`, or make the environments equal by hand.",
    ),
    "data_missing": (
        "Shards are missing on a host, or one is cut short.",
        "Run `dataset.yml`, set `nanochat_dataset_dir`, or put them there by hand.",
    ),
    "dataset_extra": (
        "A host has shards that the others lack; it would train on other data.",
        "Bring them to the master, or let `-e nanochat_dataset_repair=true` set them aside.",
    ),
    "data_differ": (
        "Shards differ between hosts.",
        "Run `dataset.yml`; with `-e nanochat_dataset_repair=true` it replaces them and keeps the old ones.",
    ),
    "row_groups_few": (
        "A parquet file has fewer row groups than there are ranks; a rank that gets none looks for one for ever.",
        "`-e nanochat_dataset_repair=true` rewrites it on the master, or train with fewer ranks.",
    ),
    "tokenizer_missing": ("There is no tokenizer.", "Run `dataset.yml`, which trains it on the master."),
    "tokenizer_differs": (
        "A host has another tokenizer; it would train on other tokens.",
        "Remove the wrong one, or let `-e nanochat_dataset_repair=true` replace it; the master's is copied then.",
    ),
    # resources of a host
    "memory_small": (
        "The model needs more memory than the host has, or than is free there; an estimate from below.",
        "Make the model or `device-batch-size` smaller, or use a host with more memory.",
    ),
    "swap_in_use": (
        "Much of the host's memory is swapped out; a rank that is swapped stops all others.",
        "End what needs the memory.",
    ),
    "disk_slow": (
        "What the run writes goes to a network file system or a slow disk.",
        "`nanochat_base_dir`: a folder on a local, faster disk.",
    ),
    "threads_few": ("One thread per process although there are more cores.", "Unset `nanochat_omp_num_threads`."),
    "limits_small": (
        "A limit of this user (`ulimit`) is lower than a run needs.",
        "Raise it in /etc/security/limits.d.",
    ),
    "clock_differs": (
        "The host's clock is off: ages in reports are wrong, and downloads and logins may fail.",
        "`sudo timedatectl set-ntp true` on that host.",
    ),
    "leftovers": (
        "Trainers that the collection did not start, and whose launcher is gone, are still running.",
        "End them by their process ids.",
    ),
    "host_busy": ("Another training is running on the host.", "Wait for its end, or share the host knowingly."),
    "checkpoint_overwritten": (
        "The run writes checkpoints that are there already.",
        "Use another `nanochat_run`, or move the folder away.",
    ),
    "own_name_loopback": (
        "The host's own name resolves to loopback, as Debian writes it; the chosen interface is used instead.",
        "Nothing to do.",
    ),
    "launch_brings": (
        "Something is missing that a launch brings or mends by itself.",
        "Nothing to do: `launch.yml` does it.",
    ),
    # files that hosts bring to each other
    "disk_full": ("A host has too little free disk space.", "Free disk space there, or name another folder."),
    "disk_will_fill": (
        "A host has less free space than the next save of its running training needs.",
        "Free space there before that save; `nanochat_keep_checkpoints` deletes older checkpoints.",
    ),
    "file_differs": (
        "A file that is to be brought exists with other content, and nobody said that it may be replaced.",
        "Move it away, or compare it with the other hosts' by hand.",
    ),
    "content_differs": (
        "A file that a host gave has another sha256 than the file that it was said to be.",
        "Compare the file there with its source; it changed while it was read, or that disk is bad.",
    ),
    "transfer_failed": (
        "A file could not be brought from another host.",
        "Run again: what has come is kept. If it stays: can the hosts connect to each other on ephemeral ports?",
    ),
    # the network
    "interface_unknown": ("The host has no interface of that name.", "Use one of the names that the host has."),
    "interface_no_address": ("The interface is down or has no address.", "Bring it up, or choose another."),
    "link_blocked": (
        "Two hosts cannot connect to each other on ephemeral ports.",
        "Open the firewall between the two hosts.",
    ),
    "link_wireless": ("A host is connected by Wi-Fi: slow, and it drops.", "Use a cable."),
    "link_slow": (
        "A link carries 100 Mb/s or less, by its driver or as measured.",
        "Use a gigabit port, cable and switch; look at the autonegotiation with `ethtool`.",
    ),
    "mtu_differs": (
        "Packets of the interface's size do not arrive: it is set larger than the network between carries.",
        "Set the same MTU everywhere, 1500 where in doubt.",
    ),
    "port_in_use": ("The rendezvous port is taken.", "End the program that holds it, or set `nanochat_master_port`."),
    # the state of runs
    "run_in_progress": ("A run that uses these files is alive.", "Stop it first (`stop.yml`), or wait for its end."),
    "run_differs": (
        "A run of this name is alive with another configuration.",
        "Use another `nanochat_run`, or `-e nanochat_relaunch=true` to end it and start anew.",
    ),
    "half_alive": (
        "The run is alive on some hosts only.",
        "`-e nanochat_relaunch=true` ends the rest and starts anew; `stop.yml` only ends it.",
    ),
    "run_absent": ("There is no run of this name.", "Start it with `launch.yml`."),
    "start_failed": ("The agent ended at once.", "Read the last lines of its log."),
    "killed_at_logout": (
        "logind ends everything of the user at logout, tmux included.",
        "`sudo loginctl enable-linger USER` on that host.",
    ),
    "stop_incomplete": (
        "Processes of the run are still there after SIGKILL.",
        "Look at them by hand: uninterruptible I/O?",
    ),
    # the start of a run, found by its ranks
    "rank_missing": ("A rank did not join in time.", "Look at that host's log; is its agent running?"),
    "rank_duplicate": ("Two processes claim the same rank.", "Give every host its own `node_rank`."),
    "arguments_differ": (
        "Arguments differ between ranks.",
        "Set training options for the whole group, never per host.",
    ),
    "environment_differs": (
        "Environment variables that all ranks must share differ.",
        "Set them for the whole group, never per host.",
    ),
    "address_unusable": (
        "A rank cannot listen on its host's chosen address.",
        "Launch again, so that addresses are found anew, or set `nanochat_socket_ifname`.",
    ),
    "backend_failed": (
        "The ranks could not connect to each other.",
        "The message says which link; look at that host's log.",
    ),
    "store_lost": ("A rank lost torchrun's store on the master.", "Look at the master's log: did its agent end?"),
    "world_differs": ("Ranks disagree about the size of the world.", "Launch all hosts together with one playbook."),
    # proof and failure
    "not_distributed": (
        "The processes run side by side and exchange nothing: several unrelated models.",
        "Leave `nanochat_runner: true`; upstream nanochat opens no process group on CPU by itself.",
    ),
    "wrong_interface": ("The ranks talk over another interface than the chosen one.", "Set `nanochat_socket_ifname`."),
    "too_few_bytes": (
        "The ranks exchange fewer bytes than synchronous training needs.",
        "Does the script really average its gradients over all ranks?",
    ),
    "parameters_differ": (
        "The ranks hold different parameters after the same step.",
        "Stop: this is not one model. Compare versions, data and the script.",
    ),
    "exception": ("A rank ended with an exception.", "The message and the log of that rank say why."),
    "peer_lost": (
        "A rank lost the connection to another one.",
        "The cause is elsewhere: look for the rank that ended first, or for the link between the two.",
    ),
    "rank_died": (
        "A rank ended by a signal or with an exit code of its own.",
        "137 or signal 9: look for the OOM killer.",
    ),
    "rank_frozen": (
        "A rank's process stood still for `nanochat_hang_timeout`, so its guard ended the run.",
        "Look at that host: was the process stopped, does a disk not answer, is memory swapped out?",
    ),
    "rank_silent": (
        "Nothing came from a rank's host for `nanochat_hang_timeout`, though its network still answered.",
        "Is that host or container paused, suspended or overloaded?",
    ),
    "link_lost": (
        "Packets to a rank's host were not acknowledged for `nanochat_hang_timeout`.",
        "Is that host up, its cable in, its interface up, its firewall as it was?",
    ),
    "agent_lost": (
        "A rank's agent (torchrun) ended before the rank did.",
        "Look at that host's log and its kernel's: who ended it?",
    ),
    "collective_stuck": (
        "The ranks wait for each other in collectives that do not go on.",
        "Do all ranks run the same collectives in the same order?",
    ),
    "ended_from_outside": (
        "A rank was told to end, and not by this collection.",
        "Was tmux or torchrun ended there, did the host shut down?",
    ),
    "out_of_memory": (
        "A rank was ended for want of memory, or could not get any.",
        "Halve `device-batch-size` (the total stays the same), or `max-seq-len`, or `depth`; end what else needs it.",
    ),
    "limit_reached": ("A limit of the host for this user is reached.", "`ulimit -a` there; raise it, or run less."),
    "device_unusable": ("A GPU or its driver does not work with this torch.", "`nvidia-smi` on that host."),
    "checkpoint_missing": (
        "A file of a checkpoint is not on the host that needs it.",
        "`resume.yml` brings a checkpoint to where every rank needs it.",
    ),
    "checkpoint_unusable": (
        "A checkpoint cannot be read, or belongs to another model.",
        "`resume.yml` takes the newest whole one; the model's options are those of the run that wrote it.",
    ),
    "checkpoints_exist": (
        "The folder for this run's checkpoints holds those of another run.",
        "Leave `model-tag` out (it is the run's name then), choose another one, or move that folder away.",
    ),
    "start_timeout": (
        "The first steps did not come in time.",
        "Raise `nanochat_first_step_timeout`, or make the model smaller.",
    ),
    "restarted": (
        "The run failed and started again by itself, as `nanochat_auto_resume` asks.",
        "Nothing to do; what broke it is named.",
    ),
    "not_proven": ("The run ended before enough was seen.", "Train for more steps, or look at the logs."),
    "world_of_one": ("There is one rank only: nothing is exchanged, steps advance.", "Nothing to do."),
    "note": ("Something worth knowing.", "Nothing to do."),
}


def cause(
    code: str,
    what: str,
    fix: str | None = None,
    host: str | None = None,
    rank: int | None = None,
    weight: str = "error",
) -> dict[str, Any]:
    """Make one cause.

    :param code: a key of C(CODES), else C(KeyError): a code that nobody documented is a mistake of ours.
    :param what: what is wrong and where, with names and numbers.
    :param fix: the command or change that cures it; the code's general cure when not given.
    :param host: inventory name; C(None) where it is not known (on a host) or no single host is at fault.
    :param rank: global rank, when one is at fault.
    :param weight: C(error) refuses or ends a run, C(warning) and C(note) do not.
    """
    general_fix = CODES[code][1]
    if weight not in WEIGHTS:
        raise ValueError("weight %r is none of %s" % (weight, ", ".join(WEIGHTS)))
    return {"code": code, "weight": weight, "host": host, "rank": rank, "what": what, "fix": fix or general_fix}


def errors(causes: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The causes that refuse or end a run."""
    return [entry for entry in causes if entry["weight"] == "error"]
