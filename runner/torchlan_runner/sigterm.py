# Copyright (c) 2026, torchlan contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Says a last word before SIGTERM ends the process, also while the main thread is inside a collective.

A Python handler would only run when the main thread comes back, perhaps never. So the C part of it wakes a thread, and
that one speaks and ends the process by the same signal, unless the script has installed a handler of its own.
"""

from __future__ import annotations

import ctypes
import os
import signal
import socket
import threading
import time
from typing import Any, Callable

_DEFAULT = 0
_keep: list[Any] = []  # the descriptor must outlive the function


def ended_by_sigterm(say: Callable[[], None]) -> None:
    """Call in the main thread."""
    try:
        if signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL:
            return
        libc_signal = ctypes.CDLL(None).signal
        libc_signal.restype = ctypes.c_void_p
        libc_signal.argtypes = [ctypes.c_int, ctypes.c_void_p]
        ours, wake = socket.socketpair()
        wake.setblocking(False)

        def handler(_number: int, _frame: Any) -> None:
            return

        signal.signal(signal.SIGTERM, handler)
        signal.set_wakeup_fd(wake.fileno(), warn_on_full_buffer=False)
    except (OSError, ValueError, AttributeError):
        return
    _keep.append(wake)
    _spare_children(libc_signal)

    def watch() -> None:
        while True:
            data = ours.recv(64)
            if not data:
                return
            if signal.SIGTERM in data and signal.getsignal(signal.SIGTERM) is handler:
                try:
                    say()
                finally:
                    libc_signal(signal.SIGTERM, _DEFAULT)
                    os.kill(os.getpid(), signal.SIGTERM)
                    time.sleep(1)
                    os._exit(128 + signal.SIGTERM)

    threading.Thread(target=watch, name="torchlan-sigterm", daemon=True).start()


def _spare_children(libc_signal: Any) -> None:
    """A forked child shares the wake-up socket, and its SIGTERM would end us: it is born with the default."""
    number = int(signal.SIGTERM)
    python = libc_signal(number, _DEFAULT)
    libc_signal(number, python)

    def before() -> None:
        now = libc_signal(number, _DEFAULT)
        if now != python:
            libc_signal(number, now)

    def in_parent() -> None:
        if callable(signal.getsignal(number)):
            libc_signal(number, python)

    def in_child() -> None:
        try:
            signal.set_wakeup_fd(-1)
        except ValueError:
            pass

    os.register_at_fork(before=before, after_in_parent=in_parent, after_in_child=in_child)
