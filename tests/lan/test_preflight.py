# Copyright (c) 2026, torchlan contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The matrix of faults that can exist before a start: made for real, named, and cured by the printed fix.

Faults that don't touch each other are made together: each of them, and nothing else, must be reported. A clock that is
wrong, Wi-Fi and a host with more cores than threads cannot be made in a container: tests/unit/test_advice.py has those.
"""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from conftest import GROUP_VARS, OLDEST, SMALL, Cluster, Result, port_of
from lan import Lan
from minichat import commit

UNIT = Path(__file__).resolve().parents[1] / "unit"
DECOYS = {"docker0": "172.17.0.1/16", "tailscale0": "100.64.0.%d/10"}
HOSTS = {
    "laptop": {"hostname": "beta-box", "user": "ada"},
    "workstation": {"hostname": "alpha-box", "user": "trainer"},
}
USERS = {host: kind["user"] for host, kind in HOSTS.items()}
RUN = "checked"
PORT = port_of(RUN)
Found = set[tuple[str, "str | None"]]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Two hosts on two networks, with decoys, a small disk, and a checkout and data of their own."""
    home = tmp_path_factory.mktemp("preflight")
    lan = Lan(home / "hosts")
    kinds = {}
    for number, (host, kind) in enumerate(HOSTS.items(), 1):
        decoys = {name: address.replace("%d", str(number)) for name, address in DECOYS.items()}
        kinds[host] = {**kind, "networks": ["lan", "spare"], "decoys": decoys, "disks": {"/srv/small": "40m"}}
    try:
        yield Cluster(lan, lan.create(kinds), home)
    finally:
        lan.destroy()


class Preflight:
    """Playbook, its causes, and the commands that it prints."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster, self.lan = cluster, cluster.lan
        self.result: Result
        self.said: dict[str, Any] = {}

    def run(self, variables: dict[str, Any] | None = None, inventory: str = "lan", core: str = "") -> Found:
        """What is reported and is no note: code and host."""
        file = self.cluster.user / "found" / "preflight.json"
        file.unlink(missing_ok=True)
        given = json.dumps(
            {
                "nanochat_preflight_json": "found/preflight.json",
                "nanochat_preflight_collective": False,
                **(variables or {}),
            }
        )
        self.result = self.cluster.playbook("preflight", given, run=RUN, inventory=inventory, core=core, limit=200)
        self.said = json.loads(file.read_text())
        found = {(entry["code"], entry["host"]) for entry in self.said["causes"] if entry["weight"] != "note"}
        errors = [entry for entry in self.said["causes"] if entry["weight"] == "error"]
        assert (self.result.status == 0) == self.said["ready"] == (not errors), self.result
        return found

    def cause(self, code: str, host: str | None = None) -> dict[str, Any]:
        return next(e for e in self.said["causes"] if e["code"] == code and host in (None, e["host"]))

    def notes(self, code: str) -> list[str]:
        return [entry["what"] for entry in self.said["causes"] if entry["code"] == code and entry["weight"] == "note"]

    def root(self, host: str, script: str) -> str:
        return self.lan.exec(host, "bash", "-ec", script)

    def command(self, code: str, host: str, part: str = "") -> None:
        """Run what is printed as `on HOST: COMMAND`, by the user or, with sudo, by root."""
        fix = self.cause(code, host)["fix"]
        command = re.search(rf"{part}on {host}: (.+?)(?:   \(|; |$)" if not part else rf"{part}(.+?)(?:; |$)", fix)
        assert command, fix
        words = command[1].replace("sudo ", "")
        user = "root" if "sudo " in command[1] else USERS[host]
        self.lan.exec(host, "bash", "-ec", words, user=user)


@pytest.fixture
def preflight(cluster: Cluster) -> Preflight:
    return Preflight(cluster)


@dataclass
class Undo:
    """What a test breaks is mended when it ends, however it ends."""

    preflight: Preflight
    scripts: list[tuple[str, str]] = field(default_factory=list)

    def make(self, host: str, script: str, undo: str = "") -> str:
        if undo:
            self.scripts.append((host, undo))
        return self.preflight.root(host, script)


@pytest.fixture
def broken(preflight: Preflight) -> Iterator[Undo]:
    undo = Undo(preflight)
    yield undo
    for host, script in reversed(undo.scripts):
        preflight.root(host, f"{{ {script}; }} || true")


# ---- nothing wrong ----

STATE = r"""
find / -xdev -newermt "@$(cat /tmp/before)" -type f | grep -v -E '^/(proc|sys|run|var/log)/' | sort
ps -eo user,args --no-headers | grep -v -e '^root' -e sshd | sort
"""


def test_a_healthy_lan_is_quiet_and_stays_as_it_is(preflight: Preflight) -> None:
    for host in HOSTS:
        preflight.root(host, "date +%s.%N >/tmp/before; touch -d @0 /tmp/before")
    before = {host: preflight.root(host, STATE) for host in HOSTS}
    healthy(preflight, nanochat_preflight_collective=True)
    assert preflight.said["collective"]["mbps"] > 0
    # the listeners end by themselves
    deadline = time.monotonic() + 30
    while (after := {host: preflight.root(host, STATE) for host in HOSTS}) != before:
        assert time.monotonic() < deadline, (before, after)
        time.sleep(1)


def test_the_oldest_core(preflight: Preflight) -> None:
    healthy(preflight, OLDEST)
    assert preflight.said["collective"] is None


def healthy(preflight: Preflight, core: str = "", **variables: Any) -> None:
    """Decoys, an overlay and an own name that is loopback are there; one note is all that is said."""
    assert preflight.run(variables, core=core) == set(), preflight.result
    assert {entry["code"] for entry in preflight.said["causes"]} == {"own_name_loopback"}
    ends = {(link["from"], link["to"], link["mtu"]) for link in preflight.said["links"]}
    assert ends == {("laptop", "workstation", 1500), ("workstation", "laptop", 1500)}
    assert all(link["mbps"] > 100 for link in preflight.said["links"])


# ---- the network ----

DROP = "INPUT -p tcp --syn -s {source} --dport {ports} -j DROP"


@pytest.mark.parametrize(
    ("host", "ports"),
    [
        ("laptop", "1024:65535"),  # one way
        ("workstation", "1024:65535"),  # and the other
        ("workstation", "1:65535"),  # the master: reached by ssh, and not by its peers
        ("workstation", str(PORT)),  # the port of the rendezvous alone
    ],
)
def test_a_firewall(preflight: Preflight, broken: Undo, host: str, ports: str) -> None:
    (peer,) = set(HOSTS) - {host}
    for source in preflight.lan.addresses(peer).values():
        rule = DROP.format(source=source, ports=ports)
        broken.make(host, f"iptables -A {rule}", f"iptables -D {rule}")
    before = preflight.root(host, "iptables -S")
    assert preflight.run() == {("link_blocked", host)}, preflight.result
    assert (
        "ephemeral" in preflight.cause("link_blocked")["what"]
        or f"port {PORT}" in preflight.cause("link_blocked")["what"]
    )
    preflight.command("link_blocked", host)
    cured = dict(preflight.said)
    assert preflight.run() == set(), preflight.result
    preflight.said = cured
    preflight.command("link_blocked", host, "to take it back: ")
    assert preflight.root(host, "iptables -S") == before


def test_names_and_states_of_cards_and_versions(preflight: Preflight, broken: Undo) -> None:
    broken.make("laptop", "ip link set eth1 down", "ip link set eth1 up")
    other = "/home/other-torch"
    broken.make(
        "laptop",
        f"python3 -m venv --without-pip {other}; cd {other}/lib/python3*/site-packages; {OTHER_TORCH}",
        f"rm -rf {other}",
    )
    own = {"workstation": ("eth7", GROUP_VARS["nanochat_python"]), "laptop": ("eth1", f"{other}/bin/python")}

    def change(inventory: dict[str, Any]) -> None:
        for group in inventory["nanochat"]["children"].values():
            for host, variables in group["hosts"].items():
                variables.update(nanochat_socket_ifname=own[host][0], nanochat_python=own[host][1])

    name = preflight.cluster.changed_inventory("cards", change)
    wanted = {("interface_unknown", "workstation"), ("interface_no_address", "laptop"), ("versions_differ", "laptop")}
    assert preflight.run(inventory=name) == wanted, preflight.result
    for code, host in wanted - {("versions_differ", "laptop")}:
        named = re.search(r"one of (\w+)", preflight.cause(code)["fix"])
        assert named, preflight.result
        own[host] = (named[1], own[host][1])
    assert f"nanochat_python of laptop: another than {other}/bin/python" in preflight.cause("versions_differ")["fix"]
    own["laptop"] = (own["laptop"][0], own["workstation"][1])
    assert preflight.run(inventory=preflight.cluster.changed_inventory("cards", change)) == set(), preflight.result


OTHER_TORCH = """mkdir torch torch-2.9.1+cpu.dist-info; echo "__version__ = '2.9.1+cpu'" >torch/version.py"""


def test_cards_of_two_networks_are_refused_before_the_start(preflight: Preflight) -> None:
    """Each reaches the other's address, by another card than the named one."""
    own = {"workstation": "eth0", "laptop": "eth1"}

    def change(inventory: dict[str, Any]) -> None:
        for group in inventory["nanochat"]["children"].values():
            for host, variables in group["hosts"].items():
                variables["nanochat_socket_ifname"] = own[host]

    name = preflight.cluster.changed_inventory("networks", change)
    result = preflight.cluster.playbook("launch", run=RUN, inventory=name)
    assert result.status != 0 and result.codes == {"wrong_interface"}, result
    assert result.report and result.report["verdict"] == "refused", result
    assert all(not pids for pids in preflight.cluster.pids(RUN).values())
    own["laptop"] = "eth0"
    assert preflight.run(inventory=preflight.cluster.changed_inventory("networks", change)) == set(), preflight.result


# ---- what runs on the hosts ----

HOLD = "import socket, time; s = socket.create_server(('', {port})); time.sleep(600)"


def start(broken: Undo, host: str, code: str, user: str, mark: str) -> None:
    """A process that ends with the test; torchrun's variables are in its environment when the mark says `trainer`."""
    line = f"setsid python3 -c {shlex.quote(code)} {mark} >/dev/null 2>&1 </dev/null &"
    variables = "export RANK=0 TORCHELASTIC_RUN_ID=none; " if mark.endswith("trainer") else ""
    broken.preflight.lan.exec(host, "bash", "-c", variables + line, user=user)
    pid = f"pgrep -f '[ ]{mark}$'"
    broken.scripts.append((host, f"kill $({pid})"))
    deadline = time.monotonic() + 10
    while not broken.preflight.root(host, f"{pid} || true").strip():
        assert time.monotonic() < deadline, f"{mark} did not start"


def listening(preflight: Preflight, host: str) -> None:
    deadline = time.monotonic() + 10
    while f":{PORT} " not in preflight.root(host, "ss -ltn"):
        assert time.monotonic() < deadline
        time.sleep(0.1)


def test_a_port_a_trainer_and_large_packets(preflight: Preflight, broken: Undo) -> None:
    start(broken, "workstation", HOLD.format(port=PORT), "trainer", "somebody")
    start(broken, "laptop", "import time; time.sleep(600)", "ada", "an-old-trainer")
    broken.make(
        "laptop",
        "ip link set eth0 mtu 9000; ip link set eth1 mtu 9000",
        "ip link set eth0 mtu 1500; ip link set eth1 mtu 1500",
    )
    listening(preflight, "workstation")
    wanted = {("port_in_use", "workstation"), ("leftovers", "laptop"), ("mtu_differs", "laptop")}
    assert preflight.run() == wanted, preflight.result
    assert "of user trainer" in preflight.cause("port_in_use")["what"]
    for code, host in wanted:
        preflight.command(code, host)
    assert preflight.run() == set(), preflight.result


def test_a_leftover_with_the_port_a_full_disk_and_a_slow_link(preflight: Preflight, broken: Undo) -> None:
    start(broken, "workstation", HOLD.format(port=PORT), "trainer", "yesterdays-trainer")
    broken.make("laptop", "dd if=/dev/zero of=/srv/small/filler bs=1M count=35 status=none", "rm -f /srv/small/filler")
    shape = "tc qdisc {verb} dev {card} root"
    for card in ("eth0", "eth1"):
        line = f"{shape.format(verb='add', card=card)} tbf rate 50mbit burst 64kb latency 50ms"
        for host in HOSTS:
            broken.make(host, line, shape.format(verb="del", card=card))
    listening(preflight, "workstation")

    def change(inventory: dict[str, Any]) -> None:
        inventory["nanochat"]["children"]["workers"]["hosts"]["laptop"]["nanochat_base_dir"] = "/srv/small/base"

    name = preflight.cluster.changed_inventory("small", change)
    wanted = {("port_in_use", "workstation"), ("disk_full", "laptop"), ("link_slow", None)}
    assert preflight.run(inventory=name) == wanted, preflight.result
    assert "ethtool eth" in preflight.cause("link_slow")["fix"]
    preflight.command("port_in_use", "workstation")
    preflight.root("laptop", "rm /srv/small/filler")
    for host in HOSTS:
        preflight.root(host, "tc qdisc del dev eth0 root; tc qdisc del dev eth1 root")
    assert preflight.run(inventory=name) == set(), preflight.result


def test_a_port_that_only_root_can_free_and_what_may_be_ignored(preflight: Preflight, broken: Undo) -> None:
    start(broken, "workstation", HOLD.format(port=PORT), "ada", "her-program")
    listening(preflight, "workstation")
    ignored = {"nanochat_preflight_ignore": ["port_in_use"]}
    assert preflight.run(ignored) == {("port_in_use", "workstation")}, preflight.result
    found = preflight.cause("port_in_use")
    assert found["weight"] == "warning" and "(ignored by nanochat_preflight_ignore)" in found["what"]
    assert "of user ada" in found["what"] and "root" in found["what"]
    assert "sudo ss -ltnp" in found["fix"]
    command = re.search(r"on workstation: sudo (ss -ltnp 'sport = :\d+')", found["fix"])
    assert command, preflight.result
    holder = re.search(r"pid=(\d+)", preflight.root("workstation", command[1]))
    assert holder, "root sees who it is"
    preflight.root("workstation", f"kill {holder[1]}")
    assert preflight.run() == set(), preflight.result


def test_memory_and_a_password_for_sudo(preflight: Preflight, broken: Undo) -> None:
    broken.make("workstation", "mv /usr/bin/tmux /usr/bin/tmux-away", "mv /usr/bin/tmux-away /usr/bin/tmux")

    def change(inventory: dict[str, Any]) -> None:
        inventory["nanochat"]["children"]["master"]["hosts"]["workstation"]["ansible_user"] = "linus"

    name = preflight.cluster.changed_inventory("password", change)
    wide = {"nanochat_train_args": {**SMALL, "depth": 20}}
    wanted = {("memory_small", host) for host in HOSTS} | {("packages_missing", "workstation")}
    assert preflight.run(wide, inventory=name) == wanted, preflight.result
    assert "--ask-become-pass" in preflight.cause("packages_missing")["what"]
    fits = re.search(r"-e (nanochat_extra_args=depth=\d+)", preflight.cause("memory_small")["fix"])
    assert fits, preflight.result
    variable, _equals, value = fits[1].partition("=")
    cured = {**wide, variable: value, "ansible_become_password": "torchlan"}
    assert preflight.run(cured, inventory=name) == set(), preflight.result
    assert preflight.notes("launch_brings") == ["workstation: a launch installs tmux as root, with sudo"]


# ---- the inventory: no host is asked ----


def ranks(*numbers: int) -> Callable[[dict[str, Any]], None]:
    def change(inventory: dict[str, Any]) -> None:
        groups = inventory["nanochat"]["children"]
        groups["master"]["hosts"]["workstation"]["node_rank"] = numbers[0]
        groups["workers"]["hosts"]["laptop"]["node_rank"] = numbers[1]

    return change


def of_laptop(**variables: Any) -> Callable[[dict[str, Any]], None]:
    return lambda inventory: inventory["nanochat"]["children"]["workers"]["hosts"]["laptop"].update(variables)


@pytest.mark.parametrize(
    ("change", "code", "host", "words"),
    [
        (ranks(0, 0), "rank_invalid", "workstation", "node_rank 0 is used by"),
        (ranks(0, 2), "rank_invalid", "laptop", "the ranks 0 to 1"),
        (of_laptop(nanochat_train_args={**SMALL, "matrix-lr": 0.5}), "arguments_differ", None, "matrix-lr"),
        (of_laptop(nanochat_base_dir="/srv/homes/~/nano"), "path_invalid", "laptop", "~"),
    ],
)
def test_the_inventory(preflight: Preflight, change: Any, code: str, host: str | None, words: str) -> None:
    assert preflight.run(inventory=preflight.cluster.changed_inventory("odd", change)) == {(code, host)}, (
        preflight.result
    )
    assert words in preflight.cause(code)["what"]
    assert preflight.run() == set(), "with what the fix asks for: the usual inventory"


# ---- reaching the hosts ----


def test_an_unknown_host_key_and_no_python(preflight: Preflight, broken: Undo) -> None:
    known = preflight.lan.folder / "known_hosts"
    text = known.read_text()
    address = preflight.lan.addresses("laptop")["lan"]
    known.write_text("".join(line + "\n" for line in text.splitlines() if not line.startswith(address + " ")))
    away = "mkdir /opt/away; mv /usr/bin/python3* /opt/away"
    back = "mv /opt/away/* /usr/bin; rmdir /opt/away"
    broken.make("workstation", away, back)
    try:
        wanted = {("host_key_unknown", "laptop"), ("python_missing", "workstation")}
        fresh = {"ansible_ssh_args": "-o ControlPath=none"}  # no connection of an earlier playbook
        assert preflight.run(fresh) == wanted, preflight.result
        assert f"ssh ada@{address}" in preflight.cause("host_key_unknown")["fix"]
        assert preflight.cause("python_missing")["fix"].startswith("Install python3")
        preflight.root("workstation", back)
        # what ssh would ask a person, and the person says yes
        scanned = subprocess.run(["ssh-keyscan", "-t", "ed25519", address], capture_output=True, text=True, check=True)
        known.write_text(known.read_text() + scanned.stdout)
        assert preflight.run(fresh) == set(), preflight.result
    finally:
        known.write_text(text)


# ---- software and data of a nanochat run ----

WRITE = """
import os
from pathlib import Path
base = Path(os.path.expanduser("~/.cache/nanochat"))
for index in range(6):
    write_parquet(base / "base_data_climbmix" / f"shard_{index:05d}.parquet", 8, b"x" * (1000 + index))
(base / "tokenizer").mkdir()
for name in ("tokenizer.pkl", "token_bytes.pt"):
    (base / "tokenizer" / name).write_text("the right " + name)
"""


@pytest.fixture(scope="module")
def trains(cluster: Cluster) -> dict[str, Any]:
    """Variables of a run of minichat, which both hosts have everything for."""
    repo = cluster.home / "source"
    commit(repo)
    variables = {
        "nanochat_source": "git",
        "nanochat_repo": str(repo),
        "nanochat_version": "HEAD",
        "nanochat_train_args": SMALL,
        "nanochat_env": {"TORCHDYNAMO_DISABLE": "1"},
    }
    for host, user in USERS.items():
        cluster.lan.exec(host, "python3", "-", user=user, stdin=(UNIT / "parquet_files.py").read_text() + WRITE)
    for name in ("install", "dataset"):
        result = cluster.playbook(name, json.dumps(variables), run=RUN)
        assert result.status == 0, result
    return variables


CACHE = "/srv/homes/ada lovelace/.cache/nanochat"
CHECKOUT = "/srv/homes/ada lovelace/nanochat"


def test_shards_tokenizer_and_changes_in_a_checkout(preflight: Preflight, broken: Undo, trains: dict[str, Any]) -> None:
    assert preflight.run(trains) == set(), preflight.result
    assert not preflight.notes("launch_brings"), preflight.result
    broken.make(
        "laptop",
        f"cd '{CACHE}'; mv base_data_climbmix/shard_0000[12]* /srv",
        f"mv /srv/shard_* '{CACHE}/base_data_climbmix'",
    )
    broken.make(
        "laptop",
        f"cd '{CACHE}/tokenizer'; cp -p tokenizer.pkl /srv; echo another >tokenizer.pkl",
        f"mv /srv/tokenizer.pkl '{CACHE}/tokenizer'",
    )
    git = f"cd '{CHECKOUT}'; sudo -u ada git -c user.name=a -c user.email=a@b"
    broken.make(
        "laptop",
        f"{git} commit -q --allow-empty -m other; echo >>nanochat/common.py",
        f"{git} checkout -q -f HEAD^; {git} stash drop -q",
    )
    assert preflight.run(trains) == {("tokenizer_differs", "laptop"), ("checkout_dirty", "laptop")}, preflight.result
    assert any("2 of 6 shards" in what for what in preflight.notes("launch_brings")), preflight.result
    preflight.command("checkout_dirty", "laptop")
    assert "-e nanochat_dataset_repair=true" in preflight.cause("tokenizer_differs")["fix"]
    assert preflight.run({**trains, "nanochat_dataset_repair": True}) == set(), preflight.result
    brought = preflight.notes("launch_brings")
    assert all(what.startswith("laptop: a launch ") for what in brought) and len(brought) == 3, brought


def test_row_groups_other_shards_and_no_compiler(preflight: Preflight, broken: Undo, trains: dict[str, Any]) -> None:
    for host, user in USERS.items():
        folder = "~/.cache/nanochat"
        keep = f"cp -a {folder} {folder}.kept"
        back = f"rm -rf {folder}; mv {folder}.kept {folder}"
        broken.scripts.append((host, f"sudo -u {user} -H bash -c {shlex.quote(back)}"))
        preflight.lan.exec(host, "bash", "-lc", keep.replace("~", '"$HOME"'), user=user)
    few = (UNIT / "parquet_files.py").read_text() + (
        "import os\nfolder = Path(os.path.expanduser('~/.cache/nanochat/base_data_climbmix'))\n"
        "write_parquet(folder / 'shard_00005.parquet', 1)"
    )
    for host, user in USERS.items():
        preflight.lan.exec(host, "python3", "-", user=user, stdin=few)
        preflight.root(
            host, f"rm '{CACHE if host == 'laptop' else '/home/trainer/.cache/nanochat'}/tokenizer/tokenizer.pkl'"
        )
    preflight.root("laptop", f"cd '{CACHE}/base_data_climbmix'; cp -p shard_00000.parquet shard_00003b.parquet")
    compiled = {**trains, "nanochat_env": {}}
    wanted = {("row_groups_few", "workstation"), ("dataset_extra", "laptop"), ("compiler_missing", "laptop")}
    assert preflight.run(compiled) == wanted, preflight.result
    notes = preflight.notes("launch_brings")
    assert any("trains the tokenizer" in what for what in notes), notes
    assert any(what.startswith("workstation: a launch installs a C++ compiler") for what in notes), notes
    assert "nanochat_env: {TORCHDYNAMO_DISABLE: 1}" in preflight.cause("compiler_missing")["fix"]
    assert all(
        "-e nanochat_dataset_repair=true" in preflight.cause(code)["fix"]
        for code in ("row_groups_few", "dataset_extra")
    )
    assert preflight.run({**trains, "nanochat_dataset_repair": True}) == set(), preflight.result
