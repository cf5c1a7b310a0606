"""Rules for a simulated node that runs faster than the clock."""

import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from stepscope.commands.cli import main
from stepscope.common.durations import parse_duration
from stepscope.prometheus.rules.files import RULES, at_speed, render
from stepscope.prometheus.rules.options import Options

DURATION = r"\b(?:\d+(?:ms|[smhd]))+\b"


def test_every_duration_of_every_rule_is_a_tenth_and_nothing_else_differs() -> None:
    for name, text in render(Options()).items():
        faster = render(Options(speed=10))[name]
        for group, its in zip(groups(text), groups(faster), strict=True):
            assert parse_duration(its["interval"]) == pytest.approx(parse_duration(group["interval"]) / 10)
            for rule, other in zip(group["rules"], its["rules"], strict=True):
                fields = {field for field in rule if rule[field] != other[field]}
                assert fields <= {"expr", "for", "keep_firing_for"}
                for field in fields:
                    assert without_durations(rule[field]) == without_durations(other[field]), rule
                    assert durations(other[field]) == pytest.approx(
                        [it / 10 for it in durations(rule[field])]
                    )


def test_a_gain_a_second_is_told_for_a_simulated_second() -> None:
    group = {"interval": "1m", "rules": [{"record": "a", "expr": "sum(rate(b[5m]))"}]}
    assert at_speed(group, 10)["rules"][0]["expr"] == "sum((rate(b[30s]) / 10))"


def test_the_header_tells_the_speed_and_the_check_uses_it(tmp_path: Path) -> None:
    assert main(["rules", "render", "--speed", "10", "--out", str(tmp_path)]) == 0
    assert "--speed 10" in (tmp_path / RULES).read_text()
    assert main(["rules", "check", str(tmp_path)]) == 0


def test_a_speed_of_nothing_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["rules", "render", "--speed", "0"]) == 2
    assert "--speed: '0' must be a number above 0" in capsys.readouterr().err


def groups(text: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = yaml.load(text, yaml.CSafeLoader)["groups"]
    return found


def durations(text: str) -> list[float]:
    return [parse_duration(duration) for duration in re.findall(DURATION, text)]


def without_durations(text: str) -> str:
    """And without what makes a gain a second one of a simulated second."""
    slower = re.sub(r"\((rate\([^)]*\)) / 10\)", r"\1", text)
    return re.sub(DURATION, "DURATION", slower)
