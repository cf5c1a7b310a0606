"""Says who arrives last at collectives, why, and what was compared: the verdict of Straggler on traces."""

from collections import Counter
from typing import Any

import numpy as np

from stepscope.common.status import Status
from stepscope.common.words import count, duration, listing, percent
from stepscope.measurements.process_groups import ALL
from stepscope.rules.parts.base import Verdict
from stepscope.rules.parts.last_rank import FEW, LastRank, LongestStage
from stepscope.rules.parts.remedies import CHANGING_RANK, SLOW_RANK, SLOW_STAGE
from stepscope.runs.model import WORK

DOES = {
    "compute": "computes",
    "copies": "copies between host and device",
    "data_wait": "waits for data",
    "host": "is busy on the host, outside operators and data loading,",
}


def verdict(judged: LastRank) -> Verdict:
    """Returns the verdict of Straggler on traces: a slow rank, a slow stage, or a last rank that changes."""
    slow, stage, changing = judged.slow, judged.slow_stage, judged.changing
    steps = judged.late.shape[1]
    remedy = None
    details: dict[str, Any] = {}
    lost = np.where(slow, judged.own * steps, 0.0)
    seconds, triggered = float(lost.max(initial=0.0)), int(judged.late_steps[slow].sum())
    row = int(np.where(slow, judged.own, -1).argmax())
    if slow.any() and (stage is None or judged.own[row] >= stage.excess):
        finding, remedy = _rank_in_words(judged, row), SLOW_RANK.get(_component(judged, row))
        details = _details(judged, row)
    elif stage is not None:
        finding, remedy = _stage_in_words(judged, stage), SLOW_STAGE
        seconds, triggered = stage.excess * steps, steps
        details = {
            "kind": "stage",
            "stage": stage.stage.place,
            "component": "compute",
            "excess_seconds": stage.excess,
        }
    elif changing is not None:
        finding, remedy = _changes_in_words(judged, changing), CHANGING_RANK.get(changing)
        worst = judged.arrivals.late.max(axis=0)
        seconds, triggered = float(worst.sum()), int((worst > judged.limit).sum())
        details = {
            "kind": "changing",
            "component": changing,
            "excess_seconds": float(worst.mean()),
            "last_ranks": [judged.arrivals.ranks[row][1] for row in judged.arrivals.late.argmax(axis=0)],
        }
    else:
        finding = _healthy_in_words(judged)
    return Verdict(
        Status.FOUND if triggered else Status.HEALTHY,
        f"{finding} {_how(judged)}",
        triggered,
        triggered,
        steps * len(judged.late),
        seconds,
        remedy,
        {
            **details,
            "windows": steps,
            "from_traces": True,
            "collectives": judged.arrivals.collectives,
            "groups": list(judged.arrivals.kinds),
            "clock_residual_seconds": judged.arrivals.residual,
            "ranks": [_row(judged, row, bool(slow[row])) for row in range(len(judged.late))],
        },
    )


def _component(judged: LastRank, row: int) -> str:
    return WORK[int(judged.excess[row].argmax())]


def _row(judged: LastRank, row: int, slow: bool) -> dict[str, Any]:
    node, rank = judged.arrivals.ranks[row]
    own = judged.arrivals.work[row].mean(axis=0)
    return {
        "node": node,
        "rank": rank,
        "own_seconds": float(own.sum()),
        "waited_seconds": float(judged.arrivals.waited[row].mean()),
        "late_seconds": float(judged.late[row].mean()),
        "last_steps": int((judged.last == row).sum()),
        "work_seconds": dict(zip(WORK, own.tolist(), strict=True)),
        "triggered": int(judged.late_steps[row].sum()) if slow else 0,
        "seconds_lost": float(judged.own[row]) * judged.late.shape[1] if slow else 0.0,
    }


def _details(judged: LastRank, row: int) -> dict[str, Any]:
    node, rank = judged.arrivals.ranks[row]
    component = _component(judged, row)
    took = float(judged.arrivals.work[row, :, WORK.index(component)].mean())
    return {
        "kind": "rank",
        "node": node,
        "rank": rank,
        "group": judged.arrivals.group[row],
        "component": component,
        "excess_seconds": float(judged.own[row]),
        "late_seconds": float(judged.late[row].mean()),
        "waits_less_seconds": float(judged.communicates_less[row]),
        "steps": int(judged.late_steps[row].sum()),
        "component_seconds": took,
        "component_others_seconds": took - float(judged.excess[row, WORK.index(component)]),
    }


def _rank_in_words(judged: LastRank, row: int) -> str:
    details, steps = _details(judged, row), judged.arrivals.late.shape[1]
    group = details["group"]
    where = "" if group == ALL else f" of its {group} group"
    finding = (
        f"Rank {details['rank']} on {details['node']} comes last, and the other ranks{where} wait for "
        f"it: {_per_step(judged, details['excess_seconds'])}, "
        f"in {details['steps']} of {count(steps, 'step')}. Meanwhile it "
        f"{DOES[details['component']]} for {duration(details['component_seconds'])} per step, the others "
        f"for {duration(details['component_others_seconds'])} (median)."
    )
    others = [at for at in np.flatnonzero(judged.slow).tolist() if at != row]
    if others:
        names = [str(judged.arrivals.ranks[at][1]) for at in others]
        rank = "Rank" if len(others) == 1 else "Ranks"
        verb = "comes" if len(others) == 1 else "come"
        finding += f" {rank} {listing(names)} {verb} late, too."
    if steps < FEW:
        finding += f" {count(steps, 'step')} cannot show whether it is always this rank."
    return finding


def _stage_in_words(judged: LastRank, longest: LongestStage) -> str:
    ranks = [judged.arrivals.ranks[row][1] for row in longest.stage.rows]
    computes = _stage_computes(longest)
    if longest.stage.place is None:
        return f"Rank {ranks[0]} of the pipeline is slow, and the other ranks wait for it: it {computes}"
    size = len(judged.arrivals.stages)
    last = ", the last," if longest.stage.place == size - 1 else ""
    where = f"{'rank' if len(ranks) == 1 else 'ranks'} {listing(list(map(str, ranks)))}"
    return (
        f"Stage {longest.stage.place + 1} of {size}{last} of the pipeline ({where}) is slow, and the other "
        f"stages wait for it: it {computes}"
    )


def _stage_computes(longest: LongestStage) -> str:
    mine, others = duration(longest.computes), duration(longest.others)
    return f"computes for {mine} per step, they for {others} (median)."


def _changes_in_words(judged: LastRank, component: str) -> str:
    worst = judged.arrivals.late.max(axis=0)
    cause = " Batches or sequences of uneven length do that." if component == "compute" else ""
    return (
        f"No rank is slow by itself: the last one changes from step to step ({_last_ranks(judged)}), and "
        f"the others wait for it: {_per_step(judged, float(worst.mean()))}. "
        f"The last rank {DOES[component]} longer.{cause}"
    )


def _healthy_in_words(judged: LastRank) -> str:
    worst = float(judged.arrivals.late.max(axis=0).mean())
    if judged.longest_stage is not None and not worst:
        return (
            "No stage of the pipeline is so slow that the others wait for it: the slowest one "
            f"{_stage_computes(judged.longest_stage)}"
        )
    finding = (
        "No rank comes so late, step after step, that the others wait for it: they wait "
        f"{duration(worst)} per step for the last one."
    )
    if worst > judged.limit:
        finding += f" It is {_last_ranks(judged)}."
    return finding


def _last_ranks(judged: LastRank) -> str:
    """Returns the ranks that are most often last."""
    late = judged.arrivals.late
    last = late.argmax(axis=0)[late.max(axis=0) > judged.limit / 2].tolist()
    often = Counter(judged.arrivals.ranks[row][1] for row in last).most_common(3)
    return listing([f"rank {rank} in {count(steps, 'step')}" for rank, steps in often])


def _per_step(judged: LastRank, seconds: float) -> str:
    share = 100 * seconds / float(judged.arrivals.durations.mean())
    return f"{duration(seconds)} per step, {percent(share)} of the step time"


def _how(judged: LastRank) -> str:
    steps, residual = judged.arrivals.late.shape[1], float(judged.arrivals.residual)
    words = f"Compared: {count(len(judged.late), 'rank')} in {count(steps, 'step')}"
    if not np.isnan(residual):
        calls = count(judged.arrivals.collectives, "common collective")
        words += f", at {calls}, whose ends align the clocks to {duration(residual)}"
    return f"{words}."
