# Copyright (c) 2026, torchlan contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Runs something right after a module was imported, however late that is; nothing is imported for it."""

from __future__ import annotations

import sys
from importlib.abc import MetaPathFinder
from typing import Any, Callable


class AfterImport(MetaPathFinder):
    def __init__(self) -> None:
        self.waiting: dict[str, Callable[[Any], None]] = {}

    def add(self, name: str, call: Callable[[Any], None]) -> None:
        if name in sys.modules:
            call(sys.modules[name])
            return
        self.waiting[name] = call
        if self not in sys.meta_path:
            sys.meta_path.insert(0, self)

    def find_spec(self, fullname: str, path: Any = None, target: Any = None) -> Any:
        call = self.waiting.pop(fullname, None)
        if call is None:
            return None
        spec = None
        for finder in sys.meta_path:
            if finder is not self and hasattr(finder, "find_spec"):
                spec = finder.find_spec(fullname, path, target)
                if spec is not None:
                    break
        if spec is None or spec.loader is None:
            self.waiting[fullname] = call
            return spec
        original = spec.loader.exec_module

        def exec_module(module: Any) -> None:
            original(module)
            call(module)

        try:
            spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        except AttributeError:
            pass
        return spec


after_import = AfterImport()
