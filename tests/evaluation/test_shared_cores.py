"""How much computing may gain from the cores that a problem's cause used."""

from dataclasses import replace
from typing import Any

import pytest
from stepscope.common.status import Status
from stepscope.evaluation.account import HOST, INTERPRETER_LOCK, Account, Key, Leaf
from stepscope.evaluation.analysis import Analysis, GpuUse, RunCores
from stepscope.evaluation.problems import problems_of
from stepscope.report.findings import evidence
from stepscope.runs.model import LineTime, ThreadTime
from stepscope.training.layout import PIPELINE_PYTHON, THREADS

from tests.support.analysis import loader, nothing_found, rule

FETCHES = {"fetch_seconds": 90.0, "fetch_cpu_seconds": 80.0, "worker_threads": 1}


def line(place: str, state: str, seconds: float) -> LineTime:
    return LineTime("train", "host", place, "work", "", "", "", {state: seconds})


def run(rank_count: int = 1, **changes: Any) -> Analysis:
    """A run of 100 s per rank, on two cores, of which 60 s compute with two threads and 35 s wait."""
    whole = 100.0 * rank_count
    parts = {"forward": 0.6, "data_wait": 0.35, "host": 0.05}
    leaves = [Leaf(Key("train", name), part, {0: part * whole}) for name, part in parts.items()]
    starved = rule("DataStarved", Status.FOUND, seconds_lost=35.0, triggered=1)
    values: dict[str, Any] = {
        "account": Account(whole, rank_count, tuple(leaves)),
        "rules": [starved],
        "start": 1e9,
        "end": 1e9 + 100,
        "gauges": {THREADS: 2.0 / rank_count},
        "run_cores": [RunCores("a", 2.0, 1.9, 0.0)],
        "loaders": [{**loader(workers=1), **FETCHES}],
        "gpu_use": [],
        "ranks": rank_count,
    }
    return replace(nothing_found(), **values | changes)


@pytest.mark.parametrize(
    ("analysis", "seconds"),
    [
        (run(), 40.0),  # 80 CPU seconds of two cores
        (run(2), 40.0),
        (run(run_cores=[RunCores("a", 4.0, 3.0, 0.0)]), 0.0),  # there are cores for all
        (run(run_cores=[]), 0.0),  # not known
        (run(gauges={}), 0.0),
        (run(loaders=[]), 0.0),
        (run(loaders=[], gauges={PIPELINE_PYTHON: 80.0}), 40.0),  # TensorFlow computes on all cores
        (run(2, loaders=[], gauges={PIPELINE_PYTHON: 40.0}), 40.0),
        (run(loaders=[{**loader(workers=0), **FETCHES}]), 0.0),  # the training process fetches itself
        (run(loaders=[{**loader(phase="eval"), **FETCHES}]), 0.0),
        (run(loaders=[{**loader(), **FETCHES, "fetch_cpu_seconds": 5.8}]), 0.0),  # less than 3 % of the run
        (run(loaders=[{**loader(workers=1), **FETCHES, "fetch_cpu_seconds": 34.0}]), 17.0),
        (
            run(loaders=[{**loader(), **FETCHES, "fetch_cpu_seconds": 190.0}]),
            60.0,
        ),  # all of it
    ],
)
def test_loader_workers_take_cores_from_computing_if_there_are_too_few(
    analysis: Analysis, seconds: float
) -> None:
    (problem,) = problems_of(analysis)
    assert problem.shared_seconds == pytest.approx(seconds)
    assert ("computing may take up to" in evidence(analysis, problem)) is bool(seconds)
    assert ("Cheaper fetches" in problem.rule.recommendation) is (seconds > 35 / 2), "most of it is waiting"


@pytest.mark.parametrize(
    ("caller", "workers", "says"), [("__iter__", 2, True), ("__iter__", 1, False), ("__getitem__", 2, False)]
)
def test_workers_that_iterate_may_each_read_what_is_for_the_others(
    caller: str, workers: int, says: bool
) -> None:
    waits = replace(line("train.py:5", "other", 40.0), phase="train", component="data_wait")
    parses = replace(line("data.py:3", "running", 80.0), caller=caller)
    threads = [
        ThreadTime("a", 0, role, 1, 100.0, 60.0, 0.0, 0.0, (each,))
        for role, each in (("training", waits), ("loader worker", parses))
    ]
    (problem,) = problems_of(run(loaders=[{**loader(workers=workers), **FETCHES}], threads=threads))
    assert ("skip those of the others" in problem.rule.recommendation) is says


def test_computing_on_gpus_shares_no_cores() -> None:
    used = GpuUse("a", "GPU 0", 50.0, 50.0, 50.0, 50.0, 50.0, 50.0, 50.0, 8e10, "a process")
    (problem,) = problems_of(run(gpu_use=[used]))
    assert not problem.shared_seconds


@pytest.mark.parametrize(("state", "seconds"), [("lock", 35.0), ("disk", 0.0)])
def test_a_thread_for_which_the_loop_waits_takes_cores_too(state: str, seconds: float) -> None:
    waits = line("train.py:34", state, 300.0)
    thread = ThreadTime(
        *("a", 0, "training", 1, 100.0, 60.0, 0.0, 0.0),
        lines=(waits,),
        others=(line("train.py:9", "running", 70.0),),
    )
    leaves = (
        Leaf(Key("train", "forward"), 0.7, {0: 70.0}),
        Leaf(Key("train", HOST), 0.3, {0: 30.0}, (waits,)),
    )
    (problem,) = problems_of(run(rules=[], threads=[thread], account=Account(100.0, 1, leaves)))
    assert problem.shared_seconds == pytest.approx(seconds)


def test_a_thread_that_holds_the_interpreter_lock_takes_cores_too() -> None:
    thread = ThreadTime(
        *("a", 0, "training", 1, 100.0, 60.0, 0.0, 0.0),
        lines=(line("train.py:34", "running", 90.0),),
        known_seconds=100.0,
        others=(line("train.py:9", "running", 70.0),),
    )
    leaves = (Leaf(Key("train", "forward"), 1.0, {0: 100.0}),)
    found = problems_of(run(rules=[], threads=[thread], account=Account(100.0, 1, leaves)))
    (problem,) = (one for one in found if one.rule.details.get("component") == INTERPRETER_LOCK)
    assert problem.shared_seconds == pytest.approx(35.0)
