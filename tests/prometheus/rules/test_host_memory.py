"""MemoryPressure and HostMemoryLeak, in promtool."""

from collections.abc import Callable
from pathlib import Path

import numpy as np

from tests.support.prometheus import needs_prometheus
from tests.support.promtool import RuleTest, Values

pytestmark = needs_prometheus

SCRAPE, SAMPLES = 15, 30  # seconds, and samples per scrape
WINDOW = 900
HOUR = 3600
CAPACITY = 64e9
LEAK = 1200  # seconds: an evaluation after its patience


def series(run: str, seconds: int, **values: Values) -> dict[str, Values]:
    labels = f'job="stepscope",instance="node-a",run="{run}"'
    samples: Values = [float(SAMPLES * number) for number in range(seconds // SCRAPE + 1)]
    return {
        f"stepscope_samples_total{{{labels}}}": samples,
        **{f"stepscope_run_{name.format(labels)}": numbers for name, numbers in values.items()},
    }


def waits(run: str, share: float, before: float = 0.0) -> dict[str, Values]:
    """Some process waited for memory for this share of the last window, and for `before` until then."""
    shares = np.full(HOUR // SCRAPE, before)
    shares[-WINDOW // SCRAPE :] = share
    waited = [0.0, *np.cumsum(SCRAPE * shares).tolist()]
    name = "pressure_waiting_seconds_total{{{},resource="
    return series(
        run,
        HOUR,
        **{f'{name}"memory"}}}}': waited, f'{name}"io"}}}}': np.arange(len(waited)).astype(float).tolist()},
    )


def holds(run: str, shares: np.ndarray) -> dict[str, Values]:
    held = {
        "anonymous_memory_bytes{{{}}}": (CAPACITY * shares).tolist(),
        "memory_capacity_bytes{{{}}}": [CAPACITY] * len(shares),
    }
    return series(run, (len(shares) - 1) * SCRAPE, **held)


def minutes(count: float) -> np.ndarray:
    return np.arange(round(60 * count / SCRAPE) + 1) * SCRAPE / 60


def test_waits_for_memory_fire_above_a_tenth_of_the_time_and_clear_within_a_window(test: RuleTest) -> None:
    for run, share, fires in (("below", 0.099, 0), ("at", 0.1, 0), ("above", 0.101, 1)):
        test.add(waits(run, share))
        test.equals(f'run_instance:stepscope_memory_waits:ratio{{run="{run}"}}', HOUR, share, tolerance=1e-9)
        test.status("MemoryPressure", HOUR - WINDOW, 0, run=run)
        test.status("MemoryPressure", HOUR, fires, run=run)
        test.firing("MemoryPressure", HOUR, fires, run=run)
    test.add(waits("over", 0.0, before=0.5))
    test.firing("MemoryPressure", HOUR - WINDOW, 1, run="over")
    test.firing("MemoryPressure", HOUR, 0, run="over")


def test_memory_that_grows_steadily_alerts_and_what_grows_once_does_not(test: RuleTest) -> None:
    time = minutes(25)
    cases = {
        "leak": (0.3 + 0.01 * time, 1),
        "slow": (0.3 + 0.002 * time, 0),
        "cache": (np.minimum(0.3 + 0.1 * time, 0.6), 0),
        "jump": (np.where(time < 15, 0.3, 0.8), 0),
        "flat": (np.full(len(time), 0.9), 0),
    }
    for run, (shares, leaks) in cases.items():
        test.add(holds(run, shares))
        test.status("HostMemoryLeak", 600, 0, run=run)  # patience: 1200 samples
        test.status("HostMemoryLeak", LEAK, leaks, run=run)
        test.firing("HostMemoryLeak", LEAK, leaks, run=run, instance="node-a", trouble="leak")


def test_a_leak_fires_above_a_twentieth_of_what_the_run_may_use(
    rendered: Callable[..., Path], tmp_path: Path
) -> None:
    """In the ten minutes of `patience`."""
    test = RuleTest(rendered("HostMemoryLeak.warm_up=0") / "stepscope.yml")
    for run, growth, fires in (("below", 0.049, 0), ("above", 0.0501, 1)):
        test.add(holds(run, 0.3 + growth / 10 * minutes(25)))
        grown = f'run_instance:stepscope_run_memory_leak:growth_ratio{{run="{run}"}}'
        test.equals(grown, LEAK, growth, tolerance=1e-9)
        test.status("HostMemoryLeak", LEAK, fires, run=run)
    test.run(tmp_path)


def test_in_its_first_hour_a_run_leaks_only_if_its_memory_is_full_within_two(test: RuleTest) -> None:
    for run, growth in (("cache", 0.035), ("unclear", 0.055), ("leak", 0.07)):  # of the memory in ten minutes
        begin = 0.02 if run == "unclear" else 0.3
        test.add(holds(run, begin + growth / 10 * np.minimum(minutes(80), 80 if run == "leak" else 40)))
        for at in (LEAK, 2400):
            test.firing("HostMemoryLeak", at, int(run == "leak"), run=run, trouble="leak")
    test.firing("HostMemoryLeak", LEAK, 0, run="cache")
    test.firing("HostMemoryLeak", LEAK, 1, run="unclear", trouble="cache or leak", severity="info")
    test.firing("HostMemoryLeak", 4560, 0, run="cache")


def fluctuating(time: np.ndarray, period: float) -> np.ndarray:
    return np.sin(2 * np.pi * time / period)


def test_caches_that_fill_and_memory_that_fluctuates_do_not_leak_whatever_they_do_for_some_minutes(
    test: RuleTest,
) -> None:
    """A cache holds a tenth, and a quarter more after an hour: full after four. Its use varies by 5 %."""
    filling, swinging = minutes(90), minutes(150)
    cache = (0.1 + 0.25 * np.minimum(filling / 60, 1)) * (1 + 0.05 * fluctuating(filling, 21))
    test.add(holds("cache", cache))
    test.add(holds("swings", 0.5 + 0.05 * fluctuating(swinging, 30)))
    test.firing("HostMemoryLeak", 3000, 1, trouble="cache or leak", run="cache")  # at twice its mean rate
    test.firing("HostMemoryLeak", 7600, 1, trouble="cache or leak", run="swings")
    for at in range(600, 150 * 60 + 1, 100):
        test.firing("HostMemoryLeak", at, 0, trouble="leak")


def test_a_leak_after_the_first_hour_is_found_within_twice_its_patience(test: RuleTest) -> None:
    """It grows by so much in ten minutes, beside what fluctuates."""
    time = minutes(120)
    test.firing("HostMemoryLeak", 75 * 60, 0)
    for run, growth, after in (("fast", 0.12, 13.5), ("slow", 0.055, 22)):
        held = (0.1 + growth / 10 * np.maximum(time - 75, 0)) * (1 + 0.05 * fluctuating(time, 21))
        test.add(holds(run, held))
        found = {"run": run, "trouble": "leak", "severity": "warning"}
        test.firing("HostMemoryLeak", int(60 * (75 + after)), 1, **found)


def test_a_run_without_readings_has_no_status(test: RuleTest) -> None:
    """Nor has one whose processes are known, but not how much memory they may use."""
    test.add(series("run", HOUR, **{"anonymous_memory_bytes{{{}}}": [1e9] * (HOUR // SCRAPE)}))
    for rule in ("MemoryPressure", "HostMemoryLeak"):
        test.gives_nothing(f'stepscope:rule_status{{rule="{rule}"}}', HOUR)
