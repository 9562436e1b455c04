# Copyright (c) 2026, torchlan contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Which step is whole over all hosts, by what is in the files."""

from __future__ import annotations

import json
import zipfile
from pathlib import Path

from ansible_collections.torchlan.nanochat.plugins.module_utils import checkpoints

PLACES = {0: "workstation", 1: "laptop"}


def write(folder: Path, *names: str) -> None:
    folder.mkdir(exist_ok=True)
    for name in names:
        if name.endswith(".json"):
            (folder / name).write_text(json.dumps({"user_config": {"depth": 4, "window_pattern": "L"}}))
        else:
            with zipfile.ZipFile(folder / name, "w") as archive:  # as torch.save makes them
                archive.writestr("archive/data/0", b"\1" * 5000)


def step(number: int, *ranks: int, model: bool = True) -> list[str]:
    files = [f"model_{number:06d}.pt", f"meta_{number:06d}.json"] if model else []
    return files + [f"optim_{number:06d}_rank{rank}.pt" for rank in ranks]


def test_newest_whole_step_and_where_it_is(tmp_path: Path) -> None:
    first, second = tmp_path / "a", tmp_path / "b"
    write(first, *step(5, 0), *step(10, 0), *step(1000000, 0), "notes.txt")
    write(second, *step(5, 1, model=False), *step(10, 1, model=False))
    have = {0: checkpoints.inventory(first), 1: checkpoints.inventory(second)}
    choice = checkpoints.choose(have, 2, None, PLACES)
    assert choice.step == 10
    assert choice.source == {
        "model_000010.pt": 0,
        "meta_000010.json": 0,
        "optim_000010_rank0.pt": 0,
        "optim_000010_rank1.pt": 1,
    }
    assert len(choice.skipped) == 1
    assert "step 1000000: optim_1000000_rank1.pt is on no host" in choice.skipped[0]
    assert checkpoints.choose(have, 2, 5, PLACES).step == 5
    assert checkpoints.choose(have, 2, 7, PLACES).step is None
    three = checkpoints.choose(have, 3, 5, PLACES)
    assert three.step is None and "parts of 2 ranks, there are 3 now" in three.skipped[0]
    one = checkpoints.choose(have, 1, 5, PLACES)
    assert one.step is None and "parts of 2 ranks, there are 1 now" in one.skipped[0]


def test_what_is_wrong_with_a_file(tmp_path: Path) -> None:
    write(tmp_path, *step(5, 0, 1, 2))
    assert set(checkpoints.inventory(tmp_path).values()) == {None}
    model, cut, empty, flipped = (tmp_path / name for name in step(5, 0, 1, 2) if name.endswith(".pt"))
    cut.write_bytes(cut.read_bytes()[:-30])
    empty.write_bytes(b"")
    content = bytearray(flipped.read_bytes())
    content[2000] ^= 1
    flipped.write_bytes(content)
    (tmp_path / "meta_000005.json").write_text('{"step": 5, "user_con')
    found = checkpoints.inventory(tmp_path)
    assert found.pop(model.name) is None
    assert all(found.values()), found
    assert "damaged" in str(found[flipped.name])
    assert checkpoints.inventory(tmp_path / "none") == {}


def test_a_model_of_other_options(tmp_path: Path) -> None:
    write(tmp_path, *step(5, 0))
    written = checkpoints.shapes(tmp_path)["meta_000005.json"]
    assert checkpoints.misfits(written, ["--depth=4", "--num-iterations=9", "--window-pattern=L"]) == []
    assert checkpoints.misfits(written, ["--depth=8"]) == ["--depth=8, the checkpoint has 4"]
