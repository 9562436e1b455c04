# Copyright (c) 2026, torchlan contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The test LAN: hosts in containers on networks of their own, reached by real ssh from the machine itself.

Both users of it, the Molecule scenarios and the pytest tests here, say per host what differs:

    {"laptop": {"user": "ada", "hostname": "beta-box", "cpus": 1, "memory": "2g", "networks": ["lan"]}}

What is left out is DEFAULTS'; `false` instead of a mapping makes no node, for a host that is down.

    user      whom ssh logs in as: trainer, grace (sudo), linus (sudo asks for the password `torchlan`), ada (no sudo)
    networks  the first is ssh's. None has a way out but the one named `out`: with it apt and pip reach, as root and as
              everybody, what they reach on this machine
    image     a file of node/packages that lists what is installed: `usual`, or `bare` (python3, sudo, sshd, ip)
    torch     false: no torch environment in the node
    rates     what the host can send on its networks, by network, in words of tc: {"slow": "20mbit"}
    disks     small file systems of their own, by their folder, which everybody may write to: {"/srv/small": "40m"}
    decoys    interfaces that are up and lead nowhere, with their addresses: a bridge with a port where the name starts
              with docker, else an overlay; {"docker0": "172.17.0.1/16", "tailscale0": "100.64.0.7/10"}

Every host's own name is 127.0.1.1 in its /etc/hosts, as Debian writes it; without a way out there is no name server.

A folder holds all that one LAN has on this machine (ssh key, known_hosts, lan.json with its id). Every container and
network carries that id as a label, and is removed by it.

    python3 tests/lan/lan.py create FOLDER < hosts.json     prints the connection variables per host, as JSON
    python3 tests/lan/lan.py look FOLDER RUN                every process of RUN on every host with its sockets, as JSON
    python3 tests/lan/lan.py trains FOLDER RUN              the same, once workers were seen sending each other a lot
    python3 tests/lan/lan.py exec FOLDER HOST CMD...        run a command on a host as root, past ssh: to break things
    python3 tests/lan/lan.py destroy FOLDER
    python3 tests/lan/lan.py sweep [TESTS]                  removes every LAN that this checkout left behind, or those
                                                            that were made with TESTS in the environment
                                                            variable TORCHLAN_TESTS
"""

from __future__ import annotations

import json
import os
import re
import secrets
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from engine import LanError, docker, ensure_engine, running
from image import CHECKOUT, ROOT, TORCH_PATH, mounts, node_image, say, torch_environment, way_out

LABEL = "org.torchlan.lan"  # value: the id of a LAN
TESTS = "org.torchlan.tests"  # value: the id of one run of tests
DEFAULTS: dict[str, Any] = {
    "user": "trainer",
    "image": "usual",
    "torch": True,
    "cpus": 1,
    "memory": "3g",
    "networks": ["lan"],
    "rates": {},
    "decoys": {},
    "disks": {},
}
WAY_OUT = "out"
MUCH = 100_000  # bytes: no heartbeat, no barrier sends so many in a minute
# NET_ADMIN for the tests that break links; SYS_PTRACE so that root there sees other people's processes, as on any host
CAPABILITIES = ("--cap-add", "NET_ADMIN", "--cap-add", "SYS_PTRACE")
LOOK = Path(__file__).resolve().parent / "look.py"


class Lan:
    """One LAN, by its folder on this machine."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder.resolve()
        try:
            state = json.loads((self.folder / "lan.json").read_text())
        except OSError:
            state = {"id": "torchlan-" + secrets.token_hex(4), "hosts": {}}
        self.id: str = state["id"]
        self.hosts: dict[str, dict[str, Any]] = state["hosts"]

    def create(self, hosts: dict[str, Any]) -> dict[str, dict[str, Any]]:
        """Start all hosts; returns each one's Ansible connection variables."""
        ensure_engine(say)
        self.folder.mkdir(parents=True, exist_ok=True)
        self.hosts = {name: {**DEFAULTS, "hostname": name, **host} for name, host in hosts.items() if host is not False}
        images = {name: node_image(name) for name in sorted({host["image"] for host in self.hosts.values()})}
        # before anything exists: whatever happens next, destroy knows the id
        (self.folder / "lan.json").write_text(json.dumps({"id": self.id, "hosts": self.hosts}, indent=1))
        key = self.folder / "id_ed25519"
        if not key.exists():
            argv = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", self.id, "-f", str(key)]
            subprocess.run(argv, check=True, stdin=subprocess.DEVNULL)
        labels = ["--label", f"{LABEL}={self.id}", "--label", f"{CHECKOUT}={ROOT}"]
        labels += ["--label", f"{TESTS}={os.environ.get('TORCHLAN_TESTS', '')}"]
        for network in sorted({n for host in self.hosts.values() for n in host["networks"]}):
            closed = [] if network == WAY_OUT else ["--internal"]
            docker("network", "create", *closed, *labels, f"{self.id}-{network}")
        for name, host in self.hosts.items():
            key_for = f"TORCHLAN_AUTHORIZED_KEY={key.with_suffix('.pub').read_text().strip()}"
            self._start(name, host, images[host["image"]], [*labels, "--env", key_for])
        for host_vars in (variables := {name: self._variables(name) for name in self.hosts}).values():
            wait_for_port(host_vars["ansible_host"], 22)
        known = [f"{variables[name]['ansible_host']} {self._host_key(name)}\n" for name in self.hosts]
        (self.folder / "known_hosts").write_text("".join(known))
        return variables

    def _start(self, name: str, host: dict[str, Any], image: str, options: list[str]) -> None:
        first, *more = host["networks"]
        settings, files = way_out() if WAY_OUT in host["networks"] else ({}, {})
        # an installed package may replace these: copied, because what is mounted can't be replaced
        copies = {here: there for here, there in files.items() if there.startswith("/etc/ssl/")}
        files = {here: there for here, there in files.items() if here not in copies}
        if host["torch"]:
            files[str(torch_environment())] = TORCH_PATH
        disks = [word for at, size in host["disks"].items() for word in ("--tmpfs", f"{at}:size={size},mode=1777")]
        docker(
            *("run", "--detach", "--name", self.container(name), "--hostname", host["hostname"], *options),
            *("--network", f"{self.id}-{first}", *CAPABILITIES),
            *("--cpus", str(host["cpus"]), "--memory", str(host["memory"]), "--pids-limit", "2000"),
            *(*disks, *mounts(files), image),
        )
        for network in more:
            docker("network", "connect", f"{self.id}-{network}", self.container(name))
        hosts = f"127.0.0.1 localhost\n127.0.1.1 {host['hostname']}\n::1 localhost ip6-localhost ip6-loopback\n"
        self.exec(name, "tee", "/etc/hosts", stdin=hosts)  # after docker's last change to it
        if WAY_OUT not in host["networks"]:
            self.exec(name, "tee", "/etc/resolv.conf")  # docker would tell it the others' names
        for network, rate in host["rates"].items():
            card = f"eth{host['networks'].index(network)}"  # docker names them in the order of connecting
            self.exec(name, *f"tc qdisc add dev {card} root tbf rate {rate} burst 256kb latency 50ms".split())
        for number, (card, address) in enumerate(host["decoys"].items()):
            self.exec(name, "sh", "-ec", _decoy(card, address, number))
        for here, there in copies.items():
            self.exec(name, "sh", "-c", f"mkdir -p {Path(there).parent} && cat >{there}", stdin=Path(here).read_text())
        environment = "".join(f'{key}="{value}"\n' for key, value in sorted(settings.items()))
        self.exec(name, "tee", "-a", "/etc/environment", stdin=environment)  # ssh sessions have it from there

    def container(self, name: str) -> str:
        return f"{self.id}-{name}"

    def addresses(self, name: str) -> dict[str, str]:
        """The host's address on each of its networks, by the short name of the network."""
        networks = json.loads(docker("inspect", "--format", "{{json .NetworkSettings.Networks}}", self.container(name)))
        return {full.removeprefix(f"{self.id}-"): found["IPAddress"] for full, found in networks.items()}

    def exec(self, name: str, *argv: str, user: str = "root", stdin: str = "") -> str:
        """Run a command on a host, past ssh and Ansible: the tests' own eyes and hands."""
        return docker("exec", "--interactive", "--user", user, self.container(name), *argv, stdin=stdin)

    def look(self, run: str) -> dict[str, dict[str, Any]]:
        """What the kernel of every host says of a run.

        Per host `processes` (pid, ppid, argv, rank, its established sockets), their `pids`, the `ranks` of workers;
        `sent`, the bytes that workers there have sent to workers of the run on other hosts, both ends seen; and the
        `networks` that carried them (an address, where it belongs to none).
        """
        script = LOOK.read_text()
        seen = {name: json.loads(self.exec(name, "python3", "-", run, stdin=script)) for name in self.hosts}
        ends = {
            (socket["local"], socket["remote"]): (name, socket.get("bytes_sent", 0))
            for name, processes in seen.items()
            for process in processes
            if process["rank"] is not None
            for socket in process["sockets"]
        }
        sent = dict.fromkeys(seen, 0)
        local_addresses: dict[str, set[str]] = {name: set() for name in seen}
        for (local, remote), (name, count) in ends.items():
            if ends.get((remote, local), (name,))[0] != name:
                sent[name] += count
                local_addresses[name].add(local.rpartition(":")[0])
        return {
            name: {
                "processes": processes,
                "pids": [process["pid"] for process in processes],
                "ranks": sorted({process["rank"] for process in processes if process["rank"] is not None}),
                "sent": sent[name],
                "networks": self._networks(name, local_addresses[name]),
            }
            for name, processes in seen.items()
        }

    def trains(self, run: str, limit: float = 60) -> dict[str, dict[str, Any]]:
        """Look until workers on every host that has some were seen sending a lot to workers elsewhere."""
        first = self.look(run)
        hosts = [name for name, seen in first.items() if seen["ranks"]]
        deadline = time.monotonic() + limit
        while True:
            time.sleep(0.5)  # what is awaited is made of bytes over time
            now = self.look(run)
            quiet = [name for name in hosts if now[name]["sent"] - first[name]["sent"] < MUCH]
            if hosts and not quiet:
                return now
            if time.monotonic() > deadline:
                moved = {name: (first[name]["sent"], now[name]["sent"]) for name in now}
                raise LanError(f"the ranks don't train together, by bytes sent {limit:.0f} s apart: {moved}")

    def _networks(self, name: str, addresses: set[str]) -> list[str]:
        names = {address: network for network, address in self.addresses(name).items()} if addresses else {}
        return sorted(names.get(address, address) for address in addresses)

    def destroy(self) -> None:
        """Remove every container and network of this LAN, also of one that was half made."""
        remove(f"{LABEL}={self.id}")
        (self.folder / "lan.json").unlink(missing_ok=True)

    def _variables(self, name: str) -> dict[str, Any]:
        host = self.hosts[name]
        # quoted twice: Ansible splits the text into words, and ssh splits this option's value again
        known = str(self.folder / "known_hosts")
        return {
            "ansible_host": self.addresses(name)[host["networks"][0]],
            "ansible_user": host["user"],
            "ansible_ssh_private_key_file": str(self.folder / "id_ed25519"),
            "ansible_ssh_common_args": f"""-F none -o IdentitiesOnly=yes -o 'UserKnownHostsFile="{known}"'""",
        }

    def _host_key(self, name: str) -> str:
        return " ".join(self.exec(name, "cat", "/etc/ssh/ssh_host_ed25519_key.pub").split()[:2])


def _decoy(card: str, address: str, number: int) -> str:
    """Shell commands that make an interface that looks alive."""
    if card.startswith("docker"):
        port = f"port{number}"
        make = f"ip link add {card} type bridge; ip link add {port} type veth peer name {port}-far; "
        make += f"ip link set {port} master {card} up; ip link set {port}-far up; "
    else:
        make = f"ip link add {card} type vxlan id {number + 1} dstport {4789 + number}; "
    return f"{make}ip addr add {address} dev {card}; ip link set {card} up"


def remove(label: str) -> None:
    """Remove containers, then networks, with a label."""
    if not running():
        return
    if containers := docker("ps", "--all", "--quiet", "--filter", f"label={label}").split():
        docker("rm", "--force", "--volumes", *containers)
    if networks := docker("network", "ls", "--quiet", "--filter", f"label={label}").split():
        docker("network", "rm", *networks)


def wait_for_port(address: str, port: int, limit: float = 30) -> None:
    deadline = time.monotonic() + limit
    while True:
        try:
            with socket.create_connection((address, port), timeout=2) as connection:
                connection.settimeout(2)
                if connection.recv(4) == b"SSH-":
                    return
        except OSError as error:
            if time.monotonic() > deadline:
                raise LanError(f"no ssh server on {address}:{port} within {limit:.0f} s: {error}") from error
        time.sleep(0.1)


def main(argv: list[str]) -> Any:
    match argv:
        case ["create", folder]:
            return Lan(Path(folder)).create(json.load(sys.stdin))
        case ["look", folder, run] if re.fullmatch(r"[\w-]+", run):
            return Lan(Path(folder)).look(run)
        case ["trains", folder, run] if re.fullmatch(r"[\w-]+", run):
            return Lan(Path(folder)).trains(run)
        case ["exec", folder, host, *command] if command:
            print(Lan(Path(folder)).exec(host, *command), end="")
            return None
        case ["destroy", folder]:
            return Lan(Path(folder)).destroy()
        case ["sweep"]:
            return remove(f"{CHECKOUT}={ROOT}")
        case ["sweep", tests]:
            return remove(f"{TESTS}={tests}")
    sys.exit(__doc__)


if __name__ == "__main__":
    try:
        answer = main(sys.argv[1:])
    except LanError as problem:
        sys.exit(f"test LAN: {problem}")
    if answer is not None:
        print(json.dumps(answer, indent=1))
