"""`stepscope.analysis.open`: every kind of source, and what is refused."""

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pyarrow.compute as pc
import pytest
import stepscope
import stepscope.analysis
from stepscope.analysis import UserError
from stepscope.evaluation.analysis import Analysis
from stepscope.runs.recording.files import RunFile
from stepscope.runs.recording.writer import RecordingWriter

from tests.support.backfill import every_scenario, run_of, seconds_of
from tests.support.prometheus import needs_prometheus
from tests.support.recording import START, header, sample, step
from tests.support.scenarios import WrittenScenarios
from tests.support.source import MemorySource, run_facts

SCENARIO = "few-dataloaders"


def agree(run: stepscope.analysis.Run, analysis: Analysis) -> None:
    """The tables say what the report says."""
    assert (run.name, run.nodes, run.ranks) == (analysis.run, analysis.nodes, list(range(analysis.ranks)))
    assert len(run.samples()) == analysis.samples_taken
    assert len(run.steps()) == sum(steps.count for steps in analysis.steps)
    assert pc.sum(run.steps()["data_wait_seconds"]).as_py() == pytest.approx(
        analysis.component_seconds["data_wait"], rel=0.01
    )
    assert run.findings()["finding"].to_pylist() == [rule.finding for rule in analysis.rules]


def test_a_recording_opens(scenarios: WrittenScenarios) -> None:
    written = scenarios.written(SCENARIO)
    run = stepscope.analysis.open(written.recording_directory)
    agree(run, written.recording)
    assert repr(run) == f"<stepscope.analysis.Run {run.name} from {written.recording_directory}>"
    assert run.duration == seconds_of(SCENARIO)


def test_the_output_of_debugger_opens(scenarios: WrittenScenarios) -> None:
    written = scenarios.written(SCENARIO)
    run = stepscope.analysis.open(str(written.debugger_directory))
    agree(run, written.debugger)
    assert run.samples(start=0, end=60)["elapsed_seconds"][0].as_py() == 0


def test_traces_open_and_have_steps_but_no_samples(tmp_path: Path) -> None:
    steps = [
        {"ph": "X", "cat": "user_annotation", "name": f"ProfilerStep#{number}", "pid": 100, "tid": 1}
        | {"ts": number * 1e6, "dur": 5e5}
        for number in range(3)
    ]
    document = {"schemaVersion": 1, "host_name": "node-a", "baseTimeNanoseconds": 0, "traceEvents": steps}
    (tmp_path / "rank0.pt.trace.json").write_text(json.dumps(document))
    run = stepscope.analysis.open(tmp_path)
    assert run.steps()["elapsed_seconds"].to_pylist() == [0.0, 1.0, 2.0]
    assert run.steps()["duration_seconds"].to_pylist() == [0.5] * 3
    assert run.ranks == [0]
    assert [len(run.samples(device)) for device in ("node", "cpu", "gpu")] == [0, 0, 0]
    assert any("no sample" in sentence for sentence in run.unknowns)


@needs_prometheus
def test_a_run_in_prometheus_opens(tmp_path: Path) -> None:
    with every_scenario(tmp_path).serving() as server:
        run = stepscope.analysis.open(f"prometheus+{server.url}?run={run_of(SCENARIO)}")
        assert run.name == run_of(SCENARIO)
        assert run.ranks == list(range(8))
        (row,) = run.findings().filter(pc.field("rule") == "DataStarved").to_pylist()
        assert row["seconds_lost"] > 200
        assert pc.sum(run.steps()["duration_seconds"]).as_py() == pytest.approx(
            pc.sum(run.phases().filter(pc.field("phase") == "train")["seconds"]).as_py(), rel=0.01
        )
        utilisation = pc.mean(run.samples("gpu", start=240, end=300)["utilization_ratio"]).as_py()
        assert utilisation == pytest.approx(0.5, abs=0.05)


def test_parameters_and_price_are_those_of_the_command_line(scenarios: WrittenScenarios) -> None:
    recording = scenarios.written(SCENARIO).recording_directory
    run = stepscope.analysis.open(recording, parameters={"CPUBottleneck.gpu_threshold": 50}, price=6.0)
    samples = run.samples()
    starved = samples.filter(
        (pc.field("cpu_utilization_max_ratio") > 0.9) & (pc.field("gpu_utilization_min_ratio") < 0.5)
    )
    (rule,) = run.findings().filter(pc.field("rule") == "CPUBottleneck").to_pylist()
    assert (rule["violations"], rule["datapoints"]) == (len(starved), len(samples))
    (cost,) = run.compare(run).filter(pc.field("figure") == "cost").to_pylist()
    assert (cost["a"], cost["unit"]) == (1.4, "dollars")


def test_what_cannot_be_opened_is_refused_with_the_cause_and_the_fix(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="is empty: give the directory that"):
        stepscope.analysis.open(tmp_path)
    with pytest.raises(UserError, match="missing does not exist"):
        stepscope.analysis.open(tmp_path / "missing")
    with pytest.raises(UserError, match=r"cannot be read from there; .* s3://, gs://, http://"):
        stepscope.analysis.open("ftp://localhost/run")
    with pytest.raises(UserError, match=r"^CPUBottleneck\.x=1: CPUBottleneck has no parameter"):
        stepscope.analysis.open(tmp_path, parameters={"CPUBottleneck.x": 1})
    with pytest.raises(UserError, match="price=-1: is not a price; give the dollars per hour"):
        stepscope.analysis.open(tmp_path, price=-1)
    with pytest.raises(UserError, match="scan_interval=0: is not a duration"):
        stepscope.analysis.open(tmp_path, scan_interval=0)
    with pytest.raises(UserError, match=r"^\[\]: is no source; give a path"):
        stepscope.analysis.open(sorted(tmp_path.glob("of-no-run-*")))
    with pytest.raises(UserError, match=r"x: cannot be read: File name too long; give another path"):
        stepscope.analysis.open("x" * 300)


def test_times_are_on_one_clock_whatever_was_asked_for_first(tmp_path: Path) -> None:
    for rank, ahead in enumerate((0.0, -100.0)):
        place = tmp_path / f"node-{rank}"
        writer = RecordingWriter(place, place.name, 0.5, "resnet")
        for tick in range(60):
            writer.sample(replace(sample(tick), time=START + ahead + tick / 2))
            writer.steps(header(rank), [replace(step(tick), start=START + ahead + tick / 2)])
        writer.close()
        RunFile("resnet", START + ahead, START + ahead + 30, run="resnet").write(place)
    run, evaluated = (stepscope.analysis.open(sorted(tmp_path.iterdir())) for _ in range(2))
    assert "its clock differs by that" in evaluated.unknowns[0]
    assert run.samples()["elapsed_seconds"].equals(evaluated.samples()["elapsed_seconds"])
    assert run.steps()["elapsed_seconds"][0].as_py() == 0


def test_a_run_of_more_places_than_a_path_has_characters_shows_its_verdict_and_ends() -> None:
    facts = run_facts(end=START)
    run = stepscope.analysis.Run(" ".join(["/recordings/node"] * 300), lambda: MemorySource(facts=facts))
    assert "<b>" in run._repr_html_()
    assert run.wait_for_end().finished


def test_recordings_of_nodes_that_were_killed_have_ended(tmp_path: Path) -> None:
    for rank in range(2):
        place = tmp_path / f"node-{rank}"
        writer = RecordingWriter(place, place.name, 0.5, "resnet")
        writer.sample(sample(0))
        writer.close()
        RunFile("resnet", START, run="resnet").write(place)
    run = stepscope.analysis.open(sorted(tmp_path.iterdir()))
    assert run.wait_for_end(timeout=0) is run


@pytest.mark.parametrize("word", ["on", "off"])
def test_import_stepscope_gives_the_analysis_only_when_it_is_asked_for(word: str) -> None:
    code = """
import sys, stepscope
assert not {"stepscope.analysis", "numpy", "pyarrow"} & set(sys.modules)
assert callable(stepscope.analysis.open)
assert {"stepscope.analysis", "numpy", "pyarrow"} <= set(sys.modules)
try:
    stepscope.analyses
except AttributeError as error:
    print(error)
"""
    output = subprocess.run(
        [sys.executable, "-c", code], env={"STEPSCOPE": word}, capture_output=True, text=True, check=True
    )
    assert output.stdout == "module 'stepscope' has no attribute 'analyses'\n"
