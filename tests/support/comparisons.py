"""Comparisons built by hand: what the page must be able to show."""

from dataclasses import asdict, replace
from typing import Any

import numpy as np
from stepscope.common.status import Status
from stepscope.compare.compared_run import ComparedRun
from stepscope.compare.comparison import Comparison, compare
from stepscope.compare.gate import parse
from stepscope.compare.predicted import CheckedPrediction
from stepscope.report.right_sizing import Prediction

from tests.support.analysis import HOSTILE, rule
from tests.support.compared import idle_run, run_of

MORE_WORKERS = Prediction(
    change="more_workers",
    resource="loader workers of a rank",
    current=2,
    suggested=4,
    metric="step_seconds_mean",
    measured=0.5,
    expected=0.25,
    low=0.2,
    high=0.5,
    sentence="With 4 loader workers a rank instead of 2 a training step would take about 250 ms.",
    assumption="Each worker has a core of its own.",
)


def mended(**loader: Any) -> Comparison:
    """A run that waited for its data, and one that hardly does; the gate fails all the same."""
    random = np.random.default_rng(1)
    noise = 1 + 0.02 * random.normal(size=(2, 400))
    common: dict[str, Any] = {"gpu": 0.5, "price": 32.77, "ranks": 2, "eval_durations": [0.5] * 4}
    a = run_of(0.577 * noise[0], data_wait=0.27, forward=0.1, backward=0.18, loader={"workers": 1}, **common)
    b = run_of(
        0.368 * noise[1],
        data_wait=0.002,
        forward=0.12,
        backward=0.22,
        loader={"workers": 4, **loader},
        **common,
    )
    statuses: tuple[tuple[ComparedRun, Status, Status], ...] = (
        (a, Status.FOUND, Status.HEALTHY),
        (b, Status.HEALTHY, Status.FOUND),
    )
    its = [
        replace(
            run,
            analysis=replace(
                run.analysis,
                rules=[
                    rule("DataStarved", first),
                    rule("StepOutlier", second),
                    rule("CPUBottleneck", Status.FOUND),
                ],
            ),
        )
        for run, first, second in statuses
    ]
    conditions = [parse(text) for text in ("step_p50>+3%", "any_rule", "gpu_p95<60")]
    comparison = compare(its[0], its[1], conditions)
    checked = CheckedPrediction(MORE_WORKERS, 4, 0.368, True)
    return replace(comparison, predictions=[checked])


def no_steps() -> Comparison:
    """The published case: no more is known than how long how many nodes were taken."""
    return compare(idle_run(503, 3, 14.688), idle_run(502, 2, 3.825))


def nothing_known() -> Comparison:
    run = idle_run(10, 1)
    unknown = replace(
        run, usage=[], ranks=(), analysis=replace(run.analysis, start=None, end=None, nodes=[], cores={})
    )
    return compare(unknown, unknown)


def one_step() -> Comparison:
    return compare(run_of([0.1]), run_of([0.3]))


def alike() -> Comparison:
    run = run_of(np.full(50, 0.1), gpu=0.9)
    return compare(run, run)


def hostile() -> Comparison:
    comparison = mended()
    its = [
        replace(
            run,
            place=HOSTILE,
            analysis=replace(
                run.analysis,
                run=HOSTILE,
                command=HOSTILE + str(index),
                framework=HOSTILE,
                versions={HOSTILE: HOSTILE + str(index)},
                unknowns=[HOSTILE],
                rules=[rule(HOSTILE, Status.FOUND, finding=HOSTILE, recommendation=HOSTILE)],
            ),
        )
        for index, run in enumerate((comparison.a, comparison.b))
    ]
    again = compare(its[0], its[1], [parse("step_p50>+3%")])
    worse = {**asdict(MORE_WORKERS), "resource": HOSTILE, "assumption": HOSTILE}
    return replace(again, predictions=[CheckedPrediction(Prediction(**worse), 4, 0.2, True)])


EVERY_COMPARISON = (mended, no_steps, nothing_known, one_step, alike, hostile)
