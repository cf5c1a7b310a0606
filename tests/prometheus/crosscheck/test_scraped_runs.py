"""What Prometheus decides about crowded cores and suspended runs, against the same series judged in numpy."""

import json
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import pytest
import yaml
from stepscope.prometheus.crosscheck.offline.check import check_recording
from stepscope.prometheus.crosscheck.replay.run import RecordedRun, name_and_labels
from stepscope.prometheus.crosscheck.rule_files import Rendered
from stepscope.prometheus.crosscheck.server import Series
from stepscope.prometheus.rules.files import RULES, render
from stepscope.prometheus.rules.options import Options

from tests.prometheus.rules.test_component_rules import pausing
from tests.prometheus.rules.test_sample_rules import gpu_series
from tests.prometheus.rules.test_straggler_rules import EXACT, crowded
from tests.support.prometheus import needs_prometheus
from tests.support.promtool import Values
from tests.support.scrapes import SCRAPE_SECONDS

pytestmark = needs_prometheus

START = 1_700_000_040.0


class ScrapedRun(RecordedRun):
    """A run as Prometheus scraped it; recordings do not have what these rules read."""

    name, nodes, start = "run", ["node-a"], START

    def __init__(self, series: Mapping[str, Values]) -> None:
        self._series = series

    @property
    def end(self) -> float:
        return START + SCRAPE_SECONDS * (max(map(len, self._series.values())) - 1)

    def scraped(self, moments: Any, names: Any, progress: Any) -> Iterator[Series]:
        for written, values in self._series.items():
            name, labels = name_and_labels(written.removesuffix("}"))
            points = list(zip(moments, values, strict=True))
            yield {"__name__": name, **labels}, points

    def firing(self, rule: str, options: Options) -> int:
        """Returns in how many evaluations the rule fired, if Prometheus decided as numpy did."""
        groups = yaml.load(render(options)[RULES], yaml.CSafeLoader)["groups"]
        text = json.dumps({"groups": [group for group in groups if group["name"] == f"stepscope-{rule}"]})
        outcomes = check_recording(self, Rendered({RULES: text}, options), None, None)
        (found,) = (outcome for outcome in outcomes if outcome.rule == rule)
        assert found.disagreements == []
        return found.firing


@pytest.mark.parametrize(("mine", "others", "firing"), [(8, 8, 3), (9, 9, 1), (11, 4, 1), (12, 4, 3)])
def test_prometheus_accuses_a_rank_on_crowded_cores_when_numpy_does(
    mine: int, others: int, firing: int
) -> None:
    """A rank that may only wait for a core is accused when it is slow for the third time in a row."""
    run = ScrapedRun(crowded(ScrapedRun.name, mine, others))
    assert run.firing("Straggler", Options(EXACT)) == firing


@pytest.mark.parametrize("stopped", [1, 2])
def test_prometheus_takes_a_run_for_suspended_when_numpy_does(stopped: int) -> None:
    """One of two ranks is stopped, or both are: for fifteen minutes."""
    labels = f'job="stepscope",instance="node-a",run="{ScrapedRun.name}"'
    series = pausing(ScrapedRun.name, ("backward", 10, 25), minutes=30)
    series[f"stepscope_run_world_size{{{labels}}}"] = [2.0] * 121
    for rank in range(2):
        state = "stopped" if rank < stopped else "waiting"
        series[f'stepscope_rank_process_state{{{labels},rank="{rank}",state="{state}"}}'] = [
            1.0 if 40 < scrape <= 100 else None for scrape in range(121)
        ]
    assert ScrapedRun(series).firing("TrainingStalled", Options()) == 15


def test_prometheus_lets_a_user_think_when_numpy_does() -> None:
    """A script waits for ten minutes, then at a prompt for ten more."""
    labels = f'job="stepscope",instance="node-a",run="{ScrapedRun.name}",rank="0",state="at a prompt"'
    series = pausing(ScrapedRun.name, ("host", 10, 30), minutes=30)
    series[f"stepscope_rank_process_state{{{labels}}}"] = [1.0 if i > 80 else None for i in range(121)]
    assert ScrapedRun(series).firing("TrainingStalled", Options()) == 10
    assert ScrapedRun(series).firing("IdleGPU", Options()) == 3


@pytest.mark.parametrize(("stopped", "firing"), [(range(0), 5), (range(80, 92), 3)])
def test_prometheus_judges_no_idle_gpu_of_a_stopped_rank_when_numpy_judges_none(
    stopped: range, firing: int
) -> None:
    """The GPU never works, in 30 minutes; its rank is stopped for three, which are in two of five windows."""
    labels = f'job="stepscope",instance="node-a",run="{ScrapedRun.name}",rank="0",state="stopped"'
    series = gpu_series(np.zeros((120 * 30, 1)), ScrapedRun.name)
    states = [1.0 if scrape in stopped else None for scrape in range(121)]
    found = ScrapedRun(series | {f"stepscope_rank_process_state{{{labels}}}": states})
    assert found.firing("LowGPUUtilization", Options()) == firing
