# Copyright (c) 2026, torchlan contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The network interfaces of this host and their addresses, asked from the kernel (no root, no program, 2 ms).

Netlink belongs to the process's own network namespace; C(/sys/class/net) may show another one.
C(ip -json) is the fallback.
"""

from __future__ import annotations

import array
import fcntl
import json
import os
import re
import shutil
import socket
import struct
from collections.abc import Iterator
from typing import Any

from ansible_collections.torchlan.nanochat.plugins.module_utils.asked import Asked, read_text

_GETLINK, _GETADDR, _DONE, _ERROR = 18, 22, 3, 2
_UP, _LOOPBACK, _RUNNING = 0x1, 0x8, 0x40
_SCOPES = {0: "global", 200: "site", 253: "link", 254: "host", 255: "nowhere"}
_UNUSABLE = 0x08 | 0x40  # IFA_F_DADFAILED, IFA_F_TENTATIVE
_FIXED_LINK_TYPES = {772: "loopback", 512: "tun", 65534: "tun", 768: "tun", 776: "tun", 778: "tun", 801: "wireless"}
_KINDS = {
    # stacked on a wire: what crosses them crosses the wire
    "bond": "ethernet",
    "team": "ethernet",
    "vlan": "ethernet",
    "macvlan": "ethernet",
    "ipvlan": "ethernet",
    "bridge": "bridge",
    "openvswitch": "bridge",
    "veth": "veth",
    "netkit": "veth",
    "tun": "tun",
    "wireguard": "tun",
    "vxlan": "tun",
    "geneve": "tun",
    "gre": "tun",
    "gretap": "tun",
    "ip6gre": "tun",
    "ipip": "tun",
    "ip6tnl": "tun",
    "sit": "tun",
    "vti": "tun",
    "xfrm": "tun",
}


def interfaces() -> list[dict[str, Any]]:
    """All interfaces, in the kernel's order: C(name, index, up, loopback, kind, speed_mbps, mtu, master, addresses)."""
    try:
        found = _by_netlink()
    except (OSError, struct.error):
        found = _by_ip()
    members: dict[int, list[str]] = {}
    for entry in found:
        if entry["master"]:
            members.setdefault(entry["master"], []).append(entry["name"])
    names = {entry["index"]: entry["name"] for entry in found}
    for entry in found:
        entry["members"] = members.get(entry["index"], [])
        entry["master"] = names.get(entry["master"])
        entry["speed_mbps"] = None if entry["loopback"] else speed(entry["name"])
        # The interface that other programs mean by this name has unlabelled addresses; aliases (eth0:1) come last.
        entry["addresses"].sort(key=lambda address: address["label"] is not None)
    return found


def by_address(found: list[dict[str, Any]]) -> dict[str, str]:
    """Which interface holds which address."""
    return {address["address"]: entry["name"] for entry in found for address in entry["addresses"]}


def kind_of(name: str, index: int, link_type: int, flags: int, info_kind: str) -> str:
    if flags & _LOOPBACK:
        return "loopback"
    kind = _KINDS.get(info_kind)
    if kind == "bridge" and re.match(r"docker\d|docker_|br-[0-9a-f]{12}$", name):
        return "docker"
    if kind:
        return kind
    if info_kind:
        return "virtual"
    if _is_wireless(name, index):
        return "wireless"
    return _FIXED_LINK_TYPES.get(link_type, "ethernet")


def speed(name: str) -> int | None:
    """Mb/s as the driver says it; C(None) where it does not know. Bridges report their fastest member."""
    command = array.array("B", struct.pack("=I", 1) + bytes(60))  # ETHTOOL_GSET; any driver, any user
    try:
        request = struct.pack("16sP", name.encode(), command.buffer_info()[0]).ljust(40, b"\0")
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as handle:
            fcntl.ioctl(handle, 0x8946, request)  # SIOCETHTOOL
    except (OSError, struct.error):
        return None
    low, high = struct.unpack_from("=H", command, 12)[0], struct.unpack_from("=H", command, 28)[0]
    value = int(low) | int(high) << 16
    return None if value in (0, 0xFFFF, 0xFFFFFFFF) else value


def _is_wireless(name: str, index: int) -> bool:
    folder = "/sys/class/net/" + name
    if read_text(folder + "/ifindex") == str(index):
        return os.path.exists(folder + "/wireless") or os.path.exists(folder + "/phy80211")
    return any(line.strip().startswith(name + ":") for line in (read_text("/proc/net/wireless") or "").splitlines())


def _by_netlink() -> list[dict[str, Any]]:
    found: dict[int, dict[str, Any]] = {}
    for body in _dump(_GETLINK, struct.pack("=BxHiII", 0, 0, 0, 0, 0)):
        _family, link_type, index, flags, _change = struct.unpack_from("=BxHiII", body)
        attributes = _attributes(body, 16)
        name = _text(attributes.get(3, b""))
        info_kind = _text(_attributes(attributes.get(18, b""), 0).get(1, b""))
        found[index] = {
            "name": name,
            "index": index,
            "up": bool(flags & _UP and flags & _RUNNING),
            "loopback": bool(flags & _LOOPBACK),
            "kind": kind_of(name, index, link_type, flags, info_kind),
            "mtu": _number(attributes.get(4, b"")),
            "master": _number(attributes.get(10, b"")),
            "addresses": [],
        }
    for body in _dump(_GETADDR, struct.pack("=BBBBI", 0, 0, 0, 0, 0)):
        family, prefix, short_flags, scope, index = struct.unpack_from("=BBBBI", body)
        attributes = _attributes(body, 8)
        # On a point-to-point link IFA_ADDRESS is the other end; IFA_LOCAL is always this end.
        raw = attributes.get(2) or attributes.get(1)
        flags = _number(attributes.get(8, b"")) or short_flags
        if index not in found or raw is None or len(raw) not in (4, 16) or flags & _UNUSABLE:
            continue
        label = _text(attributes.get(3, b""))
        found[index]["addresses"].append(
            {
                "address": socket.inet_ntop(family, raw),
                "family": "ipv4" if family == socket.AF_INET else "ipv6",
                "prefix": prefix,
                "scope": _SCOPES.get(scope, str(scope)),
                "label": label if label not in ("", found[index]["name"]) else None,
            }
        )
    return list(found.values())


def _dump(kind: int, request: bytes) -> Iterator[bytes]:
    """Bodies of the kernel's answer to one dump request."""
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 0) as netlink:
        netlink.settimeout(2.0)
        netlink.bind((0, 0))
        netlink.send(struct.pack("=IHHII", 16 + len(request), kind, 0x301, 1, 0) + request)
        while True:
            data = netlink.recv(1 << 17)
            position = 0
            while position + 16 <= len(data):
                length, answer = struct.unpack_from("=IH", data, position)
                if answer == _DONE:
                    return
                if answer == _ERROR or length < 16:
                    raise OSError("netlink refused the request")
                yield data[position + 16 : position + length]
                position += (length + 3) & ~3


def _attributes(data: bytes, position: int) -> dict[int, bytes]:
    found: dict[int, bytes] = {}
    while position + 4 <= len(data):
        length, kind = struct.unpack_from("=HH", data, position)
        if length < 4:
            break
        found[kind & 0x3FFF] = data[position + 4 : position + length]
        position += (length + 3) & ~3
    return found


def _text(raw: bytes) -> str:
    return raw.rstrip(b"\0").decode("utf-8", "replace")


def _number(raw: bytes) -> int | None:
    return struct.unpack("=I", raw)[0] if len(raw) == 4 else None


def _by_ip() -> list[dict[str, Any]]:
    """The same from C(ip -json), for systems that forbid netlink."""
    program = shutil.which("ip") or shutil.which("ip", path="/usr/sbin:/sbin")
    if program is None:
        return []
    text, _problem = Asked([program, "-details", "-json", "address"], limit_s=5.0).answer()
    try:
        return [_from_ip(entry) for entry in json.loads(text or "[]") if entry.get("ifname")]
    except (ValueError, KeyError, TypeError):
        return []


def _from_ip(entry: dict[str, Any]) -> dict[str, Any]:
    name, words = entry["ifname"], entry.get("flags", [])
    flags = (_UP if "UP" in words else 0) | (_LOOPBACK if "LOOPBACK" in words else 0)
    link_type = {"none": 65534, "ppp": 512}.get(entry.get("link_type", ""), 1)
    addresses = [
        {
            "address": address["local"],
            "family": "ipv4" if address["family"] == "inet" else "ipv6",
            "prefix": address["prefixlen"],
            "scope": address.get("scope", "global"),
            "label": address.get("label") if address.get("label") not in (None, name) else None,
        }
        for address in entry.get("addr_info", [])
        if address.get("local") and not address.get("tentative") and not address.get("dadfailed")
    ]
    master = entry.get("master")
    return {
        "name": name,
        "index": entry["ifindex"],
        "up": "UP" in words and "LOWER_UP" in words,
        "loopback": "LOOPBACK" in words,
        "kind": kind_of(name, entry["ifindex"], link_type, flags, entry.get("linkinfo", {}).get("info_kind", "")),
        "mtu": entry.get("mtu"),
        "master": socket.if_nametoindex(master) if master else None,
        "addresses": addresses,
    }
