"""One row per run and problem on Cluster, in promtool: rules that see the same problem are one finding."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest
from trainwatch.dashboards.command import dashboards
from trainwatch.rules import all_rules
from trainwatch.rules.topics import ANY_TOPIC

from tests.support.grafana import panels
from tests.support.promtool import RuleTest

pytestmark = pytest.mark.skipif(shutil.which("promtool") is None, reason="needs Debian's prometheus package")

COSTS_TIME = {"Straggler", "DataStarved"}  # of the rules below, those that say how much


def shown(tmp_path: Path, run: str, found: dict[str, int], *, expected: dict[str, int]) -> None:
    """Fails unless a run with so many alerts of each rule has the expected rows."""
    (table,) = (
        panel
        for panel in panels(dashboards()["trainwatch-cluster"])
        if panel["title"] == "Alerts by run and rule"
    )
    expression = re.sub(r"\$(runs|nodes|job|cluster)", ".*", table["targets"][0]["expr"])
    test = RuleTest()
    for name, rule in all_rules().items():
        labels = f'rule="{name}", topic="{rule.topic or name}"'
        test.add({f"trainwatch:rule_distance{{{labels}}}": [rule.distance] * 3})
        test.add({f'trainwatch:rule_info{{rule="{name}", recommendation="of {name}"}}': [1] * 3})
    for rule_name, alerts in found.items():
        of = f'run="{run}", rule="{rule_name}", job="trainwatch"'
        for rank in range(alerts):
            labels = f'{of}, instance="n{rank}", alertstate="firing", kind="bottleneck", severity="warning"'
            test.add({f"ALERTS{{{labels}}}": [1] * 3})
        if rule_name in COSTS_TIME:
            test.add({f"trainwatch:rule_lost_ratio{{{of}}}": [0.3] * 3})
    for rule_name in all_rules():
        of_rule = f'trainwatch:rule_distance{{rule="{rule_name}"}} ^ 0'
        chosen = f"sum(({expression}) * on (rule) group_left () {of_rule})"
        if rule_name in expected:
            test.equals(chosen, 30, expected[rule_name])
        else:
            test.gives_nothing(chosen, 30)
    test.run(tmp_path)


def test_a_straggler_and_the_ranks_that_wait_for_it_are_one_problem(tmp_path: Path) -> None:
    shown(tmp_path, "a", {"Straggler": 1, "CommunicationBound": 7}, expected={"Straggler": 1})


def test_long_communication_by_itself_is_a_problem(tmp_path: Path) -> None:
    shown(tmp_path, "a", {"CommunicationBound": 7}, expected={"CommunicationBound": 7})


@pytest.mark.parametrize("cause", [{}, {"DataStarved": 8}])
def test_idle_gpus_are_a_problem_unless_something_found_explains_the_time(
    tmp_path: Path, cause: dict[str, int]
) -> None:
    assert all_rules()["LowGPUUtilization"].topic == ANY_TOPIC
    idle = {"LowGPUUtilization": 2}
    shown(tmp_path, "a", idle | cause, expected=cause or idle)
