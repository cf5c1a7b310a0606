"""Alerts describe the present: windows, gaps in scraping, young runs and restarted exporters, in promtool."""

import json
import re
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest
import yaml

from tests.support.prometheus import needs_prometheus
from tests.support.promtool import RuleTest, Values

pytestmark = needs_prometheus

SCRAPE, SAMPLES = 15, 30  # seconds, and samples per scrape
MINUTE, HOUR = 60, 3600
WINDOW = 15 * MINUTE
NAN = float("nan")
BOTTLENECKS = ("CPUBottleneck", "IOBottleneck")
JUDGED = re.compile(
    "stepscope-(CPUBottleneck|IOBottleneck|DataStarved|CommunicationBound|LoadBalancing|Thermal)"
)


@pytest.fixture(scope="module")
def rules(rendered: Callable[..., Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The rules of live windows alone, with one threshold for both components.

    Others take promtool most of its time over hours of scrapes.
    """
    rules = rendered("CommunicationBound.threshold=20") / "stepscope.yml"
    return only_judged(rules, tmp_path_factory.mktemp("judged") / "rules.yml")


def only_judged(rules: Path, to: Path) -> Path:
    groups = yaml.load(rules.read_text(), yaml.CSafeLoader)["groups"]
    to.write_text(json.dumps({"groups": [group for group in groups if JUDGED.match(group["name"])]}))
    return to


def counted(per_scrape: Sequence[float] | np.ndarray, start: float = 0.0) -> list[float]:
    """A counter that each scrape finds this much higher; the first finds `start`."""
    return [start, *(start + np.cumsum(per_scrape)).tolist()]


def over(*parts: tuple[float, float]) -> np.ndarray:
    """The share of samples that count, per scrape: a share for so many seconds, then the next."""
    return np.concatenate([np.full(round(seconds / SCRAPE), share) for share, seconds in parts])


def with_gap(values: Values, at: float, seconds: float = MINUTE) -> list[float | None]:
    """Failed scrapes: each series is stale at the first, and has no value until the next that succeeds."""
    first, after = round(at / SCRAPE), round((at + seconds) / SCRAPE)
    gap = [NAN, *[None] * (after - first - 1)]
    return [*values[:first], *gap, *values[after:]]


def starving(
    rule: str, shares: np.ndarray, run: str, change: Callable[[list[float]], Values] = lambda values: values
) -> dict[str, Values]:
    """The counters of a run of which `shares` of the samples of each scrape are starved."""
    cause, above = ("cpu", "0.9") if rule == "CPUBottleneck" else ("io", "0.5")
    labels = f'job="stepscope",instance="node-a",run="{run}"'
    grid = f'cause="{cause}",cause_above="{above}",gpu_below="0.1"'
    taken, starved = counted(np.full(len(shares), SAMPLES)), counted(SAMPLES * shares)
    return {
        f"stepscope_samples_total{{{labels}}}": change(taken),
        f"stepscope_gpu_starved_samples_total{{{labels},{grid}}}": change(starved),
    }


def test_after_2_healthy_hours_trouble_is_found_within_the_window_and_is_over_within_one_of_recovery(
    test: RuleTest,
) -> None:
    for rule in BOTTLENECKS:
        trouble, recovery = 2 * HOUR, 2 * HOUR + 30 * MINUTE
        test.add(starving(rule, over((0.1, trouble), (0.9, recovery - trouble), (0.1, WINDOW)), "run"))
        test.status(rule, trouble, 0)
        test.status(rule, trouble + 7 * MINUTE, 0)  # 47 % of the window
        test.status(rule, trouble + 8 * MINUTE, 1)  # 53 %
        test.firing(rule, trouble + 8 * MINUTE, 1)
        test.firing(rule, recovery, 1)
        test.firing(rule, recovery + WINDOW, 0)
        test.status(rule, recovery + WINDOW, 0)


def test_the_share_of_the_window_is_compared_strictly(test: RuleTest) -> None:
    for rule in BOTTLENECKS:
        value = f"run_instance:stepscope_{rule[:-10].lower()}_starved:ratio"
        for run, more, fires in (("below", -1, 0), ("at", 0, 0), ("above", 1, 1)):
            shares = over((0.9, HOUR), (0.5, WINDOW))
            shares[-1] += more / SAMPLES
            test.add(starving(rule, shares, run))
            test.equals(f'{value}{{run="{run}"}}', HOUR + WINDOW, (900 + more) / 1800)
            test.status(rule, HOUR + WINDOW, fires, run=run)


@pytest.mark.parametrize("rule", BOTTLENECKS)
def test_the_window_is_a_parameter(rule: str, rendered: Callable[..., Path], tmp_path: Path) -> None:
    test = RuleTest(only_judged(rendered(f"{rule}.live_window=5") / "stepscope.yml", tmp_path / "rules.yml"))
    test.add(starving(rule, over((0.0, HOUR), (1.0, 4 * MINUTE), (0.0, HOUR)), "run"))
    test.status(rule, HOUR + 3 * MINUTE, 1)
    test.status(rule, HOUR + 7 * MINUTE, 0)
    test.run(tmp_path)


@pytest.mark.parametrize("gap_at", [HOUR, HOUR + WINDOW - 2 * SCRAPE])
def test_a_gap_of_60_s_in_scraping_changes_no_verdict(test: RuleTest, gap_at: int) -> None:
    """Neither while it lasts, nor while it is in the window, nor when the window begins in it."""
    for rule in BOTTLENECKS:
        end = HOUR + 2 * WINDOW + 2 * MINUTE
        for run, shares, fires in (
            ("healthy", over((0.9, HOUR - 2 * WINDOW), (0.3, HOUR + WINDOW)), 0),
            ("starved", over((0.1, HOUR - 2 * WINDOW), (0.8, HOUR + WINDOW)), 1),
        ):
            test.add(starving(rule, shares, run, lambda values: with_gap(values, gap_at)))
            for time in range(HOUR, end, SCRAPE):
                test.status(rule, time, fires, run=run)
                test.firing(rule, time, fires, run=run)


def test_a_young_run_counts_from_its_beginning_also_if_scrapes_failed_then(test: RuleTest) -> None:
    for rule in BOTTLENECKS:
        value = f"run_instance:stepscope_{rule[:-10].lower()}_starved:ratio"
        shares = over((0.6, HOUR))
        test.add(starving(rule, shares, "scraped"))
        test.add(starving(rule, shares, "not-scraped", lambda values: [None] * 4 + list(values[4:])))
        for run in ("scraped", "not-scraped"):
            for time in (8 * MINUTE, WINDOW, WINDOW + SCRAPE, WINDOW + MINUTE, 2 * WINDOW):
                test.equals(f'{value}{{run="{run}"}}', time, 0.6)
            test.status(rule, 8 * MINUTE, 0, run=run)  # 960 samples, and not clear-cut
            test.status(rule, 9 * MINUTE, 1, run=run)


def test_an_old_run_without_an_earlier_value_is_not_judged_until_the_window_is_known(test: RuleTest) -> None:
    """As after an hour without Prometheus: its first value has all of the run, and says nothing of now."""
    later = 2 * HOUR
    shares = over((1.0, later), (0.1, HOUR))
    unseen = later // SCRAPE
    for rule in BOTTLENECKS:
        test.add(starving(rule, shares, "run", lambda values: [None] * unseen + list(values[unseen:])))
        for time in (later, later + 5 * MINUTE, later + WINDOW - SCRAPE, later + WINDOW + SCRAPE):
            test.gives_nothing(f'stepscope:rule_status{{rule="{rule}"}} == 1', time)


def test_an_exporter_that_lost_its_counts_gives_no_verdict_until_they_are_a_window_old(
    test: RuleTest,
) -> None:
    """A minute of healthy samples, then counts from 0: their difference would be more than all samples."""
    for rule in BOTTLENECKS:
        lost = 2 * MINUTE
        labels = 'job="stepscope",instance="node-a",run="run"'
        first, then = starving(rule, over((0.0, lost)), "run"), starving(rule, over((1.0, HOUR)), "run")
        test.add({name: [*values, *then[name]] for name, values in first.items()})
        test.gives_nothing(f'stepscope:rule_status{{rule="{rule}"}}', lost + 10 * MINUTE)
        test.gives_nothing(
            f"run_instance:stepscope_{rule[:-10].lower()}_starved:ratio{{{labels}}}", lost + 10 * MINUTE
        )
        test.status(rule, lost + WINDOW + 3 * MINUTE, 1)


def test_a_clear_cut_share_speaks_after_two_minutes_and_another_waits_for_patience(test: RuleTest) -> None:
    """At 240 samples the share must be above 80.6 %, at 600 above 69.4 %."""
    for rule in BOTTLENECKS:
        for run, share, at_2, at_5 in (("all", 1.0, 1, 1), ("most", 0.8, 0, 1), ("some", 0.65, 0, 0)):
            test.add(starving(rule, over((share, HOUR)), run))
            test.status(rule, 2 * MINUTE - SCRAPE, 0, run=run)
            test.status(rule, 2 * MINUTE, at_2, run=run)
            test.status(rule, 5 * MINUTE, at_5, run=run)
            test.status(rule, 9 * MINUTE, 1, run=run)


def waiting(
    component: str, shares: np.ndarray, run: str, steps_per_scrape: float = 15.0, rank: int = 0
) -> dict[str, Values]:
    """The counters of a rank whose steps last without a break, `shares` of each scrape's in a component."""
    labels = f'job="stepscope",instance="node-a",run="{run}"'
    of_rank = f'{labels},rank="{rank}"'
    count = np.floor(steps_per_scrape * np.arange(len(shares) + 1))
    took = SCRAPE / steps_per_scrape * count  # steps count when they are over
    spent = np.interp(count, steps_per_scrape * np.arange(len(shares) + 1), counted(SCRAPE * shares))
    return {
        f"stepscope_samples_total{{{labels}}}": counted(np.full(len(shares), SAMPLES)),
        f'stepscope_step_duration_seconds_count{{{of_rank},phase="train"}}': count.tolist(),
        f'stepscope_step_duration_seconds_sum{{{of_rank},phase="train"}}': took.tolist(),
        f'stepscope_step_component_seconds_total{{{of_rank},component="{component}"}}': spent.tolist(),
    }


COMPONENTS = (("DataStarved", "data_wait"), ("CommunicationBound", "communication"))


def test_a_share_of_the_step_time_is_of_the_window(test: RuleTest) -> None:
    for rule, component in COMPONENTS:
        start, end = 2 * HOUR, 2 * HOUR + 30 * MINUTE
        test.add(
            waiting(component, over((0.0, start), (0.6, end - start), (0.0, WINDOW + 2 * MINUTE)), "run")
        )
        test.status(rule, start, 0)
        test.status(rule, start + 4 * MINUTE, 0)  # 4 of 15 minutes: 16 %
        test.status(rule, start + 6 * MINUTE, 1)  # 24 %
        test.firing(rule, end, 1)
        test.firing(rule, end + WINDOW, 0)
        test.status(rule, end + WINDOW, 0)
        for run, share, fires in (("below", 0.19, 0), ("at", 0.2, 0), ("above", 0.21, 1)):
            test.add(waiting(component, over((0.9, HOUR), (share, WINDOW)), run, steps_per_scrape=16))
            test.status(rule, HOUR + WINDOW, fires, run=run)


def test_long_steps_are_judged_by_five_that_took_half_of_the_window(test: RuleTest) -> None:
    """Steps of 90 s: 10 in a window, which is less than `patience`. Steps of 5 minutes: 3."""
    for rule, component in COMPONENTS:
        for run, seconds in (("90-s", 90), ("5-min", 300)):
            test.add(waiting(component, over((0.5, HOUR)), run, steps_per_scrape=SCRAPE / seconds))
        test.status(rule, 6 * MINUTE, 0, run="90-s")  # 4 steps
        test.status(rule, 8 * MINUTE, 1, run="90-s")
        test.status(rule, HOUR, 1, run="90-s")
        test.status(rule, HOUR, 0, run="5-min")


def test_a_rank_that_starts_its_steps_late_counts_from_its_first(test: RuleTest) -> None:
    """Its counters appear half an hour after the run's first scrape: then they have begun in the window."""
    late = 30 * MINUTE // SCRAPE
    series = waiting("data_wait", over((0.5, HOUR)), "run")
    samples, *of_rank = series
    test.add({name: [*[None] * late, *series[name][: HOUR // SCRAPE - late]] for name in of_rank})
    test.add({samples: series[samples]})
    test.status("DataStarved", 32 * MINUTE, 1)


def balanced(busy: np.ndarray, run: str) -> dict[str, Values]:
    """Two GPUs: the first is busy in all samples, the second in these shares of each scrape's."""
    labels = f'job="stepscope",instance="node-a",run="{run}"'
    taken = counted(np.full(len(busy), SAMPLES))
    series: dict[str, Values] = {f"stepscope_samples_total{{{labels}}}": taken}
    for gpu, idle in (("0", 0 * busy), ("1", 1 - busy)):
        histogram = "stepscope_gpu_utilization_samples"
        series[f'{histogram}_count{{{labels},gpu="{gpu}"}}'] = taken
        for bound in range(1, 10):
            series[f'{histogram}_bucket{{{labels},gpu="{gpu}",le="0.{bound}"}}'] = counted(SAMPLES * idle)
    return series


def test_the_distance_between_gpus_is_that_of_the_window(test: RuleTest) -> None:
    start, end = 2 * HOUR, 2 * HOUR + 32 * MINUTE
    test.add(balanced(over((1.0, start), (0.4, end - start), (1.0, 2 * WINDOW)), "run"))
    test.status("LoadBalancing", start + 4 * MINUTE, 0)  # 0.6 x 4 / 15 is 0.16
    test.status("LoadBalancing", start + 8 * MINUTE, 1)
    test.firing("LoadBalancing", end, 1)
    test.status("LoadBalancing", end + 16 * MINUTE, 0)
    test.firing("LoadBalancing", end + 16 * MINUTE, 0)
    for run, share, fires in (("below", 0.81, 0), ("at", 0.8, 0), ("above", 0.79, 1)):
        test.add(balanced(over((0.0, HOUR), (share, 20 * MINUTE)), run))
        test.status("LoadBalancing", HOUR + 16 * MINUTE, fires, run=run)


def hot(shares: np.ndarray, run_starts: float, run: str) -> dict[str, Values]:
    """A GPU that heat throttled for these shares of the time, and the readings of a run that starts then."""
    readings = SAMPLES * np.maximum(np.arange(len(shares) + 1) - run_starts / SCRAPE, 0)
    counts = [count or None for count in readings.tolist()]
    labels = f'job="stepscope",instance="{run}"'
    return {
        f'stepscope_gpu_throttle_seconds_total{{{labels},gpu="0",reason="hw_thermal"}}': counted(
            SCRAPE * shares, 7.0
        ),
        f'stepscope_gpu_utilization_samples_count{{{labels},gpu="0",run="{run}"}}': counts,
    }


def test_heat_is_that_of_the_window_and_not_of_the_run_before(test: RuleTest) -> None:
    rule = "ThermalThrottling"
    start, end = 2 * HOUR, 2 * HOUR + 20 * MINUTE
    test.add(hot(over((0.0, start), (0.3, end - start), (0.0, HOUR)), 0, "hot"))
    test.status(rule, start + 2 * MINUTE, 0, run="hot")  # 0.3 x 2 / 15 is 0.04
    test.status(rule, start + 4 * MINUTE, 1, run="hot")
    test.firing(rule, end, 1, run="hot")
    test.status(rule, end + WINDOW, 0, run="hot")
    for run, share, fires in (("below", 0.049, 0), ("at", 0.05, 0), ("above", 0.051, 1)):
        test.add(hot(over((0.9, HOUR), (share, WINDOW)), 0, run))
        test.status(rule, HOUR + WINDOW, fires, run=run)
    test.add(hot(over((0.9, HOUR), (0.0, HOUR)), HOUR, "after-a-hot-run"))
    test.add(hot(over((0.0, HOUR), (0.2, HOUR)), HOUR, "hot-from-its-start"))
    for time in range(HOUR + 2 * MINUTE, HOUR + 40 * MINUTE, 2 * MINUTE):
        test.status(rule, time, 0, run="after-a-hot-run")
    for time in range(HOUR + 6 * MINUTE, HOUR + 40 * MINUTE, 2 * MINUTE):
        test.status(rule, time, 1, run="hot-from-its-start")
