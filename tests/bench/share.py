#!/usr/bin/env python3
# Copyright (c) 2026, torchlan contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""How fast hosts bring files to each other, against iperf3 on the same links. Run by hand, as root.

Hosts are network namespaces on one switch, each with a link of 1 Gb/s up and down (tbf). Files lie in memory, so that
the links are what is measured. The namespaces are removed at the end, whatever happens::

    sudo ./dev exec python tests/bench/share.py --json share.json
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "tests/unit"), str(ROOT / ".dev/collections")]

from share_hosts import Files, Host, make, names, offers_of, until_gone  # noqa: E402
from wires import address, build, command, inside, iperf3, namespace, tear_down  # noqa: E402


class Bench:
    """One source with all files, and folders for those that get them."""

    def __init__(self, folder: Path, sizes: dict[str, int]) -> None:
        self.folder = folder
        (folder / "h0").mkdir()
        self.files: Files = make(folder / "h0", sizes)
        self.total = sum(sizes.values())

    def hosts(self, receivers: int) -> list[Host]:
        made = []
        for number in range(receivers + 1):
            folder = self.folder / f"h{number}"
            if number:
                shutil.rmtree(folder, ignore_errors=True)
                folder.mkdir()
            made.append(Host(f"h{number}", folder, address(number), inside(namespace(number))))
        return made

    def offer(self, hosts: list[Host]) -> dict[str, Any]:
        have = {"h0": names(self.files)}
        for host in hosts:
            causes = host.offer(self.files, have.get(host.name, []))["causes"]
            assert not causes, causes
        return offers_of(hosts, have)

    def bring(self, receivers: int) -> dict[str, Any]:
        """All at once; the seconds of the last one count."""
        hosts = self.hosts(receivers)
        return self._end(hosts, self.offer(hosts))

    def interrupted(self, how: str) -> dict[str, Any]:
        """Broken at about a third, once; the seconds of both attempts count."""
        hosts = self.hosts(1)
        source, host = hosts
        offers = self.offer(hosts)
        progress = host.fetch(offers)["progress"]
        while progress["bytes_done"] < self.total / 3:
            time.sleep(0.05)
            progress = host.fetch(offers)["progress"]
        asked = time.monotonic()
        if how == "agent":
            for pid in command("ip", "netns", "pids", namespace(1)).split():
                os.kill(int(pid), 9)
                until_gone(int(pid))
            before = progress["transfer_seconds"] + time.monotonic() - asked
            kept = self.total - host.offer(self.files)["missing_bytes"]
            offers = self.offer(hosts)
            result = self._end(hosts, offers)
            result["seconds"] += before
            result["kept"] = kept
            return result
        cut = command(*inside(namespace(1)), "ss", "-KH", "dst", source.address)
        assert cut, "this kernel cannot cut connections"
        return self._end(hosts, offers)

    def _end(self, hosts: list[Host], offers: dict[str, Any]) -> dict[str, Any]:
        results = [host.until_done(offers) for host in hosts[1:]]
        sent = sum(result["bytes_from"].get("h0", 0) for result in results)
        hosts[0].until_done(offers)
        causes = [cause for result in results for cause in result["causes"]]
        assert not causes, causes
        for host in hosts[1:]:
            for name in names(self.files):
                command("cmp", str(self.folder / "h0" / name), str(host.folder / name))
        return {
            "seconds": max(result["progress"]["transfer_seconds"] for result in results),
            "source_bytes": sent,
        }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rate", default="1gbit", help="of each link, as tc understands it")
    parser.add_argument("--files", type=int, default=6)
    parser.add_argument("--megabytes", type=int, default=90, help="of each file")
    parser.add_argument("--folder", default="/dev/shm")
    parser.add_argument("--json", metavar="PATH")
    args = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="torchlan-bench-", dir=args.folder))
    os.environ["HOME"] = str(folder)  # where agents are noted
    try:
        build(5, args.rate)
        report = measure(Bench(folder, {f"s{n}.parquet": args.megabytes * 10**6 for n in range(args.files)}))
    finally:
        tear_down()
        shutil.rmtree(folder)
    if args.json:
        Path(args.json).write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")


def measure(bench: Bench) -> dict[str, Any]:
    line = iperf3(4)
    print(f"{'':<32} {'s':>7} {'MB/s':>7} {'of iperf3':>9} {'sent by source':>14}")
    print(f"{'iperf3, one way':<32} {'':>7} {line / 1e6:7.1f}")
    report: dict[str, Any] = {"bytes": bench.total, "iperf3_bytes_per_second": line, "rows": {}}
    for name, work in (
        ("one receiver", lambda: bench.bring(1)),
        ("one, connections cut once", lambda: bench.interrupted("connection")),
        ("one, its agent killed once", lambda: bench.interrupted("agent")),
        ("four receivers, each", lambda: bench.bring(4)),
    ):
        row = work()
        rate = bench.total / row["seconds"]
        row.update(bytes_per_second=rate, of_iperf3=rate / line, sent=row["source_bytes"] / bench.total)
        report["rows"][name] = row
        text = f"{name:<32} {row['seconds']:7.2f} {rate / 1e6:7.1f} {row['of_iperf3']:9.0%} {row['sent']:13.2f}x"
        print(text + (f"  ({row['kept'] / 1e6:.0f} MB kept)" if "kept" in row else ""), flush=True)
    return report


if __name__ == "__main__":
    main()
