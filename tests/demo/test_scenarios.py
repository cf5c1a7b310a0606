"""Each scenario, written at once, makes the rules fire that it names, and no other."""

import pytest
from stepscope.demo.node import INTERVAL
from stepscope.demo.scenarios import all_scenarios, summary
from stepscope.evaluation.analysis import Analysis
from stepscope.rules import all_rules

from tests.support.backfill import seconds_of
from tests.support.scenarios import WrittenScenarios
from tests.support.smallest import smallest

NAMES = sorted(all_scenarios())
KNOWN = frozenset(all_rules())

# Debugger wrote neither communication (but Horovod's) nor when a process was last alive.
NOT_TOLD_BY_DEBUGGER = {"CollectiveHang", "Straggler", "TrainingStalled"}

# Each has a finding about other readings or events: cores, storage, loaders, several GPUs.
FEW = ("cpu-bottleneck", "io-bottleneck", "few-dataloaders", "imbalance")


def statuses(analysis: Analysis) -> dict[str, str]:
    return {result.rule: result.status for result in analysis.rules}


def findings(analysis: Analysis, *rules: str) -> list[str]:
    return [f"{each.rule}: {each.finding}" for each in analysis.rules if each.rule in rules]


@pytest.mark.parametrize("name", NAMES)
def test_the_rules_fire_that_the_scenario_names_and_no_other(scenarios: WrittenScenarios, name: str) -> None:
    analysis = scenarios.written(name).recording
    fired = {rule for rule, status in statuses(analysis).items() if status == "found"}
    expected = all_scenarios()[name].fires & KNOWN
    assert fired == expected, findings(analysis, *(fired ^ expected))


@pytest.mark.parametrize("name", smallest(NAMES, {NAMES.index(name) for name in FEW}))
def test_the_debugger_output_gets_the_verdicts_that_the_recording_gets(
    scenarios: WrittenScenarios, name: str
) -> None:
    written = scenarios.written(name)
    ours, theirs = statuses(written.recording), statuses(written.debugger)
    both = {
        rule
        for rule in ours.keys() - NOT_TOLD_BY_DEBUGGER
        if "not enough data" not in (ours[rule], theirs[rule])
    }
    assert {"CPUBottleneck", "DataStarved", "Dataloader", "IOBottleneck", "LowGPUUtilization"} <= both
    different = {rule for rule in both if ours[rule] != theirs[rule]}
    assert not different, findings(written.debugger, *different)


@pytest.mark.parametrize("name", ["healthy", "stall"])
def test_what_is_written_is_whole_and_says_that_it_is_simulated(
    scenarios: WrittenScenarios, name: str
) -> None:
    written = scenarios.written(name)
    for analysis in (written.recording, written.debugger):
        assert analysis.finished
        assert analysis.samples_taken == seconds_of(name) / INTERVAL + 1
        assert analysis.samples_missed == 0
        assert analysis.unknowns == []
    ours = written.recording
    assert ours.run == f"simulated-{name}"
    assert ours.nodes == ["simulated-node"]
    assert ours.versions["simulated"] == f"{name}, seed 0"
    assert "simulated, nothing was measured" in ours.command
    assert ours.exit_status == (143 if name == "stall" else 0)
    assert all("Simulated" in gpu for gpu in ours.gpus["simulated-node"])
    assert [(steps.rank, steps.count) for steps in ours.steps] == [
        (steps.rank, steps.count) for steps in written.debugger.steps
    ]


def test_data_starved_tells_the_causes_apart(scenarios: WrittenScenarios) -> None:
    for name, cause in (
        ("cpu-bottleneck", "heavy transform"),
        ("io-bottleneck", "slow storage"),
        ("few-dataloaders", "too few workers"),
    ):
        (result,) = (each for each in scenarios.written(name).recording.rules if each.rule == "DataStarved")
        assert result.details["cause"] == cause


def test_a_scenario_of_each_kind_is_there() -> None:
    assert all(summary(scenario) for scenario in all_scenarios().values())
    assert len(NAMES) == 14


def test_every_rule_that_a_scenario_names_exists() -> None:
    assert {rule for scenario in all_scenarios().values() for rule in scenario.fires} <= KNOWN
