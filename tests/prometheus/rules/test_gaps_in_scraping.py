"""A gap of 60 s in scraping changes no verdict of any rule, on simulated nodes."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from stepscope.prometheus.rules.groups import FINDING, STATUS

from tests.support.prometheus import needs_prometheus
from tests.support.promtool import RuleTest
from tests.support.scraped_nodes import of_target, played, read_by
from tests.support.scrapes import Series
from tests.support.smallest import smallest

pytestmark = needs_prometheus

SCRAPE, MINUTE = 15, 60
LENGTH, GAP = 38 * MINUTE, 18 * MINUTE
NAN = float("nan")
# The run that was played is shorter than a window before the gap and one after: its steady ten minutes go on.
STEADY = range(15, 55)  # scrapes
GROWING = ("_total", "_bucket", "_count", "_sum", "_age_seconds")


def going_on(series: Series) -> Series:
    """Returns the series until LENGTH: what the steady scrapes added is added again and again."""
    longer: Series = {}
    for name, values in series.items():
        kept = values[: STEADY.stop + 1]
        if len(kept) > STEADY.stop:
            grows = name.partition("{")[0].endswith(GROWING)
            growth = (kept[STEADY.stop] or 0.0) - (kept[STEADY.start] or 0.0) if grows else 0.0
            for _ in range(STEADY.stop + 1, LENGTH // SCRAPE):
                before = kept[-len(STEADY)]
                kept.append(None if before is None else before + growth)
        longer[name] = kept
    return longer


def with_gap(series: Series) -> Series:
    """Each series is stale at the first of four failed scrapes."""
    first = GAP // SCRAPE
    gap = [NAN, None, None, None]
    return {name: [*values[:first], *gap, *values[first + 4 :]] for name, values in series.items()}


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
    series = going_on(read_by(rules, played(scenario)))
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
