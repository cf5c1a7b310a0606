"""Dataloader: the number of data-loading workers does not suit the number of cores.

Source: SageMaker Debugger's Dataloader (which its report leaves out). Here the workers are those that the
loaders were given, not a guess from how many were active in a second.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any

import numpy as np

from trainwatch.measurements.sketch import SizeSketch
from trainwatch.measurements.state import NodeState, Scans
from trainwatch.rules.base import Rule, Verdict
from trainwatch.rules.data_loading import ranks_of, workers_of
from trainwatch.rules.parameters import AnyPercent, Parameters
from trainwatch.rules.promql import MINUTE, Alert, PrometheusRules, Record, Scraping, ratio
from trainwatch.rules.registry import rule
from trainwatch.rules.topics import IDLE_GPUS
from trainwatch.runs.model import COMPONENTS, NodeSamples, RankFacts, RunFacts, Steps
from trainwatch.status import Status
from trainwatch.words import count

DATA_WAIT = COMPONENTS.index("data_wait")
HISTOGRAM_BINS = 100  # Debugger's number


@dataclass(frozen=True)
class DataloaderParameters(Parameters):
    min_threshold: Annotated[AnyPercent, "too few workers: below this share of the node's cores"] = 70
    max_threshold: Annotated[AnyPercent, "too many workers: above this share of the node's cores"] = 200


@rule
class Dataloader(Rule[DataloaderParameters, "LoadingNode"]):
    """Fires once a node. It says nothing of time lost: see DataStarved for that."""

    parameters_type = DataloaderParameters
    subject = "An unsuitable number of loader workers"
    question = "Does the number of data-loading workers suit the number of cores?"
    description = (
        "Compares the workers of all training loaders of a node with its cores: fewer leave cores idle "
        "that could prepare data, many more only take turns on them."
    )
    recommendation = "Set the number of workers to about the number of cores that each rank may use."
    topic = "data loading"
    distance = 3
    view = "loading"
    symptom = IDLE_GPUS

    def node(self) -> LoadingNode:
        return LoadingNode()

    def judge(self, nodes: Mapping[str, LoadingNode], facts: RunFacts) -> Verdict:
        found = [_Found(name, node, facts) for name, node in nodes.items()]
        known = [one for one in found if one.workers is not None and one.cores]
        if not known:
            return Verdict(
                Status.NOT_ENOUGH_DATA, "No data loader was seen: pass loaders through trainwatch.watch."
            )
        fired = [one for one in known if self._unsuited(one)]
        shown = max(fired or known, key=lambda one: abs(one.percent - 100))
        return Verdict(
            Status.FOUND if fired else Status.HEALTHY,
            f"{shown.node} has {count(shown.cores, 'core')} and {count(shown.workers or 0, 'worker')} "
            f"that load data ({shown.percent:.0f} %){shown.notes()}.",
            len(fired),
            len(fired),
            int(sum(one.seconds for one in known)),
            details=_details(known, nodes),
        )

    def _unsuited(self, found: _Found) -> bool:
        return not self.parameters.min_threshold <= found.percent <= self.parameters.max_threshold

    def prometheus_rules(self, scraping: Scraping) -> PrometheusRules:
        low, high = self.parameters.min_threshold, self.parameters.max_threshold
        record = "run_instance:trainwatch_dataloader_workers_per_core:ratio"
        workers = "trainwatch_dataloader_workers"
        return PrometheusRules(
            targets="trainwatch_samples_total",
            every=4 * MINUTE,
            records=[
                # Of each rank the training loader; of its other loaders the largest where none trains.
                Record(
                    record,
                    f"""
                    sum without (rank) (
                      max without (phase) ({workers}{{phase="train"}})
                        or
                      max without (phase) ({workers})
                    )
                      / ignoring (run) group_left ()
                    count without (cpu) (trainwatch_cpu_utilization_ratio)
                    """,
                )
            ],
            alerts=[
                Alert(
                    f"{record} < {ratio(low)}\n  or {record} > {ratio(high)}",
                    severity="info",
                    pending=240,  # ranks start their loaders one after the other
                    summary="The number of data-loading workers does not suit the cores of "
                    "{{ $labels.instance }}",
                    description="The loaders of run {{ $labels.run }} have {{ $value | humanizePercentage }} "
                    "as many workers as {{ $labels.instance }} has cores "
                    f"(fires below {low:g} % and above {high:g} %).",
                )
            ],
        )


class LoadingNode(NodeState):
    def __init__(self) -> None:
        self.cores = 0
        self.waits = SizeSketch()
        self.first_start, self.last_end = np.inf, -np.inf  # of steps

    def observe(self, samples: NodeSamples, scans: Scans) -> None:
        self.cores = samples.cpu.shape[1]

    def observe_steps(self, steps: Steps, scans: Scans) -> None:
        if len(steps):
            self.waits.add(steps.components[:, DATA_WAIT])
            self.first_start = min(self.first_start, float(steps.starts.min()))
            self.last_end = max(self.last_end, float((steps.starts + steps.durations).max()))


class _Found:
    """What the facts say of the loaders of a node: of the last process of each of its ranks."""

    def __init__(self, name: str, node: LoadingNode, facts: RunFacts) -> None:
        self.node = name
        known = next((len(one.cpus) for one in facts.nodes if one.node == name), 0)
        self.cores = node.cores or known
        self.processes: list[RankFacts] = [ranks[-1] for ranks in ranks_of(facts, name).values()]
        workers = [number for process in self.processes if (number := workers_of(process)) is not None]
        self.workers = sum(workers) if workers else None
        self.percent = 100 * (self.workers or 0) / self.cores if self.cores else 0.0
        self.seconds = max(0.0, node.last_end - node.first_start)
        loaders = [loader for process in self.processes for loader in process.loaders]
        self.pin_memory = _agreed(loader.pin_memory for loader in loaders)
        self.prefetch = _agreed(loader.prefetch_factor for loader in loaders)

    def notes(self) -> str:
        pinned = {True: ", memory is pinned", False: ", memory is not pinned"}.get(self.pin_memory, "")
        return pinned + (f", each prefetches {self.prefetch}" if self.prefetch is not None else "")


def _agreed(values: Any) -> Any:
    """The value that all known ones are, else None."""
    known = {value for value in values if value is not None}
    return known.pop() if len(known) == 1 else None


def _details(found: list[_Found], nodes: Mapping[str, LoadingNode]) -> dict[str, Any]:
    """Debugger's fields, of the node with the fewest workers for its cores; `nodes` has all."""
    least = min(found, key=lambda one: one.percent)
    return {
        "cores": least.cores,
        "dataloaders": least.workers,
        "num_workers": least.workers,
        "pin_memory": least.pin_memory,
        "prefetch": least.prefetch,
        "dataloading_time": _waits(nodes[least.node].waits),
        "nodes": {
            one.node: {"cores": one.cores, "workers": one.workers, "percent": one.percent} for one in found
        },
    }


def _waits(waits: SizeSketch) -> dict[str, Any]:
    """How long steps waited for their data, in seconds: Debugger's histogram and percentiles."""
    if not waits.count:
        return {}
    probs, binedges = waits.histogram(HISTOGRAM_BINS)
    percentiles = {f"p{percent}": waits.percentile(percent) for percent in (25, 50, 95)}
    return {**percentiles, "probs": probs.tolist(), "binedges": binedges.tolist()}
