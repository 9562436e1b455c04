# Copyright (c) 2026, torchlan contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What the hosts of an exchange of files know each other by.

A verdict travels through logs (C(-vvv) prints it), so it holds a public name of the exchange only. The secret is made
of that name and a key that never leaves the controller's user.
"""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import os
import secrets

from ansible_collections.torchlan.nanochat.plugins.plugin_utils.source import cache_folder

_KEY_BYTES = 32


def new(cache: str | None = None) -> str:
    """The name of a new exchange. Makes the key where there is none yet: call it before C(token), in one process."""
    path = _key_file(cache)
    os.makedirs(os.path.dirname(path), exist_ok=True)
    if not _key(path):
        with contextlib.suppress(FileNotFoundError):
            os.unlink(path)  # half written
        with contextlib.suppress(FileExistsError):  # another launch was faster
            handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
            with os.fdopen(handle, "wb") as file:
                file.write(secrets.token_bytes(_KEY_BYTES))
    return secrets.token_hex(16)


def token(exchange: str, cache: str | None = None) -> str:
    """The secret of an exchange, 64 hexadecimal digits.

    :raises ValueError: C(new) was not called on this controller.
    """
    key = _key(_key_file(cache))
    if not key:
        raise ValueError(f"{_key_file(cache)} is missing")
    return hmac.new(key, exchange.encode(), hashlib.sha256).hexdigest()


def _key_file(cache: str | None) -> str:
    return os.path.join(cache_folder(cache), "exchange.key")


def _key(path: str) -> bytes | None:
    try:
        with open(path, "rb") as file:
            key = file.read()
    except OSError:
        return None
    return key if len(key) == _KEY_BYTES else None
