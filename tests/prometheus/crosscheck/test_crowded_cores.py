"""What Prometheus decides about a slow rank on crowded cores, against the same counters judged in numpy."""

import json
from collections.abc import Iterator
from typing import Any

import pytest
import yaml
from stepscope.prometheus.crosscheck.offline.check import check_recording
from stepscope.prometheus.crosscheck.replay.run import RecordedRun, name_and_labels
from stepscope.prometheus.crosscheck.rule_files import Rendered
from stepscope.prometheus.crosscheck.server import Series
from stepscope.prometheus.rules.files import RULES, render
from stepscope.prometheus.rules.options import Options

from tests.prometheus.rules.test_straggler_rules import EXACT, crowded
from tests.support.prometheus import needs_prometheus
from tests.support.scrapes import SCRAPE_SECONDS

pytestmark = needs_prometheus

START = 1_700_000_040.0


class CrowdedRun(RecordedRun):
    """A run whose ranks wait for cores, as Prometheus scraped it; recordings do not have these waits."""

    name, nodes, start = "run", ["node-a"], START

    def __init__(self, mine: int, others: int) -> None:
        self._series = crowded(self.name, mine, others)

    @property
    def end(self) -> float:
        return START + SCRAPE_SECONDS * (max(map(len, self._series.values())) - 1)

    def scraped(self, moments: Any, names: Any, progress: Any) -> Iterator[Series]:
        for written, values in self._series.items():
            name, labels = name_and_labels(written.removesuffix("}"))
            points = list(zip(moments, values, strict=True))
            yield {"__name__": name, **labels}, points


@pytest.mark.parametrize(("mine", "others", "firing"), [(8, 8, 3), (9, 9, 1), (11, 4, 1), (12, 4, 3)])
def test_prometheus_accuses_a_rank_on_crowded_cores_when_numpy_does(
    mine: int, others: int, firing: int
) -> None:
    """A rank that may only wait for a core is accused when it is slow for the third time in a row."""
    options = Options(EXACT)
    groups = yaml.load(render(options)[RULES], yaml.CSafeLoader)["groups"]
    text = json.dumps({"groups": [group for group in groups if group["name"] == "stepscope-Straggler"]})
    outcomes = check_recording(CrowdedRun(mine, others), Rendered({RULES: text}, options), None, None)
    (found,) = (outcome for outcome in outcomes if outcome.rule == "Straggler")
    assert (found.disagreements, found.firing) == ([], firing)
