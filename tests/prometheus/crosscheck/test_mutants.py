"""The cross-check notices a change of one operator, threshold, window or label of a rendered rule.

One mutant of each rule is tried, always the same, and more of them in `make trials`; STEPSCOPE_ALL_MUTANTS=1
tries all of them (6 min on two cores).
"""

import json
import os
import random
import re
from functools import cache

import pytest
import yaml
from stepscope.prometheus.crosscheck.offline.check import check_recording
from stepscope.prometheus.crosscheck.replay.run import RecordedRun
from stepscope.prometheus.crosscheck.rule_files import Rendered
from stepscope.prometheus.rules.files import RULES, render
from stepscope.prometheus.rules.groups import Group
from stepscope.prometheus.rules.options import Options

from tests.prometheus.crosscheck.mutants import UNRECORDED, mutants_of
from tests.support.crosscheck import ALERTING
from tests.support.prometheus import needs_prometheus
from tests.support.smallest import smallest
from tests.support.varied_recording import write_varied

pytestmark = needs_prometheus

# So that every rule decides this way and that within the 25 minutes of the recording.
OPTIONS = Options(
    (
        *(
            f"{rule}.patience=120"
            for rule in ("CPUBottleneck", "IOBottleneck", "LowGPUUtilization", "BatchSize")
        ),
        *(f"{rule}.threshold=20" for rule in ("CPUBottleneck", "IOBottleneck")),
        *(f"{rule}.window=120" for rule in ("LowGPUUtilization", "BatchSize")),
        *(f"{rule}.patience=120" for rule in ("GPUMemoryIncrease", "LoadBalancing", "ThermalThrottling")),
        *(
            f"{rule}.live_window=3"
            for rule in (
                "CPUBottleneck",
                "IOBottleneck",
                "LoadBalancing",
                "DataStarved",
                "CommunicationBound",
            )
        ),
        "ThermalThrottling.live_window=8",  # a young run is judged by its last 5 minutes
        "GPUMemoryIncrease.window=30",
        "GPUMemoryLeak.patience=240",
        "GPUMemoryLeak.warm_up=10",
        "GPUMemoryNearlyFull.patience=120",
        "GPUMemoryNearlyFull.warm_up=0",
        "StepOutlier.time_lost=0.1",
        "Dataloader.min_threshold=150",
        "DataStarved.patience=100",
        "DataStarved.threshold=10",
        "CommunicationBound.patience=100",
        "CommunicationBound.threshold=5",
        "CollectiveHang.threshold=1",
        "CollectiveHang.minimum=100",
        "TrainingStalled.patience=50",
        "MaxInitializationTime.threshold=2",
    )
)
ROUNDS = 5  # mutants of each rule
EVERY_MUTANT = bool(os.environ.get("STEPSCOPE_ALL_MUTANTS"))

# Mutants that decide the same on this recording: each is another rule, but it would take other data to tell.
# tests/prometheus/rules/test_sample_rules.py has runs that save for long, stop, only evaluate or start late.
# The recorded one does not.
OF_SAVING = (
    r'|min without \(rank, (component|state)|component=~"another"|host"\}\[\w+\]\)\) (< |> \d+3 or)'
    r'|process_state\{state="another'
)
OF_EVALUATIONS = (
    r'phase="another"|phase="\w+"\}\[\w+\]\)\) (< 0|> 3)|min without \(phase, rank\)'
    r"|age_seconds\S+ (> 3600|< 72003|< 3600 unless|> 1200|< 24003)"
    rf'{OF_SAVING}|(host|stopped)"\}}\[3m7s'
)
UNSEEN = {
    # 0 or 1, of whichever element; no scrape failed, no exporter lost its counts or is lean.
    # Every process uses Stepscope. Distances and lost shares only order what dashboards list (tests/grafana).
    "": r"^stepscope:rule_(status: .*min without|distance: |lost_ratio: )|3m22s500ms|resets\(|\{profile="
    r'|samples_total\{run=~"another"'
    # No GPU lacks its utilisation: tests/prometheus/rules/test_gpu_rules.py has a MIG device.
    r"|^stepscope:rule_status: .*(utilization_samples_count\[\w+\]\)|distance:samples) (> 3|>= 0)",
    # Some ranks are missing, and none is in known work, in two operations or stopped; one half of the
    # threshold decides. All nodes stand still for as long: test_hang_rule.py has one that does not.
    "CollectiveHang": r"> 1203 or [^)]+\) unless on \(cluster|120003|(<|>=) 20 \* |403 \* |(<|>=) 6000"
    r"|6000 unless|age_seconds\{component=~.another|count \) and on \(run\)"
    r'|wait:seconds: (min|.*state="another")|hang:seconds: .*( <= max by|\( \(min by|(<|unless) min by)'
    r"|missing:count: .*min without",
    # Each share that is above its threshold is of many samples, or steps. Communication rises from less than
    # 5 % to more than 15 % between two evaluations. Each window has more than 3 s of steps.
    "CommunicationBound": r"finding: \( \S+ > 0.[01]5 and|min without \(phase\)|step_seconds: .*>= 3\)",
    "BatchSize": OF_EVALUATIONS,
    "CPUBottleneck": r"finding: \( \S+ > 0.2 and \S+ > 120 or",
    "DataStarved": r"finding: \( \S+ > 0.1 and|min without \(phase\)|step_seconds: .*>= 3\)",
    "IOBottleneck": r"finding: \( \S+ > 0.2 and \S+ > 120 or",
    # One training loader per rank; never too many workers; it is not known which cores the run may use.
    "Dataloader": r"min without|> 43|workers:(sum [*]|min /) \(\(|cores\[\w+\]\) > ",
    # One kind of error per GPU in 5 minutes, and more than 3 of them; a difference of two selectors has the
    # kinds that both select.
    "GPUError": r'min without|ecc_errors:delta5m: .*>= 3\)|"another"\}\[\w+\]( offset|\) - )',
    # It rises at once by far more, and long after a short start. More than 3 samples are in every window.
    "GPUMemoryIncrease": r"rise > 0\.15 |age_seconds\S+ > 1200|\+ \(\S+first_step|< 24003"
    r"|memory:mean: .*>=? 3\)|memory:rise: .*max_over_time",
    # Longer than the recording; all growth that is recorded is above its threshold.
    "GPUMemoryLeak": r"36m|1h12m|1h48m|2 - 23 [*]",
    # It grows alike in every quarter; it is full soon or never.
    "GPUMemoryNearlyFull": r"\(\S+ \+ \S+ offset 6m|offset 6m > [^>]+ and \S+ offset 4m|> 0.0025|< 72003"
    r"|\* 1\.5 (>|\+) |(> 3|>= 0) or|seconds (< 3|>= 0)\)",
    # No evaluation is in the first 3 minutes. The widest gap is where each GPU has more than 3 samples.
    "LoadBalancing": r'3e-12|>= 3\) and ignoring|, 3 \) /|"another"\}\[\w+\]\)\) >= 0'
    rf'|(host|stopped)"\}}\[9m7s{OF_SAVING}',
    # One loss and norm per node.
    "LossNotFinite": r"min without",
    "GradientsExploding": r"min without",
    "LowGPUUtilization": rf"> 0.15 |{OF_EVALUATIONS}",
    "MaxInitializationTime": r"end_time_seconds\S* \+ ",  # no run ends before its first step
    # No step takes seconds; each third of the window has many; a loss is far above the threshold, or none.
    "StepOutlier": r"(bucket|count) > 3\)|(bucket:some|duration:seconds): .*>=? 3\)"
    r"|>= 9003|third:stepscope_step_duration:mean_seconds: .*>=? 3\)|count < 30 |seconds < 450"
    r"|>= 30 unless|>= 603|lost_ratio > 0\.003",
    # Each window has more than 3 s of steps; one rank is slow, by far more than its thresholds. The recording
    # does not have for how long ranks waited for a core: test_scraped_runs.py.
    "Straggler": r"min without|mean_(seconds|variance): .*>= 3\)|no_core"
    r"|straggler_excess_seconds: .*(min by|> 0.006 and|> 0.15 \*|> 0.05 / \()",
    # The recording has one reason, for more than 3 s of any window.
    "ThermalThrottling": r"min without|>= 3\) /",
    # No rank is in known work, or in code of the script.
    "TrainingStalled": r"> 1003|_stay:seconds",
}


@cache
def groups() -> dict[str, Group]:
    """Returns the rendered groups by rule. Rendering takes a second, and not in each collection of tests."""
    loaded = yaml.load(render(OPTIONS)[RULES], yaml.CSafeLoader)["groups"]
    return {group["name"].removeprefix("stepscope-"): group for group in loaded}


def mutants(rule: str) -> list[tuple[str, dict[str, object]]]:
    unseen = re.compile(f"{UNSEEN['']}|{UNSEEN.get(rule, '(?!)')}")
    found = [(change, group) for change, group in mutants_of(groups()[rule]) if not unseen.search(change)]
    if rule in UNRECORDED:
        return []
    return found if EVERY_MUTANT else random.Random(rule).sample(found, min(ROUNDS, len(found)))


@pytest.fixture(scope="module")
def recording(tmp_path_factory: pytest.TempPathFactory) -> RecordedRun:
    return RecordedRun(write_varied(tmp_path_factory.mktemp("varied") / "recording"))


def test_the_rules_as_rendered_say_of_the_recording_what_its_counters_say(recording: RecordedRun) -> None:
    outcomes = check_recording(recording, Rendered({RULES: render(OPTIONS)[RULES]}, OPTIONS), None, None)
    assert {outcome.rule for outcome in outcomes} == ALERTING
    assert [outcome.disagreements for outcome in outcomes if outcome.disagreements] == []
    assert {outcome.rule for outcome in outcomes if not outcome.firing} == UNRECORDED


NUMBERS = range(max(len(mutants(rule)) for rule in ALERTING) if EVERY_MUTANT else ROUNDS)


@pytest.mark.parametrize("number", smallest(NUMBERS, range(1)))
def test_a_mutant_of_each_rule_is_a_disagreement(recording: RecordedRun, number: int) -> None:
    chosen = {rule: mutants(rule)[number] for rule in sorted(ALERTING) if number < len(mutants(rule))}
    mutated = [chosen[rule][1] if rule in chosen else group for rule, group in groups().items()]
    text = json.dumps({"groups": mutated})
    outcomes = check_recording(recording, Rendered({RULES: text}, OPTIONS), None, None)
    disagreeing = {outcome.rule for outcome in outcomes if outcome.disagreements}
    assert [change for rule, (change, _) in chosen.items() if rule not in disagreeing] == []
    assert disagreeing <= chosen.keys()
