# Copyright (c) 2026, torchlan contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Steps of the module: what is here, what arrived damaged, what belongs to a user, what nanochat makes."""

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

from ansible_collections.torchlan.nanochat.plugins.module_utils import manifest
from ansible_collections.torchlan.nanochat.plugins.module_utils.data_host import TOKENIZER_FILES, DataHost, keep_old
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
        "checkout": "/nowhere",
    }  # fmt: skip
    return dataset.do(DataHost({**given, **more}, check_mode))


def codes(result: dict[str, Any]) -> list[str]:
    return [entry["code"] for entry in result["causes"]]


def listed(result: dict[str, Any]) -> list[str]:
    return [entry["name"] for entry in result["files"]]


def copied(own: Path, folder: Path, names: list[str] | None = None) -> list[dict[str, Any]]:
    """What the action does with what is to be sent."""
    files = []
    for index, entry in enumerate(shards.manifest(str(own))):
        if names is None or entry["name"] in names:
            path = folder / f".torchlan-x-{index}.part"
            shutil.copy(own / entry["name"], path)
            files.append({**entry, "path": str(path)})
    return files


def bring(own: Path, base: Path, names: list[str] | None = None, **more: Any) -> dict[str, Any]:
    given = {"own_shards": True, "parts": ".torchlan-x-", **more}
    found = do(base, "ready", **given)
    if codes(found):
        return found
    return do(base, "receive", files=copied(own, Path(found["folder"]), names), **given)


# ---- the controller's own folder ----


def test_the_controller_reads_its_folder_once(own: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert shards.known_digest(str(own)) == "not read yet"
    said: list[str] = []
    first = shards.manifest(str(own), say=said.append)
    assert [entry["name"] for entry in first] == sorted(path.name for path in own.iterdir()) and len(said) == 4
    assert first[-1]["sha256"] == hashlib.sha256((own / first[-1]["name"]).read_bytes()).hexdigest()
    known = shards.known_digest(str(own))
    assert known is not None and len(known) == 64
    monkeypatch.setattr(manifest, "read", lambda path: pytest.fail(f"{path} is read again"))
    assert shards.manifest(str(own)) == first
    monkeypatch.undo()
    (own / first[-1]["name"]).write_text("changed", encoding="utf-8")
    assert shards.known_digest(str(own)) == "not read yet"
    assert shards.known_digest(str(own / "nothing")) is None


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


# ---- shards of a host ----


def test_a_look_reads_once_and_predicts_without_reading(own: Path, base: Path) -> None:
    folder = software.write_shards(base / "base_data_climbmix")
    predicted = do(base, "look", check_mode=True)
    assert [entry["sha256"] for entry in predicted["files"]] == [None] * 3
    assert os.listdir(base) == ["base_data_climbmix"], "nothing is written"
    found = do(base, "look")
    assert (found["changed"], found["causes"], found["busy"], found["folder"]) == (False, [], [], str(folder))
    assert [entry["sha256"] for entry in found["files"]] == [
        hashlib.sha256(path.read_bytes()).hexdigest() for path in sorted(folder.iterdir())
    ]
    assert found["free_bytes"] > 0 and found["folder_id"] == do(base, "look")["folder_id"]
    assert do(base, "look", check_mode=True)["files"] == found["files"], "it is remembered"


def test_what_was_copied_is_taken_and_remembered(own: Path, base: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = bring(own, base)
    assert (first["changed"], codes(first), first["actions"]) == (True, [], ["copied 4 shard(s)"])
    folder = base / "base_data_climbmix"
    assert first["folder"] == str(folder)
    assert sorted(path.name for path in folder.iterdir()) == sorted(path.name for path in own.iterdir())
    monkeypatch.setattr(manifest, "read", lambda path: pytest.fail(f"{path} is read again"))
    assert do(base, "look")["files"] == shards.manifest(str(own))
    assert not list(base.parent.rglob("pwned"))


def test_what_is_replaced_is_kept(own: Path, base: Path) -> None:
    bring(own, base)
    folder = base / "base_data_climbmix"
    name = shards.manifest(str(own))[1]["name"]
    for text in ("mine", "mine again"):
        (folder / name).write_text(text, encoding="utf-8")
        assert bring(own, base, [name])["actions"] == ["copied 1 shard(s)"]
        assert (folder / name).read_bytes() == (own / name).read_bytes()
    assert [(folder / (name + end)).read_text() for end in (".old", ".old2")] == ["mine", "mine again"]
    assert len(do(base, "look")["files"]) == 4, "nanochat does not read what is kept"


@pytest.mark.parametrize("damage", ["short", "flipped", "gone", "empty"])
@pytest.mark.parametrize("elsewhere", [False, True], ids=["beside", "elsewhere"])
def test_a_damaged_file_is_never_taken_for_whole(
    damage: str, elsewhere: bool, own: Path, base: Path, tmp_path: Path
) -> None:
    folder = Path(do(base, "ready", own_shards=True)["folder"])
    files = copied(own, folder)
    if elsewhere:
        for entry in files:
            entry["path"] = shutil.move(entry["path"], tmp_path)
    path = Path(files[0]["path"])
    content = path.read_bytes()
    path.write_bytes({"short": content[:-1], "flipped": b"?" + content[1:], "empty": b""}.get(damage, content))
    if damage == "gone":
        path.unlink()
    (folder / files[0]["name"]).write_text("what was there", encoding="utf-8")
    result = do(base, "receive", files=files)
    assert codes(result) == ["data_missing"]
    assert (folder / files[0]["name"]).read_text(encoding="utf-8") == "what was there"
    assert not [name for name in os.listdir(folder) if name.startswith(".") or name.endswith(".old")]
    assert len(do(base, "look")["files"]) == 4, "the others are whole"
    assert bring(own, base, [files[0]["name"]])["actions"] == ["copied 1 shard(s)"]


def test_a_broken_transfer_s_leftovers_are_removed_and_never_listed(base: Path) -> None:
    folder = Path(do(base, "ready", parts=".torchlan-x-")["folder"])
    (folder / ".torchlan-x-0.part").write_text("half", encoding="utf-8")
    (folder / ".torchlan-y-0.part").write_text("another host's", encoding="utf-8")
    assert do(base, "look")["files"] == []
    do(base, "ready", parts=".torchlan-x-")
    assert os.listdir(folder) == [".torchlan-y-0.part"]


def test_files_are_set_aside_and_not_deleted(base: Path) -> None:
    folder = software.write_shards(base / "base_data_climbmix", count=5)
    names = ["shard_00003.parquet", "shard_00004.parquet"]
    assert do(base, "ready", aside=names)["actions"] == [f"set {name} aside" for name in names]
    assert sorted(os.listdir(folder / ".torchlan-aside")) == names
    assert len(listed(do(base, "look"))) == 3
    software.write_shards(folder, count=4)
    assert do(base, "ready", aside=names[:1])["changed"]
    assert sorted(os.listdir(folder / ".torchlan-aside")) == [names[0], f"{names[0]}.old", names[1]]


def test_what_another_module_brought_is_remembered(base: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = software.write_shards(base / "base_data_climbmix")
    sizes = {path.name: path.stat().st_size for path in folder.iterdir()}
    files = [{"name": name, "size": size, "sha256": "f" * 64} for name, size in sorted(sizes.items())]
    files[1]["size"] = 7
    assert not do(base, "remember", files=files)["changed"]
    assert [one.sha256 for one in manifest.remembered(str(base), str(folder))] == ["f" * 64, None, "f" * 64]


def test_another_data_folder_and_the_older_one_of_nanochat(own: Path, base: Path, tmp_path: Path) -> None:
    assert bring(own, base, data_dir=str(tmp_path / "disk 2" / "data"))["changed"]
    assert len(os.listdir(tmp_path / "disk 2" / "data")) == 4
    software.write_shards(base / "base_data", count=2)
    assert do(base, "look")["folder"] == str(base / "base_data"), "nanochat falls back to it"
    assert bring(own, base)["folder"] == str(base / "base_data_climbmix"), "and it is not mixed with other data"


def test_what_cannot_be_used_is_a_cause(own: Path, base: Path, tmp_path: Path) -> None:
    folder = software.write_shards(base / "base_data_climbmix")
    (folder / "a\nb.parquet").write_text("", encoding="utf-8")
    assert codes(do(base, "look")) == ["path_invalid"]
    base = tmp_path / "file"
    base.write_text("a file", encoding="utf-8")
    assert codes(bring(own, base)) == ["path_invalid"]


def test_a_second_name_for_what_is_replaced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place = tmp_path / "a"
    assert keep_old(str(place)) is None

    def link(*_args: Any, **_more: Any) -> None:
        raise OSError("no links here")

    monkeypatch.setattr(os, "link", link)
    for expected in ("a.old", "a.old2"):
        place.write_text("x", encoding="utf-8")
        assert keep_old(str(place)) == expected
    assert not place.exists() and (tmp_path / "a.old2").exists()


# ---- more row groups ----

FAKE_ARROW = """
import os, shutil, sys
class Metadata:
    num_rows, num_row_groups = 100, 9
    def row_group(self, _number): return self
    def column(self, _number): return self
    compression = "ZSTD"
class ParquetFile:
    schema_arrow = None
    def __init__(self, path): self.path, self.metadata = path, Metadata()
    def read(self): return self.path
class ParquetWriter:
    def __init__(self, path, schema, compression): self.path = path
    def __enter__(self): return self
    def __exit__(self, *_why): pass
    def write_table(self, path, row_group_size):
        if row_group_size == 25: raise SystemExit("no memory")
        open(self.path, "w").write("%s in groups of %d" % (os.path.basename(path), row_group_size))
"""


@pytest.fixture()
def arrow(checkout: Path) -> Path:
    """A pyarrow in the folder where nanochat's programs run, which says what it was asked for."""
    (checkout / "pyarrow").mkdir()
    (checkout / "pyarrow" / "__init__.py").write_text("", encoding="utf-8")
    (checkout / "pyarrow" / "parquet.py").write_text(FAKE_ARROW, encoding="utf-8")
    return checkout


def test_a_file_is_rewritten_and_the_old_one_kept(base: Path, arrow: Path) -> None:
    folder = software.write_shards(base / "base_data_climbmix")
    name = "shard_00002.parquet"
    (folder / ".torchlan-rewritten-x.part").write_text("of a call that was ended", encoding="utf-8")
    more = {"names": [name], "row_groups": 8, "checkout": str(arrow)}
    assert do(base, "rewrite", check_mode=True, **more)["changed"] and len(os.listdir(folder)) == 4
    before = (folder / name).read_bytes()
    assert do(base, "rewrite", **more)["actions"] == [f"rewrote {name} into 8 or more row groups"]
    assert (folder / name).read_text(encoding="utf-8") == f"{name} in groups of 12"
    assert (folder / f"{name}.old").read_bytes() == before and len(os.listdir(folder)) == 4
    failed = do(base, "rewrite", **{**more, "row_groups": 4})
    assert (codes(failed), "no memory" in failed["causes"][0]["what"]) == (["row_groups_few"], True)
    assert len(os.listdir(folder)) == 4
    failed = do(base, "rewrite", **{**more, "row_groups": 101})
    assert "100 rows for 101 ranks" in failed["causes"][0]["what"]
    assert codes(do(base, "rewrite", **{**more, "checkout": "/nowhere"})) == ["row_groups_few"]


# ---- what nanochat makes on the master ----


def prepare(base: Path, checkout: Path, check_mode: bool = False, **more: Any) -> dict[str, Any]:
    """Download, then train, as on the master."""
    given = {"checkout": str(checkout), **more}
    first = do(base, "download", check_mode, **given)
    if codes(first):
        return first
    second = do(base, "train", check_mode, **given)
    return {**second, "actions": first["actions"] + second["actions"], "changed": first["changed"] or second["changed"]}


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
    (base / ".torchlan-tokenizer-x").mkdir()  # of a training that was ended from outside
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


@pytest.mark.parametrize("name", TOKENIZER_FILES)
def test_another_tokenizer_is_named_and_stays(name: str, base: Path) -> None:
    (base / "tokenizer").mkdir(parents=True)
    (base / "tokenizer" / name).write_text("mine", encoding="utf-8")
    result = do(base, "write", tokenizer=dict.fromkeys(TOKENIZER_FILES, "f" * 64))
    assert (codes(result), result["changed"]) == (["tokenizer_differs"], False)
    what = result["causes"][0]["what"]
    assert hashlib.sha256(b"mine").hexdigest()[:12] in what and "f" * 12 in what
    assert (base / "tokenizer" / name).read_text(encoding="utf-8") == "mine"


def test_another_tokenizer_is_replaced_on_request_and_kept(base: Path, tmp_path: Path) -> None:
    (base / "tokenizer").mkdir(parents=True)
    digests, files = {}, []
    for name in TOKENIZER_FILES:
        (base / "tokenizer" / name).write_text("mine", encoding="utf-8")
        (tmp_path / name).write_text(f"the master's {name}", encoding="utf-8")
        digests[name] = hashlib.sha256((tmp_path / name).read_bytes()).hexdigest()
        size = (tmp_path / name).stat().st_size
        files.append({"name": name, "path": str(tmp_path / name), "size": size, "sha256": digests[name]})
    assert do(base, "write", check_mode=True, tokenizer=digests, replace=True)["actions"] == ["copied the tokenizer"]
    assert do(base, "write", tokenizer=digests, replace=True)["needs_tokenizer"]
    done = do(base, "write", tokenizer=digests, replace=True, files=files)
    assert (done["actions"], done["tokenizer"]) == (["copied the tokenizer"], digests)
    assert (base / "tokenizer" / "tokenizer.pkl.old").read_text(encoding="utf-8") == "mine"


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
            found = do(base, "look")
            assert (codes(found), codes({"causes": found["busy"]})) == ([], expected), "looking disturbs nobody"
            assert codes(bring(own, base)) == expected
            assert (
                codes(do(base, "rewrite", names=[], row_groups=2))
                == codes(do(base, "train", check_mode=True))
                == expected
            )
        finally:
            process.kill()
    assert codes(bring(own, base)) == []
