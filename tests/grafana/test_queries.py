"""Every query of every dashboard, against a real Prometheus that scraped simulated nodes."""

import copy
from typing import Any

import pytest
from stepscope.demo.scenarios import all_scenarios
from stepscope.grafana.catalogue.cluster import MOST_BARS

from tests.grafana.conftest import Look
from tests.support.backfill import instance_of, run_of
from tests.support.grafana import Reader
from tests.support.panel_shapes import all_complaints, complaints

SCENARIOS = sorted(all_scenarios())
OF_ONE_RUN = ("stepscope-run", "stepscope-system", "stepscope-histograms", "stepscope-steps")
OF_ALL = ("stepscope-cluster", "stepscope-exporter", "stepscope-usage")

# Panels and their queries.
HARDWARE = {
    "Bad GPU memory": "ABCD",
    "Free disk space": "A",
    "GPU memory temperature": "A",
    "PCIe links": "AB",
    "Errors of GPU links": "AB",
    "InfiniBand traffic": "AB",
    "InfiniBand ports": "A",
    "InfiniBand errors and waits": "ABC",
}
# What schedulers allocate, and what failed.
OF_SCHEDULERS = {
    "Allocated": "A",
    "Allocated without a process": "A",
    "GPU hours by user and namespace": "ABG*",
    "GPUs: allocated, held, used, useful": "A",
    "Allocated GPUs without a process": "A",
}
# What no scenario can fill, and why; its panel has other series on the demo.
NOT_SIMULATED = {
    **{
        ("stepscope-system", title, letter): "the simulated node has no such counters"
        for title, letters in HARDWARE.items()
        for letter in letters
    },
    (
        "stepscope-system",
        "Memory bandwidth, SM and tensor core activity",
        "B",
    ): "the simulated GPUs have no counters of that kind",
    (
        "stepscope-system",
        "Memory bandwidth, SM and tensor core activity",
        "C",
    ): "the simulated GPUs have no counters of that kind",
    ("stepscope-system", "GPU errors", "B"): "the simulated driver reports no XID events",
    ("stepscope-run", "Cores in use, all nodes", "C"): "the simulated run has no CPU limit",
    ("stepscope-run", "Neighbours on the run's cores, all nodes", "A"): "nobody else uses its cores",
    ("stepscope-run", "Launch", "*"): "no scheduler launched it",
    ("stepscope-run", "Counted per second, all ranks", "A"): "the simulated script counts nothing",
    ("stepscope-run", "Model FLOPs utilisation (MFU)", "A"): "the simulated script counts no FLOPs",
    **{("stepscope-steps", "Operators", letter): "it takes no profile window" for letter in "ABC*"},
    ("stepscope-cluster", "Alerts by run and rule", "C"): "each simulated run has one node",
    **{
        ("stepscope-usage", title, letter): "no scheduler allocates its GPUs, and no run fails"
        for title, letters in OF_SCHEDULERS.items()
        for letter in letters
    },
}
# What a scenario leaves empty, and why; others fill it.
EMPTY = {
    **{
        ("stepscope-run", "Gauges of rank 0", "A", scenario): "its script sets no gauge"
        for scenario in set(SCENARIOS) - {"cpu-bottleneck"}
    },
    ("stepscope-steps", "Excess of the slowest rank", "A", "imbalance"): "it has one rank only",
    ("stepscope-steps", "What the slowest rank takes longer for", "A", "imbalance"): "it has one rank only",
}
# What shows only what was found, or only where something is wrong.
OF_FINDINGS = {("stepscope-run", "What is wrong"), ("stepscope-cluster", "Nodes with idle GPUs")}
LACKING = {  # tables with columns of labels that are empty
    "Launch": "lacks the columns ['Job', 'Namespace', 'Scheduler']",
    "Operators": "lacks the columns ['Device', 'Longest', 'Mean', 'Operator', 'Share']",
}
# What Prometheus tells of itself and of when alerts began: see test_live_server.py and test_problems.py.
OF_PROMETHEUS = {
    ("stepscope-cluster", "Alerts by run and rule", "D"),
    ("stepscope-cluster", "Alerts by run and rule", "*"),
    ("stepscope-exporter", "Rule evaluation time", "A"),
    ("stepscope-exporter", "Failed rule evaluations", "A"),
}
ELSEWHERE = NOT_SIMULATED.keys() | OF_PROMETHEUS


@pytest.mark.parametrize("scenario", SCENARIOS)
@pytest.mark.parametrize("uid", OF_ONE_RUN)
def test_every_panel_gets_what_it_draws_from_a_run_of_each_scenario(
    look: Look, uid: str, scenario: str
) -> None:
    every = all_complaints(look(uid, scenario))
    found = {key: reason for key, reason in every.items() if (uid, key[0]) not in OF_FINDINGS}
    expected = {
        (title, letter): "gives nothing" if letter != "*" else LACKING[title]
        for of, title, letter, *only in (*NOT_SIMULATED, *EMPTY)
        if of == uid and only in ([], [scenario])
    }
    assert found == expected


@pytest.mark.parametrize("uid", OF_ALL)
def test_every_panel_of_all_nodes_gets_what_it_draws(look: Look, uid: str) -> None:
    # Everybody is still there after nine minutes.
    reader = look(uid, "healthy", minutes=9)
    del reader.chosen["runs"]
    assert unexpected(uid, reader) == set()


def test_bars_of_more_runs_than_fit_are_those_with_the_most_waste(look: Look) -> None:
    reader = look("stepscope-cluster", "healthy", minutes=9)
    del reader.chosen["runs"]
    assert len(reader.options("runs")) > MOST_BARS
    for title in ("Useful time by run", "Wasted GPU hours by run"):
        assert len(reader.lines(title)) == MOST_BARS
    useful = [series.values[-1] for series in reader.lines("Useful time by run").values()]
    assert useful == sorted(useful)
    assert useful[0] < 0.2  # the lowest of all runs is among them


@pytest.mark.parametrize("uid", [*OF_ONE_RUN, *OF_ALL])
def test_a_range_of_five_minutes_is_enough(look: Look, uid: str) -> None:
    reader = look(uid, "cpu-bottleneck")
    del reader.chosen["runs"]
    reader.start = reader.end - 300
    assert unexpected(uid, reader) == set()


def unexpected(uid: str, reader: Reader) -> set[tuple[str, str]]:
    return {
        key
        for key in all_complaints(reader)
        if (uid, *key) not in ELSEWHERE and (uid, key[0]) not in OF_FINDINGS
    }


# Points are up to twelve minutes apart there, so that run has one or two.
@pytest.mark.parametrize("uid", OF_ONE_RUN)
def test_on_ranges_of_days_panels_read_what_rules_record(look: Look, uid: str) -> None:
    reader = look(uid, "memory-leak")
    short = reader.variables
    reader = look(uid, "memory-leak")
    reader.start = reader.end - 4.1 * 86_400
    names = {
        variable["name"]
        for variable in reader.dashboard["templating"]["list"]
        if variable["type"] == "query" and "$__range_s" in variable["query"]["query"]
    }
    # Gauges are read as they are; of histograms, a month of each GPU would be too much.
    assert bool(names) == (uid != "stepscope-system"), "which series is read depends on the range"
    for name in names:
        assert ":" not in short[name]
        assert ":" in reader.variables[name]
    found = all_complaints(reader)
    wrong = {key for key, reason in found.items() if reason != "has no two points"}
    expected = ELSEWHERE | {(uid, *key) for key in wrong if (uid, key[0]) in OF_FINDINGS}
    expected |= {(of, title, ref) for of, title, ref, only in EMPTY if only == "memory-leak"}
    assert {key for key in wrong if (uid, *key) not in expected} == set()


@pytest.mark.parametrize("uid", OF_ONE_RUN)
def test_a_month_is_asked_for_without_an_error(look: Look, uid: str) -> None:
    reader = look(uid, "slow-start")
    reader.start = reader.end - 30 * 86_400
    all_complaints(reader)  # raises where Prometheus refuses


def test_variables_offer_the_runs_and_what_belongs_to_the_chosen_one(look: Look) -> None:
    reader = look("stepscope-steps", "straggler")
    assert sorted(reader.options("run")) == [run_of(scenario) for scenario in SCENARIOS]
    starts = {
        one["metric"]["run"]: float(one["value"][1])
        for one in reader.server.query(f"last_over_time(stepscope_run_start_time_seconds[2h] @ {reader.end})")
    }
    assert [starts[run] for run in reader.options("run")] == sorted(starts.values(), reverse=True)
    assert reader.options("instance") == [instance_of("straggler")]
    assert sorted(reader.options("rank")) == [str(rank) for rank in range(8)]
    assert sorted(look("stepscope-system", "straggler").options("gpu")) == [str(gpu) for gpu in range(8)]


def test_all_nodes_means_those_of_the_run(look: Look) -> None:
    lines = look("stepscope-system", "healthy").lines("Memory")
    assert {series.labels["instance"] for series in lines.values()} == {instance_of("healthy")}
    assert set(lines) == {"used\xa0", "total\xa0", "swap\xa0"}  # one node: its name would only repeat


def test_a_cost_is_shown_only_once_somebody_entered_a_price(look: Look) -> None:
    for price, costs in (("", []), ("3.5", [3.5])):
        reader = look("stepscope-run", "cpu-bottleneck", price=price)
        (duration,) = reader.lines("Duration").values()
        hours = duration.values[0] / 3600
        assert [one.values[0] / hours for one in reader.lines("Cost so far").values()] == pytest.approx(costs)


def test_one_chosen_gpu_or_rank_is_shown_alone(look: Look) -> None:
    reader = look("stepscope-system", "imbalance", gpu=["3"])
    assert {series.labels["gpu"] for series in reader.lines("GPU temperature").values()} == {"3"}
    reader = look("stepscope-steps", "straggler", minutes=10, rank=["5", "6"])
    lines = reader.lines("Own time of each rank")
    assert {series.labels["rank"] for series in lines.values()} == {"5", "6"}
    assert reader.series(_heatmap(reader))
    nobody = look("stepscope-steps", "straggler", minutes=10, rank=["99"])
    assert nobody.series(_heatmap(nobody)) == []


def _heatmap(reader: Reader) -> dict[str, Any]:
    target: dict[str, Any] = reader.panel("Duration of training steps")["targets"][0]
    return target


def test_alerts_and_the_ends_of_the_run_are_marked(look: Look) -> None:
    for scenario, alerts in (("cpu-bottleneck", True), ("healthy", False)):
        reader = look("stepscope-run", scenario)
        marks = {
            one["name"]: reader.series({"expr": one["expr"], "legendFormat": one["titleFormat"]})
            for one in reader.dashboard["annotations"]["list"]
        }
        assert bool(marks["Alerts"]) == alerts
        moments = {one.name: one.values[-1] / 1000 for one in marks["Start and end"]}
        assert sorted(moments) == ["end", "first step", "start"]
        assert reader.start < moments["start"] < moments["first step"] < moments["end"] <= reader.end


BROKEN = [
    ("GPU temperature", {"expr": "no_such_series"}, "gives nothing"),
    ("GPU temperature", {"legendFormat": "{{instance}}"}, "has two series of one name"),
    ("GPUs and cores of $instance", {"expr": "stepscope_gpu_power_watts"}, "has values outside"),
    (
        "GPUs and cores of $instance",
        {"expr": "max by (cpu) (stepscope_cpu_utilization_ratio)", "legendFormat": "core {{cpu}}"},
        "has rows that are not in the order of their names",
    ),
    ("CPU", {"expr": "0 * stepscope_cpu_utilization_ratio / 0"}, "has a series without a number"),
]


@pytest.mark.parametrize(("title", "change", "reason"), BROKEN)
def test_a_query_that_is_broken_is_found(look: Look, title: str, change: dict[str, str], reason: str) -> None:
    reader = look("stepscope-system", "healthy")
    panel = copy.deepcopy(reader.panel(title))
    assert not set(complaints(reader, panel)) & {"A", "*"}
    panel["targets"][0] |= change
    found = complaints(reader, panel)
    assert any(text.startswith(reason) for text in found.values()), found


BROKEN_HISTOGRAMS = [
    ("stepscope_gpu_utilization_samples_bucket", "is not by le alone"),
    ("sum by (le) (stepscope_gpu_utilization_samples_bucket{le!='+Inf'})", "lacks a bound"),
    ("-1 * sum by (le) (stepscope_gpu_utilization_samples_bucket)", "is not cumulative"),
    ("0 * sum by (le) (stepscope_gpu_utilization_samples_bucket)", "counts nothing"),
]


@pytest.mark.parametrize(("expression", "reason"), BROKEN_HISTOGRAMS)
def test_a_histogram_that_is_broken_is_found(look: Look, expression: str, reason: str) -> None:
    reader = look("stepscope-histograms", "healthy")
    panel = copy.deepcopy(reader.panel("GPU utilisation"))
    panel["targets"][0]["expr"] = expression
    assert complaints(reader, panel)["A"].startswith(reason)


def test_a_table_that_lacks_a_column_is_found(look: Look) -> None:
    reader = look("stepscope-run", "healthy")
    panel = copy.deepcopy(reader.panel("All rules"))
    panel["targets"][3]["expr"] = "max by (rule) (stepscope:rule_info)"
    found = complaints(reader, panel)
    assert found == {"*": "lacks the columns ['Parameters', 'Question', 'What to do if it fires']"}
