"""Runs made up in memory, read as `stepscope compare` reads them."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from stepscope.compare.compared_run import ComparedRun, read_run
from stepscope.runs.model import COMPONENTS, PHASES, GpuFacts, Loader, NodeFacts, RankFacts, Steps

from tests.support.source import START, MemorySource, node_samples, node_steps, rank_facts, run_facts

BEFORE, AFTER = 5.0, 1.0  # seconds of initialization and finalization


def run_of(
    durations: Sequence[float] | np.ndarray = (),
    *,
    eval_durations: Sequence[float] = (),
    ranks: int = 1,
    nodes: Sequence[str] = ("node-a",),
    other: float = 0.0,
    outside: float = 0.0,
    price: float | None = None,
    loader: Mapping[str, Any] | None = None,
    gpu: float | None = None,
    cpu: float = 0.5,
    place: str = "memory",
    facts: Mapping[str, Any] | None = None,
    **components: Any,
) -> ComparedRun:
    """A run of these train steps on each rank, then eval steps.

    Its duration is `outside`, initialization, the steps, `other` and finalization: seconds. `loader` are
    fields of Loader; `gpu` and `cpu` how busy the one GPU and the four cores of each node are.
    """
    train = node_steps(durations, start=START + outside + BEFORE, **components)
    its_eval = node_steps(eval_durations, phase="eval", start=START + outside + BEFORE + sum(durations))
    seconds = {"train": float(np.sum(durations)), "eval": float(np.sum(eval_durations))}
    in_phases = {name: spent for name, spent in seconds.items() if spent} | {
        "initialization": BEFORE,
        "other": other,
        "finalization": AFTER,
    }
    end = START + outside + sum(in_phases.values())
    steps = len(train) + len(its_eval)
    of_ranks = [
        _rank(rank, nodes[rank % len(nodes)], in_phases, (train, its_eval), end, ranks, loader)
        for rank in range(ranks if steps else 0)
    ]
    chunks = [
        _on(steps, nodes[rank % len(nodes)], rank) for rank in range(ranks) for steps in (train, its_eval)
    ]
    rows = max(2, int((end - START) / 10))
    samples = [
        node_samples(
            np.full((rows, 4), cpu),
            None if gpu is None else np.full((rows, 1), gpu),
            node=node,
            interval=(end - START) / rows,
        )
        for node in nodes
    ]
    run = run_facts(
        **{"name": place, "end": end, "command": "python train.py", **(facts or {})},
        ranks=of_ranks,
        nodes=[
            NodeFacts(node, tuple("0123"), () if gpu is None else (GpuFacts("0", "H100"),)) for node in nodes
        ],
    )
    return read_run(place, MemorySource(*samples, *chunks, facts=run), price)


def idle_run(seconds: float, nodes: int, price: float | None = None) -> ComparedRun:
    """A run without steps, of which no more is known than how long how many nodes were taken."""
    names = [f"node-{index}" for index in range(nodes)]
    samples = [node_samples(np.full((10, 2), 0.2), node=name, interval=seconds / 10) for name in names]
    facts = run_facts(end=START + seconds, nodes=[NodeFacts(name) for name in names])
    return read_run("memory", MemorySource(*samples, facts=facts), price)


def _rank(
    rank: int,
    node: str,
    phases: Mapping[str, float],
    steps: Iterable[Steps],
    end: float,
    world_size: int,
    loader: Mapping[str, Any] | None,
) -> RankFacts:
    of_phase = {PHASES[one.phases[0]]: one for one in steps if len(one)}
    components = sum(one.components.sum(axis=0) for one in of_phase.values())
    first = min(float(one.starts[0]) for one in of_phase.values())
    last = max(float(one.starts[-1] + one.durations[-1]) for one in of_phase.values())
    settings = {"phase": "train", "workers": 2, "pin_memory": True, "prefetch_factor": 2, **(loader or {})}
    return rank_facts(
        rank,
        node=node,
        start=end - sum(phases.values()),
        first_step_start=first,
        last_step_end=last,
        end=end,
        world_size=world_size,
        framework="pytorch",
        framework_version="2.13",
        phase_seconds=dict(phases),
        component_seconds=dict(zip(COMPONENTS, np.asarray(components).tolist(), strict=True)),
        steps={phase: len(one) for phase, one in of_phase.items()},
        loaders=[] if loader is None else [Loader(rank=rank, **settings)],
    )


def _on(steps: Steps, node: str, rank: int) -> Steps:
    return Steps(node, rank, steps.numbers, steps.phases, steps.starts, steps.durations, steps.components)
