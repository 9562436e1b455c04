# Copyright (c) 2026, torchlan contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Honours NANOCHAT_DATA_DIR and NANOCHAT_FORCE_SDPA where nanochat itself does not. Only when they are set."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torchlan_runner.hooks import after_import


def install(environ: Mapping[str, str]) -> None:
    folder = environ.get("NANOCHAT_DATA_DIR")
    if folder:

        def set_data_dir(module: Any) -> None:
            if hasattr(module, "DATA_DIR"):
                module.DATA_DIR = folder

        after_import.add("nanochat.dataset", set_data_dir)

    if environ.get("NANOCHAT_FORCE_SDPA", "").lower() in ("1", "true", "yes"):

        def force_sdpa(module: Any) -> None:
            if hasattr(module, "USE_FA3") and hasattr(module, "_override_impl"):
                module._override_impl = "sdpa"
                module.USE_FA3 = False

        after_import.add("nanochat.flash_attention", force_sdpa)
