"""Comparisons of traces: what no rule judges, but the report finds on a device, is compared, too."""

from pathlib import Path

import pytest
from stepscope.analysis import open as open_run
from stepscope.compare.compared_run import ComparedRun, read_run
from stepscope.compare.comparison import compare
from stepscope.compare.gate import parse
from stepscope.compare.sentences import verdict
from stepscope.runs.traces.source import KinetoTraces

from tests.runs.test_kineto import marked, on_gpu, write


def traced(place: Path, copied: float, steps: int = 30) -> ComparedRun:
    """Steps of 100 ms, of which a GPU copies memory for `copied` ms."""
    rows = [marked(number, 100 * number, 100 * number + 100) for number in range(steps)]
    rows += [on_gpu("gpu_memcpy", "Memcpy", step["ts"] / 1000, step["ts"] / 1000 + copied) for step in rows]
    rows += [on_gpu("kernel", "gemm", 100 * number + copied, 100 * number + 100) for number in range(steps)]
    return read_run(str(place), KinetoTraces(write(place, rows)))


def test_what_the_report_finds_on_a_device_appears_goes_away_and_fails_a_gate(tmp_path: Path) -> None:
    healthy, copies = traced(tmp_path / "a.json", 1), traced(tmp_path / "b.json", 40)
    short = traced(tmp_path / "short.json", 1, steps=1)
    said = [" ".join(verdict(compare(*pair))) for pair in ((healthy, copies), (copies, healthy))]
    assert "Copies of memory appeared." in said[0]
    assert "Copies of memory went away." in said[1]
    assert "Copies of memory can no longer be judged." in " ".join(verdict(compare(copies, short)))
    (outcome,) = compare(healthy, copies, [parse("any_rule")]).outcomes
    assert outcome.state == "failed"
    assert outcome.reason.startswith("Copies of memory fired in B and not in A: GPU 0 of rank 0 only copied")
    first = open_run(tmp_path / "b.json").findings().to_pylist()[0]
    assert (first["rule"], first["status"]) == ("Copies of memory", "found")
    assert first["seconds_lost"] == pytest.approx(1.2, rel=0.01)


def test_sums_that_differ_by_rounding_are_no_change(tmp_path: Path) -> None:
    a, b = (traced(tmp_path / f"{steps}.json", 1, steps) for steps in (7, 13))
    b.steps["train"][0].seconds *= 1 + 1e-14
    said = verdict(compare(a, b))
    assert said[0] == "B takes as long per step."
    assert not any("per step (" in sentence or "more per step" in sentence for sentence in said)
