"""The JSON of a rule: what SageMaker Debugger's report notebook reads from it."""

import json
import math
from typing import Any

import numpy as np
import pytest
from stepscope.common.status import Status
from stepscope.evaluation.analysis import RuleResult
from stepscope.evaluation.as_json import rule_json
from stepscope.evaluation.engine import evaluate
from stepscope.rules.parts.topics import About
from stepscope.runs.model import CollectiveTime, Loader, OperatorTime

from tests.support.few_rules import judged
from tests.support.source import START, MemorySource, node_samples, node_steps, rank_facts, run_facts


@pytest.fixture(scope="module")
def reports() -> dict[str, dict[str, Any]]:
    """Every rule of a run in which all that can fire does, as read back from its file."""
    random = np.random.default_rng(0)
    gpu = np.where(random.random((3000, 2)) < 0.7, 0.0, 0.6) * [1.0, 0.5]
    memory = np.where(np.arange(3000)[:, None] % 400 < 200, 0.2, 0.4) * np.ones((1, 2))
    cores = np.zeros((3000, 4))
    cores[:, 1] = 1.0
    durations = random.normal(0.5, 0.01, 2200)
    durations[::40] += 2
    facts = run_facts(
        start=START - 1300,
        ranks=[
            rank_facts(
                loaders=[Loader(0, "train", 1, False, 4, None, 1400, 700.0, 600.0)],
                phase_seconds={"train": 1200.0, "other": 30.0, "initialization": 1300.0},
                component_seconds={"forward": 300.0, "backward": 500.0, "data_wait": 280.0},
            )
        ],
        operators=[
            OperatorTime("node-a", 0, "cpu", "aten::conv2d", 10, 5.0),
            OperatorTime("node-a", 0, "gpu0", "sgemm", 10, 4.0),
        ],
        collectives=[CollectiveTime("node-a", 0, "NEGOTIATE_ALLREDUCE", 10, 3.0)],
    )
    source = MemorySource(
        node_samples(cores, gpu, np.full((3000, 4), 0.8), gpu_memory=memory),
        node_steps(durations, data_wait=0.2, forward=0.1, backward=0.15),
        facts=facts,
    )
    return {found.rule: json.loads(json.dumps(rule_json(found))) for found in evaluate(source).rules}


ELEVEN = (
    "BatchSize",
    "CPUBottleneck",
    "Dataloader",
    "GPUMemoryIncrease",
    "IOBottleneck",
    "LoadBalancing",
    "LowGPUUtilization",
    "MaxInitializationTime",
    "OverallFrameworkMetrics",
    "OverallSystemUsage",
    "StepOutlier",
)
NEVER_FIRE = ("OverallFrameworkMetrics", "OverallSystemUsage")


@pytest.mark.parametrize("rule", ELEVEN)
def test_each_of_debuggers_eleven_rules_has_its_five_fields(
    reports: dict[str, dict[str, Any]], rule: str
) -> None:
    report = reports[rule]
    for count in ("RuleTriggered", "Violations", "Datapoints"):
        assert type(report[count]) is int
    assert (report["RuleTriggered"] > 0) == (rule not in NEVER_FIRE)
    assert report["Datapoints"] > 0
    assert type(report["RuleParameters"]) is str
    assert type(report["Details"]) is dict
    assert report["Details"]


def test_parameters_are_lines_in_debuggers_order(reports: dict[str, dict[str, Any]]) -> None:
    lines = {rule: report["RuleParameters"].split("\n") for rule, report in reports.items()}
    assert lines["CPUBottleneck"] == ["threshold:50", "cpu_threshold:90", "gpu_threshold:10", "patience:1000"]
    assert lines["IOBottleneck"] == ["threshold:50", "io_threshold:50", "gpu_threshold:10", "patience:1000"]
    assert lines["LowGPUUtilization"][:2] == ["threshold_p95:70", "threshold_p5:10"]
    assert lines["LowGPUUtilization"][2:] == ["window:500", "patience:1000"]
    assert lines["StepOutlier"] == ["threshold:3", "mode:None", "n_outliers:10", "stddev:3"]
    assert lines["Dataloader"] == ["min_threshold:70", "max_threshold:200", "data_wait:10"]
    assert lines["BatchSize"][:3] == [
        "cpu_threshold_p95:70",
        "gpu_threshold_p95:70",
        "gpu_memory_threshold_p95:70",
    ]
    assert lines["BatchSize"][3:] == ["patience:1000", "window:500"]
    assert lines["GPUMemoryIncrease"] == ["increase:5", "patience:1000", "window:10", "horizon:1"]
    assert lines["LoadBalancing"] == ["threshold:0.2", "patience:1000"]
    assert lines["MaxInitializationTime"] == ["threshold:20"]
    assert lines["OverallFrameworkMetrics"] == lines["OverallSystemUsage"] == [""]


def test_whole_numbers_are_written_without_a_point_and_others_as_they_are() -> None:
    found = judged("CPUBottleneck", threshold=40, cpu_threshold=87.5)
    assert rule_json(found)["RuleParameters"].startswith("threshold:40\ncpu_threshold:87.5\n")


@pytest.mark.parametrize("rule", ["CPUBottleneck", "IOBottleneck"])
def test_what_the_notebook_reads_of_bottlenecks(reports: dict[str, dict[str, Any]], rule: str) -> None:
    report = reports[rule]
    assert report["RuleTriggered"] > 0
    assert len(report["Details"]["bottlenecks"]) == report["Violations"] <= report["Datapoints"] == 3000
    assert report["Details"]["low_gpu_utilization"] >= report["Violations"]
    time, counts = next(iter(report["Details"]["bottlenecks"].items()))
    assert float(time) >= 1_800_000_000
    assert counts["CPUs"] == (1 if rule == "CPUBottleneck" else 4)
    assert counts["GPUs"] in (1, 2)


@pytest.mark.parametrize("rule", ["CPUBottleneck", "IOBottleneck", "StepOutlier"])
def test_what_the_notebook_draws_of_what_ran_meanwhile(reports: dict[str, dict[str, Any]], rule: str) -> None:
    details = reports[rule]["Details"]
    for pie in ("phase", "forward_backward", "general"):
        assert sum(details[pie].values()) == pytest.approx(100)
    assert details["forward_backward"] == pytest.approx({"Forward pass": 40, "Backward pass": 60})
    assert details["general"] == pytest.approx({"data_wait": 100})
    assert details["phase"]["Step:ModeKeys.TRAIN"] > 99


def test_what_the_notebook_reads_of_low_gpu_utilization(reports: dict[str, dict[str, Any]]) -> None:
    details = reports["LowGPUUtilization"]["Details"]
    assert details.pop("last_timestamp") > 1_800_000_000 * 1_000_000  # microseconds
    for gpus in details.values():  # nothing but nodes
        for box in gpus.values():
            assert box.keys() >= {"gpu_max", "gpu_95", "gpu_5", "p25", "p50", "p75", "p95", "upper", "lower"}


def boxes(details: dict[str, Any]) -> list[tuple[str, dict[str, float]]]:
    """All box plots by name, as the notebook goes through them: there is nothing but nodes and the time."""
    assert details["last_timestamp"] > 1_800_000_000 * 1_000_000  # microseconds
    nodes = [node for name, node in details.items() if name != "last_timestamp"]
    found = [(name, box) for node in nodes for name, box in node.items()]
    for _, box in found:
        assert 0 <= box["lower"] <= box["p25"] <= box["p50"] <= box["p75"] <= box["upper"] <= 100
        assert box["p75"] <= box["p95"]
    return found


def test_what_the_notebook_reads_of_batch_size(reports: dict[str, dict[str, Any]]) -> None:
    names = [name for name, _ in boxes(reports["BatchSize"]["Details"])]
    assert names == ["cpu", "GPU 0", "GPU 0_memory", "GPU 1", "GPU 1_memory"]


def test_what_the_notebook_reads_of_memory(reports: dict[str, dict[str, Any]]) -> None:
    for _, box in boxes(reports["GPUMemoryIncrease"]["Details"]):
        assert box.keys() >= {"increase", "gpu_max", "p05"}
        assert box["gpu_max"] == pytest.approx(40, abs=1e-3)


def test_what_the_notebook_reads_of_load_balancing(reports: dict[str, dict[str, Any]]) -> None:
    for node in reports["LoadBalancing"]["Details"].values():  # nothing but nodes
        assert {len(counts) for counts in node["workloads"].values()} == {50}
        for one, others in node["distances"].items():
            assert one in node["workloads"]
            for other, distance in others.items():
                assert other in node["workloads"]
                assert 0 < distance < math.sqrt(math.log(2)) + 1e-9


def test_what_the_notebook_reads_of_the_jobs_times(reports: dict[str, dict[str, Any]]) -> None:
    """It adds up initialization, training loop and finalization to the whole job."""
    details = reports["MaxInitializationTime"]["Details"]
    first, last = (details["step_num"][name] / 1e6 for name in ("first", "last"))
    assert details["job_start"] < first < last < details["job_end"]
    assert first - details["job_start"] == 1300


def test_what_the_notebook_reads_of_the_framework(reports: dict[str, dict[str, Any]]) -> None:
    details = reports["OverallFrameworkMetrics"]["Details"]
    for pie in ("phase", "forward_backward", "ratio", "general", "horovod", "CPU", "GPU"):
        assert sum(details[pie].values()) == pytest.approx(100)
    assert details["phase"]["others"] > 0
    for kind in ("CPU", "GPU"):
        assert set(details[kind]) == set(details[f"{kind}_total"])
    assert next(iter(details["ratio"])) == "cpu"


def test_a_run_of_which_nothing_is_known_has_no_field_that_would_stop_the_notebook() -> None:
    """It takes the largest of each of these fields that is there, so that an empty one stops it."""
    for found in evaluate(MemorySource()).rules:
        details = rule_json(found)["Details"]
        for pie in ("phase", "forward_backward", "ratio", "general", "horovod", "CPU", "GPU"):
            assert details.get(pie) != {}


def test_what_the_notebook_reads_of_step_outliers(reports: dict[str, dict[str, Any]]) -> None:
    details = reports["StepOutlier"]["Details"]["step_details"]
    for node in details.values():
        assert set(node["step_stats"]) == {"mean", "max", "p99", "p95", "p50", "min"}
        assert node["number_of_outliers"] == len(node["step_numbers"]) == 55
        assert len(node["probs"]) == 100
        assert len(node["binedges"]) == 101
        assert node["phase"] == "train"
        assert node["stddev"] > 0


def test_what_the_notebook_reads_of_system_usage(reports: dict[str, dict[str, Any]]) -> None:
    """It looks each metric's unit up, so that one it does not know stops it."""
    known = {"CPU", "CPU memory", "GPU", "Network", "GPU memory", "I/O"}
    details = reports["OverallSystemUsage"]["Details"]
    assert set(details) == known
    for nodes in details.values():
        assert set(nodes["node-a"]) == {"max", "p99", "p95", "p50", "min"}


def test_fields_of_the_data_loader(reports: dict[str, dict[str, Any]]) -> None:
    details = reports["Dataloader"]["Details"]
    assert {name: details[name] for name in ("cores", "dataloaders", "pin_memory", "prefetch")} == {
        "cores": 4,
        "dataloaders": 1,
        "pin_memory": False,
        "prefetch": 4,
    }
    assert set(details["dataloading_time"]) == {"p25", "p50", "p95", "probs", "binedges"}


def test_a_number_that_is_not_known_is_null() -> None:
    details = {"a": [math.inf, {"b": math.nan}]}
    found = RuleResult(
        "R", "?", ".", ".", Status.HEALTHY, ".", 0, 0, 0, {}, About("A rule"), math.nan, details
    )
    assert json.loads(json.dumps(rule_json(found), allow_nan=False))["Details"] == {"a": [None, {"b": None}]}
