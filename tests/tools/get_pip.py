# Copyright (c) 2026, torchlan contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What ansible-test runs to get pip into an empty environment, in place of the script that it would download."""

from __future__ import annotations

import subprocess
import sys

if __name__ == "__main__":
    packages = [word for word in sys.argv[1:] if word not in ("--no-setuptools", "--no-wheel")]
    # In a process of its own: ansible-test's caller has changed what logging and sys.argv are.
    subprocess.run([sys.executable, "-m", "ensurepip"], check=True, stdout=subprocess.DEVNULL)
    subprocess.run([sys.executable, "-m", "pip", "install", *packages], check=True)
