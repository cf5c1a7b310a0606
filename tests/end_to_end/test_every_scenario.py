"""Each scenario of the demo, from the exporter to Slack, with the real servers: who is told what."""

import re
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
from stepscope.demo.scenarios import all_scenarios

from tests.support.film import Film, key, run_of
from tests.support.told import read_expected, slack_lines, slack_title
from tests.support.waiting import SECONDS

pytestmark = pytest.mark.timeout(2 * SECONDS)

EXPECTED = read_expected(Path(__file__).with_name("told.yml"))


def test_a_scenario_is_told_with_exactly_these_alerts_in_these_words(shown: Film) -> None:
    for scenario in shown.scenarios:
        told = {
            labels: alert for labels, alert in shown.told().items() if ("run", run_of(scenario)) in labels
        }
        expected = {
            frozenset(labels.items()): each
            for each in EXPECTED[scenario].told
            for labels in each.alerts(scenario)
        }
        lasting = {labels for labels, each in expected.items() if not each.brief}
        assert lasting <= told.keys() <= expected.keys(), shown.times(scenario)
        for labels, alert in told.items():
            expected[labels].check(alert)


def test_of_its_symptoms_exactly_these_are_silenced(shown: Film) -> None:
    for scenario in shown.scenarios:
        brief = {
            frozenset(labels.items())
            for each in EXPECTED[scenario].told
            for labels in each.alerts(scenario)
            if each.brief
        }
        # Of a GPU perhaps first the one trouble, then the other.
        silenced = {
            (labels["rule"], labels.get("gpu"), labels.get("rank"))
            for labels in shown.silenced()
            if labels["run"] == run_of(scenario) and key(labels) not in brief
        }
        assert Counter(rule for rule, _, _ in silenced) == EXPECTED[scenario].silenced, shown.times(scenario)


def test_no_alert_is_of_anything_else(shown: Film) -> None:
    assert {labels["run"] for labels in shown.known.values()} == {
        run_of(scenario) for scenario in shown.scenarios if EXPECTED[scenario].told
    }
    groups = shown.prometheus.get("rules")["groups"]
    assert len(groups) > 18
    assert {rule["health"] for group in groups for rule in group["rules"]} == {"ok"}


def test_slack_shows_every_notification_as_the_templates_say(shown: Film) -> None:
    titles = Counter(attachment["title"] for attachment in shown.slack)
    assert titles == Counter(slack_title(notification) for notification in shown.webhooks)
    for notification in shown.webhooks:
        title = slack_title(notification)
        texts = [
            attachment["text"].splitlines() for attachment in shown.slack if attachment["title"] == title
        ]
        firing = (alert for alert in notification["alerts"] if alert["status"] == "firing")
        lines = {line for alert in firing for line in slack_lines(alert)}
        assert any(lines <= set(text) for text in texts), f"{lines} are not in {texts}"


def test_the_crosscheck_finds_no_disagreement(shown: Film) -> None:
    words = ["crosscheck", "--prometheus", shown.prometheus.url, "--rules", str(shown.rules)]
    answer = subprocess.run(
        [sys.executable, "-m", "stepscope", *words], capture_output=True, text=True, timeout=SECONDS
    )
    # A scrape that Prometheus stores between two rules of a group divides new seconds by old steps, at that
    # one evaluation (docs/crosscheck.md). A rule that is wrong disagrees at each.
    moments = Counter(set(re.findall(r"(?m)^([A-Z]\w+): (\S+Z) .*: expected ", answer.stdout)))
    disagreeing = Counter(rule for rule, _ in moments)
    assert all(times == 1 for times in disagreeing.values()), answer.stdout + answer.stderr
    assert answer.returncode == bool(disagreeing), answer.stdout + answer.stderr
    rows = re.findall(r"(?m)^([A-Z]\w+) +simulated-(\S+) +\d+ +(\d+) ", answer.stdout)
    fired = {(scenario, rule) for rule, scenario, evaluations in rows if int(evaluations)}
    assert fired == {(name, rule) for name in shown.scenarios for rule in all_scenarios()[name].alerts()}


@pytest.mark.parametrize("scenario", all_scenarios())
def test_every_rule_that_a_scenario_names_is_told_or_silenced(scenario: str) -> None:
    its = EXPECTED[scenario]
    assert {each.rule for each in its.told} | its.silenced.keys() == all_scenarios()[scenario].alerts()
