# Copyright (c) 2026, torchlan contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Hosts for benchmarks, as root: network namespaces on one switch, each with a link of a given rate both ways (tbf)."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import time

PREFIX = f"tl-bench-{os.getpid()}"
SWITCH = f"{PREFIX}-switch"


def command(*argv: str) -> str:
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{' '.join(argv)}: {done.stderr}")
    return done.stdout


def namespace(number: int) -> str:
    return f"{PREFIX}-h{number}"


def inside(name: str) -> list[str]:
    return ["ip", "netns", "exec", name]


def address(number: int) -> str:
    return f"10.97.0.{number + 1}"


def build(count: int, rate: str) -> None:
    """A switch with hosts on it; what a host sends is shaped at the host, what it gets at the switch."""
    command("ip", "netns", "add", SWITCH)
    command(*inside(SWITCH), "ip", "link", "add", "br0", "type", "bridge")
    command(*inside(SWITCH), "ip", "link", "set", "br0", "up")
    for number in range(count):
        host = namespace(number)
        command("ip", "netns", "add", host)
        command("ip", "-n", host, "link", "add", "eth0", "type", "veth", "peer", "name", f"p{number}", "netns", SWITCH)
        command("ip", "-n", host, "address", "add", f"{address(number)}/24", "dev", "eth0")
        command("ip", "-n", SWITCH, "link", "set", f"p{number}", "master", "br0")
        for where, link in ((host, "lo"), (host, "eth0"), (SWITCH, f"p{number}")):
            command("ip", "-n", where, "link", "set", link, "up")
        for where, link in ((host, "eth0"), (SWITCH, f"p{number}")):
            shape = ["root", "tbf", "rate", rate, "burst", "512kb", "latency", "20ms"]
            command("tc", "-n", where, "qdisc", "add", "dev", link, *shape)


def tear_down() -> None:
    for name in command("ip", "netns", "list").split():
        if name.startswith(PREFIX):
            for pid in command("ip", "netns", "pids", name).split():
                with contextlib.suppress(ProcessLookupError):
                    os.kill(int(pid), 9)
            command("ip", "netns", "del", name)


def iperf3(seconds: int, both_ways: bool = False) -> float:
    """Bytes per second that the second host gets from the first; with C(both_ways) of the slower direction, at once."""
    if not shutil.which("iperf3"):
        raise SystemExit("iperf3 is not installed: apt-get install iperf3")
    server = subprocess.Popen([*inside(namespace(1)), "iperf3", "-s", "-1"], stdout=subprocess.DEVNULL)
    while not command(*inside(namespace(1)), "ss", "-Hltn", "sport = :5201"):
        time.sleep(0.05)
    words = ["-c", address(1), "-t", str(seconds), "-J", *(["--bidir"] if both_ways else [])]
    told = json.loads(command(*inside(namespace(0)), "iperf3", *words))["end"]
    server.wait(10)
    names = ["sum_received", "sum_received_bidir_reverse"] if both_ways else ["sum_received"]
    return min(float(told[name]["bits_per_second"]) for name in names) / 8
