"""HostBound: the share of a GPU's time in a trace in which it waits for its host."""

import re
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from stepscope.evaluation.analysis import Analysis, RuleResult
from stepscope.evaluation.engine import evaluate
from stepscope.report.devices import headline, parts_in_words, rounded
from stepscope.report.document import document
from stepscope.report.html import render_html
from stepscope.runs.model import IDLE_REASONS, DeviceTime, HostTime

from tests.support.few_rules import judged, of_rule
from tests.support.source import MemorySource, node_steps, rank_facts, run_facts

IN_PRACTICE = HostTime("operator", "aten::to", "train.py(12): step", 6, 0.25)


def device(host: float, **others: float) -> DeviceTime:
    """A GPU of one second in six steps, which waits for these reasons and computes otherwise."""
    waits = dict.fromkeys(IDLE_REASONS, 0.0) | {"host": host} | others
    idle = sum(waits.values())
    return DeviceTime("gpu0", 1 - idle, 0.0, 0.0, idle, waits, (IN_PRACTICE,), node="node-a", steps=6)


def analysis_of(*devices: DeviceTime) -> Analysis:
    return evaluate(MemorySource(node_steps(np.full(6, 0.1)), facts=run_facts(devices=devices)))


def result(*devices: DeviceTime) -> RuleResult:
    return of_rule("HostBound", analysis_of(*devices))


@pytest.mark.parametrize(("host", "status"), [(0.1875, "healthy"), (0.2, "healthy"), (0.2001, "found")])
def test_it_fires_above_its_threshold_and_not_at_it(host: float, status: str) -> None:
    assert result(device(host)).status == status


def test_waits_for_data_collectives_and_the_profiler_are_not_the_host_s() -> None:
    found = result(device(0.0625, data=0.25, collective=0.25, profiler=0.25))
    assert (found.status, found.seconds_lost) == ("healthy", 0.0)


def test_it_names_the_gpu_that_waited_longest_and_what_the_host_ran() -> None:
    other = replace(device(0.25), rank=1)
    found = result(other, device(0.5))
    assert found.finding == (
        "GPU 0 of rank 0 waited for its host for 50 % of its time (500 ms); the other GPU: 25 %. Meanwhile "
        "the host ran aten::to at train.py(12): step (50 % of the wait)."
    )
    assert found.seconds_lost == 0.5
    assert "CUDA graphs" in found.recommendation


def test_calls_that_wait_for_the_gpu_are_named_with_their_line_and_the_fix() -> None:
    item = HostTime("synchronising", "aten::item (cudaStreamSynchronize)", "train.py(20): log", 6, 0.1)
    found = result(replace(device(0.5), synchronising=(item,)))
    assert "6 calls waited for the GPU (100 ms): aten::item (cudaStreamSynchronize)" in found.finding
    assert "most at train.py(20): log" in found.finding
    assert "non_blocking=True" in found.recommendation


@pytest.mark.parametrize(
    ("kind", "words"), [("runtime", "ran cudaLaunchKernel at"), ("slow call", "ran 1 slow call of")]
)
def test_slow_calls_are_counted(kind: str, words: str) -> None:
    launch = HostTime(kind, "cudaLaunchKernel", "train.py(12): step", 1, 0.4)
    assert words in result(replace(device(0.5), host=(launch,))).finding


def test_without_a_gpu_in_a_trace_or_without_launches_nothing_is_judged() -> None:
    assert result().status == "not enough data"
    without = result(device(0.0, unknown=0.5))
    assert without.status == "not enough data"
    assert "activity CPU" in without.finding


def test_the_headline_says_what_the_gpu_waited_for_and_its_shares_sum_to_100() -> None:
    """One computes 33.3 %, copies 33.3 % and idles for the rest: rounded alone, that would be 99.9 %."""
    third = replace(device(1 / 3), compute=1 / 3, copy=1 / 3)
    assert headline(analysis_of(third)) == [
        f"GPU 0 of rank 0 was traced for 1.00 s, 6 steps. Its time: {parts_in_words(third)}. "
        "It waited mostly for the host to launch work: 333 ms, 33 % of its time."
    ]
    assert sum(
        rounded({"compute": 100 / 3, "copy": 100 / 3, "communication": 0.0, "idle": 100 / 3}).values()
    ) == (pytest.approx(100))
    assert headline(analysis_of()) == []
    assert headline(analysis_of(device(0.0005)))[0].endswith(
        "It hardly waited: less than 0.1 % of its time for the host to launch work."
    )
    assert headline(analysis_of(device(0.0)))[0].endswith("It never waited.")


def test_waits_that_no_launch_explains_are_not_measured_instead_of_0_percent() -> None:
    report = document(analysis_of(device(0.0, unknown=0.5)))
    (shown,) = report["devices"]
    assert shown["idle_percent"] == {**dict.fromkeys(IDLE_REASONS), "unknown": 50.0}
    (known,) = document(analysis_of(device(0.25, unknown=0.25)))["devices"]
    assert (known["idle_percent"]["host"], known["idle_percent"]["data"]) == (25.0, 0.0)


def test_the_page_has_each_share_in_its_own_column_and_they_sum_to_100() -> None:
    third = replace(device(1 / 3), compute=1 / 3, copy=1 / 3)
    page = render_html(analysis_of(third))
    row = page[page.index("<tr", page.index(">Exposed communication</th>")) :]
    shares = re.findall(r">(\d+\.\d)\s%</td>", row[: row.index("</tr>")])
    assert len(shares) == 4
    assert sum(map(float, shares)) == pytest.approx(100)


def without_a_trace(*ranks: dict[str, float], **parameters: Any) -> RuleResult:
    """A run of 200 s of steps per rank, with these components."""
    facts = run_facts(
        ranks=[
            rank_facts(
                rank=rank,
                phase_seconds={"train": 150.0, "eval": 50.0, "other": 99.0},
                component_seconds=spent,
            )
            for rank, spent in enumerate(ranks)
        ]
    )
    steps = [
        node_steps(np.full(6, 0.1), rank=rank, gc=np.full(6, spent.get("gc", 0.0) / 6))
        for rank, spent in enumerate(ranks)
    ]
    return judged("HostBound", *steps, facts=facts, **parameters)


@pytest.mark.parametrize(
    ("seconds", "status"), [(24.9, "not enough data"), (25.0, "not enough data"), (25.1, "found")]
)
def test_without_a_trace_a_component_of_every_rank_fires_above_its_threshold(
    seconds: float, status: str
) -> None:
    component = {"checkpoint": seconds, "gc": 1.0}
    assert without_a_trace(component, component, component_threshold=12.5).status == status


def test_garbage_that_was_collected_before_the_first_step_does_not_count() -> None:
    ranks = [rank_facts(phase_seconds={"train": 100.0}, component_seconds={"gc": 300.0})]
    found = judged("HostBound", node_steps(np.full(6, 0.1)), facts=run_facts(ranks=ranks))
    assert found.status == "not enough data"


@pytest.mark.parametrize(
    ("component", "did", "remedy"),
    [
        ("host_to_device", "copied to the device", "pin_memory"),
        ("checkpoint", "wrote checkpoints", "async_save"),
        ("gc", "collected garbage", "gc.freeze"),
    ],
)
def test_the_component_is_named_with_its_remedy(component: str, did: str, remedy: str) -> None:
    found = without_a_trace({component: 50.0, "forward": 100.0}, {component: 40.0})
    assert found.finding == (
        f"Rank 0 {did} for 25 % of its step time (50.0 s); the other rank: 20 %, "
        "and trained nothing meanwhile."
    )
    assert (found.seconds_lost, found.details["component"]) == (40.0, component)
    assert remedy in found.recommendation


@pytest.mark.parametrize("framework", ["keras", "tensorflow"])
def test_who_trains_with_keras_is_told_how_keras_saves_less(framework: str) -> None:
    ranks = [
        rank_facts(
            framework=framework, phase_seconds={"train": 100.0}, component_seconds={"checkpoint": 50.0}
        )
    ]
    found = judged("HostBound", node_steps(np.full(6, 0.1)), facts=run_facts(ranks=ranks))
    assert "save_freq" in found.recommendation
    assert "torch" not in found.recommendation


def test_what_one_rank_does_longer_and_compilation_are_not_the_host_s() -> None:
    assert without_a_trace({"gc": 100.0}, {"gc": 1.0}).status == "not enough data"
    assert without_a_trace({"compile": 100.0, "data_wait": 50.0}).status == "not enough data"


def test_a_trace_knows_better_than_timed_components() -> None:
    ranks = [rank_facts(phase_seconds={"train": 100.0}, component_seconds={"checkpoint": 50.0})]
    facts = run_facts(ranks=ranks, devices=(device(0.01),))
    assert judged("HostBound", node_steps(np.full(6, 0.1)), facts=facts).status == "healthy"
