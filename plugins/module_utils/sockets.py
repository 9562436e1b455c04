# Copyright (c) 2026, torchlan contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""TCP sockets of processes with the kernel's own byte counters, standard library only, no root.

Modules use this file, and the runner carries a copy of it in its zip: no import of the collection here.
bytes_sent counts acknowledged bytes, the opening SYN included.
"""

from __future__ import annotations

import ipaddress
import os
import socket
import struct
from collections.abc import Iterable
from typing import Any

ESTABLISHED = 1
LISTEN = 10

_NETLINK_SOCK_DIAG = 4
_SOCK_DIAG_BY_FAMILY = 20
_NLM_F_REQUEST_DUMP = 0x301
_NLMSG_ERROR = 2
_NLMSG_DONE = 3
_INET_DIAG_INFO = 2
_DIAG_MSG = struct.Struct("=BBBB2s2s16s16sIII5I")  # struct inet_diag_msg, ports and addresses in network order


class Refused(OSError):
    """The kernel does not answer socket diagnosis here (a container's filter, a missing kernel module)."""


def tcp_sockets(pids: Iterable[int]) -> list[dict[str, Any]]:
    """Established TCP sockets of these processes; bytes_sent and bytes_received are None where only /proc answers."""
    owners: dict[int, int] = {}
    for pid in pids:
        for inode in socket_inodes(pid):
            owners.setdefault(inode, int(pid))
    if not owners:
        return []
    found = []
    try:
        for entry in _diag(ESTABLISHED):
            if entry["inode"] in owners:
                found.append(dict(entry, pid=owners[entry["inode"]]))
    except OSError:
        found = []
        for entry in _from_proc(ESTABLISHED, sorted(set(owners.values()))):
            if entry["inode"] in owners:
                found.append(dict(entry, pid=owners[entry["inode"]]))
    return found


def listeners(port: int | None = None) -> list[dict[str, Any]]:
    """Who listens on this TCP port (any if None): local, local_port, inode, uid; pid and command where readable."""
    try:
        entries = _diag(LISTEN, with_info=False)
    except OSError:
        entries = _from_proc(LISTEN, [os.getpid()])
    found = [
        {key: entry[key] for key in ("local", "local_port", "inode", "uid")}
        for entry in entries
        if port is None or entry["local_port"] == port
    ]
    if found:
        owners = _owners({entry["inode"] for entry in found})
        for entry in found:
            pid = owners.get(entry["inode"])
            entry["pid"] = pid
            entry["command"] = _command(pid) if pid else None
    return found


def socket_inodes(pid: int) -> set[int]:
    """Inodes of the sockets that a process holds; empty when it is gone or not ours."""
    inodes: set[int] = set()
    folder = "/proc/%d/fd" % int(pid)
    try:
        names = os.listdir(folder)
    except OSError:
        return inodes
    for name in names:
        try:
            target = os.readlink(folder + "/" + name)
        except OSError:
            continue
        if target.startswith("socket:["):
            inodes.add(int(target[8:-1]))
    return inodes


def _owners(inodes: set[int]) -> dict[int, int]:
    owners: dict[int, int] = {}
    for name in os.listdir("/proc"):
        if name.isdigit():
            for inode in socket_inodes(int(name)) & inodes:
                owners.setdefault(inode, int(name))
            if len(owners) == len(inodes):
                break
    return owners


def _command(pid: int) -> str | None:
    try:
        with open("/proc/%d/cmdline" % pid, "rb") as file:
            text = file.read(4096).replace(b"\0", b" ").decode("utf-8", "replace").strip()
    except OSError:
        return None
    return text[:200]


def plain_address(packed: bytes) -> str:
    """Text of a packed address; IPv4 in its IPv6 form becomes plain IPv4."""
    address = ipaddress.ip_address(packed)
    if isinstance(address, ipaddress.IPv6Address) and address.ipv4_mapped is not None:
        return str(address.ipv4_mapped)
    return str(address)


# ---- the kernel's socket diagnosis ----


def _diag(state: int, with_info: bool = True) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    try:
        connection = socket.socket(socket.AF_NETLINK, socket.SOCK_DGRAM, _NETLINK_SOCK_DIAG)
    except OSError as error:
        raise Refused(*error.args) from error
    with connection:
        connection.settimeout(2.0)
        for number, family in enumerate((socket.AF_INET, socket.AF_INET6), 1):
            ext = 1 << (_INET_DIAG_INFO - 1) if with_info else 0
            body = struct.pack("=BBBBI", family, socket.IPPROTO_TCP, ext, 0, 1 << state) + b"\0" * 48
            head = struct.pack("=IHHII", 16 + len(body), _SOCK_DIAG_BY_FAMILY, _NLM_F_REQUEST_DUMP, number, 0)
            connection.send(head + body)
            found.extend(_answers(connection, number, state))
    return found


def _answers(connection: socket.socket, number: int, state: int) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    while True:
        data = connection.recv(1 << 18)
        offset = 0
        while offset + 16 <= len(data):
            length, kind, _flags, answer_to, _port = struct.unpack_from("=IHHII", data, offset)
            if length < 16:
                raise Refused("malformed netlink answer")
            if answer_to == number:
                if kind == _NLMSG_DONE:
                    return found
                if kind == _NLMSG_ERROR:
                    code = -struct.unpack_from("=i", data, offset + 16)[0]
                    if code == 2 and number == 2:  # ENOENT: a kernel without IPv6
                        return found
                    raise Refused(code, os.strerror(code))
                entry = parse_message(data[offset + 16 : offset + length])
                if entry["state"] == state:
                    found.append(entry)
            offset += (length + 3) & ~3


def parse_message(body: bytes) -> dict[str, Any]:
    """One inet_diag_msg with its attributes."""
    fields = _DIAG_MSG.unpack_from(body)
    family, state, timer, retransmits = fields[:4]
    sport, dport, source, destination = fields[4:8]
    unread, unacked_bytes, uid, inode = fields[12:16]
    size = 4 if family == socket.AF_INET else 16
    entry: dict[str, Any] = {
        "state": state,
        "local": plain_address(source[:size]),
        "local_port": int.from_bytes(sport, "big"),
        "remote": plain_address(destination[:size]),
        "remote_port": int.from_bytes(dport, "big"),
        "inode": inode,
        "uid": uid,
        "unread": unread,
        "unsent": unacked_bytes,
        "timer": timer,
        "retransmits": retransmits,
        "bytes_sent": None,
        "bytes_received": None,
        "counters": "netlink",
    }
    offset = _DIAG_MSG.size
    while offset + 4 <= len(body):
        length, kind = struct.unpack_from("=HH", body, offset)
        if length < 4:
            break
        if kind == _INET_DIAG_INFO:
            entry.update(parse_info(body[offset + 4 : offset + length]))
        offset += (length + 3) & ~3
    return entry


def parse_info(info: bytes) -> dict[str, Any]:
    """What we use of struct tcp_info; older kernels send a shorter one, what is missing stays out."""
    found: dict[str, Any] = {}
    if len(info) >= 5:
        found["backoff"] = info[4]
    for name, offset in (("unacked", 24), ("last_data_recv_ms", 52), ("rtt_us", 68), ("retrans", 100)):
        if len(info) >= offset + 4:
            found[name] = struct.unpack_from("=I", info, offset)[0]
    for name, offset in (("bytes_sent", 120), ("bytes_received", 128)):
        if len(info) >= offset + 8:
            found[name] = struct.unpack_from("=Q", info, offset)[0]
    return found


# ---- /proc, where the kernel refuses ----


def _from_proc(state: int, pids: Iterable[int]) -> list[dict[str, Any]]:
    found: dict[int, dict[str, Any]] = {}
    for pid in pids:  # a process may live in a network namespace of its own
        for name in ("tcp", "tcp6"):
            try:
                with open("/proc/%d/net/%s" % (pid, name)) as file:
                    lines = file.readlines()[1:]
            except OSError:
                continue
            for line in lines:
                entry = parse_proc_line(line)
                if entry is not None and entry["state"] == state:
                    found[entry["inode"]] = entry
    return list(found.values())


def parse_proc_line(line: str) -> dict[str, Any] | None:
    words = line.split()
    if len(words) < 10:
        return None
    local, local_port = _proc_address(words[1])
    remote, remote_port = _proc_address(words[2])
    unsent, unread = (int(part, 16) for part in words[4].split(":"))
    return {
        "state": int(words[3], 16),
        "local": local,
        "local_port": local_port,
        "remote": remote,
        "remote_port": remote_port,
        "inode": int(words[9]),
        "uid": int(words[7]),
        "unread": unread,
        "unsent": unsent,
        "retransmits": int(words[6], 16),
        "bytes_sent": None,
        "bytes_received": None,
        "counters": "proc",
    }


def _proc_address(text: str) -> tuple[str, int]:
    address, port = text.split(":")
    words = [address[start : start + 8] for start in range(0, len(address), 8)]
    packed = b"".join(
        struct.pack("=I", int(word, 16)) for word in words
    )  # the kernel prints each word as a native integer
    return plain_address(packed), int(port, 16)
