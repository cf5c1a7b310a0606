"""Finds what restarts of a run by its launcher cost."""

from collections.abc import Iterator, Mapping
from math import fsum

from stepscope.common.words import count, duration
from stepscope.evaluation.account import RESTART, Key
from stepscope.evaluation.analysis import Analysis, RuleResult
from stepscope.evaluation.unexplained import LargePart, of_part
from stepscope.measurements.step_totals import Restart
from stepscope.rules.collective_hang import CollectiveHang

RESTART_RARELY = (
    "Fix what ended the attempt. If that cannot be, save so often that repeated steps cost about what saving "
    "does, and keep what the start prepares in a cache."
)


def restarted(analysis: Analysis) -> Iterator[RuleResult]:
    """Yields the time until restarted attempts took steps again, and the steps that they repeat."""
    known, run_seconds = analysis.restarts, analysis.run_seconds
    if not known or not run_seconds:
        return
    again, repeated = sum(each.seconds for each in known), sum(each.unsaved_seconds or 0.0 for each in known)
    why = in_words(analysis.restarted_after, analysis.world_size)
    times = "once" if len(known) == 1 else count(len(known), "time")
    hung = sum(_hung(each, analysis) for each in known)
    evidence = [
        f"The launcher restarted the run {times}{f', last after {why}' if why else ''}",
        f"{duration(again)} went by from the last step before to the first one after"
        + (f", {duration(hung)} of that in a hang" if hung else ""),
    ]
    if repeated:
        evidence.append(f"The last {duration(repeated)} of steps were not saved, so they are repeated")
    if unknown := [each.steps for each in known if each.unsaved_seconds is None]:
        steps = count(sum(unknown), "earlier step")
        evidence.append(f"No checkpoint was seen: which of {steps} are repeated is not known")
    spent = min((again - hung + repeated) / run_seconds, 1.0)
    yield of_part(LargePart(Key(RESTART), spent, RESTART_RARELY, ". ".join(evidence)), run_seconds)


def _hung(restart: Restart, analysis: Analysis) -> float:
    """Returns the seconds until the first step after a restart in which ranks hung before it."""
    hangs = analysis.details_of(CollectiveHang).get("hangs", ()) if analysis.found(CollectiveHang) else ()
    begin, end = restart.start, restart.start + restart.seconds
    spans = ((max(hang["start"], begin), min(hang["start"] + hang["seconds"], end)) for hang in hangs)
    hung = fsum(max(until - since, 0.0) for since, until in spans)
    return min(hung, restart.seconds)


def in_words(exception: Mapping[str, str], world_size: int) -> str:
    """Returns what ended a run or an attempt: "KeyError: 'dog', crash.py:18"; "" if nothing is known."""
    if not exception.get("type"):
        return ""
    said = ": ".join(filter(None, (exception["type"], exception.get("message"))))
    rank = f"rank {exception['rank']}" if exception.get("rank") and world_size > 1 else ""
    return ", ".join(filter(None, (said, exception.get("place"), rank)))
