# Copyright (c) 2026, torchlan contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Which shards are the right ones, who lacks what, and who brings it, from what every host has.

The list of files is the controller's (C(nanochat_dataset_dir)) or the master's; the content of a file is the
controller's, or what most hosts have, the master's among equals. What is missing is brought; what differs is a cause,
or is replaced when the user asked for that.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ansible_collections.torchlan.nanochat.plugins.module_utils.causes import cause

Files = dict[str, dict[str, Any]]
"""By name: C(size), C(sha256) (C(None) when nobody read it, in check mode) and C(row_groups)."""

REPAIR = "-e nanochat_dataset_repair=true"
ROW_GROUP_FIX = (
    f"{REPAIR} rewrites it on the master, the old one is kept as NAME.old (in nanochat_dataset_dir, rewrite it with "
    "row_group_size of pyarrow.parquet.write_table); or fewer ranks"
)


def make(
    looks: Mapping[str, Mapping[str, Any]],
    master: str,
    source: Sequence[Mapping[str, Any]] | None,
    world_size: int | None,
    repair: bool,
    linked: Sequence[str],
) -> dict[str, Any]:
    """Everything that is to be done about shards and tokenizers.

    :param looks: what C(dataset) found, by host, in the order of the ranks; the master may be missing.
    :param source: files of C(nanochat_dataset_dir), when it is set.
    :param linked: hosts with a known address, which can exchange files among themselves.
    :returns: C(files) (the right ones), C(hosts) (per host C(have), C(missing), C(replace), C(aside) and C(send), names
        each; C(send) comes from the controller), C(receive) (hosts that get something from there, or set aside),
        C(exchange) (hosts that take part in it), C(tokenizer) and C(causes).
    """
    has = {host: {entry["name"]: dict(entry) for entry in look["files"]} for host, look in looks.items()}
    truth = _truth(has, master, source, world_size)
    plan: dict[str, Any] = {"files": list(truth.values()), "hosts": {}, "exchange": [], "causes": []}
    if len(truth) < 2:
        plan["causes"] += _too_few(looks, len(truth))
    for host, files in has.items():
        plan["hosts"][host] = {
            "have": [name for name, one in truth.items() if name in files and _equal(files[name], one)],
            "missing": [name for name in truth if name not in files],
            "replace": [name for name, one in truth.items() if name in files and not _equal(files[name], one)],
            "aside": [name for name in files if name not in truth],
            "send": [],
        }
    if not repair:
        # Where the user lets such a cause only warn, the files stay what they are, and that host exchanges none.
        linked = [host for host in linked if not plan["hosts"].get(host, {}).get("replace")]
        for host, mine in plan["hosts"].items():
            plan["causes"] += _refusals(host, looks[host], mine, has, truth, source is not None)
            mine.update(replace=[], aside=[])
    _share_out(plan, looks, source is not None, linked)
    plan["receive"] = [host for host, mine in plan["hosts"].items() if mine["send"] or mine["aside"]]
    plan["tokenizer"], problems = _tokenizer(looks, master, repair)
    plan["causes"] += problems + _row_groups(looks, truth, world_size)
    plan["causes"] += _space(looks, plan, truth) + _in_use(looks, plan)
    return plan


def _truth(
    has: Mapping[str, Files], master: str, source: Sequence[Mapping[str, Any]] | None, world_size: int | None
) -> Files:
    if source is not None:
        return {entry["name"]: dict(entry) for entry in source}
    by_number = sorted(has, key=lambda host: -len(has[host]))
    first = master if len(has.get(master, {})) > 1 else next(iter(by_number), master)
    return {name: _agreed(name, first, has, world_size) for name in sorted(has.get(first, {}))}


def _agreed(name: str, first: str, has: Mapping[str, Files], world_size: int | None) -> dict[str, Any]:
    """The content of a file that most hosts have. One that cannot be trained from is nobody's choice."""
    groups: dict[Any, list[str]] = {}
    for host in sorted(has, key=lambda host: host != first):
        if name in has[host]:
            one = has[host][name]
            groups.setdefault((one["sha256"], one["size"]), []).append(host)

    def rank(hosts: list[str]) -> tuple[bool, bool, int, bool]:
        row_groups = has[hosts[0]][name]["row_groups"]
        whole, enough = row_groups != 0, row_groups is None or row_groups >= (world_size or 1)
        return whole, enough, len(hosts), first in hosts

    return has[max(groups.values(), key=rank)[0]][name]


def _equal(one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    """By content; by size where nobody read it, which is so in check mode only."""
    unread = one["sha256"] is None or other["sha256"] is None
    return bool(one["size"] == other["size"] and (unread or one["sha256"] == other["sha256"]))


def _too_few(looks: Mapping[str, Mapping[str, Any]], count: int) -> list[dict[str, Any]]:
    host, look = next(iter(looks.items()))
    what = f"{host}: {look['folder']} has {count} shard(s), and no other host more; nanochat needs two, the last of "
    fix = "nanochat_dataset_dir: a folder with shards on the controller; or let the master download them"
    return [cause("data_missing", what + "them for validation", fix, host=host)]


def _refusals(
    host: str,
    look: Mapping[str, Any],
    mine: Mapping[str, list[str]],
    has: Mapping[str, Files],
    truth: Files,
    from_controller: bool,
) -> list[dict[str, Any]]:
    """What only the user may decide: files that differ, and files too many."""
    causes = []
    whose = "nanochat_dataset_dir" if from_controller else "the list"
    if mine["replace"]:
        name, *others = mine["replace"]
        holders = [
            one for one, files in has.items() if one != host and name in files and _equal(files[name], truth[name])
        ]
        where = "nanochat_dataset_dir" if from_controller else ", ".join(holders)
        what = (
            f"{host}: {name} in {look['folder']} is {_content(has[host][name])}, and {_content(truth[name])} on {where}"
        )
        what += f"; so are {len(others)} more: {_some(others)}" if others else ""
        fix = f"{REPAIR} replaces it; the old one is kept beside it as {name}.old"
        causes.append(cause("data_differ", what, fix, host=host))
    if mine["aside"]:
        what = f"{host}: {look['folder']} has {len(mine['aside'])} file(s) that {whose} of {len(truth)} lacks: "
        fix = f"{REPAIR} moves them into {look['folder']}/.torchlan-aside; or bring them to "
        fix += "nanochat_dataset_dir" if from_controller else "the master, and every host gets them"
        causes.append(cause("dataset_extra", what + _some(mine["aside"]), fix, host=host))
    return causes


def _content(one: Mapping[str, Any]) -> str:
    return f"{one['size']} bytes, sha256 {one['sha256'][:12]}" if one["sha256"] else f"{one['size']} bytes"


def _some(names: Sequence[str], most: int = 5) -> str:
    return ", ".join(names[:most]) + (f" and {len(names) - most} more" if len(names) > most else "")


def _share_out(
    plan: dict[str, Any], looks: Mapping[str, Mapping[str, Any]], from_controller: bool, linked: Sequence[str]
) -> None:
    """Who gets what from the controller, and who exchanges the rest.

    The controller sends each file once, in turn to every host, so that all links work from the beginning. Hosts without
    a known address get all of theirs from it. Of hosts that share one folder, the first one works for all.
    """
    working = _one_of_each_folder(looks)
    for host, mine in plan["hosts"].items():
        if host not in working:
            mine.update(missing=[], replace=[], aside=[])
    partners = [host for host in working if host in linked]
    if len(partners) < 2:
        partners = []
    if from_controller:
        load = dict.fromkeys(partners, 0)
        for one in plan["files"]:
            name = one["name"]
            for host in working:
                mine = plan["hosts"][host]
                if host not in partners and name not in mine["have"]:
                    mine["send"].append(name)
            if partners and not any(name in plan["hosts"][host]["have"] for host in partners):
                least = min(partners, key=lambda host: load[host])
                load[least] += int(one["size"])
                plan["hosts"][least]["send"].append(name)
    lacking = [
        host
        for host in partners
        if set(plan["hosts"][host]["missing"] + plan["hosts"][host]["replace"]) - set(plan["hosts"][host]["send"])
    ]
    plan["exchange"] = partners if lacking else []
    for host in working:
        mine = plan["hosts"][host]
        if host not in partners and set(mine["missing"] + mine["replace"]) - set(mine["send"]):
            what = f"{host}: {len(mine['missing'])} shards are missing in {looks[host]['folder']}, and no address of "
            fix = "nanochat_dataset_dir: a folder with shards on the controller; or copy the master's folder there"
            plan["causes"].append(cause("data_missing", what + "it is known to bring them to", fix, host=host))


def _one_of_each_folder(looks: Mapping[str, Mapping[str, Any]]) -> list[str]:
    seen: set[str] = set()
    working = []
    for host, look in looks.items():
        identity = look.get("folder_id")
        if not identity or identity not in seen:
            working.append(host)
            seen.add(identity or "")
    return working


def _tokenizer(
    looks: Mapping[str, Mapping[str, Any]], master: str, repair: bool
) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Whose tokenizer the others get: the master's, else what most hosts have; trained on the master when none has."""
    whole = {host: dict(look["tokenizer"]) for host, look in looks.items() if None not in look["tokenizer"].values()}
    if master in whole:
        source = master
    elif whole:
        source = max(whole, key=lambda host: sum(other == whole[host] for other in whole.values()))
    elif master in looks:
        return {"source": master, "train": True, "needed": [host for host in looks if host != master]}, []
    else:
        host = next(iter(looks))
        what = f"{host}: no tokenizer, and no other host that takes part has one"
        fix = "run dataset.yml with the master, which trains it"
        return {"source": None, "train": False, "needed": []}, [cause("tokenizer_missing", what, fix, host=host)]
    right = whole[source]
    causes, needed = [], []
    for host, look in looks.items():
        mine = look["tokenizer"]
        different = [name for name in right if mine[name] not in (None, right[name])]
        if different and not repair:
            name = different[0]
            what = f"{host}: the tokenizer's {name} is sha256 {mine[name][:12]}, and {right[name][:12]} on {source}"
            fix = f"{REPAIR} replaces it; the old one is kept beside it as {name}.old"
            causes.append(cause("tokenizer_differs", what, fix, host=host))
        elif mine != right:
            needed.append(host)
    return {"source": source, "train": False, "needed": needed}, causes


def row_group_causes(
    host: str, validation: tuple[str, int | None], fewest: int | None, most: int | None, ranks: int | None
) -> list[dict[str, Any]]:
    """Rank r reads row groups r, r + ranks, …: whether every rank gets some.

    :param validation: name of the validation file, and its row groups; C(None) is not known.
    :param fewest: of the training files, and C(most) likewise.
    """
    name, count = validation
    if not ranks:
        return []
    if count == 0:
        what = f"{host}: {name}, the validation file, is cut short: its footer is missing"
        return [cause("data_missing", what, "move it away and run dataset.yml: it is brought again", host=host)]
    if count is not None and count < ranks:
        what = (
            f"{host}: {name}, the validation file, has {count} row group(s) for {ranks} ranks; the ranks without one "
        )
        return [cause("row_groups_few", what + "would look for it for ever", ROW_GROUP_FIX, host=host)]
    if most is not None and most < ranks:
        what = f"{host}: no training file has more than {most} row group(s) for {ranks} ranks; the ranks without one "
        return [cause("row_groups_few", what + "would look for it for ever", ROW_GROUP_FIX, host=host)]
    if fewest is not None and fewest < ranks:
        what = f"{host}: a training file has {fewest} row group(s) for {ranks} ranks; ranks without one skip it"
        return [cause("row_groups_few", what, ROW_GROUP_FIX, host=host, weight="warning")]
    return []


def _row_groups(looks: Mapping[str, Mapping[str, Any]], truth: Files, ranks: int | None) -> list[dict[str, Any]]:
    if len(truth) < 2:
        return []
    *training, last = truth.values()
    counts = [one["row_groups"] for one in training if one["row_groups"] is not None]
    host = next(iter(looks))
    short = [one["name"] for one in training if one["row_groups"] == 0]
    if short:
        what = f"{host}: {len(short)} file(s) are cut short, their footers are missing: {_some(short)}"
        return [cause("data_missing", what, "move them away and run dataset.yml: they are brought again", host=host)]
    given = (last["name"], last["row_groups"]), min(counts, default=None), max(counts, default=None)
    return row_group_causes(host, *given, ranks)


def _space(looks: Mapping[str, Mapping[str, Any]], plan: Mapping[str, Any], truth: Files) -> list[dict[str, Any]]:
    """Whether what comes fits; what is replaced stays, too."""
    causes = []
    for host, mine in plan["hosts"].items():
        need = sum(int(truth[name]["size"]) for name in mine["missing"] + mine["replace"])
        free = looks[host].get("free_bytes")
        if free is not None and need > free:
            what = f"{host}: {looks[host]['folder']} has {free / 1e9:.1f} GB free, what comes needs {need / 1e9:.1f} GB"
            fix = "free disk space on the host, or name another nanochat_data_dir"
            causes.append(cause("disk_full", what, fix, host=host))
    return causes


def changed_hosts(plan: Mapping[str, Any]) -> list[str]:
    """Hosts whose files would change."""
    tokenizer = plan["tokenizer"]
    training = [tokenizer["source"]] if tokenizer["train"] else []
    return [
        host
        for host, mine in plan["hosts"].items()
        if any(mine[what] for what in ("missing", "replace", "aside", "send"))
        or host in tokenizer["needed"]
        or host in training
    ]


def _in_use(looks: Mapping[str, Mapping[str, Any]], plan: Mapping[str, Any]) -> list[dict[str, Any]]:
    return [
        {**entry, "host": host, "what": f"{host}: {entry['what']}"}
        for host in changed_hosts(plan)
        for entry in looks[host].get("busy", [])
    ]
