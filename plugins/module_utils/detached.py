# Copyright (c) 2026, torchlan contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A process that outlives the module which starts it, and has nothing of its terminal, files or clean-up."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Callable, Iterable


def detach(live: Callable[[], object], keep: Iterable[int], name: str) -> None:
    """Run C(live) in a process of its own, in a session of its own. Call it before any thread exists: it forks.

    :param keep: file descriptors that stay open there.
    :param name: what C(ps) and C(ss) show.
    """
    child = os.fork()
    if child == 0:
        # Nothing of Ansible's clean-up may run here, so every way out is os._exit.
        try:
            os.setsid()
            if os.fork() == 0:
                _alone(set(keep), name)
                live()
        finally:
            os._exit(0)
    os.waitpid(child, 0)


def _alone(keep: set[int], name: str) -> None:
    for number in (signal.SIGALRM, signal.SIGTERM, signal.SIGINT):
        signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGALRM, signal.SIGTERM])
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    os.chdir("/")
    null = os.open(os.devnull, os.O_RDWR)
    for standard in (0, 1, 2):
        os.dup2(null, standard)
    for entry in os.listdir("/proc/self/fd"):
        if int(entry) > 2 and int(entry) not in keep:
            with contextlib.suppress(OSError):
                os.close(int(entry))
    with contextlib.suppress(OSError), open("/proc/self/comm", "w") as comm:
        comm.write(name)
