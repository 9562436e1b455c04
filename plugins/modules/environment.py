#!/usr/bin/python
# Copyright (c) 2026, torchlan contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Make the Python environment of a host, or check the one that exists."""

from __future__ import annotations

DOCUMENTATION = r"""
module: environment
short_description: Make the Python environment of a host, or check the one that exists
version_added: 0.1.0
author: torchlan contributors (@torchlan)
description:
  - With O(method=pip), makes the virtual environment C(.venv) in the folder of the checkout and installs the
    requirements into it. What was installed is noted in C(.venv/.torchlan.json), last, so that an interrupted
    installation is done again.
  - With O(method=uv), runs C(uv sync --frozen) in the checkout.
  - With O(method=existing), changes nothing.
  - What is wrong is returned under RV(causes); the task does not fail for it.
options:
  settings:
    description: Settings of the host, as M(torchlan.nanochat.settings) returns them. Used on the controller only.
    type: dict
  commit:
    description:
      - The commit whose requirements O(method=pip) installs where O(requirements) is empty. Used on the controller.
      - Unset, C(nanochat_version) is resolved.
    type: str
  requirements:
    description: Requirements for O(method=pip). Empty, those in the pyproject.toml of O(commit).
    type: list
    elements: str
    default: []
  path:
    description: The folder of the checkout. Set by the action from O(settings).
    type: str
  method:
    description: How the environment is made. Set by the action from O(settings).
    type: str
    choices: [uv, pip, existing]
  source:
    description: What is to be trained. Set by the action from O(settings).
    type: str
    choices: [git, smoke]
    default: git
  python:
    description:
      - The interpreter of the environment that exists already, or for O(method=pip) the one to make it with.
      - Unset, O(method=pip) takes the host's C(python3), or else the newest Python that can make virtual environments.
    type: str
  torch:
    description: Requirement of torch for O(source=smoke). Set by the action from O(settings).
    type: str
  extra:
    description: Optional group of nanochat's pyproject.toml for O(method=uv). Set by the action from O(settings).
    type: str
    choices: [cpu, gpu]
    default: cpu
  pip_args:
    description: More arguments for pip. Set by the action from O(settings).
    type: list
    elements: str
    default: []
  env:
    description: Environment of the download, as JSON. Set by the action from O(settings).
    type: str
attributes:
  check_mode:
    description: Can run in check mode and predict changes.
    support: full
  diff_mode:
    description: Can show differences.
    support: none
"""

EXAMPLES = r"""
- name: Environment
  torchlan.nanochat.environment:
    settings: "{{ preflight_settings.settings }}"
    requirements: "{{ preflight_verdict.requirements }}"
  register: install_environment
"""

RETURN = r"""
causes:
  description: What is wrong.
  type: list
  elements: dict
  returned: always
python:
  description: The interpreter of the environment.
  type: str
  returned: always
version:
  description: Its version.
  type: str
  returned: when it is known
torch:
  description: Version of its torch.
  type: str
  returned: when it has one
action:
  description: What was done, or would be done in check mode.
  type: str
  returned: always
  sample: create
"""

import contextlib
import glob
import hashlib
import json
import os
import re
import shlex
import shutil
from typing import Any

from ansible.module_utils.basic import AnsibleModule

from ansible_collections.torchlan.nanochat.plugins.module_utils import in_use, software
from ansible_collections.torchlan.nanochat.plugins.module_utils.causes import cause
from ansible_collections.torchlan.nanochat.plugins.module_utils.workdir import (
    answer,
    distributions,
    expand,
    last_lines,
    locked,
    package_hint,
    redact,
    run,
    write_atomic,
)

SCHEMA = 1
OLDEST = (3, 10)  # nanochat's pyproject.toml
_OLDEST_SHOWN = "3.10"
_BEGUN = ".torchlan-begun"
_LOG = ".torchlan-install.log"
_ABOUT = (
    "import json, sys\n"
    "try:\n import ensurepip, venv\n able = True\nexcept ImportError:\n able = False\n"
    "print(json.dumps([list(sys.version_info[:3]), able, sys.executable]))"
)
# What pip prints, and what a person can do about it.
_PIP_TEXTS = (
    ("no space left on device", "free disk space on the host"),
    ("no matching distribution", "nanochat_pip_args: an --index-url or --find-links with it; another nanochat_torch"),
    ("resolutionimpossible", "nanochat_torch: a version that fits the other requirements"),
    ("certificate", "nanochat_install_env: PIP_CERT or SSL_CERT_FILE"),
    ("connection", "nanochat_install_env: https_proxy; nanochat_pip_args: an --index-url that the host reaches"),
    ("name resolution", "nanochat_install_env: https_proxy; nanochat_pip_args: an --index-url that the host reaches"),
    ("timed out", "nanochat_pip_args: an --index-url that is nearer to the host"),
)  # fmt: skip


class Stop(Exception):
    """Cannot go on; carries the cause."""

    def __init__(self, code: str, what: str, fix: str | None = None) -> None:
        super().__init__(what)
        self.cause = cause(code, what, fix)


class Python:
    """An interpreter and what it said about itself."""

    def __init__(self, path: str) -> None:
        self.path = path
        code, text = run([path, "-I", "-c", _ABOUT], timeout=60)
        self.problem = last_lines(text, 1) if code else None
        self.version: tuple[int, ...] = ()
        self.makes_venvs = False
        if code == 0:
            try:
                version, self.makes_venvs, _executable = json.loads(text.strip().splitlines()[-1])
                self.version = tuple(version)
            except (ValueError, IndexError, TypeError):
                self.problem = f"it printed {last_lines(text, 1)!r}"

    @property
    def shown(self) -> str:
        """The version as people write it."""
        return ".".join(str(part) for part in self.version)


class Environment:
    """What the settings of a host ask for, and what is there."""

    def __init__(self, given: dict[str, Any], check_mode: bool = False) -> None:
        self.given = given
        self.check_mode = check_mode
        self.path = expand(given["path"])
        self.venv = os.path.join(self.path, ".venv")
        self.python = os.path.join(self.venv, "bin", "python")
        self.marker_path = os.path.join(self.venv, software.MARKER)
        self.env: dict[str, str] = json.loads(given["env"]) if given.get("env") else {}
        self.causes: list[dict[str, Any]] = []
        self.smoke = given.get("source") == "smoke"

    def make(self) -> dict[str, Any]:
        """Make or check the environment; the module's result."""
        try:
            if self.given["method"] == "existing":
                return self._existing()
            self.causes += in_use.of_checkout(self.path)
            if self.causes:
                return self._result("none")
            with contextlib.nullcontext() if self.check_mode else locked(self.venv):
                if self.given["method"] == "uv" and not self.smoke:
                    return self._uv()
                return self._pip()
        except Stop as stop:
            self.causes.append(stop.cause)
        except OSError as problem:
            self.causes.append(cause("install_failed", f"{self.venv}: {problem}"))
        return self._result("none")

    def _result(self, action: str, python: Python | None = None, **more: Any) -> dict[str, Any]:
        failed = any(entry["weight"] == "error" for entry in self.causes)
        changed = action != "none"
        if python is None and os.path.lexists(self.python) and self.given["method"] != "existing" and not failed:
            python = Python(self.python)
        found: dict[str, Any] = {"python": self.python, "action": action}
        if python is not None and python.version:
            found["version"] = python.shown
            version = self._torch(python.path)
            if version:
                found["torch"] = version
        return answer(changed, self.causes, **{**found, **more})

    def _torch(self, python: str) -> str | None:
        facts = software.Environment(python, None).facts()
        if not facts["torch"] or facts["problem"]:
            return None
        return str(facts["torch"]) + ("+" + str(facts["torch_build"]) if facts["torch_build"] else "")

    # an environment of the user's

    def _existing(self) -> dict[str, Any]:
        if not self.given.get("python"):
            raise Stop("environment_missing", "nanochat_install_method is existing, and nanochat_python is not set")
        self.python = expand(self.given["python"])
        python = Python(self.python)
        if python.problem:
            what = (
                f"there is no {self.python}"
                if not os.path.lexists(self.python)
                else f"{self.python} does not run: {python.problem}"
            )
            raise Stop("environment_missing", what, "nanochat_python: the interpreter of an environment that has torch")
        self._check_age(python)
        if not self._torch(self.python):
            raise Stop(
                "environment_missing", f"{self.python} has no torch", f"{shlex.quote(self.python)} -m pip install torch"
            )
        return self._result("none", python)

    def _check_age(self, python: Python) -> None:
        if python.version < OLDEST and not self.smoke:
            what = f"{python.path} is Python {python.shown}; nanochat needs {_OLDEST_SHOWN} or newer"
            raise Stop("environment_missing", what, "nanochat_python: a newer interpreter of this host")

    # pip

    def _pip(self) -> dict[str, Any]:
        wanted = list(self.given.get("requirements") or [])
        if self.smoke:
            wanted = [self.given.get("torch") or "torch", "numpy"]
            if self._smoke_fits():
                return self._result("none")
        for line in wanted:
            if line.startswith("-") or not line.strip():
                raise Stop("install_failed", f"{line!r} is no requirement")
        if not wanted:
            raise Stop("install_failed", "there are no requirements to install; the action gets them from the source")
        marker = software._marker(self.venv) if os.path.isdir(self.venv) else None
        if marker is None and self._foreign():
            raise Stop(
                "install_failed",
                f"{self.venv} was not made by this collection, which leaves it alone",
                f"use it: nanochat_install_method=existing and nanochat_python={self.python}; or remove it",
            )
        current = Python(self.python) if marker is not None else None
        fresh = current is None or not current.version or current.shown.rpartition(".")[0] != _minor(marker)
        base = self._base(None if fresh else current)
        if (
            not fresh
            and current is not None
            and marker is not None
            and marker.get("digest") == digest(wanted, current.version)
        ):
            return self._result("none", current)
        action = "create" if fresh else "update"
        if not self.check_mode:
            self._install(base, wanted, fresh)
        elif fresh:
            return answer(True, self.causes, python=self.python, action=action, version=base.shown)
        return self._result(action)

    def _foreign(self) -> bool:
        """Whether there is something that nobody but the user can have put there."""
        if not os.path.lexists(self.venv) or os.path.exists(os.path.join(self.venv, _BEGUN)):
            return False
        return not os.path.isdir(self.venv) or bool(os.listdir(self.venv))

    def _smoke_fits(self) -> bool:
        """The smoke workload is content with any environment here that has its torch: it shall not undo nanochat's."""
        if not os.path.lexists(self.python):
            return False
        if os.path.exists(os.path.join(self.venv, _BEGUN)) and not os.path.exists(self.marker_path):
            return False
        have = self._torch(self.python)
        pinned = re.match(r"\s*torch\s*==\s*([^\s,;]+)\s*\Z", self.given.get("torch") or "")
        if not have or not Python(self.python).version:
            return False
        if pinned:
            return pinned.group(1) in (have, have.partition("+")[0])
        return not self.given.get("torch") or (software._marker(self.venv) or {}).get("requirements") == [
            self.given["torch"],
            "numpy",
        ]

    def _base(self, current: Python | None) -> Python:
        """The interpreter to make the environment with; the environment's own, when that stays."""
        if current is not None and not self.given.get("python"):
            return current
        if self.given.get("python"):
            path = self.given["python"]
            python = Python(expand(path) if "/" in path or path.startswith("~") else shutil.which(path) or path)
            if python.problem:
                raise Stop("environment_missing", f"nanochat_python: {python.path} does not run: {python.problem}")
            self._check_age(python)
            if not python.makes_venvs and current is None:
                raise self._no_venv(python)
            return current or python
        found = [python for python in (Python(path) for path in interpreters()) if python.version]
        usable = [python for python in found if self.smoke or python.version >= OLDEST]
        # python3 is what people mean and has the headers that compiling needs; then the newest.
        able = [python for python in usable if python.makes_venvs]
        if able:
            return next(
                (python for python in able if os.path.basename(python.path) == "python3"),
                max(able, key=lambda python: python.version),
            )
        if usable:
            raise self._no_venv(usable[0])
        seen = ", ".join(sorted({python.shown for python in found})) or "none"
        raise Stop(
            "environment_missing",
            f"nanochat needs Python {_OLDEST_SHOWN} or newer; this host has: {seen}",
            "install a newer python3, or set nanochat_python",
        )

    def _no_venv(self, python: Python) -> Stop:
        package = "python{}.{}-venv".format(*python.version) if python.path.startswith("/usr/bin/") else "python3-venv"
        what = f"{python.path} (Python {python.shown}) cannot make virtual environments: it lacks venv or ensurepip"
        return Stop(
            "venv_missing",
            what,
            package_hint({"apt-get": package, "dnf": "python3", "zypper": "python3", "pacman": "python"}),
        )

    def _install(self, base: Python, wanted: list[str], fresh: bool) -> None:
        if fresh:
            # Before anything else is written: from now on a broken environment here is known to be ours.
            if os.path.islink(self.venv):
                os.unlink(self.venv)
            elif os.path.isdir(self.venv):
                shutil.rmtree(self.venv)
            os.makedirs(self.venv)
            write_atomic(os.path.join(self.venv, _BEGUN), b"")
            code, text = run([base.path, "-I", "-m", "venv", self.venv], timeout=600)
            if code:
                raise Stop(
                    "venv_missing",
                    f"{base.path} -m venv failed: {last_lines(text, 4)}",
                    self._no_venv(base).cause["fix"],
                )
        previous = software._marker(self.venv)
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self.marker_path)
        write_atomic(os.path.join(self.venv, _BEGUN), b"")
        if run([self.python, "-m", "pip", "--version"])[0]:
            run([self.python, "-m", "ensurepip"])  # uv makes environments without pip
        argv = [self.python, "-m", "pip", "install", "--no-input", "--disable-pip-version-check", "--progress-bar=off"]
        argv += [*list(self.given.get("pip_args") or []), "--", *wanted]
        env = {"PYTHONNOUSERSITE": "1", "PIP_USER": "0", **self.env}
        code, text = run(argv, env=env, cwd=self.path)
        with contextlib.suppress(OSError):
            write_atomic(os.path.join(self.venv, _LOG), redact(text).encode("utf-8", "replace"), 0o600)
        if code:
            if previous is not None:
                # pip gave up in order: what was there works still, and is put right in place next time.
                self._mark({**previous, "digest": None, "requirements": []})
            lowered = text.lower()
            fix = next((fix for words, fix in _PIP_TEXTS if words in lowered), None)
            raise Stop("install_failed", f"pip ended with {code}:\n{last_lines(text)}", fix)
        version = Python(self.python).version
        self._mark(
            {
                "schema": SCHEMA,
                "method": "pip",
                "digest": digest(wanted, version),
                "requirements": wanted,
                "python": list(version),
            }
        )

    def _mark(self, content: dict[str, Any]) -> None:
        write_atomic(self.marker_path, json.dumps(content, indent=1).encode() + b"\n")

    # uv

    def _uv(self) -> dict[str, Any]:
        uv = software.tools()["uv"]
        if uv is None:
            raise Stop(
                "uv_missing",
                "uv is neither in PATH nor in ~/.local/bin or ~/.cargo/bin",
                "curl -LsSf https://astral.sh/uv/install.sh | sh   (no root needed); or nanochat_install_method=pip",
            )
        if not os.path.exists(os.path.join(self.path, "pyproject.toml")):
            if self.check_mode:
                return answer(True, self.causes, python=self.python, action="create")
            raise Stop("install_failed", f"{self.path} has no pyproject.toml, so uv has nothing to install")
        marker = software._marker(self.venv)
        lock = os.path.join(self.path, "uv.lock")
        wanted = ["uv.lock " + _digest_of_file(lock), "extra " + str(self.given.get("extra") or "cpu")]
        before = distributions(self.venv)
        if self.check_mode:
            current = Python(self.python) if before else None
            fits = (
                current is not None and marker is not None and marker.get("digest") == digest(wanted, current.version)
            )
            return self._result("none" if fits else "update" if before else "create")
        env = {"UV_NO_PROGRESS": "1", "UV_PROJECT_ENVIRONMENT": self.venv, **self.env}
        argv = [uv, "sync", "--frozen", "--extra", self.given.get("extra") or "cpu"]
        if self.given.get("python"):
            argv += ["--python", expand(self.given["python"]) if "/" in self.given["python"] else self.given["python"]]
        os.environ.pop("VIRTUAL_ENV", None)
        code, text = run(argv, env=env, cwd=self.path)
        if code:
            raise Stop("install_failed", f"uv sync ended with {code}:\n{last_lines(text)}")
        after = distributions(self.venv)
        version = Python(self.python).version
        content = {
            "schema": SCHEMA,
            "method": "uv",
            "digest": digest(wanted, version),
            "requirements": wanted,
            "python": list(version),
        }
        if marker != content:
            self._mark(content)
        # uv itself says whether something was to be done; the marker alone is no change of the environment.
        return self._result("none" if after == before else "update" if before else "create")


def digest(requirements: list[str], version: tuple[int, ...]) -> str:
    """What an environment was made from, as one word."""
    text = json.dumps([sorted(requirements), list(version[:2])])
    return hashlib.sha256(text.encode()).hexdigest()


def interpreters() -> list[str]:
    """Every python3 of this host, C(python3) first; version managers without their shims, which may be broken."""
    folders = [folder for folder in os.environ.get("PATH", "").split(os.pathsep) if os.path.isabs(folder)]
    folders += [folder for folder in ("/usr/local/bin", "/usr/bin", expand("~/.local/bin")) if folder not in folders]
    found: dict[str, str] = {}
    first = next(
        (path for path in (os.path.join(folder, "python3") for folder in folders) if os.access(path, os.X_OK)), None
    )
    paths = [first] if first else []
    paths += [path for folder in folders for path in sorted(glob.glob(os.path.join(glob.escape(folder), "python3*")))]
    paths += glob.glob(expand("~/.pyenv/versions/*/bin/python3")) + glob.glob(
        expand("~/.local/share/uv/python/*/bin/python3")
    )
    for path in paths:
        shim = os.sep + "shims" + os.sep in path and path != first
        if re.fullmatch(r"python3(\.\d+)?", os.path.basename(path)) and os.access(path, os.X_OK) and not shim:
            found.setdefault(os.path.realpath(path), path)
    return list(found.values())


def _minor(marker: dict[str, Any] | None) -> str:
    version = (marker or {}).get("python") or []
    return ".".join(str(part) for part in version[:2])


def _digest_of_file(path: str) -> str:
    try:
        with open(path, "rb") as file:
            return hashlib.sha256(file.read()).hexdigest()
    except OSError:
        return "missing"


def main() -> None:
    """Entry point."""
    module = AnsibleModule(
        argument_spec={
            "settings": {"type": "dict"},
            "commit": {"type": "str"},
            "requirements": {"type": "list", "elements": "str", "default": []},
            "path": {"type": "str"},
            "method": {"type": "str", "choices": ["uv", "pip", "existing"]},
            "source": {"type": "str", "choices": ["git", "smoke"], "default": "git"},
            "python": {"type": "str"},
            "torch": {"type": "str"},
            "extra": {"type": "str", "choices": ["cpu", "gpu"], "default": "cpu"},
            "pip_args": {"type": "list", "elements": "str", "default": []},
            # A dictionary that is not logged would censor every equal piece of the result.
            "env": {"type": "str", "no_log": True},
        },
        supports_check_mode=True,
    )
    if not module.params["path"] or not module.params["method"]:
        module.fail_json(msg="path and method are required; the action plugin of the same name sets them")
    module.exit_json(**Environment(module.params, module.check_mode).make())


if __name__ == "__main__":
    main()
