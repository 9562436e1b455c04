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
import time
from typing import Any

from torchlan_runner.agree import Ended, agree, open_board
from torchlan_runner.beat import FINAL, Beat, write_atomically
from torchlan_runner.plan import ENDED_CODE, EXIT_CODE, Plan, PlanError, cause, read_plan, script_and_args, warn
from torchlan_runner.sigterm import ended_by_signal
from torchlan_runner.stamps import Stamps
from torchlan_runner.ward import Ward


def main() -> None:
    try:
        plan = read_plan(os.environ)
        script, args = script_and_args(sys.argv)
    except PlanError as error:
        warn(str(error))
        sys.exit(EXIT_CODE)
    beat = Beat(plan)
    if plan.local_rank == 0 and plan.run_dir:
        beat.listeners.append(Stamps(plan.run_dir).look)
    beat.start()
    ward = Ward(beat, lambda reason: _ended(beat, reason))
    ended_by_signal(lambda number: _stopped(beat, number))
    try:
        import torch.distributed  # noqa: F401  (a second or more: the beat goes on meanwhile)
        from torch.distributed.elastic.multiprocessing.errors import record
    except BaseException as error:
        _end(beat, "failed", 1, error)
        raise
    record(_run)(beat, ward, script, args)


def _run(beat: Beat, ward: Ward, script: str, args: list[str]) -> None:
    try:
        _prepare(beat, ward, script, args)
    except Ended as ended:
        _refuse(beat, ended)
    except Exception as error:
        _end(beat, "failed", 1, error)
        raise
    code: Any = 0
    try:
        sys.argv = [script, *args]
        beat.set_state("training")
        runpy.run_module(script, run_name="__main__", alter_sys=True)
    except SystemExit as error:
        code = error.code
        number = code if isinstance(code, int) else 0 if code is None else 1
        _end(beat, "failed" if number else "finished", number, None if not isinstance(code, str) else error)
        raise
    except BaseException as error:
        _end(beat, "failed", 130 if isinstance(error, KeyboardInterrupt) else 1, error)
        raise
    _end(beat, "finished", 0, None)


def _prepare(beat: Beat, ward: Ward, script: str, args: list[str]) -> None:
    from torchlan_runner import backend, checkpoints, compat, facts, links, pace, resume, room, steps

    plan = beat.plan
    beat.set_state("agreeing")
    board = None
    if plan.env_world_size > 1 or plan.world_size > 1 or plan.nnodes > 1:
        own = _own_world_causes(plan)
        measured = facts.measure(plan, script, args, os.environ)
        try:
            board = open_board(plan, os.environ)
            ward.publish(board)
            if own and plan.env_world_size == 1:
                board.end(own)
            beat.causes.extend(agree(board, measured, os.getpid(), lambda: ward.connect(board)))
            if own:
                board.end(own)
            deadline = time.monotonic() + 2
            while ward.where is None and time.monotonic() < deadline:
                ward.connect(board)
                time.sleep(0.02)
            beat.set_state("connecting")
            links.check_links(board, plan)
            _go_on(beat, board, script, args)
        except Ended:
            raise
        except (RuntimeError, OSError) as error:  # the store's own errors, of several classes in several versions
            raise Ended([_store_cause(plan, error)]) from error
    else:
        _go_on(beat, None, script, args)
    beat.agreed = True
    if script in resume.SCRIPTS and plan.local_rank == 0:
        folder = checkpoints.folder_of(*resume.place(os.environ, args))
        room.install(beat, folder, args)
        if room.keeps(plan):
            ward.keep(folder)
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
    pace.install(beat.counters)
    compat.install(os.environ)
    if plan.rank == 0:
        sys.stdout = steps.Tee(sys.stdout, lambda line: steps.parse_line(line, beat.counters))


def _go_on(beat: Beat, board: Any, script: str, args: list[str]) -> None:
    """The script's arguments, completed with the step that the run goes on from."""
    from torchlan_runner import resume

    args[:], told = resume.prepare(board, beat.plan, script, args, os.environ)
    beat.counters.began_at = resume.begins_at(args)
    if beat.plan.rank == 0:
        beat.causes.extend(told)
        for entry in told:
            warn(entry["what"])


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


def _refuse(beat: Beat, ended: Ended) -> None:
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
    _end(beat, "failed", EXIT_CODE, None)
    sys.exit(EXIT_CODE)


def _end(beat: Beat, state: str, code: int, error: BaseException | None) -> None:
    try:
        beat.sample_sockets()
        if error is not None:
            beat.fail(type(error).__name__, str(error))
        try:
            sys.stdout.flush()
        except (OSError, ValueError):
            pass
        beat.finish(state, code)
    except Exception as problem:
        warn("last beat: %s: %s" % (type(problem).__name__, problem))


def _stopped(beat: Beat, number: int) -> None:
    """By a signal: what stop.yml ends has its reason in a file; else it was somebody else."""
    if beat.state in FINAL:
        return  # it has said its end, and is on its way out
    plan = beat.plan
    asked = plan.run_dir is not None and os.path.exists(os.path.join(plan.run_dir, "stopped"))
    what = "rank %d on %s was told to end (%s)" % (plan.rank, plan.host, signal.Signals(number).name)
    fix = "nothing to do if you ended it; else: was tmux or torchrun ended on %s, did that host shut down?" % plan.host
    weight = "note" if asked else "error"
    beat.causes.append(cause("ended_from_outside", what, fix, host=plan.host, rank=plan.rank, weight=weight))
    beat.sample_sockets()
    beat.finish("stopped", 128 + number)


def _ended(beat: Beat, reason: dict[str, Any]) -> None:
    """The guard says that the run is over. The main thread may be in a collective that never returns."""
    try:
        if beat.state not in FINAL:
            beat.causes.extend([reason] if reason not in beat.causes else [])
            beat.finish("failed" if reason["weight"] == "error" else "stopped", ENDED_CODE)
        sys.stdout.flush()
    finally:
        os._exit(ENDED_CODE)


if __name__ == "__main__":
    main()
