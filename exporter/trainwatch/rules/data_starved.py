"""DataStarved: training waits for its data.

Source: our own. A step's data wait is the time from asking the loader for a batch until it comes; a loader
that keeps up makes it next to nothing, so a fifth of the step time is well beyond noise.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Protocol

import numpy as np

from trainwatch.measurements.state import NodeState, Scans, State
from trainwatch.rules.base import Rule, Verdict, status_of
from trainwatch.rules.data_loading import Loading, ranks_of, workers_of
from trainwatch.rules.parameters import Parameters, Percent, StepCount
from trainwatch.rules.promql import PrometheusRules, Scraping
from trainwatch.rules.registry import rule
from trainwatch.rules.shared_rules import component_rules
from trainwatch.rules.topics import IDLE_GPUS
from trainwatch.runs.model import COMPONENTS, NodeSamples, RunFacts, Steps
from trainwatch.words import duration, too_few

DATA_WAIT = COMPONENTS.index("data_wait")


class Patient(Protocol):
    """Parameters with a share of the step time, in percent, and a number of steps to wait for."""

    @property
    def threshold(self) -> float: ...

    @property
    def patience(self) -> int: ...


@dataclass(frozen=True)
class DataStarvedParameters(Parameters):
    threshold: Annotated[Percent, "the rule fires above this share of the step time of a rank"] = 20
    patience: Annotated[StepCount, "decisions begin after this many steps of a rank"] = 20


@rule
class DataStarved(Rule[DataStarvedParameters, "StarvedRanks"]):
    """Seconds lost: the data wait of the rank that waited longest, of those that fired."""

    parameters_type = DataStarvedParameters
    subject = "Waiting for data"
    question = "Does training wait for its data, and why does the data come too late?"
    description = (
        "Compares the time that steps wait for the data loader with their whole duration, and tells from "
        "the workers' CPU time and the node's cores what holds the loader up."
    )
    recommendation = "Look at how the data loader keeps ahead of the training loop."
    topic = "data loading"
    view = "loading"
    symptom = IDLE_GPUS

    def node(self) -> StarvedRanks:
        return StarvedRanks(self.parameters)

    def judge(self, nodes: Mapping[str, StarvedRanks], facts: RunFacts) -> Verdict:
        ranks = [(name, node, rank) for name, node in nodes.items() for rank in sorted(node.ranks)]
        waits = {(name, rank): node.ranks[rank] for name, node, rank in ranks}
        triggered = sum(wait.triggered for wait in waits.values())
        status = status_of(triggered, sum(wait.judged for wait in waits.values()))
        if status == "not judged":
            return Verdict(status, self._why_not(waits))
        fired = {key: wait for key, wait in waits.items() if wait.triggered}
        (name, rank), worst = max((fired or waits).items(), key=lambda item: item[1].order)
        loading = nodes[name].loading(rank, name, facts)
        clause, mend = loading.words()
        waited = duration(worst.seconds)
        share = f"Rank {rank} waited for data for {worst.share:.0f} % of its step time ({waited})"
        return Verdict(
            status,
            f"{share}; {clause}." if fired else f"{share}.",
            triggered,
            sum(wait.triggered for wait in waits.values()),
            sum(wait.steps for wait in waits.values()),
            worst.seconds if fired else 0.0,
            mend if fired else None,
            {"cause": loading.cause() if fired else None, "ranks": _details(nodes, facts)},
        )

    def _why_not(self, waits: Mapping[tuple[str, int], Wait]) -> str:
        most = max((wait.steps for wait in waits.values()), default=0)
        if not most:
            return "No step was recorded: mark steps with trainwatch.step and loaders with trainwatch.watch."
        return too_few("steps of a rank", most, self.parameters.patience)

    def prometheus_rules(self, scraping: Scraping) -> PrometheusRules:
        its = self.parameters
        summary = "Rank {{ $labels.rank }} of run {{ $labels.run }} waits for its data"
        return component_rules("data_wait", its.threshold, its.patience, summary, "waited for data")


class Wait(State):
    """The step time of one rank, and the share of it spent in one component, over all phases."""

    def __init__(self, parameters: Patient, component: int = DATA_WAIT) -> None:
        self.parameters = parameters
        self.component = component
        self.steps = self.at_last_scan = self.judged = self.triggered = 0
        self.step_seconds = self.seconds = 0.0  # of steps, of waiting

    def observe(self, steps: Steps, scans: Scans) -> None:
        waited = self.seconds + np.concatenate(([0.0], np.cumsum(steps.components[:, self.component])))
        took = self.step_seconds + np.concatenate(([0.0], np.cumsum(steps.durations)))
        so_far = self.steps + scans
        judged = (np.diff(so_far, prepend=self.at_last_scan) > 0) & (so_far > self.parameters.patience)
        starved = 100 * waited[scans] > self.parameters.threshold * took[scans]
        self.judged += int(np.count_nonzero(judged))
        self.triggered += int(np.count_nonzero(judged & starved))
        if len(scans):
            self.at_last_scan = int(so_far[-1])
        self.steps += len(steps)
        self.seconds, self.step_seconds = float(waited[-1]), float(took[-1])

    @property
    def share(self) -> float:
        """Percentage of the step time."""
        return 100 * self.seconds / self.step_seconds if self.step_seconds else 0.0

    @property
    def order(self) -> tuple[float, float]:
        return self.seconds, self.share


class StarvedRanks(NodeState):
    def __init__(self, parameters: DataStarvedParameters) -> None:
        self.parameters = parameters
        self.ranks: dict[int, Wait] = {}
        self.cores = 0
        self.cpu_sum = self.io_wait_sum = 0.0  # of the mean of the cores, over snapshots
        self.cpu_count = self.io_wait_count = 0

    def observe(self, samples: NodeSamples, scans: Scans) -> None:
        self.cores = samples.cpu.shape[1]
        self.cpu_sum += float(np.nansum(samples.cpu_mean, dtype=np.float64))
        self.cpu_count += int(np.count_nonzero(~np.isnan(samples.cpu_mean)))
        self.io_wait_sum += float(np.nansum(samples.io_wait_mean, dtype=np.float64))
        self.io_wait_count += int(np.count_nonzero(~np.isnan(samples.io_wait_mean)))

    def observe_steps(self, steps: Steps, scans: Scans) -> None:
        self.ranks.setdefault(steps.rank, Wait(self.parameters)).observe(steps, scans)

    def loading(self, rank: int, node: str, facts: RunFacts) -> Loading:
        ranks = ranks_of(facts, node)
        processes = ranks.get(rank, [])
        loaders = [loader for process in processes for loader in process.loaders]
        cores = self.cores or next((len(one.cpus) for one in facts.nodes if one.node == node), 0) or 1
        return Loading(
            workers=workers_of(processes[-1]) if processes else None,
            fetch_seconds=sum(loader.fetch_seconds for loader in loaders),
            fetch_cpu_seconds=sum(loader.fetch_cpu_seconds for loader in loaders),
            fetch_core_wait_seconds=sum(loader.fetch_core_wait_seconds for loader in loaders),
            step_seconds=self.ranks[rank].step_seconds,
            wait_seconds=self.ranks[rank].seconds,
            cores=round(cores / max(len(ranks), 1), 1),
            cpu_busy=self.cpu_sum / self.cpu_count if self.cpu_count else 0.0,
            io_wait=self.io_wait_sum / self.io_wait_count if self.io_wait_count else 0.0,
        )


def _details(nodes: Mapping[str, StarvedRanks], facts: RunFacts) -> list[dict[str, Any]]:
    rows = []
    for name, node in nodes.items():
        for rank, wait in sorted(node.ranks.items()):
            loading = node.loading(rank, name, facts)
            rows.append(
                {
                    "node": name,
                    "rank": rank,
                    "steps": wait.steps,
                    "step_seconds": wait.step_seconds,
                    "data_wait_seconds": wait.seconds,
                    "percent": wait.share,
                    "triggered": wait.triggered,
                    "cause": loading.cause() if wait.triggered else None,
                    "workers": loading.workers,
                    "cores": loading.cores,
                    "fetch_cpu_percent": 100 * loading.cpu_share if loading.fetch_seconds else None,
                    "fetch_waiting_percent": 100 * loading.waiting_share if loading.fetch_seconds else None,
                    "workers_needed": loading.workers_needed if loading.fetch_seconds else None,
                }
            )
    return rows
