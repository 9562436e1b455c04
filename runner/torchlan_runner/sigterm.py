# Copyright (c) 2026, torchlan contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Says a last word before SIGTERM or SIGHUP ends the process, also while the main thread is inside a collective.

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
_SIGNALS = (signal.SIGTERM, signal.SIGHUP)  # a stop, and the end of the terminal: torchrun passes both on
_keep: list[Any] = []  # the descriptor must outlive the function


def ended_by_signal(say: Callable[[int], None]) -> None:
    """Call in the main thread."""
    try:
        ours_to_take = [number for number in _SIGNALS if signal.getsignal(number) is signal.SIG_DFL]
        libc_signal = ctypes.CDLL(None).signal
        libc_signal.restype = ctypes.c_void_p
        libc_signal.argtypes = [ctypes.c_int, ctypes.c_void_p]
        ours, wake = socket.socketpair()
        wake.setblocking(False)

        def handler(_number: int, _frame: Any) -> None:
            return

        for number in ours_to_take:
            signal.signal(number, handler)
        signal.set_wakeup_fd(wake.fileno(), warn_on_full_buffer=False)
    except (OSError, ValueError, AttributeError):
        return
    _keep.append(wake)
    _spare_children(libc_signal, ours_to_take)

    def watch() -> None:
        while True:
            data = ours.recv(64)
            if not data:
                return
            for number in ours_to_take:
                if number in data and signal.getsignal(number) is handler:
                    try:
                        say(number)
                    finally:
                        libc_signal(number, _DEFAULT)
                        os.kill(os.getpid(), number)
                        time.sleep(1)
                        os._exit(128 + number)

    threading.Thread(target=watch, name="torchlan-signals", daemon=True).start()


def _spare_children(libc_signal: Any, numbers: list[signal.Signals]) -> None:
    """A forked child shares the wake-up socket, and its signals would end us: it is born with the default."""
    python = {}
    for number in numbers:
        python[number] = libc_signal(number, _DEFAULT)
        libc_signal(number, python[number])

    def before() -> None:
        for number in numbers:
            now = libc_signal(number, _DEFAULT)
            if now != python[number]:
                libc_signal(number, now)

    def in_parent() -> None:
        for number in numbers:
            if callable(signal.getsignal(number)):
                libc_signal(number, python[number])

    def in_child() -> None:
        try:
            signal.set_wakeup_fd(-1)
        except ValueError:
            pass

    os.register_at_fork(before=before, after_in_parent=in_parent, after_in_child=in_child)
