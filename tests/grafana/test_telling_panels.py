"""Each scenario shows itself on the panel that is made for it: what docs/dashboards.md says to look at."""

import json
from dataclasses import replace
from statistics import mean

import pytest
from stepscope.demo.scenarios import all_scenarios
from stepscope.training.layout import STEP_BOUNDS

from tests.grafana.conftest import Look
from tests.support.backfill import run_of, seconds_of
from tests.support.grafana import Reader

HEATMAP = "GPUs and cores of $instance"


def brightness(look: Look, scenario: str) -> dict[str, float]:
    """The mean of each row of the heatmap, from the third to the tenth minute."""
    reader = look("stepscope-system", scenario, minutes=10)
    return {name: mean(series.values[12:]) for name, series in reader.lines(HEATMAP).items()}


def of(rows: dict[str, float], word: str) -> list[float]:
    return [value for name, value in rows.items() if name.startswith(word)]


def firing(look: Look, scenario: str) -> dict[str, str]:
    """The problems in the uppermost table, and what is to be done."""
    reader = look("stepscope-run", scenario)
    rows = [row["Rule"] for row in reader.table("What is wrong")]
    advice = dict(name.split(": ", 1) for name in reader.lines("What to do"))
    return {rule: advice.get(rule, "") for rule in rows}


def verdict(look: Look, scenario: str) -> str:
    """The words of the verdict."""
    reader = look("stepscope-run", scenario)
    ((value,),) = (series.values for series in reader.lines("Verdict").values())
    (mapping,) = reader.panel("Verdict")["fieldConfig"]["defaults"]["mappings"]
    return str(mapping["options"][f"{value:g}"]["text"])


def last(reader: Reader, title: str) -> dict[str, float]:
    return {name: series.values[-1] for name, series in reader.lines(title).items()}


def test_healthy_all_gpus_are_bright_and_nothing_is_wrong(look: Look) -> None:
    rows = brightness(look, "healthy")
    assert len(of(rows, "GPU")) == 8
    assert len(of(rows, "core")) == 32
    assert min(of(rows, "GPU")) > 0.9
    assert firing(look, "healthy") == {}
    assert verdict(look, "healthy") == "✓ healthy: none of the evaluated rules fired"
    assert last(look("stepscope-run", "healthy"), "Findings") == {"__auto": 0}


def test_cpu_bottleneck_gpu_rows_are_dark_while_core_rows_are_bright(look: Look) -> None:
    rows = brightness(look, "cpu-bottleneck")
    assert max(of(rows, "GPU")) < 0.4
    assert min(of(rows, "core")) > 0.9
    found = firing(look, "cpu-bottleneck")
    assert list(found) == ["DataStarved"]  # of all rules that see it, the one closest to the cause
    assert found["DataStarved"].startswith("All cores are full, so more workers cannot help")
    assert verdict(look, "cpu-bottleneck") == "▲ found: see below"
    starved = last(look("stepscope-histograms", "cpu-bottleneck"), "Starved samples by cause")
    assert starved["busy core\xa0"] > starved["fires above (CPUBottleneck.threshold)"]
    assert starved["storage\xa0"] < starved["fires above (IOBottleneck.threshold)"]


def test_io_bottleneck_gpus_and_cores_are_dark_and_cores_wait_for_storage(look: Look) -> None:
    rows = brightness(look, "io-bottleneck")
    assert max(rows.values()) < 0.4
    waiting = last(look("stepscope-system", "io-bottleneck", minutes=9), "I/O wait")
    assert waiting["mean of cores\xa0"] > waiting["fires above (IOBottleneck.io_threshold)"]
    assert "Prefetch, keep the data on local storage" in firing(look, "io-bottleneck")["DataStarved"]


def test_cores_are_full_or_free_only_if_a_busy_core_is_a_finding(look: Look) -> None:
    assert look("stepscope-run", "cpu-bottleneck").variables["cores"] == "full cores"
    reader = look("stepscope-run", "io-bottleneck")
    assert reader.variables["cores"] == ""
    with_finding = json.dumps(reader.dashboard).replace('=\\"CPUBottleneck\\"', '=\\"IOBottleneck\\"')
    assert replace(reader, dashboard=json.loads(with_finding)).variables["cores"] == "free cores"


def test_cluster_gives_the_advice_that_the_alerts_of_a_run_support(look: Look) -> None:
    for scenario, words in (("cpu-bottleneck", "If all are full"), ("io-bottleneck", "local storage")):
        (name,) = look("stepscope-cluster", scenario, minutes=10).lines("What to do")
        assert name.startswith(f"{run_of(scenario)}, DataStarved: ")
        assert words in name


def test_few_dataloaders_one_core_for_each_rank_is_bright(look: Look) -> None:
    rows = brightness(look, "few-dataloaders")
    cores = sorted(of(rows, "core"))
    assert cores[-8] > 0.9
    assert cores[-9] < 0.2
    steps = look("stepscope-steps", "few-dataloaders")
    assert last(steps, "Workers per core") == {"node-few-dataloaders": 0.25}
    parts = last(steps, "Share of step time by component")
    assert 0.4 < parts["data_wait"] < 0.6


def test_fluctuating_the_histogram_of_gpus_has_two_bands(look: Look) -> None:
    reader = look("stepscope-histograms", "fluctuating")
    counts = {
        float(bound): mean(series.values[12:40]) for bound, series in reader.lines("GPU utilisation").items()
    }
    everything = counts[float("inf")]
    low, below_high = counts[0.1] / everything, counts[0.9] / everything
    assert low > 0.15  # at the bottom
    assert 1 - below_high > 0.6  # at the top
    assert below_high - low < 0.15  # hardly any between


def test_imbalance_one_gpu_is_brighter_than_all_others(look: Look) -> None:
    rows = brightness(look, "imbalance")
    first, *others = of(rows, "GPU")
    assert first > 0.9
    assert max(others) < 0.7
    reader = look("stepscope-histograms", "imbalance")
    bars = reader.matrix("Cumulative distribution of each GPU of $instance")
    assert bars["GPU 1"][0.8] - bars["GPU 0"][0.8] > 0.5
    distance = last(reader, "Distance between GPUs")
    assert distance["node-imbalance"] > distance["fires above (LoadBalancing.threshold)"]


def test_memory_leak_the_lines_of_memory_climb(look: Look) -> None:
    lines = look("stepscope-system", "memory-leak", minutes=13.5).lines("GPU memory")
    gpus = [series.values for name, series in lines.items() if "GPU " in name]
    assert len(gpus) == 8
    for values in gpus:
        assert values == sorted(values)
        assert values[0] < 0.2
        assert values[-1] > 0.8


def test_slow_start_most_of_the_time_went_into_initialization(look: Look) -> None:
    went = last(look("stepscope-run", "slow-start"), "Time by phase")
    assert went["initialization"] == all_scenarios()["slow-start"].setup_seconds
    assert went["initialization"] > 2 * went["train"]
    assert "MaxInitializationTime" in firing(look, "slow-start")


def test_the_parts_of_the_time_are_disjoint_and_the_slow_one_is_the_largest(look: Look) -> None:
    parts = look("stepscope-run", "cpu-bottleneck", minutes=10).lines("Where did the time go?")
    assert all(
        sum(values) == pytest.approx(1)
        for values in zip(*(series.values[4:] for series in parts.values()), strict=True)
    )
    now = {name: series.values[-1] for name, series in parts.items()}
    assert max(now, key=lambda part: now[part]) == "train/data_wait"
    useful = last(look("stepscope-cluster", "cpu-bottleneck", minutes=10), "Useful time by run")
    computing = sum(now.get(f"train/{name}", 0.0) for name in ("forward", "backward", "optimizer"))
    ((name, share),) = useful.items()
    assert name.startswith(f"{run_of('cpu-bottleneck')}, ")
    assert share == pytest.approx(computing, abs=0.1)


def test_small_batch_utilisation_and_memory_of_gpus_are_both_low(look: Look) -> None:
    rows = look("stepscope-run", "small-batch").table("Utilisation of each node")
    by_resource = {row["Resource"]: row for row in rows}
    assert by_resource["GPU"]["p95"] < 0.7
    assert by_resource["GPU memory"]["max"] < 0.3
    assert by_resource["CPU"]["p95"] < 0.7
    assert "batch" in firing(look, "small-batch")["BatchSize"]


def test_stall_gpus_read_full_but_their_power_falls_and_no_step_ends(look: Look) -> None:
    reader = look("stepscope-system", "stall", minutes=11.5)
    power = [series.values for name, series in reader.lines("GPU power").items() if name != "limit"]
    assert all(values[-1] < 0.5 * max(values) for values in power)
    assert min(of(brightness(look, "stall"), "GPU")) > 0.9
    since = last(look("stepscope-steps", "stall", minutes=11.5), "Time since the last step")
    (limit,) = (value for name, value in since.items() if name.startswith("fires above"))
    assert since["longest of all nodes"] > limit


def test_step_outliers_a_second_band_lies_above_the_steps(look: Look) -> None:
    reader = look("stepscope-steps", "step-outliers")
    band = reader.lines("Duration of training steps")
    assert len(band) < len(STEP_BOUNDS) / 2  # the axis has no bucket that no step is in
    lowest, *_, highest = sorted(band, key=float)
    assert max(band[lowest].values) == 0
    assert min(band[highest].values) == 1
    (node,) = reader.table("Long steps of each node")
    assert 0.01 < node["Long steps"] < 0.03
    assert node["Limit"] > 1.5 * node["Mean"]
    assert node["Time lost"] > 0.02
    lost = last(reader, "Time lost to outliers")
    limit = lost.pop("fires above (StepOutlier.time_lost)")
    assert lost
    assert all(share > limit for share in lost.values())
    assert last(reader, "Share of step time by component")["checkpoint"] > 0.03


def test_straggler_one_rank_is_slow_by_itself_and_the_others_wait_in_communication(look: Look) -> None:
    reader = look("stepscope-steps", "straggler")
    assert list(reader.lines("Slowest rank")) == ["rank 5 (node-straggler)"]
    assert list(firing(look, "straggler")) == ["Straggler"]  # the others wait for it: no problem of their own
    (row,) = look("stepscope-run", "straggler").table("What is wrong")
    assert (row["Rank"], row["Node"], row["How many"]) == ("5", "node-straggler", 1)
    assert 0.5 < row["Share"] < 0.6
    assert 200 < row["Lost"] < 0.6 * seconds_of("straggler")  # though a window outlives it
    wasted = last(look("stepscope-run", "straggler"), "Wasted")
    assert 0.45 < wasted["__auto"] < 0.55  # seven of eight ranks wait, on GPUs that read as busy
    assert last(reader, "Excess of the slowest rank")["__auto"] > 0.1
    causes = last(reader, "What the slowest rank takes longer for")
    assert max(causes, key=lambda component: causes[component]) == "backward"
    communication = last(reader, "Share of step time in communication")
    limit = communication.pop("fires above (CommunicationBound.threshold)")
    least = min(communication, key=lambda name: communication[name])
    assert least == "rank 5"
    assert all((value > limit) == (name != least) for name, value in communication.items())


@pytest.mark.parametrize(
    ("uid", "title"),
    [("stepscope-run", "Time by phase"), ("stepscope-steps", "What the slowest rank takes longer for")],
)
def test_no_bar_shows_the_rounding_error_of_a_difference(look: Look, uid: str, title: str) -> None:
    for scenario in ("straggler", "few-dataloaders"):
        seconds = last(look(uid, scenario), title).values()
        assert any(seconds)
        assert [one for one in seconds if 0 < abs(one) < 1e-7] == []


def test_thermal_gpus_are_hot_and_slowed_down_though_fully_used(look: Look) -> None:
    reader = look("stepscope-system", "thermal", minutes=9.5)
    assert min(of(brightness(look, "thermal"), "GPU")) > 0.9
    throttling = last(reader, "Throttling")
    limit = throttling.pop("fires above (ThermalThrottling.threshold)")
    assert any(name.startswith(("sw_thermal", "hw_thermal")) for name in throttling)
    assert min(throttling.values()) > limit
    assert min(last(reader, "GPU temperature").values()) > 80
    clocks = [value for series in reader.lines("GPU clocks").values() for value in series.values]
    assert {1.2e9, 1.98e9} <= set(clocks)
