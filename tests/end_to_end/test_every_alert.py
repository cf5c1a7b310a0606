"""The alerts of every scenario, as the rules fire over what a server has scraped of it."""

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from stepscope.demo.scenarios import all_scenarios
from stepscope.rules.parts.promql import OWNER

from tests.support.backfill import every_scenario, run_of
from tests.support.demo import START
from tests.support.film import minutes_of
from tests.support.prometheus import Prometheus, needs_prometheus
from tests.support.told import read_expected

EXPECTED = read_expected(Path(__file__).with_name("told.yml"))
OF_STORAGE = {"__name__", "alertstate", "instance"}
# Whose a run is: templates, which nobody expands who fills a storage afterwards. The film shows their values.
NOT_KNOWN = {*OF_STORAGE, *OWNER}

pytestmark = needs_prometheus


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Prometheus]:
    with every_scenario(tmp_path_factory.mktemp("every-scenario")).serving() as running:
        yield running


@pytest.mark.parametrize("scenario", all_scenarios())
def test_a_scenario_fires_what_is_told_and_what_is_silenced_and_nothing_else(
    server: Prometheus, scenario: str
) -> None:
    end = START + 60 * minutes_of(scenario)
    which = {"match[]": f'ALERTS{{run="{run_of(scenario)}"}}', "start": f"{START:.0f}", "end": f"{end:.0f}"}
    fired = [
        {name: text for name, text in labels.items() if name not in NOT_KNOWN}
        for labels in server.get("series", **which)
    ]
    told = [
        ({name: text for name, text in labels.items() if name not in NOT_KNOWN}, each.brief)
        for each in EXPECTED[scenario].told
        for labels in each.alerts(scenario)
    ]
    assert [labels for labels, brief in told if not brief and labels not in fired] == []
    known = [labels for labels, _ in told]
    silenced = {
        (labels["rule"], labels.get("gpu"), labels.get("rank")) for labels in fired if labels not in known
    }
    assert Counter(rule for rule, _, _ in silenced) == EXPECTED[scenario].silenced
