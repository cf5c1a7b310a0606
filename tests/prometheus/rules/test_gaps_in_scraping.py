"""A gap of 60 s in scraping changes no verdict of any rule, on simulated nodes."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from stepscope.prometheus.rules.groups import FINDING, STATUS

from tests.support.demo import simulated
from tests.support.promtool import RuleTest
from tests.support.scrapes import Series
from tests.support.smallest import smallest

pytestmark = [
    pytest.mark.servers,
    pytest.mark.skipif(shutil.which("promtool") is None, reason="needs Debian's prometheus package"),
]

SCRAPE, MINUTE = 15, 60
LENGTH, GAP = 38 * MINUTE, 18 * MINUTE
NAN = float("nan")
LINE = re.compile(r"(\w+)(?:\{(.*)\})? (\S+)")


def scraped(scenario: str) -> Series:
    """What a Prometheus stores of a simulated node."""
    series: Series = {}
    with simulated(scenario, run=scenario) as node:
        for number in range(LENGTH // SCRAPE):
            node.go(SCRAPE)
            for line in node.exporter.scrape("text").decode().splitlines():
                if match := LINE.fullmatch(line):
                    values = series.setdefault(f"{match[1]}{{{match[2] or ''}}}", [])
                    values += [None] * (number - len(values))
                    values.append(float(match[3]))
    return series


def of_target(series: Series, instance: str) -> Series:
    target = f'job="stepscope",instance="{instance}"'
    return {name.replace("{", f"{{{target},").replace(",}", "}"): values for name, values in series.items()}


def with_gap(series: Series) -> Series:
    """Each series is stale at the first of four failed scrapes."""
    first = GAP // SCRAPE
    gap = [NAN, None, None, None]
    return {name: [*values[:first], *gap, *values[first + 4 :]] for name, values in series.items()}


def read_by(rules: Path, series: Series) -> Series:
    words = set(re.findall(r"stepscope_\w+", rules.read_text()))
    return {name: values for name, values in series.items() if name.partition("{")[0] in words}


def times() -> Iterator[int]:
    """Before the gap, in it, and until one window after it, where windows begin in it."""
    yield from range(GAP - 4 * MINUTE, GAP, 2 * MINUTE)
    yield from range(GAP, GAP + 2 * MINUTE, SCRAPE)
    yield from range(GAP + 2 * MINUTE, GAP + 14 * MINUTE, 2 * MINUTE)
    yield from range(GAP + 14 * MINUTE, LENGTH, SCRAPE)


@pytest.mark.parametrize("scenario", smallest(["cpu-bottleneck", "imbalance", "thermal"], {0}))
def test_a_gap_of_60_s_changes_no_verdict_before_during_and_one_window_after_it(
    scenario: str, rules: Path, tmp_path: Path
) -> None:
    series = read_by(rules, scraped(scenario))
    test = RuleTest(rules)
    test.add(of_target(series, "whole"))
    test.add(of_target(with_gap(series), "gap"))
    status = f'{STATUS}{{instance="%s"}}'
    for time in times():
        gap, whole = status % "gap", status % "whole"
        test.gives_nothing(f"{gap} != ignoring (instance) {whole}", time)
        test.gives_nothing(f"{gap} unless ignoring (instance) {whole}", time)
        test.gives_nothing(f"{whole} unless ignoring (instance) {gap}", time)
    found = f'count(count by (rule) (last_over_time({FINDING}{{instance="gap"}}[45m]))) > 0'
    test.equals(f"{found} > bool 0", LENGTH - SCRAPE, 1)
    test.run(tmp_path)
