"""One row per run and problem on Cluster, in promtool: rules that see the same problem are one finding."""

import re
from itertools import product
from pathlib import Path

import pytest
from stepscope.commands.dashboards import dashboards
from stepscope.grafana.catalogue import run_overview
from stepscope.grafana.verdict import OF_THE_CLUSTER
from stepscope.prometheus.rules.options import Options
from stepscope.prometheus.rules.usage import ADVICE, advice_group
from stepscope.rules import all_rules
from stepscope.rules.parts.topics import ANY_TOPIC

from tests.support.grafana import panels
from tests.support.prometheus import needs_prometheus
from tests.support.promtool import RuleTest

pytestmark = needs_prometheus

BEGAN = 1_700_000_000.0
COSTS_TIME = {"Straggler", "DataStarved"}  # of the rules below, those that say how much


def query(title: str = "Alerts by run and rule", number: int = 0) -> str:
    """A query of a panel, with all chosen."""
    (panel,) = (each for each in panels(dashboards()["stepscope-cluster"]) if each["title"] == title)
    every = re.sub(r"\$(runs|nodes|job|cluster)", ".*", panel["targets"][number]["expr"])
    return every.replace("$__range", "5m")


def cluster(runs: dict[str, dict[str, int]]) -> RuleTest:
    """Runs with so many alerts of each rule."""
    test = RuleTest()
    for name, rule in all_rules().items():
        labels = f'rule="{name}", topic="{rule.topic or name}"'
        test.add({f"stepscope:rule_distance{{{labels}}}": [rule.distance] * 3})
        test.add({f'stepscope:rule_info{{rule="{name}", recommendation="of {name}"}}': [1] * 3})
    for rule in advice_group(Options())["rules"]:
        labels = ", ".join(f'{name}="{rule["labels"][name]}"' for name in ("rule", "of"))
        text = f'recommendation="because of {rule["labels"]["of"]}"'
        test.add({f"{ADVICE}{{{labels}, {text}}}": [float(rule["expr"][len("vector(") : -1])] * 3})
    for (run, found), rank in product(runs.items(), range(8)):
        for rule_name, alerts in found.items():
            of = f'run="{run}", rule="{rule_name}", job="stepscope"'
            if rank < alerts:
                where = f'instance="n{rank}", kind="cause", severity="warning", user="ada"'
                test.add({f'ALERTS{{{of}, {where}, alertstate="firing"}}': [1] * 3})
                test.add({f"ALERTS_FOR_STATE{{{of}, {where}}}": [BEGAN + rank] * 3})
            if rank == 0 and rule_name in COSTS_TIME:
                test.add({f"stepscope:rule_lost_ratio{{{of}}}": [0.3] * 3})
    return test


def shown(tmp_path: Path, run: str, found: dict[str, int], *, expected: dict[str, int]) -> None:
    """Fails unless a run with so many alerts of each rule has the expected rows."""
    test = cluster({run: found})
    for rule_name in all_rules():
        of_rule = f'stepscope:rule_distance{{rule="{rule_name}"}} ^ 0'
        number = f"sum(({query()}) * on (rule) group_left () {of_rule})"
        if rule_name in expected:
            test.equals(number, 30, expected[rule_name])
        else:
            test.gives_nothing(number, 30)
    test.run(tmp_path)


def test_a_straggler_and_the_ranks_that_wait_for_it_are_one_problem(tmp_path: Path) -> None:
    shown(tmp_path, "a", {"Straggler": 1, "CommunicationBound": 7}, expected={"Straggler": 1})


def test_the_advice_is_the_most_specific_one_whose_evidence_is_an_alert_of_the_same_run(
    tmp_path: Path,
) -> None:
    late = {"DataStarved": 8}
    runs = {"plain": late, "cores": late | {"CPUBottleneck": 2}, "storage": late | {"IOBottleneck": 1}}
    test = cluster(runs | {"both": late | {"CPUBottleneck": 8, "IOBottleneck": 8}, "slow": {"Straggler": 1}})
    advice = query("What to do")
    for run, text in (
        ("plain", "of DataStarved"),
        ("cores", "because of CPUBottleneck"),
        ("storage", "because of IOBottleneck"),
        ("both", "because of IOBottleneck"),
        ("slow", "of Straggler"),
    ):
        test.equals(f"count({chosen(advice, run=run, recommendation=text)})", 30, 1)
    test.equals(f"count({advice})", 30, 5)
    test.run(tmp_path)


def test_a_row_has_the_node_or_how_many_there_are_the_user_and_since_when(tmp_path: Path) -> None:
    alerts = {"one": {"Straggler": 1, "CommunicationBound": 7}, "all": {"DataStarved": 8}}
    test = cluster(alerts)
    for run, node, count in (("one", "n0", 1), ("all", "8 nodes", 8)):
        test.equals(f"sum({chosen(query(), run=run, user='ada')})", 30, count)
        test.equals(f"count({chosen(query(number=1 + (count > 1)), run=run, instance=node)})", 30, 1)
        test.equals(f"sum({chosen(query(number=3), run=run)})", 30, 1000 * BEGAN)
    for number in (1, 2):
        test.equals(f"count({query(number=number)})", 30, 1)
    test.run(tmp_path)


def chosen(expression: str, **labels: str) -> str:
    """Returns the series of an expression that have these labels."""
    wanted = "vector(1)"
    for name, value in labels.items():
        wanted = f'label_replace({wanted}, "{name}", "{value}", "", "")'
    return f"({expression}) and on ({', '.join(labels)}) {wanted}"


def test_long_communication_by_itself_is_a_problem(tmp_path: Path) -> None:
    shown(tmp_path, "a", {"CommunicationBound": 7}, expected={"CommunicationBound": 7})


@pytest.mark.parametrize("cause", [{}, {"DataStarved": 8}])
def test_idle_gpus_are_a_problem_unless_something_found_explains_the_time(
    tmp_path: Path, cause: dict[str, int]
) -> None:
    assert all_rules()["LowGPUUtilization"].topic == ANY_TOPIC
    idle = {"LowGPUUtilization": 2}
    shown(tmp_path, "a", idle | cause, expected=cause or idle)


def verdict_of(tmp_path: Path, alert: str, expected: str, lines: int) -> None:
    """Fails unless a cluster that trains, and has this alert, has this verdict and lines of alerts."""
    test = cluster({})
    for series in ("stepscope_exporter_build_info", "instance:stepscope_exporter_known:bool", "up"):
        test.add({f'{series}{{job="stepscope", instance="n0"}}': [1] * 3})
    test.add({'run_instance:stepscope_run_unfinished:bool{job="stepscope", instance="n0", run="a"}': [1] * 3})
    test.add({f'ALERTS{{{alert}, alertstate="firing"}}': [1] * 3})
    (number,) = (i for i, case in enumerate(OF_THE_CLUSTER) if case.reason == expected)
    test.equals(f"min({query('Verdict')})", 30, number)
    test.equals(query("Alerts"), 30, 0)
    test.equals(f"count({query('Alerts by rule')}) or vector(0)", 30, lines)
    (marks,) = dashboards()["stepscope-exporter"]["annotations"]["list"]
    test.equals(f"count({marks['expr'].replace('$cluster', '.*')}) or vector(0)", 30, lines)
    test.run(tmp_path)


@pytest.mark.parametrize(
    "alert",
    [
        'rule="GPULost", severity="warning", job="stepscope", instance="n0", gpu="0"',
        'rule="InfinibandErrors", severity="warning", kind="symbol_error"',
        'rule="RuleEvaluationFailing", severity="warning"',
    ],
)
def test_a_cluster_whose_hardware_fails_is_not_healthy_though_no_rule_on_a_run_fires(
    tmp_path: Path, alert: str
) -> None:
    verdict_of(tmp_path, alert, 'hardware, or Stepscope itself: see "Alerts by rule"', 1)


@pytest.mark.parametrize(
    ("alert", "lines"),
    [
        ('alertname="ReconciliationFailure", severity="critical", kind="HelmRelease"', 0),
        ('rule="SamplesMissed", severity="info"', 1),
        ('rule="Watchdog", severity="none"', 0),
    ],
)
def test_an_alert_of_another_program_and_information_on_stepscope_are_no_finding(
    tmp_path: Path, alert: str, lines: int
) -> None:
    verdict_of(tmp_path, alert, "no warning fires", lines)


def test_a_run_lasts_until_it_has_ended_on_all_of_its_nodes(tmp_path: Path) -> None:
    test = RuleTest()
    of_run = 'run="a", job="stepscope"'
    for node, ended in (("n0", 300), ("n1", 600)):
        ends = [ended if time >= ended else None for time in range(0, 901, 15)]
        test.add({f'stepscope_run_end_time_seconds{{{of_run}, instance="{node}"}}': ends})
        test.add({f'stepscope_samples_total{{{of_run}, instance="{node}"}}': [1.0] * len(ends)})
    end = re.sub(r"\$(cluster|job|instance)", ".*", run_overview.END).replace("${run:raw}", "a")
    for now, expected in ((150, 150), (450, 450), (750, 600)):
        test.equals(end.replace("$__range", "15m"), now, expected)
    test.run(tmp_path)
