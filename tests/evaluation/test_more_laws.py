"""What must hold of every run, for the rules that Debugger lacks: see test_laws.py."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from stepscope.evaluation.analysis import Analysis
from stepscope.evaluation.engine import Evaluator, evaluate
from stepscope.evaluation.settings import Settings
from stepscope.runs.model import NodeSamples, RunFacts, Steps

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

RULES = (
    "CommunicationBound",
    "GPUError",
    "GPUMemoryLeak",
    "GPUMemoryNearlyFull",
    "Straggler",
    "ThermalThrottling",
    "TrainingStalled",
)
ROWS = 3000
Chunk = NodeSamples | Steps


def made_up_run(rows: int = ROWS, nodes: tuple[str, ...] = ("node-a", "node-b")) -> list[Chunk]:
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


def facts(nodes: int = 2) -> RunFacts:
    return run_facts(
        ranks=[rank_facts(r, node=f"node-{'abc'[r // 2]}", last_alive=START + 1500) for r in range(2 * nodes)]
    )


def results(analysis: Analysis) -> dict[str, Any]:
    return {found.rule: found for found in analysis.rules if found.rule in RULES}


WHOLE = results(evaluate(MemorySource(*made_up_run(), facts=facts())))


def test_every_rule_fires_in_the_made_up_run() -> None:
    assert {rule: found.status for rule, found in WHOLE.items()} == dict.fromkeys(RULES, "found")


@given(st.sampled_from([1, 100, 119, 2047, 2048, 2049, 5000]))
@settings(max_examples=5)
def test_results_are_the_same_to_the_last_bit_however_the_run_is_cut(rows: int) -> None:
    assert results(evaluate(MemorySource(*made_up_run(), facts=facts(), chunk_rows=rows))) == WHOLE


@given(st.randoms(use_true_random=False))
@settings(max_examples=5)
def test_nodes_and_ranks_may_come_interleaved(random: Any) -> None:
    streams = [list(cut(chunk, 500)) for chunk in made_up_run()]
    order = [index for index, stream in enumerate(streams) for _ in stream]
    random.shuffle(order)
    chunks = [streams[index].pop(0) for index in order]
    assert results(evaluate(MemorySource(*chunks, facts=facts()))) == WHOLE


@given(st.lists(st.integers(1, 900), min_size=1, max_size=4))
@settings(max_examples=5)
def test_asking_at_any_time_disturbs_nothing(pieces: list[int]) -> None:
    source = MemorySource(facts=facts())
    evaluator = Evaluator(source)
    given_so_far: list[Chunk] = []
    start = 0
    for rows in [*pieces, 10_000]:
        more = [piece(chunk, start, start + rows) for chunk in made_up_run()]
        start += rows
        source.add(*more)
        given_so_far += more
        evaluator.advance()
        now = results(evaluator.analysis())
        assert now == results(evaluator.analysis())
        assert now == results(evaluate(MemorySource(*given_so_far, facts=facts())))
    assert results(evaluator.analysis()) == WHOLE


def test_a_healthy_node_added_changes_no_decision() -> None:
    nodes = ("node-a", "node-b", "node-c")
    now = results(evaluate(MemorySource(*made_up_run(nodes=nodes), facts=facts(3))))
    for rule, before in WHOLE.items():
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


@pytest.mark.parametrize(("rule", "parameter", "direction"), MONOTONE)
def test_rules_are_monotone_in_their_thresholds(rule: str, parameter: str, direction: int) -> None:
    counts = []
    for value in (0, 1, 2, 5, 10, 35, 50, 70, 100):
        chosen = Settings({rule: {parameter: value}})
        counts.append(results(evaluate(MemorySource(*made_up_run(), facts=facts()), chosen))[rule].triggered)
    assert counts == sorted(counts, reverse=direction < 0)
    assert len(set(counts)) > 1, "the parameter made no difference: the run tests nothing"
