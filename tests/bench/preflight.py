#!/usr/bin/env python3
# Copyright (c) 2026, torchlan contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""How long preflight.yml takes on healthy hosts, against `ansible -m ping` on the same hosts in the same minute.

Run by hand, on an idle machine; hosts are those of the test LAN. Each figure is the median of some runs over kept ssh
connections; the collective of nanochat_preflight_collective is measured apart::

    python tests/bench/preflight.py --bin .dev/core-2.21/bin --hosts 2 8
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests/lan"))

from lan import Lan  # noqa: E402

SETTINGS = {
    "nanochat_source": "smoke",
    "nanochat_install_method": "existing",
    "nanochat_python": "/opt/torchlan-torch/bin/python",
    "nanochat_run": "bench",
}


class Bench:
    """One LAN of some hosts, and a user's folder."""

    def __init__(self, folder: Path, programs: Path, count: int) -> None:
        self.folder, self.programs = folder, programs
        self.lan = Lan(folder / "hosts")
        names = [f"host{number}" for number in range(count)]
        variables = self.lan.create({name: {} for name in names})
        hosts = {name: {"node_rank": rank, **variables[name]} for rank, name in enumerate(names)}
        batch = {"total-batch-size": 1024 * count, "eval-tokens": 1024 * count}
        group = {"hosts": hosts, "vars": {**SETTINGS, "nanochat_extra_args": batch}}
        (folder / "lan").write_text(json.dumps({"nanochat": group}))
        collection = folder / "collections/ansible_collections/torchlan/nanochat"
        collection.parent.mkdir(parents=True)
        collection.symlink_to(ROOT)
        (folder / "ansible.cfg").write_text("[defaults]\n[connection]\npipelining = true\n")

    def timed(self, *argv: str) -> float:
        env = {**os.environ, "ANSIBLE_CONFIG": str(self.folder / "ansible.cfg"), "LC_ALL": "C.UTF-8"}
        env["ANSIBLE_COLLECTIONS_PATH"] = str(self.folder / "collections")
        command = [str(self.programs / argv[0]), "-i", "lan", *argv[1:]]
        before = time.monotonic()
        done = subprocess.run(command, cwd=self.folder, env=env, capture_output=True, text=True, check=False)
        if done.returncode:
            raise SystemExit(done.stdout + done.stderr)
        return time.monotonic() - before

    def preflight(self, *words: str) -> float:
        more = [word for pair in words for word in ("-e", pair)]
        seconds = self.timed(
            "ansible-playbook", "torchlan.nanochat.preflight", "-e", "nanochat_preflight_json=found.json", *more
        )
        found = json.loads((self.folder / "found.json").read_text())["causes"]
        if any(entry["weight"] != "note" for entry in found):
            raise SystemExit(f"healthy hosts, and yet: {found}")
        return seconds


def measure(bench: Bench, times: int) -> dict[str, Any]:
    whole, alone = (), ("nanochat_preflight_collective=false",)
    bench.timed("ansible", "all", "-m", "ping")  # opens the connections
    bench.preflight()  # finds the interpreters
    pings, checks, wholes = [], [], []
    for _time in range(times):
        pings.append(bench.timed("ansible", "all", "-m", "ping"))
        checks.append(bench.preflight(*alone))
        wholes.append(bench.preflight(*whole))
    ping, check, with_collective = (statistics.median(found) for found in (pings, checks, wholes))
    return {
        "ping_s": round(ping, 2),
        "preflight_s": round(check, 2),
        "of_ping": round(check / ping, 1),
        "with_collective_s": round(with_collective, 2),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])  # type: ignore[union-attr]
    parser.add_argument("--bin", type=Path, default=Path(sys.executable).parent, help="folder of ansible-playbook")
    parser.add_argument("--hosts", type=int, nargs="+", default=[2, 8])
    parser.add_argument("--times", type=int, default=5)
    given = parser.parse_args()
    for count in given.hosts:
        with tempfile.TemporaryDirectory(prefix="torchlan-bench-") as folder:
            bench = None
            try:
                bench = Bench(Path(folder), given.bin.resolve(), count)
                print(json.dumps({"hosts": count, **measure(bench, given.times)}), flush=True)
            finally:
                if bench:
                    bench.lan.destroy()


if __name__ == "__main__":
    main()
