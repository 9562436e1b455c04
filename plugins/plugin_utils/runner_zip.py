# Copyright (c) 2026, torchlan contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The runner and the smoke workload as one zip that Python imports from: equal sources give equal bytes."""

from __future__ import annotations

import io
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
# What modules on the hosts and the runner both need.
SHARED = ("checkpoints.py", "messages.py", "printed.py", "sockets.py")
_TIME = (2026, 1, 1, 0, 0, 0)


def files() -> dict[str, Path]:
    """Name in the zip -> source file."""
    runner = ROOT / "runner"
    found = {f"torchlan_runner/{path.name}": path for path in sorted((runner / "torchlan_runner").glob("*.py"))}
    for name in SHARED:
        found[f"torchlan_runner/{name}"] = ROOT / "plugins" / "module_utils" / name
    found["torchlan_smoke.py"] = runner / "torchlan_smoke.py"
    return dict(sorted(found.items()))


def build() -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, path in files().items():
            entry = zipfile.ZipInfo(name, _TIME)
            entry.compress_type = zipfile.ZIP_DEFLATED
            entry.external_attr = 0o644 << 16
            archive.writestr(entry, path.read_bytes())
    return buffer.getvalue()
