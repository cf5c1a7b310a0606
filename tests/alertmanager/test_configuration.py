"""alertmanager.yml as it is committed, and as its comments say to change it, before any server runs."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml
from trainwatch.durations import parse_duration
from trainwatch.prometheus_rules.files import HEURISTICS
from trainwatch.rules import all_rules

from tests.support.alertmanager import ALERTMANAGER, STOPPING, configured
from tests.support.servers import SECONDS

pytestmark = [
    pytest.mark.servers,
    pytest.mark.skipif(shutil.which("amtool") is None, reason="needs Debian's prometheus-alertmanager"),
]

COMMITTED = ALERTMANAGER / "alertmanager.yml"


def amtool(*words: object) -> str:
    done = subprocess.run(
        ["amtool", *map(str, words)], capture_output=True, text=True, timeout=SECONDS, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout.strip()


def receivers(config: Path, rule: str, severity: str) -> list[str]:
    """To whom an alert with the labels that the rules give would go."""
    labels = [f"alertname={rule}", f"rule={rule}", f"severity={severity}", "run=resnet", "instance=node"]
    return amtool("config", "routes", "test", f"--config.file={config}", *labels).split(",")


def test_the_committed_file_is_right_and_notifies_nobody() -> None:
    assert "SUCCESS" in amtool("check-config", COMMITTED)
    for rule, severity in (("CPUBottleneck", "warning"), ("BatchSize", "info"), ("GPUError", "critical")):
        assert receivers(COMMITTED, rule, severity) == ["nobody"]


@pytest.mark.parametrize("receiver", ["slack", "email", "webhook"])
def test_one_word_switches_a_receiver_on(receiver: str, tmp_path: Path) -> None:
    config = configured(tmp_path, receiver)
    assert "SUCCESS" in amtool("check-config", config)
    assert receivers(config, "CPUBottleneck", "warning") == [receiver]
    assert receivers(config, "TrainingStalled", "critical") == [receiver]


def test_stopping_runs_is_switched_on_beside_the_notification(tmp_path: Path) -> None:
    config = configured(tmp_path, "slack", STOPPING)
    assert "SUCCESS" in amtool("check-config", config)
    assert receivers(config, "TrainingStalled", "critical") == ["actions", "slack"]
    assert receivers(config, "GPUError", "critical") == ["actions", "slack"]
    assert receivers(config, "CPUBottleneck", "warning") == ["slack"]


def test_every_rule_that_the_file_names_exists() -> None:
    named = re.findall(r"""rule!?=~?"([^"]+)"'""", COMMITTED.read_text())
    rules = {rule for matcher in named for rule in matcher.split("|")} - {"Trainwatch.+"}
    assert {"CPUBottleneck", "LowGPUUtilization", "MaxInitializationTime", "TrainingStalled"} <= rules
    assert rules <= set(all_rules())


def test_symptoms_wait_longer_than_their_causes_and_critical_alerts_less() -> None:
    config = yaml.safe_load(COMMITTED.read_text())
    usual = parse_duration(config["route"]["group_wait"])
    waits = {
        rule: parse_duration(child["group_wait"]) / usual
        for child in config["route"]["routes"]
        for rule in re.findall(r"[A-Z]\w+|critical", str(child["matchers"]))
    }
    assert waits.pop("critical") < 1
    assert min(waits.values()) == 2
    silenced = {
        rule
        for inhibition in config["inhibit_rules"][:-1]  # the last one silences all there is
        for rule in re.findall(r"[A-Z]\w+", str(inhibition["target_matchers"]))
    }
    assert silenced == waits.keys()


def test_the_waiting_for_a_straggler_is_told_when_it_would_have_been_found() -> None:
    """Each is evaluated every two minutes; 100 steps take a minute where 20 take 12 s."""
    config = yaml.safe_load(COMMITTED.read_text())
    (wait,) = (
        parse_duration(child["group_wait"])
        for child in config["route"]["routes"]
        if "CommunicationBound" in str(child["matchers"])
    )
    groups = yaml.safe_load((ALERTMANAGER.parent / "rules" / HEURISTICS).read_text())["groups"]
    intervals = {group["name"]: parse_duration(group["interval"]) for group in groups}
    assert wait >= intervals["trainwatch-Straggler"] + 60


def test_no_secret_stands_in_the_file() -> None:
    text = re.sub(r"#.*", "", COMMITTED.read_text())
    keys = re.findall(r"(?m)^\s*-?\s*(\w*(?:password|token|secret|credentials|api_url|key)\w*):", text)
    assert keys
    assert all(key.endswith("_file") for key in keys)
    assert set(re.findall(r"_file: (\S+)", text)) == {
        "/etc/alertmanager/secrets/slack-url",
        "/etc/alertmanager/secrets/smtp-password",
        "/etc/alertmanager/secrets/webhook-token",
        "/etc/alertmanager/secrets/actions-token",
    }
