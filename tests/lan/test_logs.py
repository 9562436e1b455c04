# Copyright (c) 2026, torchlan contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Logs of two hosts are followed over a link that drops and comes back: no line is lost, none is there twice."""

from __future__ import annotations

import json
import re
import time

from conftest import SMALL, Cluster
from test_watch import Reader

STEPS = 90
AWAY_S = 40.0  # longer than ssh takes to notice


def test_followed_over_a_link_that_drops(cluster: Cluster, run: str) -> None:
    train = {**SMALL, "num-iterations": STEPS, "step-seconds": 0.5}
    variables = json.dumps({"nanochat_train_args": train, "nanochat_hang_timeout": 120})
    assert cluster.playbook("launch", variables, run=run).status == 0
    reader = Reader(cluster, "lines=100000", "follow=true", run=run, playbook="logs")
    deadline = time.monotonic() + 60
    while "TASK [Follow them]" not in reader.text:
        assert time.monotonic() < deadline, reader.text
        time.sleep(0.2)
    cluster.lan.exec("workstation", "ip", "link", "set", "eth0", "down")
    time.sleep(AWAY_S)
    cluster.lan.exec("workstation", "ip", "link", "set", "eth0", "up")
    reader.wait()
    told = re.findall(r"^workstation (does not answer|answers again)", reader.text, re.MULTILINE)
    assert told == ["does not answer", "answers again"]
    log = cluster.lan.exec("workstation", "cat", f"{cluster.node_dir('workstation', run)}/train.log")
    steps = re.findall(r"^step \d+/\d+ .*$", log, re.MULTILINE)
    assert len(steps) == STEPS
    shown = re.findall(r"^\d\d:\d\d:\d\d workstation:0 +\| (step \d+/\d+ .*)$", reader.text, re.MULTILINE)
    assert shown == steps
