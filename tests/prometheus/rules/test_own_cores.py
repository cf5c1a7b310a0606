"""CPUThrottled, NoisyNeighbour and the cores of Dataloader, in promtool."""

import numpy as np

from tests.support.prometheus import needs_prometheus
from tests.support.promtool import RuleTest, Values

pytestmark = needs_prometheus

SCRAPE, SAMPLES = 15, 30  # seconds, and samples per scrape
WINDOW = 900
HOURS = 2 * 3600


def grows(per_second: float, seconds: int = HOURS, then: float | None = None) -> list[float]:
    """A counter that grows by `per_second`, and by `then` in the last window."""
    rates = np.full(seconds // SCRAPE, per_second)
    rates[-WINDOW // SCRAPE :] = per_second if then is None else then
    return [0.0, *np.cumsum(SCRAPE * rates).tolist()]


def series(run: str, **values: Values) -> dict[str, Values]:
    labels = f'{{job="stepscope",instance="node-a",run="{run}"}}'
    return {
        f"stepscope_samples_total{labels}": grows(SAMPLES / SCRAPE),
        **{f"stepscope_run_{name}{labels}": numbers for name, numbers in values.items()},
    }


def limited(run: str, stopped: float) -> dict[str, Values]:
    """A run with a limit of 4 cores that stopped it for so many core seconds a second lately."""
    count = HOURS // SCRAPE + 1
    return series(run, cpu_limit_cores=[4.0] * count, cpu_throttled_seconds_total=grows(0.0, then=stopped))


def shared(run: str, waited: float) -> dict[str, Values]:
    """A run that uses 2 of its cores, and others use 2, and that waited so much for one lately."""
    return series(
        run,
        cpu_seconds_total=grows(2.0),
        other_cpu_seconds_total=grows(2.0),
        main_threads_ran_seconds_total=grows(2.0),
        main_threads_waited_seconds_total=grows(0.0, then=waited),
    )


def test_a_limit_fires_above_a_tenth_of_what_it_grants(test: RuleTest) -> None:
    for run, stopped, fires in (("below", 0.399, 0), ("at", 0.4, 0), ("above", 0.41, 1)):
        test.add(limited(run, stopped))
        share = f'run_instance:stepscope_cpu_throttled:ratio{{run="{run}"}}'
        test.equals(share, HOURS, stopped / 4, tolerance=1e-9)
        test.status("CPUThrottled", HOURS - WINDOW, 0, run=run)
        test.status("CPUThrottled", HOURS, fires, run=run)
        test.firing("CPUThrottled", HOURS, fires, run=run)


def test_neighbours_fire_above_a_tenth_of_the_time_of_main_threads_and_2_percent_of_the_run(
    test: RuleTest,
) -> None:
    """Threads that hardly run wait for most of the time in which they could."""
    for run, waited, fires in (("below", 0.499, 0), ("at", 0.5, 0), ("above", 0.51, 1)):
        test.add(shared(run, waited))
        share = f'run_instance:stepscope_waited_for_neighbours:ratio{{run="{run}"}}'
        test.equals(share, HOURS, waited / (2 + waited) / 2, tolerance=1e-9)
        test.status("NoisyNeighbour", HOURS - WINDOW, 0, run=run)
        test.status("NoisyNeighbour", HOURS, fires, run=run)
        test.firing("NoisyNeighbour", HOURS, fires, run=run)
    for run, waited, fires in (("cheap", 0.0199, 0), ("dear", 0.0201, 1)):
        uses = {"ran": 0.0023, "waited": 2 * waited}
        threads = {f"main_threads_{name}_seconds_total": grows(rate) for name, rate in uses.items()}
        cores = {"cpu_seconds_total": grows(1.0), "other_cpu_seconds_total": grows(1.0)}
        test.add(series(run, **cores, **threads))
        cost = f'run_instance:stepscope_cost_of_neighbours:ratio{{run="{run}"}}'
        test.equals(cost, HOURS, waited, tolerance=1e-9)
        test.firing("NoisyNeighbour", HOURS, fires, run=run)


def test_a_run_without_a_limit_or_without_measurements_has_no_status(test: RuleTest) -> None:
    test.add(series("run"))
    for rule in ("CPUThrottled", "NoisyNeighbour"):
        test.gives_nothing(f'stepscope:rule_status{{rule="{rule}"}}', HOURS)
