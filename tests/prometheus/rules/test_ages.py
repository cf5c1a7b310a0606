"""TrainingStalled and MaxInitializationTime on nodes whose clock is wrong, steps or stops.

The real collector reads a real ledger; promtool's clock is that of Prometheus, and begins at 0.
"""

import json
from collections.abc import Callable, Iterable, Iterator
from functools import cache, partial
from math import inf
from pathlib import Path

import pytest
import yaml
from stepscope.demo.ranks import AliveReader, RankLedger
from stepscope.demo.scenario import Step, Work
from stepscope.demo.scenarios import all_scenarios
from stepscope.exporter.collectors.training import TrainingCollector
from stepscope.exporter.ledgers.ages import Now
from stepscope.exporter.sampling.families import Family
from stepscope.exporter.sampling.sample import Sample
from stepscope.prometheus.rules.files import RULES, render
from stepscope.prometheus.rules.options import Options
from stepscope.rules.parts.promql import Scraping

from tests.support.prometheus import needs_prometheus
from tests.support.promtool import RuleTest
from tests.support.scrapes import Series, only, written

pytestmark = needs_prometheus

MINUTE = 60.0
STEP = 1.0  # seconds per step
SAMPLE = 5  # seconds: a tenth of the samples that the exporter takes, and all that is scraped
MINUTES = 35
CHANGE = 5 * MINUTE  # when a clock steps, or the machine is suspended
NAMES = ("stepscope_step_duration_seconds_count", "stepscope_run_", "stepscope_phase_")

Clocks = Callable[[float], Now | None]  # of the node, by Prometheus's time; None: suspended


def ahead(seconds: float) -> Clocks:
    return lambda now: Now(now + 3600 + seconds, now)


def stepping(seconds: float) -> Clocks:
    return lambda now: Now(now + 3 * 3600 + (seconds if now >= CHANGE else 0.0), now)


def suspended(now: float) -> Now | None:
    """For ten minutes, in which CLOCK_MONOTONIC stands still."""
    length = 10 * MINUTE
    if now < CHANGE:
        return Now(now, now)
    return Now(now, now - length) if now >= CHANGE + length else None


CLOCKS = pytest.mark.parametrize(
    ("clocks", "scrape"),
    [
        pytest.param(ahead(0), 15, id="right", marks=pytest.mark.trial),
        pytest.param(ahead(0), 60, id="scraped every 60 s", marks=pytest.mark.trial),
        pytest.param(ahead(90), 15, id="90 s ahead", marks=pytest.mark.trial),
        pytest.param(ahead(-90), 60, id="90 s behind, scraped every 60 s"),
        pytest.param(stepping(3600), 15, id="steps by an hour"),
        pytest.param(stepping(-3600), 15, id="steps back by an hour"),
        pytest.param(suspended, 15, id="suspended"),
    ],
)


STOPS = 8 * MINUTE  # on the process's clock
UNTIL = {"trains": inf, "stops": STOPS, "never": 0, "pauses": 2 * MINUTE}  # each run steps


def scraped(folder: Path, clocks: Clocks, scrape: int) -> Series:
    """The series of runs that step until the clock of their process shows UNTIL, as the exporter has them."""
    present = clocks(0.0)  # what the exporter's clock shows
    assert present is not None
    healthy = all_scenarios()["healthy"]()
    ledgers = {
        run: RankLedger(folder, run, 0, healthy, present.wall, first_pid=1000 + number)
        for number, run in enumerate(UNTIL)
    }
    living = {ledger.path for ledger in ledgers.values()}
    collector = TrainingCollector(folder, open_ledger=partial(AliveReader, living=living))

    def scrapes() -> Iterator[Iterable[Family]]:
        nonlocal present
        steps = dict.fromkeys(UNTIL, 0)
        for sample in range(round(MINUTE * MINUTES / SAMPLE) + 1):
            now = SAMPLE * sample
            present = clocks(now)
            if present is not None:
                for run, until in UNTIL.items():
                    while STEP * (steps[run] + 1) <= min(present.monotonic, until):
                        begin = STEP * steps[run]
                        ledgers[run].record(Step(steps[run], Work(), begin, begin + STEP, 0.0))
                        steps[run] += 1
                collector.collect(Sample(time=present.wall, monotonic=present.monotonic))
            if now % scrape == 0:
                yield collector.families if present is not None else ()

    found = only(written(scrapes(), "node-a"), *NAMES)
    collector.close()
    for values in found.values():
        for place, value in enumerate(values):
            if value is None and place and values[place - 1] is not None:
                values[place] = float("nan")  # the scrape fails: Prometheus marks the end of the series
                break
    return found


@cache
def judged(scrape: int) -> str:
    """Returns the rule file of the two rules, for such an interval of scrapes."""
    groups = yaml.load(render(Options(scraping=Scraping(scrape)))[RULES], yaml.CSafeLoader)["groups"]
    names = ("stepscope-TrainingStalled", "stepscope-MaxInitializationTime")
    return json.dumps({"groups": [group for group in groups if group["name"] in names]})


@CLOCKS
def test_a_run_is_stalled_or_late_by_its_own_time_whatever_the_clock_says(
    clocks: Clocks, scrape: int, tmp_path: Path
) -> None:
    rules = tmp_path / RULES
    rules.write_text(judged(scrape))
    test = RuleTest(rules, interval=scrape)
    test.add(scraped(tmp_path, clocks, scrape))
    paused = 10 * MINUTE if clocks is suspended else 0
    for minute in range(2, 25):
        test.firing("TrainingStalled", minute * MINUTE, 0, run="trains")
        test.firing("MaxInitializationTime", minute * MINUTE, 0, run="trains")
    test.status("TrainingStalled", 24 * MINUTE, 0, run="trains")

    seen = STOPS + paused
    stalled = {"run": "stops", "severity": "critical"}
    test.firing("TrainingStalled", seen + MINUTE - 15, 0, run="stops")
    test.firing("TrainingStalled", seen + MINUTE + 2 * scrape + 30, 1, **stalled)

    late = 20 * MINUTE + paused
    test.firing("MaxInitializationTime", late - MINUTE, 0, run="never")
    test.firing("MaxInitializationTime", late + 3 * MINUTE, 1, run="never", stage="waiting")
    test.gives_nothing('stepscope_run_last_step_age_seconds{run="never"}', late)

    own = 20 * MINUTE - paused
    other = 'stepscope_phase_age_seconds{run="pauses", rank="0", phase="other"}'
    test.equals(other, 20 * MINUTE, own - 2 * MINUTE, tolerance=0.5)
    age = 'stepscope_run_%s_seconds{run="pauses"}'
    test.equals(age % "last_step_age", 20 * MINUTE, own - 2 * MINUTE, tolerance=0.5)
    test.equals(age % "age", 20 * MINUTE, own, tolerance=0.5)
    test.run(tmp_path)


def test_an_exporter_that_starts_late_knows_how_long_nothing_has_happened(tmp_path: Path) -> None:
    ledger = RankLedger(tmp_path, "run", 0, all_scenarios()["healthy"](), 1000.0)
    ledger.record(Step(0, Work(), 0.0, STEP, 0.0))
    for step, expected in (
        (0.0, 99.0),
        (3600.0, 99.0),
        (-3600.0, 0.0),
    ):  # a clock that went back shows nothing
        collector = TrainingCollector(tmp_path, open_ledger=partial(AliveReader, living={ledger.path}))
        collector.collect(Sample(time=1100.0 + step, monotonic=100.0))
        ages = next(each for each in collector.families if each.name == "stepscope_run_last_step_age_seconds")
        assert dict(ages.samples) == {("run",): expected}
        collector.close()
