# Copyright (c) 2026, torchlan contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What the beats of all ranks say together: what each one does, how far the run is, and when it will be over."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

# So long a rank may be in a collective before a person is told whom it waits for.
_WAITS_S = 3.0
_IN_A_RUN = ("training", "compiling")


def doing(beats: Iterable[Mapping[str, Any]]) -> dict[int, str]:
    """By rank, in words: C(training), C(compiling), C(evaluating), C(saving), C(waiting for rank 1), C(finished), …"""
    listed = list(beats)
    return {beat["rank"]: _words(beat, listed) for beat in listed}


def _words(beat: Mapping[str, Any], beats: list[Mapping[str, Any]]) -> str:
    state = str(beat.get("state") or "missing")
    if state not in _IN_A_RUN:
        return state
    waiting = beat.get("waiting_in")
    if waiting and (beat.get("time") or 0) - waiting["since"] >= _WAITS_S:
        late = [other for other in beats if other is not beat and _has_not_come(other, waiting["n"])]
        ranks = ", ".join(str(other["rank"]) for other in late)
        if not late:
            return f"waiting in {waiting['op']}"
        if len(late) > 3:
            return f"waiting for {len(late)} ranks"
        return f"waiting for rank{'s' if len(late) > 1 else ''} {ranks}"
    return str(beat.get("doing") or state)


def _has_not_come(beat: Mapping[str, Any], number: int) -> bool:
    """Whether a rank has not begun the collective of this number, so that others can't finish it."""
    return (beat.get("collectives_begun") or 0) < number


def total(beats: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """The whole run.

    :returns: C(step) that all ranks have done, C(steps) of all, C(loss), C(val_bpb), C(tokens_per_s) (nanochat counts
        those of all ranks), C(step_s), C(eta_s), C(communication_share) of the rank that waits most; null if unknown.
    """
    listed = list(beats)
    first: Mapping[str, Any] = min(listed, key=lambda beat: beat["rank"], default={})
    steps = first.get("step_of")
    done = min((beat.get("step") or 0 for beat in listed), default=None)
    step = None if done is None else done + began_at(listed)
    pace = max((beat["step_s"] for beat in listed if beat.get("step_s")), default=None)
    states = {beat.get("state") for beat in listed}
    over = states == {"finished"} or bool(states & {"failed", "stopped"})
    left = max(0, steps - step) if steps and step is not None else None
    return {
        "step": step,
        "steps": steps,
        "loss": first.get("loss"),
        "val_bpb": first.get("val_bpb"),
        "tokens_per_s": first.get("tokens_per_s"),
        "step_s": pace,
        "eta_s": round(left * pace, 1) if left is not None and pace and not over else None,
        "communication_share": max(
            (beat["communication_share"] for beat in listed if beat.get("communication_share") is not None),
            default=None,
        ),
    }


def began_at(beats: Iterable[Mapping[str, Any]]) -> int:
    """The step that this attempt began with; ranks count their own steps from 0 after a resume."""
    return max((beat.get("began_at") or 0 for beat in beats), default=0)


def duration(seconds: float | None) -> str:
    """For people: C(45 s), C(12 min), C(3 h 05 min), C(4 d 2 h)."""
    if seconds is None:
        return "-"
    whole = round(seconds)
    if whole < 100:
        return f"{whole} s"
    minutes = round(whole / 60)
    if minutes < 60:
        return f"{minutes} min"
    hours, minutes = divmod(minutes, 60)
    if hours < 48:
        return f"{hours} h {minutes:02} min"
    return f"{hours // 24} d {hours % 24} h"


def progress_bar(step: int | None, steps: int | None, width: int) -> str:
    """C([####----]); empty where nobody knows how many steps there are."""
    if not steps or step is None:
        return ""
    full = min(width, width * step // steps)
    return f"[{'#' * full}{'-' * (width - full)}]"
