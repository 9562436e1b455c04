# Copyright (c) 2026, torchlan contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Interfaces and addresses, against the kernel and against `ip`."""

from __future__ import annotations

import shutil
from typing import Any

import pytest
from namespaces import Lab, lab_fixture  # noqa: F401

from ansible_collections.torchlan.nanochat.plugins.module_utils import interfaces as module

LOOK = (
    "import json; from ansible_collections.torchlan.nanochat.plugins.module_utils.interfaces import interfaces;"
    "print(json.dumps(interfaces()))"
)


def test_loopback_is_there() -> None:
    found = {entry["name"]: entry for entry in module.interfaces()}
    assert found["lo"]["kind"] == "loopback"
    assert found["lo"]["loopback"] is True
    assert found["lo"]["speed_mbps"] is None
    assert {"address": "127.0.0.1", "family": "ipv4", "prefix": 8, "scope": "host", "label": None} in found["lo"][
        "addresses"
    ]


@pytest.mark.skipif(shutil.which("ip") is None, reason="compares with the program ip")
def test_netlink_and_ip_agree() -> None:
    def plain(found: list[dict[str, Any]]) -> list[dict[str, Any]]:
        return sorted(found, key=lambda entry: entry["index"])

    assert plain(module._by_netlink()) == plain(module._by_ip())


def test_without_netlink_the_program_ip_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse() -> None:
        raise PermissionError("no netlink here")

    monkeypatch.setattr(module, "_by_netlink", refuse)
    monkeypatch.setattr(module, "_by_ip", list)
    assert module.interfaces() == []


@pytest.mark.parametrize(
    ("name", "link_type", "flags", "info_kind", "kind"),
    [
        ("lo", 772, 0x9, "", "loopback"),
        ("enp4s0", 1, 0x1, "", "ethernet"),
        ("bond0", 1, 0x1, "bond", "ethernet"),
        ("eth0.7", 1, 0x1, "vlan", "ethernet"),
        ("ib0", 32, 0x1, "", "ethernet"),
        ("docker0", 1, 0x1, "bridge", "docker"),
        ("br-0123456789ab", 1, 0x1, "bridge", "docker"),
        ("br-lan", 1, 0x1, "bridge", "bridge"),
        ("virbr0", 1, 0x1, "bridge", "bridge"),
        ("veth1234567", 1, 0x1, "veth", "veth"),
        ("tailscale0", 65534, 0x1, "tun", "tun"),
        ("wg0", 65534, 0x1, "wireguard", "tun"),
        ("ppp0", 512, 0x1, "", "tun"),
        ("dummy0", 1, 0x1, "dummy", "virtual"),
    ],
)
def test_kinds(name: str, link_type: int, flags: int, info_kind: str, kind: str) -> None:
    assert module.kind_of(name, 99999, link_type, flags, info_kind) == kind


def test_wireless_by_the_kernels_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "read_text", lambda path: "3" if path.endswith("/ifindex") else None)
    monkeypatch.setattr(module.os.path, "exists", lambda path: path == "/sys/class/net/wlan0/phy80211")
    assert module.kind_of("wlan0", 3, 1, 0x1, "") == "wireless"
    # the same name in another network namespace has another index
    assert module.kind_of("wlan0", 4, 1, 0x1, "") == "ethernet"


def test_in_a_namespace(lab: Lab) -> None:
    a, b = lab.host("a"), lab.host("b")
    lab.cable(a, "eth0", "10.90.0.1/24", b, "eth0", "10.90.0.2/24")
    lab.ip(a, "address", "add", "10.90.0.9/24", "dev", "eth0", "label", "eth0:1")
    lab.ip(a, "address", "add", "fd00:90::1/64", "dev", "eth0", "nodad")
    lab.ip(a, "link", "add", "docker0", "type", "bridge")
    lab.ip(a, "address", "add", "172.17.0.1/16", "dev", "docker0")
    lab.ip(a, "link", "add", "veth0", "type", "veth", "peer", "name", "veth1")
    lab.ip(a, "link", "set", "veth0", "master", "docker0")
    found = {entry["name"]: entry for entry in lab.python(a, LOOK)}
    assert found["eth0"]["kind"] == "veth"
    assert found["eth0"]["up"] is True
    assert found["eth0"]["addresses"][0]["address"] == "10.90.0.1"
    assert {"address": "10.90.0.9", "label": "eth0:1"}.items() <= found["eth0"]["addresses"][-1].items()
    assert "fd00:90::1" in [entry["address"] for entry in found["eth0"]["addresses"]]
    assert found["docker0"]["kind"] == "docker"
    assert found["docker0"]["up"] is False
    assert found["docker0"]["members"] == ["veth0"]
    assert found["veth0"]["master"] == "docker0"
    assert found["veth0"]["up"] is False
    # nothing of this machine's own namespace
    assert set(found) == {"lo", "eth0", "docker0", "veth0", "veth1"}
