# Copyright (c) 2026, torchlan contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""python -m torchlan_runner SCRIPT -- ARGS, in every rank."""

from __future__ import annotations

import json
import os
import runpy
import signal
import sys
import threading
import time
from typing import Any

from torchlan_runner.agree import Board, Ended, agree, open_board
from torchlan_runner.beat import Beat, write_atomically
from torchlan_runner.cluster import FINAL, compose
from torchlan_runner.plan import EXIT_CODE, Plan, PlanError, cause, read_plan, script_and_args, warn
from torchlan_runner.sigterm import ended_by_sigterm
from torchlan_runner.transport import Receiver, Sender

LAST_BEATS = 3.0  # seconds that rank 0 waits for the last beats of the others


class Reporter:
    """Carries beats to rank 0, where they become cluster.json."""

    def __init__(self, beat: Beat) -> None:
        self.beat, self.plan = beat, beat.plan
        self.receiver: Receiver | None = None
        self.sender: Sender | None = None
        self._lock = threading.Lock()
        if self.plan.rank == 0:
            beat.listeners.append(self.write_cluster)
            try:
                self.receiver = Receiver(self.plan.address or "127.0.0.1", self.plan.run_id)
                beat.ignored_ports.add(self.receiver.port)
            except OSError as error:
                beat.say_once("beats of the other ranks can't be received on %s: %s" % (self.plan.address, error))

    def publish(self, board: Board) -> None:
        if self.receiver is not None:
            board.put("beats", self.receiver.where())

    def connect(self, board: Board) -> None:
        """For the other ranks: as soon as rank 0 has said where."""
        if self.plan.rank != 0 and self.sender is None and board.has(["beats"]):
            self.sender = Sender(board.get("beats"), self.plan.run_id, self.plan.rank, self.beat.ignored_ports.add)
            self.beat.listeners.append(self.send)

    def send(self, beat: dict[str, Any]) -> None:
        if self.sender is not None:
            self.sender.send(beat, hurry=beat["state"] in FINAL)

    def write_cluster(self, beat: dict[str, Any]) -> None:
        if not self.plan.run_dir:
            return
        with self._lock:
            beats = dict(self.receiver.beats) if self.receiver else {}
            beats[0] = beat
            gone = dict(self.receiver.gone) if self.receiver else {}
            picture = compose(self.plan, beats, gone, beat["state"] in FINAL)
            write_atomically(os.path.join(self.plan.run_dir, "cluster.json"), json.dumps(picture))

    def close(self) -> None:
        """After this rank's last beat: rank 0 waits a moment for the others', then writes the final picture."""
        if self.sender is not None:
            self.sender.close()
        if self.receiver is not None and self.plan.rank == 0:
            deadline = time.monotonic() + LAST_BEATS
            others = range(1, self.plan.env_world_size)
            while time.monotonic() < deadline:
                beats, gone = self.receiver.beats, self.receiver.gone
                if all(rank in gone or (beats.get(rank) or {}).get("state") in FINAL for rank in others):
                    break
                time.sleep(0.05)
            self.beat.publish()
            self.receiver.close()


def main() -> None:
    try:
        plan = read_plan(os.environ)
        script, args = script_and_args(sys.argv)
    except PlanError as error:
        warn(str(error))
        sys.exit(EXIT_CODE)
    beat = Beat(plan)
    reporter = Reporter(beat)
    beat.start()
    ended_by_sigterm(lambda: _stopped(beat, reporter))
    try:
        import torch.distributed  # noqa: F401  (a second or more: the beat goes on meanwhile)
        from torch.distributed.elastic.multiprocessing.errors import record
    except BaseException as error:
        _end(beat, reporter, "failed", 1, error)
        raise
    record(_run)(beat, reporter, script, args)


def _run(beat: Beat, reporter: Reporter, script: str, args: list[str]) -> None:
    try:
        _prepare(beat, reporter, script, args)
    except Ended as ended:
        _refuse(beat, reporter, ended)
    except Exception as error:
        _end(beat, reporter, "failed", 1, error)
        raise
    code: Any = 0
    try:
        sys.argv = [script, *args]
        beat.set_state("training")
        runpy.run_module(script, run_name="__main__", alter_sys=True)
    except SystemExit as error:
        code = error.code
        number = code if isinstance(code, int) else 0 if code is None else 1
        _end(beat, reporter, "failed" if number else "finished", number, None if not isinstance(code, str) else error)
        raise
    except BaseException as error:
        _end(beat, reporter, "failed", 130 if isinstance(error, KeyboardInterrupt) else 1, error)
        raise
    _end(beat, reporter, "finished", 0, None)


def _prepare(beat: Beat, reporter: Reporter, script: str, args: list[str]) -> None:
    from torchlan_runner import backend, compat, facts, links, steps

    plan = beat.plan
    beat.set_state("agreeing")
    board = None
    if plan.env_world_size > 1 or plan.world_size > 1 or plan.nnodes > 1:
        own = _own_world_causes(plan)
        measured = facts.measure(plan, script, args, os.environ)
        try:
            board = open_board(plan, os.environ)
            reporter.publish(board)
            if own and plan.env_world_size == 1:
                board.end(own)
            beat.causes.extend(agree(board, measured, os.getpid(), lambda: reporter.connect(board)))
            if own:
                board.end(own)
            deadline = time.monotonic() + 2
            while plan.rank != 0 and reporter.sender is None and time.monotonic() < deadline:
                reporter.connect(board)
                time.sleep(0.02)
            beat.set_state("connecting")
            links.check_links(board, plan)
        except Ended:
            raise
        except (RuntimeError, OSError) as error:  # the store's own errors, of several classes in several versions
            raise Ended([_store_cause(plan, error)]) from error
    beat.agreed = True
    backend.install_counters(beat)
    progress = None
    if plan.device == "cpu":
        try:
            backend.start_gloo(plan, beat)
        except Exception as error:
            text = str(error).splitlines()
            what = "rank %d on %s can't bring up Gloo: %s" % (
                plan.rank,
                plan.host,
                text[0] if text else type(error).__name__,
            )
            fix = "check GLOO_SOCKET_IFNAME=%s on %s and the links between the hosts" % (
                os.environ.get("GLOO_SOCKET_IFNAME"),
                plan.host,
            )
            raise Ended([cause("backend_failed", what, fix, host=plan.host, rank=plan.rank)]) from error
    else:
        progress = backend.CudaProgress(beat.counters)
        beat.listeners.append(lambda _beat: progress.look())
    steps.Steps(beat, progress.mark if progress else None).install()
    compat.install(os.environ)
    if plan.rank == 0:
        sys.stdout = steps.Tee(sys.stdout, lambda line: steps.parse_line(line, beat.counters))


def _own_world_causes(plan: Plan) -> list[dict[str, Any]]:
    """torchrun against the plan on this host alone: nothing to compare with may ever come."""
    found = []
    for name, here, planned in (
        ("GROUP_WORLD_SIZE", plan.group_world_size, plan.nnodes),
        ("WORLD_SIZE", plan.env_world_size, plan.world_size),
    ):
        if here != planned:
            found.append(
                cause(
                    "world_differs",
                    "torchrun on %s says %s=%d, the plan says %d" % (plan.host, name, here, planned),
                    "start every host from one launch: the same inventory, the same nnodes",
                    host=plan.host,
                    rank=plan.rank,
                )
            )
    return found


def _store_cause(plan: Plan, error: BaseException) -> dict[str, Any]:
    text = str(error).strip().splitlines()
    return cause(
        "store_lost",
        "rank %d on %s lost torchrun's store at %s:%d: %s"
        % (plan.rank, plan.host, plan.master_addr, plan.master_port, text[0] if text else type(error).__name__),
        "the master's agent ended or can't be reached any more: look at train.log on the master",
        host=plan.host,
        rank=plan.rank,
    )


def _refuse(beat: Beat, reporter: Reporter, ended: Ended) -> None:
    """This start is over for every rank: say why in every log, in torchrun's failure table, in the beat."""
    plan = beat.plan
    lines = ["rank %d on %s: this start is over, nothing was trained." % (plan.rank, plan.host)]
    for entry in ended.causes:
        lines.append("%s%s: %s" % (entry["code"], "" if entry["weight"] == "error" else " (no error)", entry["what"]))
        lines.append("  fix: %s" % entry["fix"])
    text = "\n".join(lines + ([ended.table] if ended.table else []))
    warn(text.replace("\n", "\n[torchlan] "))
    path = os.environ.get("TORCHELASTIC_ERROR_FILE")
    if path:
        short = "; ".join("%s: %s" % (entry["code"], entry["what"]) for entry in ended.causes)
        message = {"message": short, "extraInfo": {"timestamp": str(int(time.time())), "py_callstack": text}}
        try:
            os.makedirs(os.path.dirname(path), exist_ok=True)
            write_atomically(path, json.dumps({"message": message}))
        except OSError:
            pass
    beat.causes.extend(entry for entry in ended.causes if entry not in beat.causes)
    _end(beat, reporter, "failed", EXIT_CODE, None)
    sys.exit(EXIT_CODE)


def _end(beat: Beat, reporter: Reporter, state: str, code: int, error: BaseException | None) -> None:
    try:
        beat.sample_sockets()
        if error is not None:
            beat.fail(type(error).__name__, str(error))
        try:
            sys.stdout.flush()
        except (OSError, ValueError):
            pass
        beat.finish(state, code)
        reporter.close()
    except Exception as problem:
        warn("last beat: %s: %s" % (type(problem).__name__, problem))


def _stopped(beat: Beat, reporter: Reporter) -> None:
    beat.sample_sockets()
    beat.finish("stopped", 128 + signal.SIGTERM)
    if reporter.sender is not None:
        reporter.sender.close()


if __name__ == "__main__":
    main()
