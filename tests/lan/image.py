# Copyright (c) 2026, torchlan contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The node image and the torch environment of the test LAN, each built once and kept by the hash of what went into it.

    python3 tests/lan/image.py        builds what is missing and prints both as JSON

The image's base is $NODE_IMAGE where that is set (a Debian or Ubuntu image that a registry or the engine has), else it
is bootstrapped from the package sources of this machine. The torch environment is a venv, and venvs work only where
they were built: it is built inside a node, at the path where every node mounts it read-only.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from engine import CACHE, LanError, apt_install, docker, ensure_engine

NODE = Path(__file__).resolve().parent / "node"  # the build context
TORCH_PATH = "/opt/torchlan-torch"  # where the environment lies in every node
TORCH_INDEX = "https://download.pytorch.org/whl/cpu"
TORCH_PACKAGES = (
    "torch==2.13.0",
    "numpy",
    "pyarrow",
    # what nanochat's base_train and tok_train import
    *("filelock", "kernels", "psutil", "requests", "rustbpe", "tiktoken", "tokenizers", "wandb"),
)


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def _hash(*parts: str) -> str:
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:12]


@contextlib.contextmanager
def _lock(name: str) -> Iterator[None]:
    """One builder at a time on this machine: scenarios start in parallel."""
    CACHE.mkdir(parents=True, exist_ok=True)
    with (CACHE / f"{name}.lock").open("w") as handle:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield


def _have_image(tag: str) -> bool:
    return bool(docker("images", "-q", tag).strip())


def node_image() -> str:
    """The tag of the node image; builds it when this content has no image yet."""
    base = os.environ.get("NODE_IMAGE", "")
    packages = (NODE / "packages").read_text().split()
    tag = "torchlan-node:" + _hash(base or _codename(), *(p.read_text() for p in sorted(NODE.iterdir())))
    with _lock("image"):
        if _have_image(tag):
            return tag
        if not base:
            base = "torchlan-base:" + _hash(_codename(), *packages)
            if not _have_image(base):
                _bootstrap(base, packages)
        say(f"Building the node image {tag} on {base}")
        # the classic builder: buildx is a separate package on Debian and adds nothing here
        env = {**os.environ, "DOCKER_BUILDKIT": "0"}
        argv = [
            "docker",
            "build",
            "--quiet",
            "--network",
            "host",
            "--build-arg",
            f"BASE={base}",
            "--tag",
            tag,
            str(NODE),
        ]
        done = subprocess.run(argv, env=env, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise LanError(f"the node image could not be built:\n{(done.stdout + done.stderr)[-3000:]}")
    return tag


def _codename() -> str:
    release = Path("/etc/os-release").read_text()
    found = re.search(r"^VERSION_CODENAME=(\w+)", release, re.M)
    if not found or not shutil.which("apt-get"):
        raise LanError("This machine is no Debian or Ubuntu: set NODE_IMAGE to a Debian image, for example debian:12.")
    return found[1]


def _bootstrap(tag: str, packages: list[str]) -> None:
    if os.geteuid() != 0:
        raise LanError(
            "Bootstrapping the node image needs root: set NODE_IMAGE to a Debian image, for example debian:12."
        )
    if not shutil.which("mmdebstrap"):
        say("Installing mmdebstrap")
        apt_install("mmdebstrap")
    sources = [
        p
        for p in (Path("/etc/apt/sources.list"), *Path("/etc/apt/sources.list.d").glob("*"))
        if p.suffix in (".list", ".sources") and p.is_file() and re.search(r"^(deb |Types:)", p.read_text(), re.M)
    ]
    # what this machine's apt needs to reach its sources, nodes need while they are bootstrapped
    options = [f"--aptopt={p}" for p in Path("/etc/apt/apt.conf.d").glob("*") if "Acquire::" in p.read_text()]
    excluded = [f"--dpkgopt=path-exclude=/usr/share/{d}/*" for d in ("doc", "man", "locale", "info")]
    say("Bootstrapping the base image from this machine's package sources, about a minute")
    with tempfile.TemporaryDirectory(prefix="torchlan-base-") as work:
        tar = Path(work) / "base.tar"
        argv = ["mmdebstrap", "--quiet", "--variant=minbase", "--mode=root", f"--include={','.join(packages)}"]
        argv += [
            *options,
            '--aptopt=Apt::Install-Recommends "false"',
            *excluded,
            _codename(),
            str(tar),
            *map(str, sources),
        ]
        done = subprocess.run(argv, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise LanError(f"mmdebstrap failed:\n{(done.stdout + done.stderr)[-3000:]}")
        docker("import", str(tar), tag)


def torch_environment(image: str) -> Path:
    """The folder of the torch environment on this machine; builds it when these packages have none yet."""
    target = CACHE / ("torch-" + _hash(_python_of(image), *TORCH_PACKAGES))
    with _lock("torch"):
        if (target / "complete").exists():
            return target
        shutil.rmtree(target, ignore_errors=True)
        target.mkdir(parents=True)
        say(f"Building the nodes' torch environment in {target}, a few minutes")
        script = (
            # torch alone from its own index: asked for every package, an index that is out of reach costs minutes
            f"set -e; python3 -m venv {TORCH_PATH}; pip={TORCH_PATH}/bin/pip; "
            f'$pip install --quiet --retries 1 --no-deps --extra-index-url {TORCH_INDEX} "$1"; '
            f'$pip install --quiet "$@"; touch {TORCH_PATH}/complete'
        )
        argv = [
            "run",
            "--rm",
            "--network",
            "host",
            "--entrypoint",
            "bash",
            "-v",
            f"{target}:{TORCH_PATH}",
            *_pip_access(),
        ]
        docker(*argv, image, "-c", script, "pip", *TORCH_PACKAGES, timeout=3600)
    return target


def _python_of(image: str) -> str:
    return docker("run", "--rm", "--entrypoint", "python3", image, "--version").strip()


def _pip_access() -> list[str]:
    """docker options that give pip in a container what pip has on this machine: settings, certificates, indexes."""
    settings = {k: v for k, v in os.environ.items() if k.startswith("PIP_") or k.upper().endswith("_PROXY")}
    settings.update({k: os.environ[k] for k in ("SSL_CERT_FILE", "REQUESTS_CA_BUNDLE") if k in os.environ})
    files = ["/etc/pip.conf", "/etc/xdg/pip"]
    user = Path.home() / ".config" / "pip" / "pip.conf"
    text = " ".join(settings.values())
    for conf in [Path("/etc/pip.conf"), *Path("/etc/xdg/pip").glob("*.conf"), user]:
        text += " " + conf.read_text() if conf.is_file() else ""
    files += re.findall(r"(?<![\w:/])/[\w./-]+", text)
    files += [str(Path(path).parent) for path in re.findall(r"file://(/[\w./-]+)", text)]  # an index links to its files
    options = [part for path in sorted(set(files)) if Path(path).exists() for part in ("-v", f"{path}:{path}:ro")]
    if user.is_file():
        options += ["-v", f"{user}:/root/.config/pip/pip.conf:ro"]
    return options + [part for name in sorted(settings) for part in ("-e", name)]


def build() -> dict[str, str]:
    """Everything that nodes are made of: the image, and the torch environment with its place in a node."""
    ensure_engine(say)
    image = node_image()
    return {"image": image, "torch": str(torch_environment(image)), "torch_path": TORCH_PATH}


if __name__ == "__main__":
    try:
        print(json.dumps(build(), indent=1))
    except LanError as error:
        sys.exit(f"test LAN: {error}")
