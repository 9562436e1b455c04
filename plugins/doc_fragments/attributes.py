# Copyright (c) 2026, torchlan contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What modules of one kind have in common: how they behave in check and diff mode, and where they run."""

from __future__ import annotations


class ModuleDocFragment:
    """C(attributes) changes something on a host; the others are named."""

    DOCUMENTATION = r"""
attributes:
  check_mode:
    description: Can run in check mode and predict changes.
    support: full
  diff_mode:
    description: Can show differences.
    support: none
options: {}
"""

    FACTS = r"""
attributes:
  check_mode:
    description: Runs without changes in check mode and returns the same facts.
    support: full
  diff_mode:
    description: Returns details on what has changed in diff mode.
    support: N/A
    details:
      - This module changes nothing.
  idempotent:
    description: When run twice in a row, the second run changes nothing.
    support: full
    details:
      - This module changes nothing.
options: {}
"""

    CONTROLLER = r"""
attributes:
  check_mode:
    description: Can run in check mode and returns the same.
    support: full
  diff_mode:
    description: Can show differences.
    support: none
  action:
    description: Runs on the controller, in the user's folder, without a connection.
    support: full
options: {}
"""

    SHOWS = r"""
attributes:
  check_mode:
    description: Can run in check mode and does the same, for it changes nothing.
    support: full
  diff_mode:
    description: Can show differences.
    support: none
  action:
    description: Runs on the controller, and reads files on the host through its connection.
    support: full
options: {}
"""
