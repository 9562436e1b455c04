# Copyright (c) 2026, torchlan contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The files around the code agree with each other and with the code."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

yaml = pytest.importorskip("yaml")

ROOT = Path(__file__).resolve().parents[2]
LICENCE = "SPDX-License-Identifier: GPL-3.0-or-later"


def files(*patterns: str) -> list[Path]:
    """The files of the checkout, committed or about to be."""
    listing = ["git", "-C", str(ROOT), "ls-files", "-z", "--cached", "--others", "--exclude-standard", "--", *patterns]
    done = subprocess.run(listing, capture_output=True, text=True, check=False)
    names = [name for name in done.stdout.split("\0") if name and (ROOT / name).is_file()]
    if done.returncode or not names:
        pytest.skip("git does not list this checkout's files")
    return [ROOT / name for name in names]


def test_every_module_is_in_the_action_group() -> None:
    runtime = yaml.safe_load((ROOT / "meta/runtime.yml").read_text(encoding="utf-8"))
    named = {path.stem for folder in ("modules", "action") for path in (ROOT / "plugins" / folder).glob("[!_]*.py")}
    assert sorted(runtime["action_groups"]["nanochat"]) == sorted(named)
    assert re.fullmatch(r">=\d+\.\d+\.\d+", runtime["requires_ansible"])


def test_every_action_is_documented() -> None:
    """An action plugin's documentation is that of the module of the same name, which may have no code."""
    lacking = [path.name for path in (ROOT / "plugins/action").glob("[!_]*.py") if not module_of(path).exists()]
    assert lacking == []


def module_of(action: Path) -> Path:
    return ROOT / "plugins/modules" / action.name


def test_files_carry_the_licence() -> None:
    own = files("*.py", "*.yml", "*.yaml", "*.toml", "*.sh", "*.ini", "dev", ".ci/run", "tests/requirements/*")
    # antsibull-changelog writes and reads what is in changelogs/.
    lacking = [
        str(path.relative_to(ROOT))
        for path in own
        if ("changelogs" not in path.parts or path.name == "config.yaml")
        and LICENCE not in path.read_text(encoding="utf-8")[:1000]
    ]
    assert lacking == []


def test_no_package_mirror_is_named() -> None:
    """Where packages come from is the user's configuration, never this repository's."""
    mirror = re.compile(
        r"(pypi|pythonhosted|registry\.npmjs|deb\.debian|archive\.ubuntu|security\.debian)\.(org|com)", re.I
    )
    named = [
        f"{path.relative_to(ROOT)}: {found[0]}"
        for path in files()
        if path != Path(__file__).resolve()
        and (found := mirror.search(path.read_text(encoding="utf-8", errors="replace")))
    ]
    assert named == []


def test_requirements_match_the_supported_cores() -> None:
    for core in ("2.19", "2.21"):
        text = (ROOT / f"tests/requirements/controller-{core}.txt").read_text(encoding="utf-8")
        assert f"ansible-core=={core}.*" in text
    runtime = (ROOT / "meta/runtime.yml").read_text(encoding="utf-8")
    assert 'requires_ansible: ">=2.19.0"' in runtime
    readme = ROOT / "README.md"
    if readme.exists():
        text = readme.read_text(encoding="utf-8")
        assert "2.19" in text and "2.21" in text, "README.md says which cores are supported"
