# Copyright (c) 2026, torchlan contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The node images and the torch environment of the test LAN, each built once and kept by the hash of what went into it.

    python3 tests/lan/image.py        builds what is missing and prints it as JSON

Each file in node/packages is an image, named by what it lists. The base of all is $NODE_IMAGE where that is set (a
Debian or Ubuntu image that a registry or the engine has), else it is bootstrapped from the package sources of this
machine, which it keeps. The torch environment is a venv, and venvs work only where they were built: it is built inside
a node, at the path where every node mounts it read-only.
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
ROOT = NODE.parents[2]
CHECKOUT = "org.torchlan.checkout"  # label of all that a checkout's tests made
KIND = "org.torchlan.image"  # label of an image: its base and its name
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


def node_image(name: str) -> str:
    """The tag of the node image of this name; builds it when this content has no image yet, and drops earlier ones."""
    base = os.environ.get("NODE_IMAGE", "")
    packages = NODE / "packages" / name
    if not packages.is_file():
        raise LanError(f"There is no node image {name}: its packages would be listed in {packages}.")
    kind = f"{base or _codename()} {name}"
    tag = "torchlan-node:" + _hash(
        kind, packages.read_text(), *(p.read_text() for p in sorted(NODE.iterdir()) if p.is_file())
    )
    with _lock("image"):
        if _have_image(tag):
            return tag
        labels = {CHECKOUT: str(ROOT), KIND: kind}
        pairs = [f"{key}={value}" for key, value in labels.items()]
        earlier = docker("images", "-q", "--no-trunc", *_each("--filter", [f"label={pair}" for pair in pairs])).split()
        if not base:
            base = "torchlan-base:" + _hash(kind, packages.read_text())
            if not _have_image(base):
                _bootstrap(base, packages.read_text().split(), labels)
        say(f"Building the node image {tag} on {base}")
        # the classic builder: buildx is a separate package on Debian and adds nothing here
        env = {**os.environ, "DOCKER_BUILDKIT": "0"}
        arguments = _each("--build-arg", [f"BASE={base}", f"PACKAGES={name}"])
        argv = ["docker", "build", "--quiet", "--force-rm", "--network", "host", *arguments, *_each("--label", pairs)]
        done = subprocess.run([*argv, "--tag", tag, str(NODE)], env=env, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise LanError(f"the node image could not be built:\n{(done.stdout + done.stderr)[-3000:]}")
        for image in dict.fromkeys(earlier):  # newest first; what is in use, or below the new one, stays
            docker("rmi", image, check=False)
    return tag


def _each(option: str, values: list[str]) -> list[str]:
    return [word for value in values for word in (option, value)]


def _codename() -> str:
    release = Path("/etc/os-release").read_text()
    found = re.search(r"^VERSION_CODENAME=(\w+)", release, re.M)
    if not found or not shutil.which("apt-get"):
        raise LanError("This machine is no Debian or Ubuntu: set NODE_IMAGE to a Debian image, for example debian:12.")
    return found[1]


def _bootstrap(tag: str, packages: list[str], labels: dict[str, str]) -> None:
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
        changes = ["LABEL {}={}".format(key, json.dumps(value)) for key, value in labels.items()]
        docker("import", *_each("--change", changes), str(tar), tag)


def torch_environment() -> Path:
    """The folder of the torch environment on this machine; builds it when these packages have none yet."""
    image = node_image("usual")
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
        settings, files = way_out()
        argv = ["run", "--rm", "--network", "host", "--entrypoint", "bash", *_each("--env", sorted(settings))]
        argv += mounts({str(target): TORCH_PATH}, "rw") + mounts(files)
        docker(*argv, image, "-c", script, "pip", *TORCH_PACKAGES, timeout=3600)
    return target


def _python_of(image: str) -> str:
    return docker("run", "--rm", "--entrypoint", "python3", image, "--version").strip()


def mounts(files: dict[str, str], mode: str = "ro") -> list[str]:
    """docker options for files and folders of this machine, each with its place in a container."""
    return _each("--volume", [f"{here}:{there}:{mode}" for here, there in sorted(files.items())])


def way_out() -> tuple[dict[str, str], dict[str, str]]:
    """What apt and pip in a container need to reach what they reach on this machine.

    Environment variables, and files with their places there: pip's settings and the folders that these name,
    certificates, keyrings. The package sources themselves are the image's own.
    """
    settings = {k: v for k, v in os.environ.items() if k.startswith("PIP_") or k.upper().endswith("_PROXY")}
    settings.update({k: os.environ[k] for k in ("SSL_CERT_FILE", "REQUESTS_CA_BUNDLE") if k in os.environ})
    user, everyone = Path.home() / ".config" / "pip" / "pip.conf", Path("/etc/pip.conf")
    text = " ".join(settings.values())
    for conf in [everyone, *Path("/etc/xdg/pip").glob("*.conf"), user]:
        text += " " + conf.read_text() if conf.is_file() else ""
    named = re.findall(r"(?<![\w:/])/[\w./-]+", text)
    named += [str(Path(path).parent) for path in re.findall(r"file://(/[\w./-]+)", text)]  # an index links to its files
    certificates = ["/etc/ssl/certs/ca-certificates.crt", "/usr/local/share/ca-certificates", "/etc/apt/keyrings"]
    files = {path: path for path in (*named, *certificates, "/etc/xdg/pip", str(everyone)) if Path(path).exists()}
    if user.is_file():  # for every user there, unless this machine has such a file too
        files[str(user)] = "/root/.config/pip/pip.conf" if everyone.is_file() else str(everyone)
    return settings, files


def build() -> dict[str, str]:
    """Everything that nodes are made of, by its place: the images, and the torch environment."""
    ensure_engine(say)
    names = sorted(path.name for path in (NODE / "packages").iterdir())
    return {**{name: node_image(name) for name in names}, TORCH_PATH: str(torch_environment())}


if __name__ == "__main__":
    try:
        print(json.dumps(build(), indent=1))
    except LanError as error:
        sys.exit(f"test LAN: {error}")
