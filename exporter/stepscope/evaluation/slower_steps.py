"""Finds steps that take longer and longer. That is no problem if batches may grow by design."""

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from stepscope.common.words import duration, number, share
from stepscope.evaluation.analysis import Analysis, RuleResult
from stepscope.evaluation.unexplained import finding
from stepscope.measurements.timeline import StepTimeline
from stepscope.rules.parts.topics import About, Effect
from stepscope.training.layout import GROWTH

PARTS = 6  # of the training steps, in order: their medians rise from part to part
FEWEST = 15  # marked steps per part
SHORTEST = 10.0  # seconds of the run
SLOWER = 2.0  # times as long in the last part as in the first: shared machines drift by less
RISE = 1.03  # times as long in each part as in the one before: a machine slow for a while is no growth
NEIGHBOURS = 0.1  # of the cores: if others use more, they may be why
GROWN = 1.1  # times: batches that grew more may be why
UNKNOWN = "What grows was not measured. Batches may, by design."
KEPT = "What models get in a step has not grown: something that the script keeps does."
FIND_WHAT_GROWS = (
    "Look for what grows from step to step: tensors, lists or histories that are kept, sequences, or numbers "
    "that get tiny, with which CPUs are slow (`torch.set_flush_denormal(True)`). Profile windows of an early "
    "and a late step show which operators take longer."
)


def slower_steps(analysis: Analysis) -> Iterator[RuleResult]:
    """Yields that steps got slower, and what they took beyond the first ones."""
    run_seconds = analysis.run_seconds
    allowed, others = (sum(getattr(one, use) for one in analysis.run_cores) for use in ("allowed", "others"))
    if not run_seconds or run_seconds < SHORTEST or analysis.is_trace or others > NEIGHBOURS * allowed:
        return
    for timeline in analysis.timelines:
        medians = _rising(timeline)
        if medians is None:
            continue
        first, last = medians
        beyond = sum(max(mark.seconds - first, 0.0) for mark in timeline.marks if mark.phase == "train")
        lost = min(beyond * timeline.every, run_seconds) - analysis.core_wait_seconds
        if lost > 0:
            took = (
                f"Training steps took {duration(first)} at first and {duration(last)} at the end, "
                f"{number(round(last / first, 1))} times as long"
            )
            of_run, title = f"{share(lost, run_seconds)} of the run", "Steps that get slower"
            if 0.0 < analysis.gauges.get(GROWTH, 0.0) < GROWN:
                about, said = None, f"{of_run}, {duration(lost)}. {took}. {KEPT}"
            else:
                about, said = About(title, Effect.OVERVIEW), f"{took}: {of_run}. {UNKNOWN}"
            # Whatever passes in these steps may be what grows.
            slower = finding(title, said, FIND_WHAT_GROWS, lost, about, brings={"": lost})
            yield replace(slower, cause_known=False)
            return


def _rising(timeline: StepTimeline) -> tuple[float, float] | None:
    """Returns the median seconds of the first and the last steps; None unless they rise all the time."""
    seconds = np.array([mark.seconds for mark in timeline.marks if mark.phase == "train"])
    if len(seconds) < PARTS * FEWEST:
        return None
    parts = np.array_split(seconds, PARTS)
    medians = np.array([np.median(part) for part in parts])
    factors = medians[1:] / np.maximum(medians[:-1], 1e-9)
    apart = np.percentile(parts[0], 75) < np.percentile(parts[-1], 25)
    if not (factors.min() >= RISE and apart and medians[-1] >= SLOWER * medians[0]):
        return None
    return float(medians[0]), float(medians[-1])
