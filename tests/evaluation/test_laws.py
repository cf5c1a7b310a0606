"""What must hold of every run: how it is cut, in which order it comes, who else took part."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache, cached_property
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from stepscope.evaluation.analysis import Analysis, RuleResult
from stepscope.evaluation.engine import Evaluator, evaluate
from stepscope.evaluation.settings import Settings
from stepscope.runs.model import Loader, NodeSamples, RunFacts, Source, Steps

from tests.support.source import (
    START,
    MemorySource,
    cut,
    node_samples,
    node_steps,
    piece,
    rank_facts,
    run_facts,
)

EAGER = Settings.parse(
    [
        "CPUBottleneck.patience=20",
        "IOBottleneck.patience=20",
        "LowGPUUtilization.patience=20",
        "LowGPUUtilization.window=50",
        "StepOutlier.time_lost=1",
        "BatchSize.patience=20",
        "BatchSize.window=50",
        "BatchSize.cpu_threshold_p95=80",
        "GPUMemoryIncrease.patience=20",
        "GPUMemoryIncrease.hold=0",
        "GPUMemoryIncrease.baseline=0.5",
        "LoadBalancing.patience=20",
        "LoadBalancing.threshold=0.05",
        "MaxInitializationTime.threshold=2",
    ]
)
Chunk = NodeSamples | Steps
FEW = settings(max_examples=settings().max_examples // 5)  # for examples that evaluate runs several times


def debuggers(rows: int = 3000) -> list[Chunk]:
    """More than a block of everything, with missing readings; every rule of Debugger has something to say."""
    chunks: list[Chunk] = []
    for rank, node in enumerate(("node-a", "node-b")):
        random = np.random.default_rng(rank)
        cpu, gpu = random.random((rows, 3)), random.random((rows, 2))
        cpu[random.random(cpu.shape) < 0.3] = 1.0
        gpu[random.random(gpu.shape) < 0.5] = 0.0
        gpu[random.random(gpu.shape) < 0.01] = np.nan
        gpu[:, 1] *= np.repeat(random.choice([0.5, 1.0], rows // 50 + 1), 50)[:rows]  # quiet spells
        cpu *= np.repeat(random.choice([0.7, 1.0], rows // 70 + 1), 70)[:rows, None]
        memory = np.cumsum(random.normal(0, 0.002, (rows, 2)), axis=0) % 0.6
        chunks.append(
            node_samples(
                cpu,
                gpu,
                random.random((rows, 3)),
                gpu_memory=memory,
                node=node,
                network=random.random(rows),
            )
        )
        durations = random.normal(0.5, 0.01, rows)
        durations[::37] += 1
        waits = random.random(rows) / 3
        chunks.append(
            node_steps(
                durations,
                rank=rank,
                node=node,
                start=START + 180,
                data_wait=waits,
                forward=0.05,
                backward=0.1,
            )
        )
    return chunks


def others(rows: int = 3000, nodes: Sequence[str] = ("node-a", "node-b")) -> list[Chunk]:
    """Two ranks a node; node-a has a hot, leaking, failing GPU, a slow rank, and a pause."""
    chunks: list[Chunk] = []
    for index, node in enumerate(nodes):
        random = np.random.default_rng(index)
        shape = (rows, 2)
        bad = index == 0
        ill = np.array([0, 1]) * bad
        memory = 0.4 + 0.5 * ill * np.linspace(0, 1, rows)[:, None] + 0.02 * random.random(shape)
        heat = np.cumsum(0.2 * ill * (random.random(shape) < 0.5), axis=0)
        heat[random.random(shape) < 0.01] = np.nan
        chunks.append(
            node_samples(
                random.uniform(0.3, 0.5, (rows, 2)),
                np.full(shape, 0.97),
                gpu_memory=memory,
                node=node,
                of_gpus={
                    "gpu_thermal_throttle_seconds": heat,
                    "gpu_clock_hertz": 1e9 * random.uniform(1, 2, shape),
                    "gpu_xid_errors": np.floor(np.linspace(0, 3, rows))[:, None] * ill,
                    "gpu_last_xid": np.full(shape, 94.0),
                },
            )
        )
        for rank in (2 * index, 2 * index + 1):
            own = np.random.default_rng(9 + rank).uniform(0.2, 0.22, rows) * (1.7 if rank == 1 else 1)
            steps = node_steps(
                np.full(rows, 0.5), rank=rank, node=node, first_number=0, communication=0.5 - own
            )
            if bad:
                steps.starts[rows // 2 :] += 100
            chunks.append(steps)
    return chunks


def facts_of_debuggers(nodes: tuple[str, ...] = ("node-a", "node-b")) -> RunFacts:
    loaders = [
        Loader(rank, "train", 2 + rank // 2, True, 2, None, 100, 300.0, 250.0) for rank in range(len(nodes))
    ]
    return run_facts(ranks=[rank_facts(i, node=node, loaders=[loaders[i]]) for i, node in enumerate(nodes)])


def facts_of_others(nodes: int = 2) -> RunFacts:
    return run_facts(
        ranks=[rank_facts(r, node=f"node-{'abc'[r // 2]}", last_alive=START + 1500) for r in range(2 * nodes)]
    )


@dataclass(frozen=True, eq=False)
class MadeUp:
    """A run in which every one of these rules fires."""

    chunks: Callable[[], list[Chunk]]
    facts: RunFacts
    settings: Settings
    rules: frozenset[str]

    @cached_property
    def whole(self) -> Analysis:
        return self.evaluated(*self.chunks())

    def evaluated(self, *chunks: Chunk, **how: Any) -> Analysis:
        return evaluate(MemorySource(*chunks, facts=self.facts, **how), self.settings)


DEBUGGERS = MadeUp(
    debuggers,
    facts_of_debuggers(),
    EAGER,
    frozenset(
        {
            "CPUBottleneck",
            "IOBottleneck",
            "LowGPUUtilization",
            "StepOutlier",
            "DataStarved",
            "BatchSize",
            "GPUMemoryIncrease",
            "LoadBalancing",
            "MaxInitializationTime",
        }
    ),
)
OTHERS = MadeUp(
    others,
    facts_of_others(),
    Settings(),
    frozenset(
        {
            "CommunicationBound",
            "GPUError",
            "GPUMemoryLeak",
            "GPUMemoryNearlyFull",
            "Straggler",
            "ThermalThrottling",
            "TrainingStalled",
        }
    ),
)
each_run = pytest.mark.parametrize("run", [DEBUGGERS, OTHERS], ids=["debuggers", "others"])


@each_run
def test_its_rules_fire_in_the_made_up_run(run: MadeUp) -> None:
    assert {found.rule for found in run.whole.rules if found.status == "found"} >= run.rules
    assert len(run.whole.heatmaps) == 2
    assert len(run.whole.steps) == len(run.facts.ranks)


@each_run
@given(st.sampled_from([1, 3, 100, 119, 120, 121, 2047, 2048, 2049, 5000]))
@settings(max_examples=10)
def test_the_analysis_is_the_same_to_the_last_bit_however_the_run_is_cut(run: MadeUp, rows: int) -> None:
    assert run.evaluated(*run.chunks(), chunk_rows=rows) == run.whole


@each_run
@given(st.randoms(use_true_random=False))
@settings(max_examples=10)
def test_the_analysis_is_the_same_in_any_order_of_nodes_and_ranks(run: MadeUp, random: Any) -> None:
    chunks = run.chunks()
    random.shuffle(chunks)
    assert run.evaluated(*chunks) == run.whole


@each_run
@given(st.randoms(use_true_random=False))
@settings(max_examples=10)
def test_nodes_and_ranks_may_come_interleaved(run: MadeUp, random: Any) -> None:
    streams = [list(cut(chunk, 500)) for chunk in run.chunks()]
    order = [index for index, stream in enumerate(streams) for _ in stream]
    random.shuffle(order)
    chunks = [streams[index].pop(0) for index in order]
    assert run.evaluated(*chunks) == run.whole


@each_run
@given(st.lists(st.integers(1, 900), min_size=1, max_size=3))
@FEW
def test_asking_at_any_time_includes_the_last_scan_and_disturbs_nothing(
    run: MadeUp, pieces: list[int]
) -> None:
    source = MemorySource(facts=run.facts)
    evaluator = Evaluator(source, run.settings)
    chunks = run.chunks()
    given_so_far: list[Chunk] = []
    start = 0
    for rows in [*pieces, 10_000]:
        more = [piece(chunk, start, start + rows) for chunk in chunks]
        start += rows
        source.add(*more)
        given_so_far += more
        evaluator.advance()
        now = evaluator.analysis()
        assert now == evaluator.analysis()
        assert now == run.evaluated(*given_so_far)
    assert evaluator.analysis() == run.whole


def by_rule(analysis: Analysis) -> dict[str, RuleResult]:
    return {found.rule: found for found in analysis.rules}


def test_a_healthy_node_added_changes_no_other_nodes_result() -> None:
    """A node whose cores and GPUs are busy as they should be, and whose steps wait for nothing."""
    healthy: list[Chunk] = [
        node_samples(np.full((3000, 3), 0.4), np.full((3000, 2), 0.97), node="node-c"),
        node_steps(np.full(3000, 0.5), rank=2, node="node-c"),
    ]
    nodes = ("node-a", "node-b", "node-c")
    now = evaluate(MemorySource(*debuggers(), *healthy, facts=facts_of_debuggers(nodes)), EAGER)
    for rule, before in by_rule(DEBUGGERS.whole).items():
        after = by_rule(now)[rule]
        assert (after.status, after.triggered, after.seconds_lost) == (
            before.status,
            before.triggered,
            before.seconds_lost,
        ), rule
        for node in ("node-a", "node-b"):
            for details in ("nodes", node):
                assert after.details.get(details, {}).get(node) == before.details.get(details, {}).get(node)
    assert [row for row in now.usage if row.node != "node-c"] == DEBUGGERS.whole.usage
    assert [one for one in now.heatmaps if one.node != "node-c"] == DEBUGGERS.whole.heatmaps
    assert [one for one in now.steps if one.rank != 2] == DEBUGGERS.whole.steps


def test_a_healthy_node_added_changes_no_decision() -> None:
    nodes = ("node-a", "node-b", "node-c")
    now = by_rule(evaluate(MemorySource(*others(nodes=nodes), facts=facts_of_others(3))))
    for rule in OTHERS.rules:
        before = by_rule(OTHERS.whole)[rule]
        own = {
            row["rank"]: row["triggered"]
            for row in now[rule].details.get("ranks", ())
            if row["node"] != "node-c"
        }
        was = {row["rank"]: row["triggered"] for row in before.details.get("ranks", ())}
        assert own == was, rule
        if rule not in {"CommunicationBound", "TrainingStalled"}:  # the new ranks wait as the others do
            assert now[rule].triggered == before.triggered, rule


# For each parameter: raising it never makes the rule fire more often (-1), or never less often (+1).
MONOTONE = [
    ("CPUBottleneck", "threshold", -1),
    ("CPUBottleneck", "cpu_threshold", -1),
    ("CPUBottleneck", "gpu_threshold", +1),
    ("CPUBottleneck", "patience", -1),
    ("IOBottleneck", "threshold", -1),
    ("IOBottleneck", "io_threshold", -1),
    ("IOBottleneck", "gpu_threshold", +1),
    ("LowGPUUtilization", "threshold_p5", +1),
    ("LowGPUUtilization", "patience", -1),
    ("StepOutlier", "time_lost", -1),
    ("StepOutlier", "stddev", -1),
    ("DataStarved", "threshold", -1),
    ("DataStarved", "patience", -1),
    ("BatchSize", "cpu_threshold_p95", +1),
    ("BatchSize", "gpu_threshold_p95", +1),
    ("BatchSize", "gpu_memory_threshold_p95", +1),
    ("BatchSize", "patience", -1),
    ("GPUMemoryIncrease", "increase", -1),
    ("GPUMemoryIncrease", "baseline", -1),
    ("GPUMemoryIncrease", "patience", -1),
    ("LoadBalancing", "threshold", -1),
    ("LoadBalancing", "patience", -1),
    ("MaxInitializationTime", "threshold", -1),
    ("CommunicationBound", "threshold", -1),
    ("Straggler", "threshold", -1),
    ("Straggler", "deviations", -1),
    ("Straggler", "waiting", -1),
    ("Straggler", "steps", -1),
    ("TrainingStalled", "minimum", -1),
    ("ThermalThrottling", "threshold", -1),
    ("GPUMemoryNearlyFull", "threshold", -1),
    ("GPUMemoryNearlyFull", "horizon", +1),
    ("GPUMemoryLeak", "increase", -1),
    ("GPUError", "threshold", -1),
]
PARAMETERS = {rule: [name for each, name, _ in MONOTONE if each == rule] for rule, _, _ in MONOTONE}
VALUES = (0, 1, 5, 20, 50, 90, 100)
# What may be set where these values may not, or hardly differ.
OTHER_VALUES = {
    ("GPUMemoryIncrease", "increase"): (0, 0.5, 1, 2, 5, 20),
    ("GPUMemoryIncrease", "baseline"): (0.1, 0.5, 1, 5),
    ("StepOutlier", "time_lost"): (0, 0.1, 1, 2, 4, 10, 50),
    ("LoadBalancing", "threshold"): (0, 0.02, 0.1, 0.3, 1),
}


def values_of(rule: str, parameter: str) -> Sequence[float]:
    return OTHER_VALUES.get((rule, parameter), VALUES)


@cache
def fired(run: MadeUp, number: int, place: int) -> dict[str, int]:
    """Returns how often each rule fires if its parameter of that number has the value at `place`.

    All rules are evaluated at once: none depends on what is set for another.
    """
    values = dict(run.settings.values)
    for rule, parameters in PARAMETERS.items():
        if rule in run.rules and number < len(parameters):
            allowed = values_of(rule, parameters[number])
            changed = {parameters[number]: allowed[min(place, len(allowed) - 1)]}
            values[rule] = {**values.get(rule, {}), **changed}
    chunks, scan = (debuggers(600), 5.0) if run is DEBUGGERS else (others(), 60.0)
    analysis = evaluate(MemorySource(*chunks, facts=run.facts), Settings(values), scan)
    return {name: found.triggered for name, found in by_rule(analysis).items()}


@pytest.mark.parametrize(("rule", "parameter", "direction"), MONOTONE)
def test_rules_are_monotone_in_their_thresholds(rule: str, parameter: str, direction: int) -> None:
    run = DEBUGGERS if rule in DEBUGGERS.rules else OTHERS
    number = PARAMETERS[rule].index(parameter)
    counts = [fired(run, number, place)[rule] for place in range(len(values_of(rule, parameter)))]
    assert counts == sorted(counts, reverse=direction < 0)
    assert len(set(counts)) > 1, "the parameter made no difference: the run tests nothing"


def test_scaling_time_and_the_scan_interval_alike_changes_no_count() -> None:
    """A run at half the speed with scans half as often; what is set in minutes is twice as long."""
    slow: list[Chunk] = []
    for chunk in debuggers():
        if isinstance(chunk, NodeSamples):
            slow.append(replace(chunk, times=2 * chunk.times))
        else:
            starts, durations, components = 2 * chunk.starts, 2 * chunk.durations, 2 * chunk.components
            slow.append(replace(chunk, starts=starts, durations=durations, components=components))
    minutes = {"GPUMemoryIncrease": {"horizon": 2, "baseline": 1}, "MaxInitializationTime": {"threshold": 4}}
    slowly = Settings(
        {**EAGER.values, **{rule: {**EAGER.values[rule], **its} for rule, its in minutes.items()}}
    )
    its_facts = replace(DEBUGGERS.facts, start=2 * START)
    stretched = evaluate(MemorySource(*slow, facts=its_facts), slowly, 120.0)
    for rule, before in by_rule(DEBUGGERS.whole).items():
        after = by_rule(stretched)[rule]
        assert (after.triggered, after.violations) == (before.triggered, before.violations), rule


class EndlessSource(Source):
    """A day of a node, minute by minute, without ever holding more than one."""

    def __init__(self, minutes: int) -> None:
        self.minutes = minutes

    @property
    def facts(self) -> RunFacts:
        return run_facts()

    def read(self) -> Any:
        for minute in range(self.minutes):
            random = np.random.default_rng(minute)
            yield node_samples(
                random.random((120, 4)), random.random((120, 2)), start=1_800_000_000.0 + 60 * minute
            )


def kept(value: Any) -> int:
    """Bytes of the arrays that a state holds."""
    if isinstance(value, np.ndarray):
        return value.nbytes
    if isinstance(value, dict):
        return sum(kept(item) for item in value.values())
    if isinstance(value, list):
        return sum(kept(item) for item in value)
    return kept(vars(value)) if hasattr(value, "__dict__") else 0


def test_what_is_remembered_of_samples_does_not_grow_with_the_run() -> None:
    def remembered(minutes: int) -> int:
        evaluator = Evaluator(EndlessSource(minutes))
        evaluator.advance()
        return kept(evaluator._nodes)

    # The list of samples concerned is full after some hours; nothing else grows after a few minutes.
    assert remembered(3000) <= 1.05 * remembered(1500)
