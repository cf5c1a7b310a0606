"""The whole analysis of a made-up run against a golden file; `make golden` writes it anew."""

import json
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
from stepscope.evaluation.analysis import Analysis
from stepscope.evaluation.engine import evaluate
from stepscope.runs.model import GpuFacts, Loader, NodeFacts

from tests.support.source import START, MemorySource, node_samples, node_steps, rank_facts, run_facts

GOLDEN = Path(__file__).parent / "golden" / "analysis.json"
OF_REPORTS = ("question", "description", "parameters")  # of every rule: tests/report/golden has them


def starved_run() -> MemorySource:
    """Twelve minutes on two nodes: node-a waits for a heavy transform and stalls at each 40th step."""
    seconds = 720
    moments = np.arange(2 * seconds) * 0.5
    wave = 0.5 + 0.5 * np.sin(moments / 7)
    busy = np.stack([np.ones_like(wave), np.where(moments % 10 < 8, 0.96, 0.4)], axis=1)
    waiting = np.where(moments % 10 < 7, 0.02, 0.85)
    calm = np.stack([0.3 + 0.2 * wave, 0.2 + 0.1 * wave], axis=1)
    samples = [
        node_samples(
            busy,
            np.stack([waiting, np.full_like(wave, 0.5)], axis=1),
            np.full_like(busy, 0.01),
            gpu_memory=np.full((len(wave), 2), 0.6),
            memory=0.3 + 0.1 * wave,
            network=1e6 * wave,
            disk=2e7 * wave,
        ),
        node_samples(calm, np.full((len(wave), 1), 0.95), node="node-b", network=1e6 * wave),
    ]
    count = 1400
    durations = 0.45 + 0.01 * np.sin(np.arange(count))
    stall = np.where(np.arange(1, count + 1) % 40 == 0, 1.5, 0.0)
    steps = [
        node_steps(durations + stall, data_wait=0.2, forward=0.1, backward=0.1, checkpoint=stall),
        node_steps(durations, rank=1, node="node-b", data_wait=0.01, forward=0.2, backward=0.2),
    ]
    ranks = [
        rank_facts(
            rank,
            node=node,
            world_size=2,
            framework="pytorch",
            framework_version="2.13",
            first_step_start=START,
            last_step_end=START + 690,
            end=START + seconds,
            phase_seconds={"train": 680.0, "initialization": 5.0, "other": 10.0, "finalization": 2.0},
            component_seconds={"data_wait": 280.0 if rank == 0 else 14.0, "forward": 140.0},
            loaders=[Loader(rank, "train", 2, True, 2, None, count, fetching, 0.95 * fetching)],
        )
        for rank, node, fetching in ((0, "node-a", 1300.0), (1, "node-b", 90.0))
    ]
    nodes = [
        NodeFacts("node-a", ("0", "1"), (GpuFacts("0", "NVIDIA H100"), GpuFacts("1", "NVIDIA H100"))),
        NodeFacts("node-b", ("0", "1"), (GpuFacts("0", "NVIDIA H100"),)),
    ]
    facts = run_facts(
        name="starved",
        command="python train.py",
        exit_status=0,
        end=START + seconds,
        versions={"stepscope": "0.1.0"},
        ranks=ranks,
        nodes=nodes,
    )
    return MemorySource(*samples, *steps, facts=facts)


def test_the_golden_analysis(golden: Callable[[Path, str], None]) -> None:
    golden(GOLDEN, _written(evaluate(starved_run())))


def _written(analysis: Analysis) -> str:
    """Numbers to nine digits, since sums differ in the last ones between processors."""
    content = asdict(analysis)
    for heatmap in content["heatmaps"]:
        for name in ("values", "gpu_memory"):
            heatmap[name] = ["".join(map(_level, row)) for row in heatmap[name]]
        for name in ("starved", "core_use"):
            heatmap[name] = {key: "".join(map(_level, row)) for key, row in heatmap[name].items()}
    for timeline in content["timelines"]:
        for name in ("marks", "waiting_seconds"):
            timeline[name] = timeline[name][:3]
    for rule in content["rules"]:
        for name in OF_REPORTS:
            del rule[name]
        if "bottlenecks" in rule["details"]:
            rule["details"]["bottlenecks"] = len(rule["details"]["bottlenecks"])
    return json.dumps(_rounded(content), indent=1, allow_nan=False) + "\n"


def _level(percent: int | None) -> str:
    """A character of ten levels."""
    return " " if percent is None else str(min(percent // 10, 9))


def _rounded(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _rounded(item) for key, item in value.items()}
    if isinstance(value, list):
        numbers = all(isinstance(item, int | float) for item in value)
        rounded = [_rounded(item) for item in value]
        return " ".join(map(str, rounded)) if numbers else rounded
    return float(f"{value:.9g}") if isinstance(value, float) else value
