#!/usr/bin/env python3
# Copyright (c) 2026, torchlan contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""How long until every agent runs: a warm launch, what people type, and `ansible -m ping`. As root::

    sudo ./dev bench launch --hosts 2,8,32 --json launch.json

Hosts are network namespaces with a real sshd each, reached over a bridge; all share this machine's cores and files.
Each has a Python whose torch.distributed.run only sleeps, so that no time goes into importing torch. The three are done
in turn, several times, and the medians are shown: one ssh a host, all at once, that starts a tmux session; `ansible all
-m ping` with pipelining; and `ansible-playbook torchlan.nanochat.launch`, from its start to the last agent.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from wires import SWITCH, address, build, command, inside, namespace, tear_down

ROOT = Path(__file__).resolve().parents[2]
CONTROLLER = address(253)
AGENT = "import time\nprint('agent', flush=True)\ntime.sleep(3600)\n"
SSHD = """\
ListenAddress {address}
HostKey {folder}/host_key
AuthorizedKeysFile {folder}/user_key.pub
PidFile none
StrictModes no
UsePAM no
PermitRootLogin prohibit-password
SetEnv TMUX_TMPDIR={home}
Subsystem sftp internal-sftp
MaxStartups 200
"""


class Cluster:
    """The hosts, and a user's folder with an inventory of them."""

    def __init__(self, folder: Path, count: int) -> None:
        self.folder, self.count = folder, count
        self.python = self._python()
        for name in ("host_key", "user_key"):
            command("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(folder / name))
        command(*inside(SWITCH), "ip", "address", "add", f"{CONTROLLER}/24", "dev", "br0")
        words = (folder / "host_key.pub").read_text(encoding="utf-8").split()[:2]
        hosts = {f"h{number}": address(number) for number in range(count)}
        (folder / "known_hosts").write_text(
            "".join(f"{one} {' '.join(words)}\n" for one in hosts.values()), encoding="utf-8"
        )
        for number in range(count):
            self._sshd(number)
        (folder / "lan").write_text(json.dumps(self._inventory(hosts)), encoding="utf-8")
        (folder / "ansible.cfg").write_text("[defaults]\n[ssh_connection]\npipelining = true\n", encoding="utf-8")

    def home(self, number: int) -> Path:
        return self.folder / f"h{number}"

    def ssh(self, number: int, *words: str) -> list[str]:
        options = ["-i", str(self.folder / "user_key"), "-o", f"UserKnownHostsFile={self.folder}/known_hosts"]
        return [*inside(SWITCH), "ssh", *options, "-o", "BatchMode=yes", f"root@{address(number)}", *words]

    def ansible(self, program: str, *words: str) -> list[str]:
        return [*inside(SWITCH), str(Path(sys.executable).parent / program), "-i", str(self.folder / "lan"), *words]

    def environment(self) -> dict[str, str]:
        own = {name: value for name, value in os.environ.items() if not name.startswith("ANSIBLE_")}
        own["ANSIBLE_CONFIG"] = str(self.folder / "ansible.cfg")
        own["ANSIBLE_COLLECTIONS_PATH"] = str(ROOT / ".dev/collections")
        return {**own, "ANSIBLE_LOCALHOST_WARNING": "false"}

    def _python(self) -> Path:
        """A virtual environment with a torch that is there, and whose agent sleeps."""
        command(sys.executable, "-m", "venv", "--without-pip", str(self.folder / "venv"))
        library = next((self.folder / "venv/lib").glob("python*/site-packages"))
        for name, text in {
            "torch-2.13.0.dist-info/METADATA": "Name: torch\nVersion: 2.13.0\n",
            "torch/__init__.py": "",
            "torch/version.py": "__version__ = '2.13.0'\ncuda = None\n",
            "torch/distributed/__init__.py": "",
            "torch/distributed/run.py": AGENT,
        }.items():
            (library / name).parent.mkdir(parents=True, exist_ok=True)
            (library / name).write_text(text, encoding="utf-8")
        return self.folder / "venv/bin/python"

    def _sshd(self, number: int) -> None:
        home = self.home(number)
        home.mkdir()
        text = SSHD.format(address=address(number), folder=self.folder, home=home)
        (home / "sshd_config").write_text(text, encoding="utf-8")
        # The start-up files of this machine's root are no part of it; they may take longer than all the rest.
        quiet = 'for f in /root/.bashrc /root/.profile; do [ -e $f ] && mount --bind /dev/null $f; done; exec "$@"'
        daemon = ["/usr/sbin/sshd", "-D", "-f", str(home / "sshd_config")]
        subprocess.Popen(
            [*inside(namespace(number)), "unshare", "--mount", "bash", "-c", quiet, "_", *daemon],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        until(lambda: not subprocess.run(self.ssh(number, "true"), capture_output=True, check=False).returncode, 20)

    def _inventory(self, hosts: dict[str, str]) -> dict[str, Any]:
        shared = {
            "ansible_user": "root",
            "ansible_ssh_private_key_file": str(self.folder / "user_key"),
            "ansible_ssh_common_args": f"-o UserKnownHostsFile={self.folder}/known_hosts",
            "ansible_python_interpreter": "/usr/bin/python3",
            "nanochat_source": "smoke",
            "nanochat_install_method": "existing",
            "nanochat_python": str(self.python),
            "nanochat_report_dir": str(self.folder / "reports"),
            "nanochat_join_timeout": 600,
            "nanochat_extra_args": {"total-batch-size": 1024 * len(hosts), "eval-tokens": 1024 * len(hosts)},
        }
        each = {
            name: {"ansible_host": there, "node_rank": rank, "nanochat_base_dir": str(self.folder / name / "base")}
            for rank, (name, there) in enumerate(hosts.items())
        }
        return {"nanochat": {"hosts": each, "vars": shared}}


def until(seen: Callable[[], bool], limit: float) -> None:
    deadline = time.monotonic() + limit
    while not seen():
        if time.monotonic() > deadline:
            raise SystemExit(f"not seen within {limit:.0f} s")
        time.sleep(0.02)


def agents(folder: Path) -> list[int]:
    """The processes below this folder that are agents, or what stands for them."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            words = path.read_bytes().split(b"\0")
        except OSError:
            continue
        if words[0] == str(folder / "venv/bin/python").encode():
            found.append(int(path.parent.name))
    return found


def by_hand(cluster: Cluster) -> float:
    """What people type, on all hosts at once."""
    began = time.monotonic()
    typed = [
        subprocess.Popen(
            cluster.ssh(number, f"tmux new-session -d -s bench '{cluster.python} -m torch.distributed.run'")
        )
        for number in range(cluster.count)
    ]
    if any(process.wait() for process in typed):
        raise SystemExit("ssh failed")
    until(lambda: len(agents(cluster.folder)) == cluster.count, 60)
    return time.monotonic() - began


def ping(cluster: Cluster) -> float:
    began = time.monotonic()
    done = subprocess.run(
        cluster.ansible("ansible", "all", "-m", "ansible.builtin.ping"),
        env=cluster.environment(),
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise SystemExit(done.stdout + done.stderr)
    return time.monotonic() - began


def launch(cluster: Cluster) -> float:
    began = time.monotonic()
    log = cluster.folder / "launch.log"
    with log.open("wb") as out:
        playbook = subprocess.Popen(
            cluster.ansible("ansible-playbook", "torchlan.nanochat.launch", "-e", f"nanochat_run=b{int(began * 1000)}"),
            env=cluster.environment(),
            stdout=out,
            stderr=subprocess.STDOUT,
        )
        try:
            until(lambda: playbook.poll() is not None or len(agents(cluster.folder)) == cluster.count, 300)
            took = time.monotonic() - began
            if playbook.poll() is not None:
                raise SystemExit(log.read_text(encoding="utf-8"))
        finally:
            playbook.terminate()
            playbook.wait()
    return took


def end_agents(cluster: Cluster) -> None:
    for number in range(cluster.count):
        for socket in cluster.home(number).glob("tmux-*/*"):
            subprocess.run(["tmux", "-S", str(socket), "kill-server"], capture_output=True, check=False)
    until(lambda: not agents(cluster.folder), 30)


@contextmanager
def many_neighbours(count: int) -> Iterator[None]:
    """All namespaces of a machine share one table of neighbours, usually of 1024; real hosts have one each."""
    limits = [Path(f"/proc/sys/net/ipv4/neigh/default/gc_thresh{number}") for number in (3, 2, 1)]
    before = [path.read_text(encoding="ascii") for path in limits]
    try:
        for path, usual in zip(limits, before):
            path.write_text(str(max(int(usual), 4 * (count + 1) ** 2)), encoding="ascii")
        yield
    finally:
        for path, usual in reversed(list(zip(limits, before))):
            path.write_text(usual, encoding="ascii")


def measure(count: int, rounds: int) -> dict[str, Any]:
    folder = Path(tempfile.mkdtemp(prefix="tl", dir="/tmp"))
    try:
        build(count, "10gbit")
        cluster = Cluster(folder, count)
        seconds: dict[str, list[float]] = {"by hand": [], "ping": [], "launch": []}
        for number in range(rounds + 1):
            for name, work in (("by hand", by_hand), ("ping", ping), ("launch", launch)):
                took = work(cluster)
                if number:  # the first round warms caches and connections
                    seconds[name].append(took)
                end_agents(cluster)
        return {"hosts": count, **{name: statistics.median(values) for name, values in seconds.items()}}
    finally:
        tear_down()
        shutil.rmtree(folder, ignore_errors=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--hosts", default="2,8,32", help="how many, several rows")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", metavar="PATH")
    args = parser.parse_args()
    rows = []
    print(f"{'hosts':>5} {'by hand s':>10} {'ping s':>8} {'launch s':>9} {'of ping':>8} {'s a host':>9}")
    for count in map(int, args.hosts.split(",")):
        with many_neighbours(count):
            row = measure(count, args.rounds)
        before = rows[-1] if rows else None
        row["of_ping"] = row["launch"] / row["ping"]
        row["per_host"] = (row["launch"] - before["launch"]) / (count - before["hosts"]) if before else None
        rows.append(row)
        growth = f"{row['per_host']:9.2f}" if before else " " * 9
        print(
            f"{count:5} {row['by hand']:10.2f} {row['ping']:8.2f} {row['launch']:9.2f} {row['of_ping']:7.1f}x {growth}",
            flush=True,
        )
    if args.json:
        Path(args.json).write_text(json.dumps(rows, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    if os.geteuid():
        sys.exit("network namespaces need root: sudo ./dev bench launch")
    main()
