"""When a rule was evaluated: what its group recorded says so, and no other cluster's group."""

from dataclasses import dataclass
from typing import Any, cast

import numpy as np
import pytest
from stepscope.measurements.scraped import Labels, Points, Vector
from stepscope.prometheus.crosscheck.server import Server
from stepscope.prometheus.crosscheck.stored import ScrapeTimes, Stored, Window
from stepscope.prometheus.rules.groups import INFO, STATUS
from stepscope.rules.loss_not_finite import LossNotFinite
from stepscope.rules.parts.promql import Scraping

MINUTE = 60_000
WINDOW = Window("resnet", 0, 10 * MINUTE, ScrapeTimes(15_000, unseen=0), restarted=None)


@dataclass(frozen=True)
class Answers:
    """A server with the status of the run at some times, and words of the rule at others, by cluster."""

    status: list[int]
    words: dict[str, list[int]]

    def samples(self, selector: str, *_: int) -> dict[int, Vector]:
        labels = frozenset({("cluster", "own"), ("run", "resnet"), ("rule", "LossNotFinite")})
        return {time: {labels: 0.0} for time in self.status} if selector.startswith(STATUS) else {}

    def points(self, selector: str, *_: int) -> dict[Labels, Points]:
        assert selector == f'{INFO}{{rule="LossNotFinite"}}'
        return {
            frozenset({("cluster", cluster), ("rule", "LossNotFinite"), ("severity", "warning")}): (
                np.array(times),
                np.ones(len(times)),
            )
            for cluster, times in self.words.items()
        }


@pytest.mark.parametrize(
    ("status", "words", "expected"),
    [
        ([60, 120], {"own": [60, 120, 180, 240]}, [60, 120, 180, 240]),
        ([60, 120], {"own": [60, 120], "other": [60, 120, 180]}, [60, 120]),
        ([60, 120], {}, [60, 120]),
        ([], {"own": [60, 120]}, [60, 120]),
        ([], {"own": [60, 120], "other": [75, 135]}, [60, 120]),
        ([], {}, []),
    ],
    ids=["silent later", "another cluster", "no words", "always silent", "out of step", "never evaluated"],
)
def test_evaluations_are_where_the_group_of_the_runs_own_cluster_recorded_its_words(
    status: list[int], words: dict[str, list[int]], expected: list[int]
) -> None:
    answers = Answers([1000 * time for time in status], {k: [1000 * t for t in v] for k, v in words.items()})
    rule: Any = LossNotFinite()
    stored = Stored(cast(Server, answers), rule, Scraping(), MINUTE, WINDOW, {})
    assert stored.times == [1000 * time for time in expected]
