# Copyright (c) 2026, torchlan contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Shards and tokenizers: what is missing, what arrived damaged, what belongs to a user."""

from __future__ import annotations

import base64
import functools
import hashlib
import http.server
import json
import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import software

from ansible_collections.torchlan.nanochat.plugins.modules import dataset
from ansible_collections.torchlan.nanochat.plugins.plugin_utils import shards

TOK_TRAIN = """
import json, os, pathlib, sys
import nanochat.dataset as dataset
folder = pathlib.Path(os.environ["NANOCHAT_BASE_DIR"], "tokenizer")
folder.mkdir(parents=True)
names = sorted(name for name in os.listdir(dataset.DATA_DIR) if name.endswith(".parquet"))
text = json.dumps([sys.argv[1:], names, os.environ.get("ODD")])
(folder / "tokenizer.pkl").write_text(text)
if "--die" in sys.argv:
    sys.exit("MemoryError: too much")
(folder / "token_bytes.pt").write_text("tensor")
"""


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "home"
    folder.mkdir()
    monkeypatch.setenv("HOME", str(folder))
    return folder


@pytest.fixture()
def base(tmp_path: Path) -> Path:
    return tmp_path / "ba se"


@pytest.fixture()
def own(tmp_path: Path) -> Path:
    """The folder on the controller."""
    folder = software.write_shards(tmp_path / "my shards")
    (folder / "it's $(touch pwned) [x].parquet").write_text("odd\n", encoding="utf-8")
    return folder


@pytest.fixture()
def checkout(tmp_path: Path) -> Path:
    """As much of nanochat as the master's programs are; the real outer shape is in tests/fixtures/minichat."""
    folder = tmp_path / "nano chat"
    (folder / "scripts").mkdir(parents=True)
    (folder / "nanochat").mkdir()
    (folder / "nanochat" / "__init__.py").write_text("", encoding="utf-8")
    (folder / "scripts" / "__init__.py").write_text("", encoding="utf-8")
    (folder / "nanochat" / "common.py").write_text(
        'import os\ndef get_base_dir():\n    return os.environ["NANOCHAT_BASE_DIR"]\n', encoding="utf-8"
    )
    shutil.copy(software.MINICHAT / "nanochat" / "dataset.py", folder / "nanochat")
    (folder / "scripts" / "tok_train.py").write_text(TOK_TRAIN, encoding="utf-8")
    return folder


def do(base: Path, step: str, check_mode: bool = False, **more: Any) -> dict[str, Any]:
    given: dict[str, Any] = {
        "base_dir": str(base), "step": step, "files": [], "python": sys.executable, "shards": 0, "tokenizer_args": [],
    }  # fmt: skip
    return dataset.Dataset({**given, **more}, check_mode).do()


def codes(result: dict[str, Any]) -> list[str]:
    return [entry["code"] for entry in result["causes"]]


def copied(own: Path, found: dict[str, Any], manifest: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """What the action does with what is missing."""
    files = []
    for index, entry in enumerate(entry for entry in manifest if entry["name"] in found["missing"]):
        path = Path(found["folder"], f".torchlan-x-{index}.part")
        shutil.copy(own / entry["name"], path)
        files.append({**entry, "path": str(path)})
    return files


def bring(own: Path, base: Path, **more: Any) -> dict[str, Any]:
    manifest = shards.manifest(str(own))
    found = do(base, "look", manifest=manifest, parts=".torchlan-x-", **more)
    if codes(found) or not found["missing"]:
        return found
    return do(base, "receive", manifest=manifest, files=copied(own, found, manifest), **more)


def test_the_manifest_is_remembered_by_size_and_time(own: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = shards.manifest(str(own))
    assert [entry["name"] for entry in first] == sorted(path.name for path in own.iterdir())
    assert first[-1]["sha256"] == hashlib.sha256((own / first[-1]["name"]).read_bytes()).hexdigest()
    monkeypatch.setattr(shards, "sha256_file", lambda path: f"new {os.path.basename(path)}")
    assert shards.manifest(str(own)) == first
    (own / first[-1]["name"]).write_text("changed", encoding="utf-8")
    assert [entry["sha256"] for entry in shards.manifest(str(own))][-1] == f"new {first[-1]['name']}"


@pytest.mark.parametrize("kind", ["missing", "one", "line break"])
def test_a_folder_that_nanochat_could_not_train_from_is_refused(kind: str, own: Path, tmp_path: Path) -> None:
    folder = tmp_path / "other"
    if kind != "missing":
        software.write_shards(folder, count=1)
    if kind == "line break":
        (folder / "a\nb.parquet").write_text("", encoding="utf-8")
    with pytest.raises(shards.ShardsError) as caught:
        shards.manifest(str(folder))
    assert caught.value.cause["code"] == "data_missing"


def test_only_what_is_missing_or_differs_is_sent(own: Path, base: Path) -> None:
    manifest = shards.manifest(str(own))
    predicted = do(base, "look", check_mode=True, manifest=manifest)
    assert len(predicted["missing"]) == 4 and not base.exists()
    first = bring(own, base)
    assert (first["changed"], codes(first), len(first["shards"])) == (True, [], 4)
    folder = base / "base_data_climbmix"
    assert first["folder"] == str(folder)
    assert sorted(path.name for path in folder.iterdir()) == sorted(path.name for path in own.iterdir())
    again = bring(own, base)
    assert (again["changed"], again["missing"], again["actions"]) == (False, [], [])
    # same size, other content; shorter; gone
    names = [entry["name"] for entry in manifest]
    text = (folder / names[1]).read_text(encoding="utf-8")
    (folder / names[1]).write_text(text.replace("cats", "dogs"), encoding="utf-8")
    (folder / names[2]).write_text(text[:100], encoding="utf-8")
    (folder / names[3]).unlink()
    assert do(base, "look", manifest=manifest)["missing"] == names[1:]
    assert bring(own, base)["actions"] == ["copied 3 shard(s)"]
    assert all((folder / name).read_bytes() == (own / name).read_bytes() for name in names)
    assert not list(base.parent.rglob("pwned"))


def test_a_digest_is_computed_once(own: Path, base: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bring(own, base)
    do(base, "look", manifest=shards.manifest(str(own)))
    monkeypatch.setattr(dataset, "sha256_file", lambda path: pytest.fail(f"{path} is read again"))
    assert do(base, "look", manifest=shards.manifest(str(own)))["missing"] == []


@pytest.mark.parametrize("damage", ["short", "flipped", "gone", "empty"])
@pytest.mark.parametrize("elsewhere", [False, True], ids=["beside", "elsewhere"])
def test_a_damaged_file_is_never_taken_for_whole(
    damage: str, elsewhere: bool, own: Path, base: Path, tmp_path: Path
) -> None:
    manifest = shards.manifest(str(own))
    found = do(base, "look", manifest=manifest, parts=".torchlan-x-")
    files = copied(own, found, manifest)
    if elsewhere:
        for entry in files:
            entry["path"] = shutil.move(entry["path"], tmp_path)
    path = Path(files[0]["path"])
    content = path.read_bytes()
    path.write_bytes({"short": content[:-1], "flipped": b"?" + content[1:], "empty": b""}.get(damage, content))
    if damage == "gone":
        path.unlink()
    result = do(base, "receive", manifest=manifest, files=files)
    assert codes(result) == ["data_missing"]
    assert len(result["shards"]) == 3, "the others are whole"
    assert not (Path(found["folder"]) / manifest[0]["name"]).exists()
    assert not [name for name in os.listdir(found["folder"]) if name.startswith(".")]
    assert bring(own, base)["actions"] == ["copied 1 shard(s)"]


def test_a_broken_transfer_s_leftovers_are_removed_and_never_listed(own: Path, base: Path) -> None:
    found = do(base, "look", manifest=shards.manifest(str(own)), parts=".torchlan-x-")
    (Path(found["folder"]) / ".torchlan-x-0.part").write_text("half", encoding="utf-8")
    (Path(found["folder"]) / ".torchlan-y-0.part").write_text("another host's", encoding="utf-8")
    assert do(base, "look")["shards"] == []
    do(base, "look", manifest=shards.manifest(str(own)), parts=".torchlan-x-")
    assert os.listdir(found["folder"]) == [".torchlan-y-0.part"]


def test_extra_shards_are_named_and_stay(own: Path, base: Path) -> None:
    folder = software.write_shards(base / "base_data_climbmix", count=5)
    result = bring(own, base)
    assert (codes(result), result["changed"]) == (["dataset_extra"], False)
    assert "shard_00003.parquet, shard_00004.parquet" in result["causes"][0]["what"]
    assert len(list(folder.iterdir())) == 5


def test_another_data_folder_and_the_older_one_of_nanochat(own: Path, base: Path, tmp_path: Path) -> None:
    assert bring(own, base, data_dir=str(tmp_path / "disk 2" / "data"))["changed"]
    assert len(os.listdir(tmp_path / "disk 2" / "data")) == 4
    software.write_shards(base / "base_data", count=2)
    assert do(base, "look")["folder"] == str(base / "base_data"), "nanochat falls back to it"
    assert bring(own, base)["folder"] == str(base / "base_data_climbmix"), "and it is not mixed with other data"


def test_a_folder_that_cannot_be_used_is_a_cause(own: Path, base: Path) -> None:
    base.write_text("a file", encoding="utf-8")
    assert codes(bring(own, base)) == ["path_invalid"]


def prepare(base: Path, checkout: Path, check_mode: bool = False, **more: Any) -> dict[str, Any]:
    return do(base, "prepare", check_mode, checkout=str(checkout), **more)


def tokenizer(base: Path) -> Any:
    return json.loads((base / "tokenizer" / "tokenizer.pkl").read_text(encoding="utf-8"))


def test_the_tokenizer_is_trained_once_from_the_right_folder(base: Path, checkout: Path, tmp_path: Path) -> None:
    data_dir = software.write_shards(tmp_path / "elsewhere")
    arguments = ["--vocab-size=512", "--odd=$(touch pwned) \"'\n"]
    more = {"data_dir": str(data_dir), "tokenizer_args": arguments, "env": json.dumps({"ODD": "a b\n$(touch pwned)"})}
    assert prepare(base, checkout, check_mode=True, **more)["actions"] == ["trained the tokenizer"]
    assert not base.exists()
    first = prepare(base, checkout, **more)
    assert (first["actions"], codes(first)) == (["trained the tokenizer"], [])
    assert tokenizer(base) == [arguments, sorted(os.listdir(data_dir)), "a b\n$(touch pwned)"]
    assert sorted(os.listdir(base)) == ["tokenizer"], "no working folder is left"
    again = prepare(base, checkout, data_dir=str(data_dir), tokenizer_args=["--vocab-size=9"])
    assert (again["changed"], again["tokenizer"]) == (False, first["tokenizer"])
    assert not list(tmp_path.rglob("pwned"))


def test_a_tokenizer_that_broke_off_leaves_nothing(base: Path, checkout: Path) -> None:
    software.write_shards(base / "base_data_climbmix")
    failed = prepare(base, checkout, tokenizer_args=["--die"])
    assert (codes(failed), failed["changed"]) == (["tokenizer_missing"], False)
    assert "MemoryError: too much" in failed["causes"][0]["what"]
    assert sorted(os.listdir(base)) == ["base_data_climbmix"]
    # half a tokenizer that somebody else's attempt left is kept, under another name
    (base / "tokenizer").mkdir()
    (base / "tokenizer" / "tokenizer.pkl").write_text("half", encoding="utf-8")
    assert prepare(base, checkout)["changed"]
    assert sorted(os.listdir(base / "tokenizer")) == ["token_bytes.pt", "tokenizer.pkl", "tokenizer.pkl.old"]


def test_without_shards_checkout_or_python_the_cause_says_so(base: Path, checkout: Path, tmp_path: Path) -> None:
    assert codes(prepare(base, checkout)) == ["data_missing"]
    software.write_shards(base / "base_data_climbmix")
    assert codes(prepare(base, tmp_path / "nothing")) == ["tokenizer_missing"]
    assert codes(prepare(base, checkout, python="/no/python")) == ["environment_missing"]


@pytest.fixture()
def server(tmp_path: Path) -> Iterator[str]:
    folder = software.write_shards(tmp_path / "served" / "shards")
    (folder / "shard_00099.parquet").write_text('{"text": "validation"}\n', encoding="utf-8")

    class Handler(http.server.SimpleHTTPRequestHandler):
        def log_message(self, *_args: Any) -> None:
            pass

    handler = functools.partial(Handler, directory=str(folder.parent))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as serving:
        thread = threading.Thread(target=serving.serve_forever, daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{serving.server_port}/shards"
        serving.shutdown()


@pytest.mark.parametrize("place", ["nanochat's own", "another"])
def test_nanochat_s_downloader_gets_what_is_missing(
    place: str, base: Path, checkout: Path, server: str, tmp_path: Path
) -> None:
    more: dict[str, Any] = {"shards": 2, "env": json.dumps({"MINICHAT_URL": server, "no_proxy": "*"})}
    folder = base / "base_data_climbmix"
    if place == "another":
        folder = tmp_path / "disk 2"
        more["data_dir"] = str(folder)
    first = prepare(base, checkout, **more)
    assert (first["actions"], codes(first)) == (["downloaded shards", "trained the tokenizer"], [])
    assert sorted(os.listdir(folder)) == ["shard_00000.parquet", "shard_00001.parquet", "shard_00099.parquet"]
    assert not prepare(base, checkout, **more)["changed"]
    assert prepare(base, checkout, **{**more, "shards": 3})["actions"] == ["downloaded shards"]
    failed = prepare(base, checkout, **{**more, "shards": 5})
    assert codes(failed) == ["data_missing"]
    assert "4 of 6 shards" in failed["causes"][0]["what"] and "404" in failed["causes"][0]["what"]


@pytest.mark.parametrize(
    "names", [("a", "b"), ("shard_00000", "shard_00001", "shard_00002"), ("shard_00003", "shard_00099")]
)
def test_a_folder_with_a_user_s_own_shards_is_not_added_to(names: tuple[str, ...], base: Path, checkout: Path) -> None:
    folder = base / "base_data_climbmix"
    folder.mkdir(parents=True)
    for name in names:
        (folder / f"{name}.parquet").write_text('{"text": "x"}\n', encoding="utf-8")
    assert prepare(base, checkout, shards=8)["actions"] == ["trained the tokenizer"]
    assert len(os.listdir(folder)) == len(names)


def test_the_tokenizer_is_copied_byte_for_byte(base: Path, checkout: Path, tmp_path: Path) -> None:
    software.write_shards(base / "base_data_climbmix")
    digests = prepare(base, checkout)["tokenizer"]
    content = {name: base64.b64decode(text) for name, text in do(base, "read")["content"].items()}
    assert shards.kept_tokenizer(digests) is None
    with pytest.raises(ValueError, match="changed while"):
        shards.keep_tokenizer(digests, {**content, "token_bytes.pt": b"other"})
    shards.keep_tokenizer(digests, content)
    paths = shards.kept_tokenizer(digests)
    assert paths is not None

    def files(folder: Path) -> list[dict[str, Any]]:
        folder.mkdir()
        return [
            {"name": name, "path": shutil.copy(path, folder), "size": os.path.getsize(path), "sha256": digests[name]}
            for name, path in paths.items()
        ]

    other = tmp_path / "other base"
    assert do(other, "write", check_mode=True, tokenizer=digests)["actions"] == ["copied the tokenizer"]
    assert do(other, "write", tokenizer=digests)["needs_tokenizer"] and not other.exists()
    damaged = files(tmp_path / "one")
    Path(damaged[0]["path"]).write_bytes(b"x" * damaged[0]["size"])
    assert codes(do(other, "write", tokenizer=digests, files=damaged)) == ["tokenizer_missing"]
    assert do(other, "write", tokenizer=digests)["needs_tokenizer"]
    done = do(other, "write", tokenizer=digests, files=files(tmp_path / "two"))
    assert (done["actions"], done["tokenizer"]) == (["copied the tokenizer"], digests)
    assert not do(other, "write", tokenizer=digests)["changed"]
    # the controller's copy is checked before it is sent
    Path(paths["tokenizer.pkl"]).write_bytes(b"rotten")
    assert shards.kept_tokenizer(digests) is None


@pytest.mark.parametrize("name", dataset.TOKENIZER_FILES)
def test_another_tokenizer_is_named_and_stays(name: str, base: Path) -> None:
    (base / "tokenizer").mkdir(parents=True)
    (base / "tokenizer" / name).write_text("mine", encoding="utf-8")
    result = do(base, "write", tokenizer=dict.fromkeys(dataset.TOKENIZER_FILES, "f" * 64))
    assert (codes(result), result["changed"]) == (["tokenizer_differs"], False)
    what = result["causes"][0]["what"]
    assert hashlib.sha256(b"mine").hexdigest()[:12] in what and "f" * 12 in what
    assert (base / "tokenizer" / name).read_text(encoding="utf-8") == "mine"


def test_differences_between_hosts_in_words() -> None:
    mine, theirs = [["a", 1], ["b", 2]], [["a", 1], ["b", 3], ["c", 1]]
    assert shards.difference(mine, mine) is None
    assert shards.difference(mine, theirs) == "2 shards here, 3 on the master; b: 2 bytes here, 3 bytes there"
    assert shards.difference([], mine) == "0 shards here, 2 on the master; a: missing here, 1 bytes there"


@pytest.mark.parametrize(("words", "expected"), [((), ["run_in_progress"]), (("torchlan_smoke",), [])])
def test_a_run_that_reads_this_data_is_not_disturbed(
    words: tuple[str, ...], expected: list[str], own: Path, base: Path
) -> None:
    env = {**os.environ, "TORCHLAN_RUN_DIR": str(base / "runs/trial/attempts/20260101-000000/node-0")}
    env["NANOCHAT_BASE_DIR"] = str(base)
    command = [sys.executable, "-c", "print('up', flush=True); import time; time.sleep(60)", *words]
    with subprocess.Popen(command, env=env, stdout=subprocess.PIPE) as process:
        try:
            assert process.stdout is not None and process.stdout.readline()
            assert codes(bring(own, base)) == expected
        finally:
            process.kill()
    assert codes(bring(own, base)) == []
