# Copyright (c) 2026, torchlan contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""pip and uv as files of the controller, for hosts that have none and for the controller's own downloads."""

from __future__ import annotations

import functools
import glob
import importlib.util
import os
import platform as platform_module
import shutil
import subprocess
import sys
import sysconfig
import zipfile
from collections.abc import Mapping
from pathlib import Path

from ansible_collections.torchlan.nanochat.plugins.module_utils.workdir import last_lines
from ansible_collections.torchlan.nanochat.plugins.plugin_utils.source import SourceError, cache_folder, exclusive

# Knows --python-platform for sync; one version, so that all hosts make the same of a lock file.
UV = "uv==0.13.9"


@functools.cache
def pip() -> str | None:
    """A wheel of pip, or a zip file that runs as one; C(None) where this Python has neither.

    A folder as Debian and Python itself keep them, else the pip that is installed beside Ansible.
    """
    kept = [os.path.join(os.path.dirname(os.path.abspath(_ensurepip())), "_bundled"), "/usr/share/python-wheels"]
    wheels = [path for folder in kept for path in glob.glob(os.path.join(glob.escape(folder), "pip-*.whl"))]
    if wheels:
        return max(wheels, key=os.path.getmtime)
    spec = importlib.util.find_spec("pip")
    if spec is None or not spec.origin:
        return None
    package = Path(spec.origin).parent
    target = Path(cache_folder(), "tools", "pip.zip")
    with exclusive(str(target.with_suffix(".lock"))):
        new = target.with_suffix(".new")
        with zipfile.ZipFile(new, "w", zipfile.ZIP_DEFLATED) as archive:
            for path in sorted(package.rglob("*")):
                if path.is_file() and "__pycache__" not in path.parts:
                    archive.write(path, path.relative_to(package.parent))
        new.replace(target)
    return str(target)


def _ensurepip() -> str:
    spec = importlib.util.find_spec("ensurepip")
    return spec.origin if spec and spec.origin else os.path.join(sysconfig.get_paths()["stdlib"], "ensurepip", "x")


def run_pip(words: list[str], python: str = sys.executable, env: Mapping[str, str] | None = None) -> tuple[int, str]:
    """Run pip on this controller; exit code and output."""
    where = pip()
    if where is None:
        return 127, "this controller has no pip: install python3-pip, or pip beside Ansible"
    argv = [python, os.path.join(where, "pip"), *words]
    variables = {**os.environ, "PIP_DISABLE_PIP_VERSION_CHECK": "1", "PIP_NO_INPUT": "1", **(env or {})}
    done = subprocess.run(argv, env=variables, capture_output=True, stdin=subprocess.DEVNULL, check=False)
    return done.returncode, (done.stdout + done.stderr).decode("utf-8", "replace")


def platform_tags(platform: Mapping[str, str]) -> list[str]:
    """The names under which wheels for such a host are published, as C(--platform) arguments of pip.

    :param platform: of C(Python.platform), of a Linux host.
    """
    machine = platform["machine"]
    if platform["libc"] != "glibc":
        return ["--platform", f"musllinux_1_2_{machine}", "--platform", f"musllinux_1_1_{machine}"]
    minor = int(platform["libc_version"].split(".")[1])
    tags = [f"manylinux_2_{number}_{machine}" for number in range(minor, 4, -1)]
    return [word for tag in (*tags, f"manylinux2014_{machine}", f"linux_{machine}") for word in ("--platform", tag)]


def here() -> dict[str, str]:
    """This controller as a platform."""
    libc, version = platform_module.libc_ver()
    minor = "{}.{}".format(*sys.version_info[:2])
    return {"python": minor, "machine": platform_module.machine(), "libc": libc, "libc_version": version}


def uv(platform: Mapping[str, str]) -> str:
    """Path of a uv that runs on such a host; downloaded once.

    :raises SourceError: there is none, and none can be got.
    """
    folder = Path(cache_folder(), "tools", f"{UV.replace('==', '-')}-{platform['machine']}-{platform['libc']}")
    binary = folder / "uv"
    with exclusive(str(folder) + ".lock"):
        if binary.exists():
            return str(binary)
        folder.mkdir(parents=True, exist_ok=True)
        words = ["download", "--quiet", "--no-deps", "--only-binary=:all:", *platform_tags(platform)]
        code, text = run_pip([*words, "--dest", str(folder), UV])
        wheels = sorted(folder.glob("uv-*.whl"))
        if code or not wheels:
            own = shutil.which("uv")
            alike = sys.platform == "linux" and here()["machine"] == platform["machine"]
            if own and alike:
                return own
            what = f"uv is not on the host, and this controller cannot download it: {last_lines(text, 3)}"
            raise SourceError("uv_missing", what)
        with zipfile.ZipFile(wheels[0]) as archive:
            name = next(name for name in archive.namelist() if name.endswith(".data/scripts/uv"))
            new = folder / "uv.new"
            new.write_bytes(archive.read(name))
        new.chmod(0o755)
        new.replace(binary)
        wheels[0].unlink()
    return str(binary)
