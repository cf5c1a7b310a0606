"""alertmanager.yml as it is committed, and as its comments say to change it, before any server runs."""

import re
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path

import pytest
import yaml
from stepscope.common.durations import parse_duration
from stepscope.prometheus.rules.files import META, RULES
from stepscope.rules import all_rules
from stepscope.rules.parts.topics import IDLE_GPUS

from tests.support.alertmanager import (
    ALERTMANAGER,
    DEADMAN,
    STOPPING,
    TEAMS,
    configured,
    labels_by_rule,
    needs_teams,
)
from tests.support.waiting import SECONDS
from trials.day.notifications import Alert, Alertmanager

pytestmark = pytest.mark.skipif(
    shutil.which("amtool") is None, reason="needs Debian's prometheus-alertmanager"
)

COMMITTED = ALERTMANAGER / "alertmanager.yml"


def amtool(*words: object) -> str:
    done = subprocess.run(
        ["amtool", *map(str, words)], capture_output=True, text=True, timeout=SECONDS, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout.strip()


def receivers(config: Path, rule: str, severity: str, audience: str = "owner") -> list[str]:
    """To whom an alert with the labels that the rules give would go."""
    labels = [
        f"alertname=Stepscope{rule}",
        f"rule={rule}",
        f"severity={severity}",
        *([f"audience={audience}"] if audience else []),
        "run=resnet",
        "instance=node",
    ]
    return amtool("config", "routes", "test", f"--config.file={config}", *labels).split(",")


@pytest.mark.parametrize(
    ("rule", "severity", "audience", "receiver"),
    [
        ("CPUBottleneck", "warning", "owner", "owners"),
        ("TrainingStalled", "critical", "owner", "owners"),
        ("GPUError", "critical", "platform", "platform"),
        ("ExporterDown", "warning", "platform", "platform"),
        ("BatchSize", "info", "owner", "information"),
        ("SamplesMissed", "info", "platform", "information"),
        ("SomethingElse", "warning", "", "platform"),
    ],
)
def test_each_alert_goes_to_its_audience_and_information_to_nobody(
    rule: str, severity: str, audience: str, receiver: str
) -> None:
    assert receivers(COMMITTED, rule, severity, audience) == [receiver]


def test_the_committed_file_is_right_and_notifies_nobody() -> None:
    assert "SUCCESS" in amtool("check-config", COMMITTED)
    empty = [
        each["name"] for each in yaml.safe_load(COMMITTED.read_text())["receivers"] if list(each) == ["name"]
    ]
    assert empty == ["platform", "owners", "information"]


@pytest.mark.parametrize(
    "receiver",
    [
        *("slack", "email", "webhook", "pagerduty", "opsgenie", "discord", "sns"),
        pytest.param("teams", marks=needs_teams),
    ],
)
def test_one_word_switches_a_receiver_on(receiver: str, tmp_path: Path) -> None:
    config = configured(tmp_path, receiver, TEAMS if receiver == "teams" else None)
    assert "SUCCESS" in amtool("check-config", config)
    assert receivers(config, "CPUBottleneck", "warning") == [receiver]
    assert receivers(config, "TrainingStalled", "critical") == [receiver]


def test_the_alert_that_always_fires_goes_only_where_a_service_expects_it(tmp_path: Path) -> None:
    assert receivers(COMMITTED, "Watchdog", "none", "platform") == ["information"]
    assert receivers(configured(tmp_path, "slack", DEADMAN), "Watchdog", "none") == ["deadman"]


def test_stopping_runs_is_switched_on_beside_the_notification(tmp_path: Path) -> None:
    config = configured(tmp_path, "slack", STOPPING)
    assert "SUCCESS" in amtool("check-config", config)
    assert receivers(config, "TrainingStalled", "critical") == ["actions", "slack"]
    assert receivers(config, "GPUError", "critical") == ["actions", "slack"]
    assert receivers(config, "CPUBottleneck", "warning") == ["slack"]


def test_only_the_example_of_stopping_runs_names_rules() -> None:
    named = re.findall(r"""(?:rule|alertname)!?=~?"([^"]+)"'""", COMMITTED.read_text())
    assert named == ["TrainingStalled|GPUError"]
    assert set(named[0].split("|")) <= set(all_rules())


def matches(matchers: list[str], labels: Mapping[str, str]) -> bool:
    """As Alertmanager does; a label that is not there is an empty one."""
    for matcher in matchers:
        ((name, sign, value),) = re.findall(r'^(\w+)(!?=~?)"(.*)"$', matcher)
        same = re.fullmatch(value if "~" in sign else re.escape(value), labels.get(name, "")) is not None
        if same is sign.startswith("!"):
            return False
    return True


def silenced_by(rule: str, **labels: str) -> set[str]:
    """The rules whose alerts of the same run and node are silenced by such an alert."""
    cause = {"rule": rule, "severity": "warning", **labels_by_rule()[rule], **labels}
    return {
        other
        for inhibition in yaml.safe_load(COMMITTED.read_text())["inhibit_rules"]
        for other, its in labels_by_rule().items()
        if matches(inhibition["source_matchers"], cause)
        and matches(inhibition["target_matchers"], {"rule": other, "severity": "warning", **its})
        and all(its.get(name, "") == cause.get(name, "") for name in inhibition["equal"])
    }


def test_each_cause_silences_the_symptom_that_it_explains_and_nothing_else() -> None:
    explain_idle_gpus = {
        name for name, rule in all_rules().items() if rule.symptom is IDLE_GPUS and not rule.is_symptom
    } & labels_by_rule().keys()
    known = {"CPUBottleneck", "IOBottleneck", "Dataloader", "DataStarved", "TrainingStalled"}
    assert known <= explain_idle_gpus
    expected = {rule: {"LowGPUUtilization", "BatchSize", "IdleGPU"} for rule in explain_idle_gpus}
    expected["CollectiveHang"] |= {"TrainingStalled"}
    expected["Straggler"] = {"CommunicationBound"}
    assert {rule: silenced for rule in labels_by_rule() if (silenced := silenced_by(rule))} == expected


def test_runs_that_stall_together_silence_what_their_owners_would_hear() -> None:
    owners = {rule for rule, labels in labels_by_rule().items() if labels["audience"] == "owner"}
    assert silenced_by("TrainingStalled", standstill="together", audience="platform", kind="") == owners


def test_a_run_that_has_not_begun_silences_all_other_rules() -> None:
    assert silenced_by("MaxInitializationTime", stage="waiting") == set(labels_by_rule())


def waits() -> dict[str, float]:
    """Seconds until a first warning of each rule is told."""
    route = yaml.safe_load(COMMITTED.read_text())["route"]
    return {
        rule: next(
            parse_duration(child["group_wait"])
            for child in [*route["routes"][-1]["routes"], {"matchers": [], **route}]
            if matches(child["matchers"], {"rule": rule, "severity": "warning", **its})
        )
        for rule, its in labels_by_rule().items()
    }


def test_symptoms_wait_longer_than_their_causes_and_critical_alerts_less() -> None:
    route = yaml.safe_load(COMMITTED.read_text())["route"]
    usual = parse_duration(route["group_wait"])
    critical = next(
        child
        for child in route["routes"][-1]["routes"]
        if matches(child["matchers"], {"severity": "critical"})
    )
    assert parse_duration(critical["group_wait"]) < usual
    longer = {rule for rule, wait in waits().items() if wait >= 2 * usual}
    symptoms = {"LowGPUUtilization", "BatchSize", "CommunicationBound", "IdleGPU"}
    assert longer == {*symptoms, "TrainingStalled"}  # a hang explains it a little later
    assert {wait for rule, wait in waits().items() if rule not in longer} == {usual}


def test_the_waiting_for_a_straggler_is_told_when_it_would_have_been_found() -> None:
    """Each is evaluated every four minutes; 100 steps take a minute where 20 take 12 s."""
    groups = yaml.load((ALERTMANAGER.parent / "rules" / RULES).read_text(), yaml.CSafeLoader)["groups"]
    intervals = {group["name"]: parse_duration(group["interval"]) for group in groups}
    assert waits()["CommunicationBound"] >= intervals["stepscope-Straggler"] + 60


def test_nodes_that_fail_together_are_one_message_to_the_platform() -> None:
    """An evaluation sees some nodes of a dying switch, and the next one sees the others."""
    manager = Alertmanager(COMMITTED.read_text())
    text = (ALERTMANAGER.parent / "rules" / META).read_text()
    for group in yaml.load(text, yaml.CSafeLoader)["groups"]:
        for rule in group["rules"]:
            labels = {name: value for name, value in rule.get("labels", {}).items() if "{{" not in value}
            if labels.get("audience") != "platform" or labels["severity"] != "warning" or "kind" in labels:
                continue
            alerts = [
                Alert({"alertname": rule["alert"], **labels, "instance": node, "run": node}, begin)
                for node, begin in (("a", 0.0), ("b", parse_duration(group["interval"])))
            ]
            sent = [len(each.firing) for each in manager.notifications(alerts, 3600.0)]
            assert sent == [2], rule["alert"]


def test_no_secret_stands_in_the_file() -> None:
    text = re.sub(r"#.*", "", COMMITTED.read_text())
    keys = re.findall(r"(?m)^\s*-?\s*(\w*(?:password|token|secret|credentials|api_url|key)\w*):", text)
    assert keys
    assert all(key.endswith("_file") for key in keys)
    assert set(re.findall(r"_file: (\S+)", text)) == {
        "/etc/alertmanager/secrets/slack-url",
        "/etc/alertmanager/secrets/smtp-password",
        "/etc/alertmanager/secrets/pagerduty-key",
        "/etc/alertmanager/secrets/opsgenie-key",
        "/etc/alertmanager/secrets/webhook-token",
        "/etc/alertmanager/secrets/actions-token",
    }
