# Copyright (c) 2026, torchlan contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""When which part of the log was written: nanochat's lines have no times, and logs of several hosts are read as one.

train.log stays as it is; train.times has a line for every second in which it grew: unix time, and its size by then.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from torchlan_runner.beat import append_bounded


class Stamps:
    """Looked at with every beat of a host's first rank."""

    def __init__(self, run_dir: str) -> None:
        self._log, self._times = os.path.join(run_dir, "train.log"), os.path.join(run_dir, "train.times")
        self._size = -1

    def look(self, beat: Mapping[str, Any]) -> None:
        """:raises OSError: there is no log, or the disk is full; the beat says it once."""
        size = os.stat(self._log).st_size
        if size != self._size:
            append_bounded(self._times, "%.1f %d\n" % (beat["time"], size))
            self._size = size
