# Copyright (c) 2026, torchlan contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Runs inside every rank, around the training script: agree, connect, bring up the backend, report.

torchrun starts `-m torchlan_runner SCRIPT -- ARGS`; everything else comes from the environment variable TORCHLAN_PLAN.
"""

from __future__ import annotations

__version__ = "0.1.0"
