# Copyright (c) 2026, torchlan contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Where the run goes on: the ranks agree on a step, bring each other what is missing of it, and lose nothing.

One process a host does the work, local rank 0. Rank 0 decides. What a start would overwrite is set aside first: all
checkpoints at a start from step 0, and those after the step at a resume.
"""

from __future__ import annotations

import json
import os
import secrets
import time
from collections.abc import Mapping
from typing import Any, Callable

from torchlan_runner import carry, checkpoints, replay
from torchlan_runner.plan import Plan, cause, options, warn

SCRIPTS = ("scripts.base_train", "torchlan_smoke")
_SLOWEST = 1e6  # bytes a second that a host is waited for while it gets files


class Alone:
    """The board of a world of one."""

    def __init__(self) -> None:
        self.values: dict[str, Any] = {}

    def put(self, key: str, value: Any) -> None:
        self.values[key] = value

    def get(self, key: str) -> Any:
        return self.values[key]

    def has(self, keys: list[str]) -> bool:
        return all(key in self.values for key in keys)

    def look(self) -> None:
        pass

    def end(self, causes: list[dict[str, Any]]) -> None:
        from torchlan_runner.agree import Ended

        raise Ended(causes)


class Resume:
    def __init__(self, board: Any, plan: Plan, environ: Mapping[str, str], args: list[str]) -> None:
        self.board, self.plan, self.args = board or Alone(), plan, args
        self.options = options(args)
        base, self.tag = place(environ, args)
        self.folder = checkpoints.folder_of(base, self.tag)
        self.kept = os.path.join(base, "base_checkpoints_kept", self.tag, plan.attempt)
        self.giver: carry.Giver | None = None
        self.nodes = [node.node_rank for node in plan.nodes if node.node_rank < plan.group_world_size]
        self.places = {node.node_rank: node.host for node in plan.nodes}
        self.ranks: dict[int, list[int]] = {node: [] for node in self.nodes}
        for node in plan.nodes:
            first = plan.first_rank(node.node_rank)
            self.ranks[node.node_rank] = list(range(first, first + node.nproc))

    def run(self) -> tuple[list[str], list[dict[str, Any]]]:
        """The script's arguments, and what is worth saying; ends the start for all when it cannot go on."""
        plan, board = self.plan, self.board
        works = plan.local_rank == 0
        if works:
            # Whether files are whole is asked only where one of them is to be read.
            asked = self._asked() is not None
            found = {
                "files": checkpoints.inventory(self.folder) if asked else dict.fromkeys(checkpoints.names(self.folder)),
                "models": checkpoints.shapes(self.folder) if asked else {},
                "owner": checkpoints.owner(self.folder),
            }
            board.put("resume/have/%d" % plan.node_rank, found)
        if plan.rank == 0:
            self._await(["resume/have/%d" % node for node in self.nodes], plan.join_timeout)
            board.put("resume/decision", self._decide())
        self._await(["resume/decision"], plan.join_timeout + 30)
        decision = board.get("resume/decision")
        if decision["causes"]:
            board.end(decision["causes"])
        if works:
            self._work(decision)
        limit = plan.join_timeout + decision["bytes"] / _SLOWEST
        self._await(["resume/done/%d" % node for node in self.nodes], limit)
        if self.giver:
            self.giver.close()
        step = decision["step"]
        if step is None:
            return self.args, decision["notes"]
        self._replay(step)
        if "--resume-from-step" in self.options:
            return self.args, decision["notes"]
        return [*self.args, "--resume-from-step=%d" % step], decision["notes"]

    # ---- rank 0 ----

    def _decide(self) -> dict[str, Any]:
        have = {node: self.board.get("resume/have/%d" % node) for node in self.nodes}
        decision: dict[str, Any] = {"step": None, "causes": [], "notes": [], "source": {}, "token": "", "bytes": 0}
        for node, found in have.items():
            other = found["owner"]
            mine = other == self.plan.run or (other is None and self.tag == self.plan.run)
            if found["files"] and not mine:
                decision["causes"].append(self._foreign(node, other))
                return decision
        asked = self._asked()
        if asked is None:
            return decision
        files = {node: found["files"] for node, found in have.items()}
        wanted = None if asked in ("latest", "auto") else int(asked)
        choice = checkpoints.choose(files, self.plan.env_world_size, wanted, self.places)
        if choice.step is None:
            if asked != "auto":
                decision["causes"].append(self._nothing(asked, choice))
            return decision
        meta = "meta_%06d.json" % choice.step
        wrong = checkpoints.misfits(have[choice.source[meta]]["models"].get(meta, {}), self.args)
        if wrong:
            what = "step %d of run %s is another model: %s" % (choice.step, self.plan.run, "; ".join(wrong))
            fix = "give the options of the run that wrote it, or another nanochat_run"
            decision["causes"].append(cause("checkpoint_unusable", what, fix))
            return decision
        decision.update(step=choice.step, source=choice.source, token=secrets.token_hex(16))
        text = "the run goes on from step %d" % choice.step
        if choice.skipped:
            what = "%s; newer ones are not whole: %s" % (text, " | ".join(choice.skipped))
            fix = "nothing to do; what is not whole is kept below base_checkpoints_kept"
            decision["notes"].append(cause("checkpoint_unusable", what, fix, weight="warning"))
        else:
            decision["notes"].append(cause("note", text, "nothing to do", weight="note"))
        here = os.path.join(self.folder, "model_%06d.pt" % choice.step)
        if os.path.exists(here):
            decision["bytes"] = 4 * os.path.getsize(here)
        else:
            decision["bytes"] = 3600 * _SLOWEST  # another host knows the size
        return decision

    def _asked(self) -> str | None:
        typed = self.options.get("--resume-from-step")
        if typed is not None and typed != "-1":
            return typed
        return self.plan.raw.get("resume") or None

    def _foreign(self, node: int, other: str | None) -> dict[str, Any]:
        host = self.places.get(node)
        whose = "run %s" % other if other else "a run that this collection did not start"
        what = "%s on %s holds checkpoints of %s; run %s would write among them" % (
            self.folder,
            host,
            whose,
            self.plan.run,
        )
        return cause(
            "checkpoints_exist",
            what,
            "choose another --model-tag (by default the run's name), or move that folder away",
            host=host,
        )

    def _nothing(self, asked: str, choice: checkpoints.Choice) -> dict[str, Any]:
        wanted = "a checkpoint" if asked == "latest" else "step %s" % asked
        why = " | ".join(choice.skipped) or "there are none on any host"
        what = "%s of run %s is not whole over all hosts (%s): %s" % (wanted, self.plan.run, self.folder, why)
        worlds = set(choice.worlds.values())
        if worlds and self.plan.env_world_size not in worlds:
            fix = "resume with as many ranks as wrote it: each has a part of the optimizer"
            return cause("checkpoint_unusable", what, fix)
        return cause("checkpoint_missing", what, "choose another step, or start anew without nanochat_resume")

    # ---- local rank 0 of every host ----

    def _work(self, decision: Mapping[str, Any]) -> None:
        plan, board, step = self.plan, self.board, decision["step"]
        try:
            self._set_aside(step)
            if step is not None:
                self._bring(decision)
            os.makedirs(self.folder, exist_ok=True)
            path = os.path.join(self.folder, checkpoints.OWNER)
            if checkpoints.owner(self.folder) != plan.run:
                with open("%s.%d" % (path, plan.node_rank), "w", encoding="utf-8") as file:
                    json.dump({"run": plan.run}, file)
                os.replace(file.name, path)
        except OSError as problem:
            what = "checkpoints of run %s on %s: %s" % (plan.run, plan.host, problem)
            fix = "look at %s there; see: df -h" % self.folder
            board.end([cause("checkpoint_missing", what, fix, host=plan.host, rank=plan.rank)])
        board.put("resume/done/%d" % plan.node_rank, 1)

    def _set_aside(self, step: int | None) -> None:
        """Nothing that would be overwritten is lost. Hosts may share the folder: another may have been faster."""
        later = [name for name in checkpoints.names(self.folder) if step is None or _step(name) > step]
        for name in later:
            os.makedirs(self.kept, exist_ok=True)
            target = os.path.join(self.kept, name)
            if os.path.exists(target):
                target += ".%d" % time.time_ns()
            try:
                os.rename(os.path.join(self.folder, name), target)
            except FileNotFoundError:
                pass
        if later:
            warn(
                "%s: %d files of checkpoints that this start would overwrite are in %s"
                % (self.plan.host, len(later), self.kept)
            )

    def _bring(self, decision: Mapping[str, Any]) -> None:
        plan, board, source = self.plan, self.board, decision["source"]
        mine = board.get("resume/have/%d" % plan.node_rank)["files"]
        gives = [name for name, node in source.items() if node == plan.node_rank]
        wants = [
            name
            for name in checkpoints.needed(decision["step"], self.ranks[plan.node_rank])
            if not (name in mine and mine[name] is None)
        ]
        if gives:
            self.giver = carry.Giver(self.folder, gives, plan.address, decision["token"])
            board.put("resume/giver/%d" % plan.node_rank, self.giver.port)
        for name in wants:
            node = source[name]
            self._await(["resume/giver/%d" % node], plan.join_timeout)
            port = board.get("resume/giver/%d" % node)
            size = carry.fetch(name, self.folder, plan.address_of(node), port, decision["token"])
            warn("%s: %s came from %s, %.1f MB" % (plan.host, name, self.places.get(node), size / 1e6))

    # ---- every rank ----

    def _replay(self, step: int) -> None:
        meta = checkpoints.meta(os.path.join(self.folder, "meta_%06d.json" % step))
        if self.plan.raw.get("resume_replay", True):
            size = int(self.options.get("--device-batch-size") or meta.get("device_batch_size") or 1)
            if meta.get("total_batch_size") and meta.get("max_seq_len"):
                replay.install(replay.batches(step, meta, size, self.plan.env_world_size), self._say)

    def _say(self, text: str) -> None:
        if self.plan.rank == 0:
            warn(text)

    def _await(self, keys: list[str], limit: float, now: Callable[[], float] = time.monotonic) -> None:
        deadline, pause = now() + limit, 0.01
        while not self.board.has(keys):
            self.board.look()
            if now() > deadline:
                late = [key for key in keys if not self.board.has([key])]
                what = "the ranks did not settle where the run goes on within %.0f s: no %s" % (limit, ", ".join(late))
                self.board.end([cause("checkpoint_missing", what, "look at train.log on every host")])
            time.sleep(pause)
            pause = min(pause * 1.5, 0.25)


def place(environ: Mapping[str, str], args: list[str]) -> tuple[str, str]:
    """Where nanochat saves with these arguments: the base folder, and the tag of the model."""
    given = options(args)
    base = environ.get("NANOCHAT_BASE_DIR") or os.path.expanduser("~/.cache/nanochat")
    return base, given.get("--model-tag") or "d%s" % given.get("--depth", "20")


def prepare(
    board: Any, plan: Plan, script: str, args: list[str], environ: Mapping[str, str]
) -> tuple[list[str], list[dict[str, Any]]]:
    if script not in SCRIPTS:
        return args, []
    return Resume(board, plan, environ, args).run()


def begins_at(args: list[str]) -> int:
    """The step that the script goes on from with these arguments; 0 at a start."""
    step = options(args).get("--resume-from-step", "")
    return int(step) if step.isdigit() else 0


def _step(name: str) -> int:
    return checkpoints.step_of(name) or 0
