"""The JSON of a rule: what SageMaker Debugger's report notebook reads from it."""

from __future__ import annotations

import json
import math
from typing import Any

import numpy as np
import pytest
from trainwatch.evaluation.analysis import RuleResult
from trainwatch.evaluation.debugger_json import rule_json
from trainwatch.evaluation.engine import evaluate
from trainwatch.evaluation.settings import Settings
from trainwatch.recording.source import Loader

from tests.support.source import MemorySource, node_samples, node_steps, rank_facts, run_facts


@pytest.fixture(scope="module")
def reports() -> dict[str, dict[str, Any]]:
    """Every rule of a run in which most fire, as read back from its file."""
    random = np.random.default_rng(0)
    gpu = np.where(random.random((1500, 2)) < 0.7, 0.0, 0.9)
    durations = random.normal(0.5, 0.01, 1400)
    durations[::40] += 2
    facts = run_facts(ranks=[rank_facts(loaders=[Loader(0, "train", 1, False, 4, 1400, 700.0, 600.0)])])
    source = MemorySource(
        node_samples(np.ones((1500, 4)), gpu, np.full((1500, 4), 0.8)),
        node_steps(durations, data_wait=0.2),
        facts=facts,
    )
    return {found.rule: json.loads(json.dumps(rule_json(found))) for found in evaluate(source).rules}


def test_parameters_are_lines_in_debuggers_order(reports: dict[str, dict[str, Any]]) -> None:
    lines = {rule: report["RuleParameters"].split("\n") for rule, report in reports.items()}
    assert lines["CPUBottleneck"] == ["threshold:50", "cpu_threshold:90", "gpu_threshold:10", "patience:1000"]
    assert lines["IOBottleneck"] == ["threshold:50", "io_threshold:50", "gpu_threshold:10", "patience:1000"]
    assert lines["LowGPUUtilization"][:2] == ["threshold_p95:70", "threshold_p5:10"]
    assert lines["LowGPUUtilization"][2:] == ["window:500", "patience:1000"]
    assert lines["StepOutlier"] == ["threshold:3", "mode:None", "n_outliers:10", "stddev:3"]
    assert lines["Dataloader"] == ["min_threshold:70", "max_threshold:200"]


def test_whole_numbers_are_written_without_a_point_and_others_as_they_are() -> None:
    settings = Settings.parse(["CPUBottleneck.threshold=40", "CPUBottleneck.cpu_threshold=87.5"])
    found = next(one for one in evaluate(MemorySource(), settings).rules if one.rule == "CPUBottleneck")
    assert rule_json(found)["RuleParameters"].startswith("threshold:40\ncpu_threshold:87.5\n")


@pytest.mark.parametrize("rule", ["CPUBottleneck", "IOBottleneck"])
def test_what_the_notebook_reads_of_bottlenecks(reports: dict[str, dict[str, Any]], rule: str) -> None:
    report = reports[rule]
    assert report["RuleTriggered"] > 0
    assert len(report["Details"]["bottlenecks"]) == report["Violations"] <= report["Datapoints"] == 1500
    assert report["Details"]["low_gpu_utilization"] >= report["Violations"]
    time, counts = next(iter(report["Details"]["bottlenecks"].items()))
    assert float(time) >= 1_800_000_000
    assert counts["CPUs"] == 4
    assert counts["GPUs"] in (1, 2)


def test_what_the_notebook_reads_of_low_gpu_utilization(reports: dict[str, dict[str, Any]]) -> None:
    details = reports["LowGPUUtilization"]["Details"]
    assert details.pop("last_timestamp") > 1_800_000_000 * 1_000_000  # microseconds
    for gpus in details.values():  # nothing but nodes
        for box in gpus.values():
            assert box.keys() >= {"gpu_max", "gpu_95", "gpu_5", "p25", "p50", "p75", "p95", "upper", "lower"}


def test_what_the_notebook_reads_of_step_outliers(reports: dict[str, dict[str, Any]]) -> None:
    details = reports["StepOutlier"]["Details"]["step_details"]
    for node in details.values():
        assert set(node["step_stats"]) == {"mean", "max", "p99", "p95", "p50", "min"}
        assert node["number_of_outliers"] == len(node["step_numbers"]) == 35
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
    assert set(details["dataloading_time"]) == {"p25", "p50", "p95"}


def test_a_number_that_is_not_known_is_null() -> None:
    details = {"a": [math.inf, {"b": math.nan}]}
    found = RuleResult("R", "?", ".", ".", "quiet", ".", 0, 0, 0, {}, math.nan, details)
    assert json.loads(json.dumps(rule_json(found), allow_nan=False))["Details"] == {"a": [None, {"b": None}]}
