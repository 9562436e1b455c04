# Copyright (c) 2026, torchlan contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The Python environment of a host: real virtual environments, tiny wheels instead of torch."""

from __future__ import annotations

import http.server
import json
import os
import shutil
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pip
import pytest
import software

from ansible_collections.torchlan.nanochat.plugins.module_utils import environments, interpreters
from ansible_collections.torchlan.nanochat.plugins.module_utils import software as host_software
from ansible_collections.torchlan.nanochat.plugins.module_utils.background import Progress
from ansible_collections.torchlan.nanochat.plugins.modules import environment
from ansible_collections.torchlan.nanochat.plugins.plugin_utils import fetched as fetching
from ansible_collections.torchlan.nanochat.plugins.plugin_utils.deliver import pip_arguments


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "home"
    folder.mkdir()
    monkeypatch.setenv("HOME", str(folder))
    for name in list(os.environ):
        if name.startswith(("PIP_", "UV_")):
            monkeypatch.delenv(name)
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    return folder


def tiny_wheels(folder: Path) -> Path:
    software.wheel(folder, "torch", "9.9.1+cpu")
    software.wheel(folder, "numpy", "9.0")
    software.wheel(folder, "tiny-dep", "1.0")
    software.wheel(folder, "tiny-dep", "2.0")
    return folder


@pytest.fixture()
def wheels(tmp_path: Path) -> Path:
    return tiny_wheels(tmp_path / "my wheels")


@pytest.fixture()
def place(tmp_path: Path) -> Path:
    folder = tmp_path / "nano chat"
    folder.mkdir()
    return folder


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An environment that was made once: making one takes seconds. Copies work while no script of theirs is run."""
    folder = tmp_path_factory.mktemp("made")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HOME", str(folder))
        patch.setenv("PIP_CONFIG_FILE", os.devnull)
        result = make(folder, tiny_wheels(folder / "wheels"), requirements=["torch", "tiny-dep==1.0"])
    assert outcome(result) == ("create", True, [])
    assert result["torch"] == "9.9.1+cpu" and result["version"].startswith("3.")
    assert result["python"] == str(folder / ".venv" / "bin" / "python")
    content = marker(folder)
    assert (content["schema"], content["requirements"]) == (1, ["torch", "tiny-dep==1.0"])
    return folder


@pytest.fixture()
def there(made: Path, place: Path) -> Path:
    """A place with an environment of C(torch) and C(tiny-dep==1.0)."""
    shutil.copytree(made / ".venv", place / ".venv", symlinks=True)
    return place


def make(place: Path, wheels: Path | None = None, check_mode: bool = False, **more: Any) -> dict[str, Any]:
    given: dict[str, Any] = {
        "path": str(place),
        "method": "pip",
        "python": sys.executable,
        "requirements": ["torch", "tiny-dep"],
        # The one beside Ansible, already compiled: from a zip file, each start of pip costs seconds.
        "pip": str(Path(pip.__file__).parents[1]),
    }
    if wheels:
        given["pip_args"] = ["--no-index", f"--find-links={wheels}"]
    given = {**given, "base_dir": str(place / "base"), **more}
    return environment.environment(given, check_mode).step(str(given.get("step", "make")), Progress())


def codes(result: dict[str, Any]) -> list[str]:
    return [entry["code"] for entry in result["causes"]]


def outcome(result: dict[str, Any]) -> tuple[str, bool, list[str]]:
    return result["action"], result["changed"], codes(result)


def marker(place: Path) -> Any:
    return json.loads((place / ".venv" / ".torchlan.json").read_text(encoding="utf-8"))


def test_pip_updates_in_place_and_only_when_something_changed(there: Path, wheels: Path, tmp_path: Path) -> None:
    assert outcome(make(tmp_path / "new", wheels, check_mode=True)) == ("create", True, [])
    assert not (tmp_path / "new").exists()
    stamp = os.stat(there / ".venv" / "pyvenv.cfg").st_mtime_ns
    assert outcome(make(there, wheels, requirements=["tiny-dep==1.0", "torch"])) == ("none", False, [])
    assert outcome(make(there, wheels, check_mode=True)) == ("update", True, [])
    assert outcome(make(there, wheels, requirements=["torch", "tiny-dep==2.0"])) == ("update", True, [])
    found = subprocess.run(
        [there / ".venv/bin/python", "-c", "import tiny_dep; print(tiny_dep.__version__)"],
        capture_output=True,
        check=True,
    )
    assert found.stdout == b"2.0\n"
    assert os.stat(there / ".venv" / "pyvenv.cfg").st_mtime_ns == stamp, "it was not made anew"


def test_a_failed_installation_says_why_and_does_not_break_what_was_there(
    there: Path, wheels: Path, tmp_path: Path
) -> None:
    place = tmp_path / "first"
    failed = make(place, wheels, requirements=["torch", "no-such-thing"])
    assert outcome(failed) == ("none", False, ["install_failed"])
    assert "no-such-thing" in failed["causes"][0]["what"] and "find-links" in failed["causes"][0]["fix"]
    assert not (place / ".venv" / ".torchlan.json").exists()
    assert outcome(make(place, wheels, check_mode=True)) == ("create", True, []), "a broken first attempt is made anew"
    stamp = os.stat(there / ".venv" / "pyvenv.cfg").st_mtime_ns
    assert codes(make(there, wheels, requirements=["torch", "no-such-thing"])) == ["install_failed"]
    assert outcome(make(there, wheels, requirements=["torch", "tiny-dep==1.0"])) == ("none", False, [])
    assert os.stat(there / ".venv" / "pyvenv.cfg").st_mtime_ns == stamp


def test_what_cannot_be_installed_from_the_wheelhouse_leaves_a_mark(there: Path, wheels: Path) -> None:
    wanted = {"requirements": ["torch", "tiny-dep==2.0"]}
    house = Path(make(there, wheels, step="fetch", **wanted)["folder"])
    broken = house / "tiny_dep-2.0-py3-none-any.whl"
    whole = broken.read_bytes()
    broken.write_bytes(b"x" * len(whole))
    assert codes(make(there, step="install", **wanted)) == ["install_failed"]
    assert marker(there)["digest"] is None, "it is put right in place next time"
    broken.write_bytes(whole)
    assert outcome(make(there, step="install", **wanted)) == ("update", True, [])


def test_fetch_once_and_install_elsewhere_without_an_index(place: Path, wheels: Path, tmp_path: Path) -> None:
    look = make(place, wheels, step="look")
    assert (look["needed"], look["changed"], look["files"]) == (True, False, None)
    fetched = make(place, wheels, step="fetch")
    assert outcome(fetched) == ("fetch", True, [])
    assert {entry["name"].partition("-")[0] for entry in fetched["files"]} == {"torch", "tiny_dep"}
    assert not (place / ".venv").exists()
    assert outcome(make(place, wheels, step="fetch")) == ("none", False, []), "it is here already"
    other = tmp_path / "other host"
    other.mkdir()
    there = make(other, step="look")
    assert (there["key"], there["files"]) == (fetched["key"], None)
    shutil.copytree(fetched["folder"], there["folder"], ignore=shutil.ignore_patterns(".manifest.json"))
    nothing = [f"--index-url=file://{tmp_path}/nowhere"]
    given = {"step": "install", "pip_args": nothing}
    assert codes(make(other, **given)) == ["install_failed"], "nobody said that the files are whole"
    made = make(other, manifest=fetched["files"], **given)
    assert outcome(made) == ("create", True, [])
    assert made["torch"] == "9.9.1+cpu"
    assert outcome(make(other, **given)) == ("none", False, [])


def test_a_file_that_is_short_is_never_taken_for_whole(place: Path, wheels: Path, tmp_path: Path) -> None:
    fetched = make(place, wheels, step="fetch")
    house, sent = Path(fetched["folder"]), tmp_path / "sent"
    house.rename(sent)
    victim = sent / "tiny_dep-2.0-py3-none-any.whl"
    whole = victim.read_bytes()

    def take(content: bytes, cut: int | None = None) -> dict[str, Any]:
        victim.write_bytes(content)
        with fetching.packed(str(sent), fetched["files"]) as archive:
            data = Path(archive).read_bytes()
        (tmp_path / "fetched.tar").write_bytes(data[:cut])
        return make(place, step="fetch", incoming=str(tmp_path / "fetched.tar"), manifest=fetched["files"])

    for bad in (take(whole[:-1]), take(bytes([whole[0] ^ 1]) + whole[1:]), take(whole, 700), take(whole, 0)):
        assert codes(bad) == ["install_failed"]
        assert make(place, step="look")["files"] is None
    assert outcome(take(whole)) == ("fetch", True, [])
    (house / victim.name).write_bytes(whole[:-1])
    assert make(place, step="look")["files"] is None, "cut off later"


def test_an_interrupted_installation_is_done_again(there: Path, wheels: Path) -> None:
    python = there / ".venv" / "bin" / "python"
    target = os.readlink(python)
    python.unlink()
    python.symlink_to("/nowhere/python3")
    assert outcome(make(there, wheels, check_mode=True)) == ("create", True, []), "the base interpreter is gone"
    python.unlink()
    python.symlink_to(target)
    (there / ".venv" / ".torchlan.json").unlink()  # it is written last
    (there / ".venv" / "lib" / "half").write_text("", encoding="utf-8")
    assert outcome(make(there, wheels)) == ("create", True, [])
    assert not (there / ".venv" / "lib" / "half").exists()


def test_a_virtual_environment_of_the_user_s_is_left_alone(place: Path, wheels: Path) -> None:
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", place / ".venv"], check=True)
    result = make(place, wheels)
    assert outcome(result) == ("none", False, ["install_failed"])
    assert "existing" in result["causes"][0]["fix"]
    assert not (place / ".venv" / ".torchlan-begun").exists()


@pytest.mark.parametrize("line", ["-r /etc/passwd", "--index-url=x", " "])
def test_a_requirement_is_never_an_option(line: str, place: Path, wheels: Path) -> None:
    assert codes(make(place, wheels, requirements=["torch", line])) == ["install_failed"]
    assert not (place / ".venv").exists()


def test_words_reach_pip_as_they_are(there: Path, tmp_path: Path) -> None:
    hostile = tmp_path / 'it\'s "$(touch pwned)"; wheels'
    software.wheel(hostile, "other", "1.0")
    given = pip_arguments(["--no-index", f"--find-links={hostile}"])
    env = json.dumps({"PIP_NO_COLOR": "1", "ODD": "1; touch pwned\n$(touch pwned)"})
    assert outcome(make(there, requirements=["other"], pip_args=given, env=env)) == ("update", True, [])
    assert not list(tmp_path.rglob("pwned"))


def test_the_environment_of_the_download_is_used_and_passwords_are_not_shown(there: Path, wheels: Path) -> None:
    wanted = ["tiny-dep==2.0"]
    assert codes(make(there, requirements=wanted, env=json.dumps({"PIP_NO_INDEX": "1"}))) == ["install_failed"]
    env = json.dumps({"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": "file://" + str(wheels).replace(" ", "%20")})
    assert outcome(make(there, requirements=wanted, env=env)) == ("update", True, [])
    secret = make(there, requirements=["x"], pip_args=["--index-url=http://me:s3cret@127.0.0.1:9/", "--retries=0"])
    assert codes(secret) == ["install_failed"]
    assert "s3cret" not in json.dumps(secret)
    assert "s3cret" not in (there / ".venv" / ".torchlan-install.log").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (["--index-url https://a/b --pre"], ["--index-url", "https://a/b", "--pre"]),
        (["--find-links=/my wheels"], ["--find-links=/my wheels"]),
        (["--find-links '/my wheels'", "--pre"], ["--find-links", "/my wheels", "--pre"]),
        (["--find-links=/a --no-index"], ["--find-links=/a", "--no-index"]),
        (["--find-links", "/my wheels"], ["--find-links", "/my wheels"]),
        ([], []),
    ],
)
def test_pip_arguments_as_people_write_them(given: list[str], words: list[str]) -> None:
    assert pip_arguments(given) == words


def fake_python(path: Path, version: str, able: bool) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    parts = ", ".join(version.split("."))
    answer = f'[[{parts}], {str(able).lower()}, "{path}", "x86_64", ["glibc", "2.36"]]'
    path.write_text(f"#!/bin/sh\necho '{answer}'\n", encoding="utf-8")
    path.chmod(0o755)
    return path


def only_these(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = sorted(path.rglob("python3*"), key=lambda entry: entry.name != "python3")
    monkeypatch.setattr(environments, "interpreters", lambda: [str(entry) for entry in found])


def test_python3_is_taken_then_the_newest_that_can(
    place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "bin"
    fake_python(folder / "python3", "3.11.2", able=True)
    fake_python(folder / "python3.13", "3.13.0", able=True)
    fake_python(folder / "python3.14", "3.14.0", able=False)
    (folder / "python3.12").write_text("#!/bin/sh\necho 'pyenv: no such version' >&2\nexit 127\n", encoding="utf-8")
    (folder / "python3.12").chmod(0o755)
    only_these(folder, monkeypatch)
    assert make(place, python=None, check_mode=True)["version"] == "3.11.2"
    fake_python(folder / "python3", "3.9.18", able=True)
    assert make(place, python=None, check_mode=True)["version"] == "3.13.0"
    assert make(place, python=None, check_mode=True, source="smoke")["version"] == "3.9.18"
    (folder / "python3.13").unlink()
    without = make(place, python=None, check_mode=True)
    assert codes(without) == ["venv_missing"]
    assert "venv" in without["causes"][0]["fix"] or "python" in without["causes"][0]["fix"]
    (folder / "python3.14").unlink()
    old = make(place, python=None, check_mode=True)
    assert codes(old) == ["environment_missing"]
    assert "3.9.18" in old["causes"][0]["what"]


def test_the_interpreters_of_this_machine_include_the_one_that_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", os.path.dirname(sys.executable))
    real = {os.path.realpath(path) for path in interpreters.interpreters()}
    assert os.path.realpath(sys.executable) in real


def test_smoke_needs_torch_only_and_does_not_undo_nanochat_s_environment(
    there: Path, wheels: Path, tmp_path: Path
) -> None:
    new = make(tmp_path / "new", wheels, source="smoke", method="uv", check_mode=True, requirements=[])
    assert outcome(new) == ("create", True, []), "without uv and checkout"
    wanted = ["torch", "tiny-dep==1.0"]
    for torch in (None, "torch==9.9.1", "torch == 9.9.1+cpu"):
        assert outcome(make(there, wheels, source="smoke", torch=torch)) == ("none", False, []), torch
    assert outcome(make(there, wheels, requirements=wanted)) == ("none", False, [])
    software.wheel(wheels, "torch", "9.9.2+cpu")
    assert outcome(make(there, wheels, source="smoke", torch="torch==9.9.2")) == ("update", True, [])
    assert marker(there)["requirements"] == ["torch==9.9.2", "numpy"]
    assert outcome(make(there, wheels, requirements=wanted, check_mode=True)) == ("update", True, [])


def test_existing_is_checked_and_not_changed(there: Path, tmp_path: Path) -> None:
    python = str(there / ".venv" / "bin" / "python")
    before = sorted(str(path) for path in there.rglob("*"))
    found = make(tmp_path / "other", method="existing", python=python)
    assert outcome(found) == ("none", False, [])
    assert (found["python"], found["torch"]) == (python, "9.9.1+cpu")
    assert sorted(str(path) for path in there.rglob("*")) == before
    assert codes(make(there, method="existing", python=None)) == ["environment_missing"]
    assert codes(make(there, method="existing", python="/no/such/python")) == ["environment_missing"]
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", tmp_path / "bare"], check=True)
    bare = make(there, method="existing", python=str(tmp_path / "bare" / "bin" / "python"))
    assert codes(bare) == ["environment_missing"]
    assert "torch" in bare["causes"][0]["what"]
    old = fake_python(tmp_path / "old" / "python3", "3.9.1", able=True)
    assert "3.10" in make(there, method="existing", python=str(old))["causes"][0]["what"]


FAKE_UV = """#!{python}
import os, pathlib, subprocess, sys
print(sys.argv[1:], os.getcwd(), file=open({log!r}, "a"))
venv = pathlib.Path(os.environ["UV_PROJECT_ENVIRONMENT"])
os.makedirs(os.environ["UV_CACHE_DIR"], exist_ok=True)
if os.path.exists("broken"):
    sys.exit("error: Failed to fetch")
if not venv.exists():
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", venv], check=True)
site = next(venv.glob("lib/python*/site-packages"))
for line in open("uv.lock"):
    (site / (line.strip() + ".dist-info")).mkdir(exist_ok=True)
(site / "torch.py").touch()
"""


def test_uv_syncs_the_checkout(place: Path, home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host_software, "tools", lambda: {"uv": shutil.which("uv", path=str(home / ".local/bin"))})
    (place / "pyproject.toml").write_text("", encoding="utf-8")
    (place / "uv.lock").write_text("torch-9.9.1\n", encoding="utf-8")
    missing = make(place, method="uv", python=None)
    assert (codes(missing), missing["lacking"]) == ([], "uv")
    (place / "pyproject.toml").unlink()
    uv = home / ".local" / "bin" / "uv"
    uv.parent.mkdir(parents=True)
    log = tmp_path / "log"
    uv.write_text(FAKE_UV.format(python=os.path.realpath(sys.executable), log=str(log)), encoding="utf-8")
    uv.chmod(0o755)
    assert outcome(make(place, method="uv", python=None)) == ("none", False, ["install_failed"]), "no pyproject.toml"
    (place / "pyproject.toml").write_text("", encoding="utf-8")
    (place / "uv.lock").write_text("torch-9.9.1\n", encoding="utf-8")
    assert outcome(make(place, method="uv", python=None, check_mode=True)) == ("create", True, [])
    assert outcome(make(place, method="uv", python=None, extra="gpu")) == ("create", True, [])
    first, second = log.read_text(encoding="utf-8").splitlines()
    assert first.startswith("['sync', '--frozen', '--extra', 'gpu', '--python', '") and first.endswith(str(place))
    assert second.replace(", '--offline'", "") == first, "what was fetched is what is installed"
    assert outcome(make(place, method="uv", python=None, extra="gpu", check_mode=True)) == ("none", False, [])
    assert outcome(make(place, method="uv", python=None, extra="gpu")) == ("none", False, [])
    (place / "uv.lock").write_text("torch-9.9.2\n", encoding="utf-8")
    assert outcome(make(place, method="uv", python=None, extra="gpu", check_mode=True)) == ("update", True, [])
    assert outcome(make(place, method="uv", python=None, extra="gpu")) == ("update", True, [])
    (place / "broken").write_text("", encoding="utf-8")
    failed = make(place, method="uv", python=None)
    assert codes(failed) == ["install_failed"]
    assert "Failed to fetch" in failed["causes"][0]["what"]


def test_a_run_with_this_environment_is_not_disturbed(there: Path, wheels: Path, tmp_path: Path) -> None:
    env = {**os.environ, "TORCHLAN_RUN_DIR": str(tmp_path / "base/runs/trial/attempts/20260101-000000/node-0")}
    command = [str(there / ".venv/bin/python"), "-c", "print('up', flush=True); import time; time.sleep(60)"]
    with subprocess.Popen(command, env=env, cwd="/", stdout=subprocess.PIPE) as process:
        try:
            assert process.stdout is not None and process.stdout.readline()
            assert codes(make(there, wheels)) == ["run_in_progress"]
        finally:
            process.kill()


class Cut(http.server.BaseHTTPRequestHandler):
    """An index whose connection breaks in the middle of every wheel."""

    def do_GET(self) -> None:
        if self.path.endswith(".whl"):
            self.send_response(200)
            self.send_header("Content-Length", "100000")
            self.end_headers()
            self.wfile.write(b"PK" + bytes(5000))
            return
        page = b'<a href="torch-9.9.1-py3-none-any.whl">torch-9.9.1-py3-none-any.whl</a>'
        self.send_response(200)
        self.send_header("Content-Type", "text/html")
        self.send_header("Content-Length", str(len(page)))
        self.end_headers()
        self.wfile.write(page)

    def log_message(self, *_arguments: Any) -> None:
        pass


def test_a_wheel_whose_download_is_cut_is_never_taken(place: Path) -> None:
    with http.server.HTTPServer(("127.0.0.1", 0), Cut) as index:
        threading.Thread(target=index.serve_forever, daemon=True).start()
        words = ["--no-index", "--retries=0", f"--find-links=http://127.0.0.1:{index.server_address[1]}/"]
        result = make(place, requirements=["torch"], pip_args=words)
        index.shutdown()
    assert codes(result)[0] in ("install_failed", "index_unreachable")
    assert result["files"] is None and not (place / ".venv").exists()
    assert not list(Path(result["folder"]).rglob("*.whl"))
