"""`stepscope crosscheck --recording`: a recorded run, played back into a Prometheus of its own."""

import re
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest
from stepscope.commands import crosscheck as command
from stepscope.commands.cli import main
from stepscope.prometheus.crosscheck.compare import Disagreement, Outcome
from stepscope.prometheus.rules.files import RULES, command_of, render
from stepscope.prometheus.rules.options import Options

from tests.prometheus.crosscheck.mutants import UNRECORDED
from tests.support.commands import refusal
from tests.support.crosscheck import ALERTING, COMMITTED, crosscheck, evaluating, table
from tests.support.prometheus import needs_prometheus
from tests.support.scenarios import WrittenScenarios
from tests.support.smallest import smallest
from tests.support.troubled_recording import write_troubled

pytestmark = needs_prometheus

RUN = "simulated-memory-leak"

NOT_FINITE = "unless last_over_time(run_instance", "and last_over_time(run_instance"
# For each rule a threshold that decides otherwise of this run when it is changed: as it stands, and changed.
CHANGES = {
    # Its other conditions hold at none of the few evaluations.
    "BatchSize": ("gpu:ratio > 0.95\n              and", "gpu:ratio > -1\n              or"),
    "CPUBottleneck": ("ratio > 0.5", "ratio > -1"),
    "CPUThrottled": ("ratio > 0.1", "ratio > -1"),
    "CollectiveHang": ("seconds > 75 and", "seconds > 900 and"),
    "CommunicationBound": ("ratio > 0.5", "ratio > 0.001"),
    "DataStarved": ("ratio > 0.2", "ratio > 0.001"),
    "Dataloader": ("ratio < 0.7 and", "ratio < 70 or"),
    "GradientsExploding": NOT_FINITE,
    "GPUError": ("xid_errors:delta5m > 0", "xid_errors:delta5m > 1"),
    "GPUMemoryIncrease": ("rise > 0.05", "rise > 0.5"),
    "GPUMemoryLeak": ("> 8400", "> 1200"),
    "GPUMemoryNearlyFull": ("in_use:ratio > 0.95", "in_use:ratio > 0.5"),
    "HostMemoryLeak": ("growth_ratio > 0.05", "growth_ratio > 0.9"),
    "IOBottleneck": ("ratio > 0.5", "ratio > -1"),
    "IdleGPU": ("/ 3600 > 15 / 60", "/ 3600 > -1 / 60"),
    "LoadBalancing": ("distance:max > 0.2", "distance:max > -1"),
    "LossNotFinite": NOT_FINITE,
    "LowGPUUtilization": ("low_utilization:ratio > 0.95", "low_utilization:ratio > -1"),
    "MaxInitializationTime": ("> 1200", "> 10"),
    "MemoryPressure": ("ratio > 0.1", "ratio > 0.9"),
    "NoisyNeighbour": ("ratio > 0.1", "ratio > -1"),
    "StepOutlier": ("^ 2, 0)) * 3", "^ 2, 0)) * 1"),
    "Straggler": ("own:excess_seconds > 0.002", "own:mean_seconds > 0.002 or vector(1) > 1"),
    "ThermalThrottling": ("ratio > 0.05", "ratio > 0.5"),
    "TrainingStalled": ("mean_seconds, 60)", "mean_seconds, 600)"),
}


@pytest.fixture(scope="module")
def recording(scenarios: WrittenScenarios, tmp_path_factory: pytest.TempPathFactory) -> Path:
    written = scenarios.written("memory-leak").recording_directory
    return write_troubled(written, tmp_path_factory.mktemp("troubled") / "recording")


@pytest.fixture(scope="module")
def of_committed_rules(recording: Path) -> subprocess.CompletedProcess[str]:
    return crosscheck("--recording", recording, "--rules", COMMITTED, "--strict")


def test_the_committed_rules_say_of_a_recording_what_its_counters_say(
    of_committed_rules: subprocess.CompletedProcess[str],
) -> None:
    answer = of_committed_rules
    assert answer.stderr == ""
    assert answer.stdout.splitlines()[-1] == "No disagreement.", answer.stdout
    for rule, row in table(answer).items():
        assert row["values"] > row["evaluations"] > 2, rule
        assert row["by last scrape"] == 0
    assert table(answer).keys() == ALERTING


def test_prometheus_fires_on_the_trouble_of_the_recording_and_on_nothing_else(
    of_committed_rules: subprocess.CompletedProcess[str],
) -> None:
    assert {rule for rule, row in table(of_committed_rules).items() if row["firing"]} == {
        "CollectiveHang",
        "GPUError",
        "GPUMemoryIncrease",
        "GPUMemoryNearlyFull",
        "GradientsExploding",
        "HostMemoryLeak",
        "LossNotFinite",
        "MemoryPressure",
        "ThermalThrottling",
        "TrainingStalled",
    }


def test_strict_exits_with_3_because_thresholds_were_not_tested(
    of_committed_rules: subprocess.CompletedProcess[str],
) -> None:
    answer = of_committed_rules
    untested = {rule for rule, row in table(answer).items() if not row["firing"]}
    said = f"Threshold not tested, because the rule never fired: {', '.join(sorted(untested))}."
    assert (answer.returncode, answer.stdout.splitlines()[-2]) == (3, said)


def test_strict_exits_with_0_if_every_rule_fired_and_with_1_if_one_disagrees(
    recording: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fired = Outcome("CPUBottleneck", RUN, evaluations=1, firing=1, values=1)
    differs = Disagreement("IOBottleneck", 0, "a status", frozenset(), 1, 0)
    wrong = Outcome("IOBottleneck", RUN, evaluations=1, disagreements=[differs])
    for outcomes, status in (([fired], 0), ([fired, wrong], 1), ([fired, Outcome("BatchSize", RUN)], 3)):
        monkeypatch.setattr(command, "check_recording", lambda *_, given=outcomes: given)
        assert main(["crosscheck", "--recording", str(recording), "--strict"]) == status


def test_each_threshold_has_a_change_in_this_test() -> None:
    assert CHANGES.keys() == ALERTING


@pytest.mark.parametrize(
    "its",
    smallest([UNRECORDED, ALERTING - UNRECORDED], {0}),
    ids=["not-in-test-mutants", "the-others"],
)
def test_thresholds_changed_by_hand_name_their_rules_and_no_others(
    its: set[str], recording: Path, tmp_path: Path
) -> None:
    parts = re.split(r"(?m)^(?=  - name: )", COMMITTED.read_text())
    for number, part in enumerate(parts):
        rule = part.partition("\n")[0].removeprefix("  - name: stepscope-")
        if rule in its:
            old, new = CHANGES[rule]
            assert old in part, rule
            parts[number] = part.replace(old, new)
    (tmp_path / RULES).write_text("".join(parts))
    answer = crosscheck("--recording", recording, "--rules", tmp_path / RULES)
    assert answer.returncode == 1
    assert {rule for rule, row in table(answer).items() if row["disagreements"]} == its
    assert answer.stdout.splitlines()[-1] == f"Disagreements: {', '.join(sorted(its))}."


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--run", "other"], f"--run other: the recording is of {RUN}; leave --run out"),
        (["--rules", __file__], "does not say how it was rendered; name a rendered rule file"),
    ],
)
def test_a_mistake_of_the_user_is_said_in_one_line(recording: Path, flags: list[str], message: str) -> None:
    assert message in refusal("crosscheck", "--recording", recording, *flags)


@pytest.mark.parametrize("engine", ["thanos", "victoriametrics"])
def test_rules_that_decide_later_are_refused_with_a_command_that_works(
    recording: Path, tmp_path: Path, engine: str
) -> None:
    options = Options(("CPUBottleneck.threshold=60",), engine=engine)
    (tmp_path / RULES).write_text(render(options)[RULES])
    said = refusal("crosscheck", "--recording", recording, "--rules", tmp_path / RULES)
    assert f"was rendered with --engine {engine}, so its rules decide an evaluation later" in said
    render_command, check_command = re.findall("`stepscope (.*?)`", said)
    assert main(render_command.replace("DIR", str(tmp_path / "same")).split()) == 0
    same = Options.from_command(command_of((tmp_path / "same" / RULES).read_text()) or "")
    assert same == replace(options, engine="prometheus")
    assert check_command == f"crosscheck --recording RUN --rules DIR/{RULES}"


def test_a_server_whose_rules_decide_later_is_refused(tmp_path: Path) -> None:
    rules = render(Options(engine="thanos"))[RULES]
    with evaluating("127.0.0.1:1", rules, tmp_path / "server") as server:
        said = refusal("crosscheck", "--prometheus", server.url)
    assert said.startswith(
        "stepscope: the loaded rules were rendered with --engine thanos or victoriametrics, so they decide "
        "an evaluation later; check the same rules on a recorded run: `stepscope rules render --out DIR`"
    )


@pytest.mark.parametrize("flags", [(), ("--prometheus", "http://127.0.0.1:1", "--recording", "run")])
def test_a_check_is_of_a_server_or_of_a_recording(flags: tuple[str, ...]) -> None:
    said = "stepscope: give either --prometheus URL or --recording DIR\n"
    assert refusal("crosscheck", *flags) == said


def test_a_prometheus_that_is_not_installed_is_named(
    recording: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    said = "stepscope: --recording needs `prometheus`, which is not on the PATH"
    assert refusal("crosscheck", "--recording", recording).startswith(said)


def test_an_expression_that_prometheus_refuses_names_its_rule(recording: Path, tmp_path: Path) -> None:
    text = COMMITTED.read_text()
    (tmp_path / RULES).write_text(text.replace('clamp(stepscope:rule_finding{rule="CPUBottleneck"}', "clam("))
    said = refusal("crosscheck", "--recording", recording, "--rules", tmp_path / RULES)
    assert "promtool refuses it (" in said
    assert 'stepscope-CPUBottleneck", rule 5, "stepscope:rule_status": could not parse' in said
