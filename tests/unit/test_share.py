# Copyright (c) 2026, torchlan contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Hosts that bring files to each other, with real agents and real sockets."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import shutil
import signal
import socket
import subprocess
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from share_hosts import TOKEN, Files, Host, alive, cable, entry, make, names, offers_of, until, until_gone

from ansible_collections.torchlan.nanochat.plugins.module_utils.share_fetch import Link
from ansible_collections.torchlan.nanochat.plugins.module_utils.share_files import HIDDEN, PIECE_BYTES
from ansible_collections.torchlan.nanochat.plugins.modules import share

MB = 1_000_000
SIZES = {"s0.parquet": 10 * MB, "s1.parquet": PIECE_BYTES * 2, "s2.parquet": 1}
TOTAL = sum(SIZES.values())


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A home of its own; after the test nothing is left of any agent."""
    where = tmp_path / "home"
    where.mkdir()
    monkeypatch.setenv("HOME", str(where))
    yield where
    for note in where.glob(".cache/torchlan/share/*"):
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            pid = int(json.loads(note.read_text())["pid"])
            os.kill(pid, signal.SIGTERM)
            until_gone(pid)


def hosts_in(tmp_path: Path, count: int, address: str = "127.0.0.1") -> list[Host]:
    hosts = [Host("abcdefgh"[number], tmp_path / "abcdefgh"[number], address) for number in range(count)]
    for host in hosts:
        host.folder.mkdir()
    return hosts


def offer_all(hosts: Sequence[Host], files: Files, have: dict[str, Sequence[str]], **limits: float) -> dict[str, Any]:
    for host in hosts:
        result = host.offer(files, have.get(host.name, ()), **limits)
        assert result["causes"] == [] and result["port"] > 0
        assert sorted(result["have"] + result["missing"]) == sorted(names(files))
    return offers_of(hosts, have)


def same(hosts: Sequence[Host], files: Files) -> bool:
    """Every host has every file, and nothing but files is in its folder."""
    first = hosts[0].folder
    for host in hosts:
        until(lambda: not (host.folder / HIDDEN).exists())  # noqa: B023
        for name in names(files):
            assert (host.folder / name).read_bytes() == (first / name).read_bytes()
    return True


def gone(hosts: Sequence[Host], pids: Sequence[int]) -> bool:
    """Nothing is left of the agents: no process, no note, and nobody listens."""
    until(lambda: not any(alive(pid) for pid in pids))
    for host in hosts:
        assert not host.note.exists()
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection((host.address, host.port)).close()
    return True


def codes(result: dict[str, Any]) -> list[str]:
    return [one["code"] for one in result["causes"]]


@pytest.mark.parametrize("address", ["127.0.0.1", "::1"])
def test_one_receiver(tmp_path: Path, address: str) -> None:
    hosts = hosts_in(tmp_path, 2, address)
    try:
        socket.create_server((address, 0), family=socket.AF_INET6 if ":" in address else socket.AF_INET).close()
    except OSError:
        pytest.skip(f"no {address} here")
    files = make(hosts[0].folder, SIZES)
    offers = offer_all(hosts, files, {"a": names(files)})
    pids = [host.pid() for host in hosts]
    assert hosts[0].note.stat().st_mode & 0o777 == 0o600
    assert TOKEN not in hosts[0].note.read_text() + Path(f"/proc/{pids[0]}/cmdline").read_text()
    first = hosts[0].until_done(offers)
    assert (first["state"], first["changed"], first["brought"]) == ("complete", False, [])
    result = hosts[1].until_done(offers)
    assert (result["state"], result["changed"], result["causes"]) == ("complete", True, [])
    assert sorted(result["brought"]) == names(files)
    assert result["bytes_from"] == {"a": TOTAL}
    assert result["progress"]["bytes_done"] == TOTAL
    assert same(hosts, files) and gone(hosts, pids)
    again = [host.offer(files) for host in hosts]  # nothing was verified, so that digests are compared
    assert [one["missing"] for one in again] == [[], []]


@pytest.mark.parametrize("receivers", [2, 4])
def test_receivers_serve_each_other(tmp_path: Path, receivers: int) -> None:
    hosts = hosts_in(tmp_path, receivers + 1)
    files = make(hosts[0].folder, {f"s{number}.parquet": 20 * MB for number in range(3)})
    offers = offer_all(hosts, files, {"a": names(files)})
    pids = [host.pid() for host in hosts]
    # One call is enough to start them all: with few forks the other hosts' turn comes late.
    results = {host.name: host.until_done(offers) for host in hosts[1:]}
    assert {name: result["causes"] for name, result in results.items()} == {name: [] for name in results}
    sent = hosts[0].state()["sent"]
    assert 60 * MB <= sent < 2 * 60 * MB
    for result in results.values():
        assert sum(result["bytes_from"].values()) == 60 * MB
        assert len(result["bytes_from"]) == receivers
    assert same(hosts, files) and gone(hosts, pids)


def test_several_hosts_with_a_part_each(tmp_path: Path) -> None:
    hosts = hosts_in(tmp_path, 3)
    files = make(hosts[0].folder, SIZES)
    (tmp_path / "a/s2.parquet").rename(tmp_path / "b/s2.parquet")
    shutil.copy(tmp_path / "a/s1.parquet", tmp_path / "b/s1.parquet")
    offers = offer_all(hosts, files, {"a": ["s0.parquet", "s1.parquet"], "b": ["s1.parquet", "s2.parquet"]})
    results = [host.until_done(offers) for host in hosts]
    assert [result["causes"] for result in results] == [[], [], []]
    assert [sorted(result["brought"]) for result in results] == [["s2.parquet"], ["s0.parquet"], names(files)]
    assert same(hosts, files)


ODD = [
    "two words",
    "ünïcode ✓",
    "quo'te\"s",
    "line\nbreak",
    "deep/er/file",
    "$HOME;`id`",
    "-rf",
    "empty",
    "same",
    "x" * 200,
]


def test_odd_names_equal_contents_and_empty_files(tmp_path: Path) -> None:
    hosts = hosts_in(tmp_path, 2)
    files = make(hosts[0].folder, dict.fromkeys(ODD, 1000))
    (tmp_path / "a/empty").write_bytes(b"")
    (tmp_path / "a/same").write_bytes((tmp_path / "a" / ODD[0]).read_bytes())
    files = [entry(name, (tmp_path / "a" / name).read_bytes()) for name in ODD]
    offers = offer_all(hosts, files, {"a": ODD})
    result = hosts[1].until_done(offers)
    assert (result["causes"], sorted(result["brought"])) == ([], sorted(ODD))
    assert same(hosts, files)


# ---- what is in the way ----


@pytest.mark.parametrize(
    "name", ["../x", "/etc/passwd", "a/../../x", "", ".", "a//b", "link/x", "out", f"{HIDDEN}/lock", "a\0b"]
)
def test_names_stay_in_the_folder(tmp_path: Path, name: str) -> None:
    (host,) = hosts_in(tmp_path, 1)
    (tmp_path / "a/link").symlink_to(tmp_path)
    (tmp_path / "a/out").symlink_to(tmp_path / "secret")
    (tmp_path / "secret").write_bytes(b"x")
    (tmp_path / "x").write_bytes(b"x")
    for have in ([], [name]):
        result = host.offer([entry(name, b"x")], have)
        assert (codes(result), result["port"], result["have"]) == (["path_invalid"], 0, [])
    assert not host.note.exists()


def test_a_file_with_other_content_is_kept(tmp_path: Path) -> None:
    hosts = hosts_in(tmp_path, 2)
    files = make(hosts[0].folder, SIZES)
    other = tmp_path / "b/s2.parquet"
    other.write_bytes(b"mine")
    result = hosts[1].offer(files)
    assert (codes(result), result["port"]) == (["file_differs"], 0)
    assert str(other) in result["causes"][0]["what"]
    assert codes(hosts[1].offer(files, ["s2.parquet"])) == ["file_differs"]  # its size alone shows it
    (tmp_path / "b/s2.parquet.old").write_bytes(b"older")
    hosts[0].offer(files, names(files))
    assert hosts[1].offer(files, replace=["s2.parquet"])["causes"] == []
    result = hosts[1].until_done(offers_of(hosts, {"a": names(files)}))
    assert result["causes"] == []
    assert (tmp_path / "b/s2.parquet.old").read_bytes() == b"older"
    assert (tmp_path / "b/s2.parquet.old2").read_bytes() == b"mine"
    assert same(hosts, files)


def test_a_file_that_comes_meanwhile_is_kept(tmp_path: Path) -> None:
    hosts = hosts_in(tmp_path, 2)
    files = make(hosts[0].folder, SIZES)
    offers = offer_all(hosts, files, {"a": names(files)})
    (tmp_path / "b/s0.parquet").write_bytes(b"mine")
    result = hosts[1].until_done(offers)
    assert (result["state"], codes(result)) == ("failed", ["file_differs"])
    assert sorted(result["brought"]) == ["s1.parquet", "s2.parquet"]
    assert (tmp_path / "b/s0.parquet").read_bytes() == b"mine"


@contextlib.contextmanager
def small_disk(folder: Path, megabytes: int) -> Iterator[bool]:
    """A disk of that size at the folder, if this user can have one."""
    mount = ["mount", "-t", "tmpfs", "-o", f"size={megabytes}m", "none", str(folder)]
    mounted = os.geteuid() == 0 and subprocess.run(mount, capture_output=True, check=False).returncode == 0
    try:
        yield mounted
    finally:
        if mounted:
            subprocess.run(["umount", str(folder)], check=True)


def test_too_little_space(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source, host = hosts_in(tmp_path, 2)
    files = make(source.folder, SIZES)
    params = {"files": files, "have": [], "replace": [], "token": TOKEN, "address": "127.0.0.1"}
    with small_disk(host.folder, 8) as mounted:
        if not mounted:
            monkeypatch.setattr(share, "free_bytes", lambda _path: 8 * 2**20)
        result = share.offer({**params, "folder": str(host.folder)}, False)
        assert (codes(result), result["port"], result["missing_bytes"]) == (["disk_full"], 0, TOTAL)
        assert f"{host.folder} needs 19 MB" in result["causes"][0]["what"]
        assert "8 MB free" in result["causes"][0]["what"]
        assert list(host.folder.iterdir()) == []


def test_the_space_goes_to_somebody_else(tmp_path: Path) -> None:
    hosts = hosts_in(tmp_path, 2)
    files = make(hosts[0].folder, SIZES)
    with small_disk(hosts[1].folder, 24) as mounted:
        if not mounted:
            pytest.skip("only root can make a small disk")
        offers = offer_all(hosts, files, {"a": names(files)})
        filler = hosts[1].folder / "filler"
        filler.write_bytes(bytes(18 * 2**20))
        pid = hosts[1].pid()
        result = hosts[1].until_done(offers)
        assert (result["state"], codes(result)) == ("failed", ["disk_full"])
        assert f"writing in {hosts[1].folder} failed: No space left on device" in result["causes"][0]["what"]
        until_gone(pid)
        filler.unlink()
        offers = offer_all(hosts, files, {"a": names(files)})
        assert hosts[1].until_done(offers)["causes"] == []
        assert same(hosts, files)
        until(lambda: not hosts[1].note.exists())


def test_check_mode_starts_nothing(tmp_path: Path, home: Path) -> None:
    hosts = hosts_in(tmp_path, 2)
    files = make(hosts[0].folder, SIZES)
    params = {"files": files, "have": [], "replace": [], "token": TOKEN, "address": "127.0.0.1"}
    result = share.offer({**params, "folder": str(tmp_path / "b/new")}, True)
    assert (result["causes"], result["port"], result["missing"]) == ([], 0, names(files))
    offers = offers_of(hosts, {"a": names(files)})
    result = share.fetch({"self": "b", "offers": offers, "token": TOKEN, "wait_s": 0}, True)
    assert (result["changed"], result["brought"], result["state"]) == (True, names(files), "predicted")
    assert list(hosts[1].folder.iterdir()) == []
    assert list(home.iterdir()) == []


# ---- strangers ----


def raw(host: Host, request: bytes) -> bytes:
    with socket.create_connection((host.address, host.port), timeout=10) as connection:
        connection.sendall(request)
        return b"".join(iter(lambda: connection.recv(65536), b""))


def test_without_the_token_nothing_is_said(tmp_path: Path) -> None:
    (host,) = hosts_in(tmp_path, 1)
    files = make(host.folder, SIZES)
    offer_all([host], files, {"a": names(files)})
    forbidden = b"HTTP/1.1 403 Forbidden\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
    for line in (b"GET /0", b"GET /state", b"GET /../../etc/passwd", b"POST /peers", b"DELETE /0"):
        assert raw(host, line + b" HTTP/1.1\r\nRange: bytes=0-9\r\n\r\n") == forbidden
        assert raw(host, line + b" HTTP/1.1\r\nX-Torchlan-Token: " + b"0" * 32 + b"\r\n\r\n") == forbidden
    assert raw(host, b"SSH-2.0-x\r\n\r\n") == forbidden


def test_with_the_token_only_files_of_the_exchange_are_read(tmp_path: Path) -> None:
    (host,) = hosts_in(tmp_path, 1)
    files = make(host.folder, SIZES)
    (tmp_path / "a/other").write_bytes(b"secret")
    offer_all([host], files, {"a": names(files)})

    def status(path: str, span: str) -> int:
        connection = http.client.HTTPConnection(host.address, host.port, timeout=10)
        with contextlib.closing(connection):
            connection.request("GET", path, headers={"X-Torchlan-Token": TOKEN, "Range": span})
            return connection.getresponse().status

    assert status("/0", "bytes=5-9") == 206
    assert [status(path, "bytes=0-3") for path in ("/other", "/../a/other", "//etc/passwd", "/-1")] == [404] * 4
    assert [status("/0", span) for span in ("", "bytes=5-", "bytes=-5", "bytes=0-1,3-4")] == [416] * 4
    assert [status("/0", span) for span in ("bytes=9-5", f"bytes=0-{10 * MB}")] == [410] * 2
    assert status("/3", "bytes=0-3") == 410
    # A link that was put there later leads nowhere either.
    (tmp_path / "a/s2.parquet").unlink()
    (tmp_path / "a/s2.parquet").symlink_to("/etc/passwd")
    assert status("/2", "bytes=0-0") == 410


# ---- what breaks ----


def test_a_killed_agent_goes_on_where_it_was(tmp_path: Path) -> None:
    hosts = hosts_in(tmp_path, 2)
    source, host = hosts
    files = make(source.folder, {"s0.parquet": 80 * MB})
    offer_all(hosts, files, {"a": names(files)})
    with cable(source) as between:
        offers = offers_of(hosts, {"a": names(files)})
        offers["a"]["port"] = between.port
        between.limit = 50 * MB
        host.fetch(offers)
        assert between.held.wait(30)
        (saved,) = (host.folder / HIDDEN).glob("*.map")
        until(lambda: saved.read_bytes().count(1) >= 5)
        host.kill()
    result = host.offer(files)
    missing = result["missing_bytes"]
    assert 0 < missing <= 80 * MB - 5 * PIECE_BYTES
    source.offer(files, names(files))
    result = host.until_done(offers_of(hosts, {"a": names(files)}))
    assert (result["causes"], result["bytes_from"], source.state()["sent"]) == ([], {"a": missing}, missing)
    assert same(hosts, files)


def test_parts_of_files_that_nobody_wants_are_removed(tmp_path: Path) -> None:
    hosts = hosts_in(tmp_path, 2)
    hidden = hosts[1].folder / HIDDEN
    hidden.mkdir()
    for name in ("0-1.part", f"0-1.{PIECE_BYTES}.map"):
        (hidden / name).write_bytes(b"x")
    files = make(hosts[0].folder, SIZES)
    offers = offer_all(hosts, files, {"a": names(files)})
    assert [path.name for path in hidden.iterdir()] == ["lock"]
    assert hosts[1].until_done(offers)["causes"] == []
    assert same(hosts, files)


def test_a_connection_that_is_cut_in_a_piece(tmp_path: Path) -> None:
    hosts = hosts_in(tmp_path, 2)
    files = make(hosts[0].folder, {"s0.parquet": 40 * MB})
    offer_all(hosts, files, {"a": names(files)})
    with cable(hosts[0]) as between:
        offers = offers_of(hosts, {"a": names(files)})
        offers["a"]["port"] = between.port
        between.limit, between.cutting = 18 * MB, True
        result = hosts[1].until_done(offers)
        assert between.cuts == 1
    assert result["causes"] == []
    assert 40 * MB <= result["bytes_from"]["a"] <= 40 * MB + 2 * PIECE_BYTES
    assert same(hosts, files)


def test_the_piece_of_an_owner_that_is_dead_comes_from_elsewhere(tmp_path: Path) -> None:
    hosts = hosts_in(tmp_path, 3)
    files = make(hosts[0].folder, {"s0.parquet": 30 * MB})
    offers = offer_all(hosts, files, {"a": names(files)})
    hosts[2].kill()
    result = hosts[1].until_done(offers)
    assert (result["causes"], result["bytes_from"]) == ([], {"a": 30 * MB})


def test_a_silent_holder_is_left_for_another_one(tmp_path: Path) -> None:
    hosts = hosts_in(tmp_path, 3)
    files = make(hosts[0].folder, {"s0.parquet": 30 * MB})
    shutil.copy(tmp_path / "a/s0.parquet", tmp_path / "b/s0.parquet")
    offer_all(hosts, files, {"a": names(files), "b": names(files)}, stall=1)
    with cable(hosts[0]) as between:
        offers = offers_of(hosts, {"a": names(files), "b": names(files)})
        offers["a"]["port"] = between.port
        between.limit = 3 * MB
        result = hosts[2].until_done(offers)
        assert between.held.is_set()
    assert result["causes"] == []
    assert same(hosts, files)


def test_nobody_gives_anything(tmp_path: Path) -> None:
    hosts = hosts_in(tmp_path, 2)
    files = make(hosts[0].folder, SIZES)
    offers = offer_all(hosts, files, {"a": names(files)}, give_up=1)
    hosts[0].kill()
    pid = hosts[1].pid()
    result = hosts[1].until_done(offers)
    assert (result["state"], codes(result)) == ("failed", ["transfer_failed"])
    assert "a: ConnectionRefusedError" in result["causes"][0]["what"]
    assert result["causes"][0]["host"] == "b"
    hosts[0].note.unlink()
    hosts[0].offer(files, names(files))
    result = hosts[1].fetch(offers_of(hosts, {"a": names(files)}))
    assert result["state"] == "failed"  # the next exchange begins with an offer
    os.kill(pid, signal.SIGTERM)
    until_gone(pid)


def test_a_file_that_nobody_has(tmp_path: Path) -> None:
    hosts = hosts_in(tmp_path, 2)
    files = make(hosts[0].folder, SIZES)
    (tmp_path / "a/s2.parquet").unlink()
    offers = offer_all(hosts, files, {"a": names(files)[:2]})
    result = hosts[1].until_done(offers)
    assert (codes(result), sorted(result["brought"])) == (["transfer_failed"], names(files)[:2])
    assert "'s2.parquet' could not be fetched; no host" in result["causes"][0]["what"]


def test_a_file_cut_while_it_is_given_is_never_whole(tmp_path: Path) -> None:
    hosts = hosts_in(tmp_path, 2)
    files = make(hosts[0].folder, {"s0.parquet": 40 * MB})
    offer_all(hosts, files, {"a": names(files)})
    with cable(hosts[0]) as between:
        offers = offers_of(hosts, {"a": names(files)})
        offers["a"]["port"] = between.port
        between.limit = 10 * MB
        hosts[1].fetch(offers)
        assert between.held.wait(30)
        os.truncate(tmp_path / "a/s0.parquet", 11 * MB)
        between.release()
        result = hosts[1].until_done(offers)
    assert (result["state"], codes(result), result["brought"]) == ("failed", ["transfer_failed"], [])
    assert f"a: 's0.parquet' has {11 * MB} bytes, not {40 * MB}" in result["causes"][0]["what"]
    assert not (tmp_path / "b/s0.parquet").exists()


def flip(path: Path, at: int) -> None:
    with path.open("r+b") as file:
        file.seek(at)
        byte = file.read(1)[0]
        file.seek(at)
        file.write(bytes([byte ^ 1]))


def test_a_flipped_byte_is_found_and_named(tmp_path: Path) -> None:
    hosts = hosts_in(tmp_path, 3)
    files = make(hosts[0].folder, SIZES)
    flip(tmp_path / "a/s0.parquet", 7 * MB)
    wrong = entry("s0.parquet", (tmp_path / "a/s0.parquet").read_bytes())["sha256"]
    offers = offer_all(hosts, files, {"a": names(files)})
    for host in hosts[1:]:
        result = host.until_done(offers)
        assert (result["state"], codes(result)) == ("failed", ["content_differs"])
        what = result["causes"][0]["what"]
        assert "'s0.parquet' from a has" in what and wrong in what and files[0]["sha256"] in what
        assert sorted(result["brought"]) == names(files)[1:]
        assert not (host.folder / "s0.parquet").exists()
    assert result["bytes_from"]["a"] >= 10 * MB  # once more, all of it from there


def test_a_flipped_byte_at_one_of_two_holders_is_made_good(tmp_path: Path) -> None:
    hosts = hosts_in(tmp_path, 4)
    files = make(hosts[0].folder, {"s0.parquet": 30 * MB})
    shutil.copy(tmp_path / "a/s0.parquet", tmp_path / "b/s0.parquet")
    for at in range(0, 30 * MB, PIECE_BYTES // 2):
        flip(tmp_path / "b/s0.parquet", at)
    offers = offer_all(hosts, files, {"a": names(files), "b": names(files)})
    assert [host.until_done(offers)["causes"] for host in hosts[2:]] == [[], []]
    assert same([hosts[0], *hosts[2:]], files)


# ---- the end ----


def test_a_new_offer_ends_the_old_agent_and_only_that(tmp_path: Path) -> None:
    one, two = hosts_in(tmp_path, 2)
    files = make(one.folder, SIZES)
    offer_all([one, two], files, {"a": names(files)})
    before = one.pid(), two.pid()
    offer_all([one, two], files, {"a": names(files)})
    assert not any(alive(pid) for pid in before)
    kept = two.pid()
    # A note of a process that has another start time is not believed.
    stranger = subprocess.Popen(["sleep", "60"])
    try:
        pid = one.pid()
        note = one.note.read_text()
        one.note.write_text(note.replace(str(pid), str(stranger.pid), 1))
        offer_all([one], files, {"a": names(files)})
        assert stranger.poll() is None and alive(pid) and alive(kept)
        os.kill(pid, signal.SIGTERM)
        until_gone(pid)
    finally:
        stranger.kill()
        stranger.wait()


def test_agents_that_nobody_needs_end_by_themselves(tmp_path: Path) -> None:
    hosts = hosts_in(tmp_path, 3)
    files = make(hosts[0].folder, SIZES)
    offers = offer_all(hosts, files, {"a": names(files)}, idle=0.5, controller=20)
    pids = [host.pid() for host in hosts]
    hosts[2].kill()  # it never says that it is done
    assert [host.until_done(offers)["causes"] for host in hosts[:2]] == [[], []]
    assert gone(hosts[:2], pids)
    # Nobody tells this one who the others are.
    offer_all(hosts[:1], files, {"a": names(files)}, controller=0.5)
    until(lambda: not hosts[0].note.exists())


def test_a_folder_in_use_by_an_unknown_process(tmp_path: Path) -> None:
    hosts = hosts_in(tmp_path, 2)
    files = make(hosts[0].folder, SIZES)
    offer_all(hosts, files, {"a": names(files)})
    pid = hosts[1].pid()
    note = hosts[1].note.read_text()
    hosts[1].note.unlink()  # as if it were another host's, which shares the folder
    result = hosts[1].offer(files)
    assert (codes(result), result["port"]) == (["transfer_failed"], 0)
    assert "another process" in result["causes"][0]["what"]
    assert alive(pid)
    hosts[1].note.write_text(note)


def test_an_agent_holds_nothing_of_the_module(tmp_path: Path) -> None:
    (host,) = hosts_in(tmp_path, 1)
    files = make(host.folder, SIZES)
    offer_all([host], files, {"a": names(files)})
    process = Path(f"/proc/{host.pid()}")
    open_files = {os.readlink(path) for path in (process / "fd").iterdir()}
    assert {name for name in open_files if not name.startswith("socket:")} == {os.devnull}
    assert os.readlink(process / "cwd") == "/"
    assert os.getsid(int(process.name)) != os.getsid(0)
    assert (process / "comm").read_text() == "torchlan-share\n"


def test_an_address_of_another_host(tmp_path: Path) -> None:
    host = Host("a", tmp_path, "192.0.2.200")
    result = host.offer([entry("x", b"x")])
    assert (codes(result), result["port"]) == (["transfer_failed"], 0)
    assert "192.0.2.200" in result["causes"][0]["what"]
    assert not host.note.exists()
    assert not (tmp_path / HIDDEN).exists()


def test_a_dead_peer_is_not_asked_in_a_hot_loop(tmp_path: Path) -> None:
    (host,) = hosts_in(tmp_path, 1)
    files = [entry("x", b"x")]
    host.offer(files, give_up=1.5)
    attempts: list[Any] = []
    with socket.create_server(("127.0.0.1", 0)) as rude:

        def refuse() -> None:
            with contextlib.suppress(OSError):
                while True:
                    connection, peer = rude.accept()
                    attempts.append(peer)
                    connection.close()

        threading.Thread(target=refuse, daemon=True).start()
        offers = offers_of([host], {})
        offers["b"] = {"address": "127.0.0.1", "port": rude.getsockname()[1], "have": ["x"]}
        assert codes(host.until_done(offers)) == ["transfer_failed"]
        assert 2 <= len(attempts) <= 20


def test_link_says_what_the_agent_answers(tmp_path: Path) -> None:
    (host,) = hosts_in(tmp_path, 1)
    offer_all([host], make(host.folder, SIZES), {"a": list(SIZES)})
    with (
        contextlib.closing(Link(host.address, host.port, "f" * 32, 5)) as link,
        pytest.raises(ConnectionError, match="403"),
    ):
        link.ask("GET", "/state")
