# Copyright (c) 2026, torchlan contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What nanochat prints as it trains.

The runner carries a copy of this file in its zip: no import of the collection here.
"""

from __future__ import annotations

import re

_NUMBER = r"[-+\d.eainf]+"
# step, steps in all, loss, and tokens per second where it says so; printed after the step, counted from 0
STEP = re.compile(
    r"step\s+(\d{1,12})/(\d{1,12})\s*\(\s*[\d.]+%%\)\s*\|\s*loss:\s*(%s)(?:.*?tok/sec:\s*([\d,.]+))?" % _NUMBER
)
# steps done, bits per byte
VALIDATION = re.compile(r"Step\s+(\d{1,12})\s*\|\s*Validation bpb:\s*(%s)" % _NUMBER)
