"""Dataloader: the number of data-loading workers does not suit the number of cores.

Source: SageMaker Debugger's Dataloader (which its report leaves out). Debugger guesses the workers from how
many were active in a second; here they are the configured workers of the loaders.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import compress
from typing import Annotated, Any

import numpy as np

from trainwatch.measurements.measure import RunMeasurements
from trainwatch.measurements.progress import Progress
from trainwatch.measurements.scraped import SAMPLES, Moment, Scraped, column, grouped, summed, without
from trainwatch.measurements.sketch import SizeSketch
from trainwatch.measurements.usage import Usage
from trainwatch.rules.base import Rule, Verdict
from trainwatch.rules.judgement import Judgement, Tallies, judgement
from trainwatch.rules.parameters import AnyPercent, Parameters, fraction
from trainwatch.rules.promql import MINUTE, Alert, PrometheusRules, Record, Scraping, ratio
from trainwatch.rules.registry import rule
from trainwatch.rules.topics import IDLE_GPUS
from trainwatch.runs.model import Times, ranks_of, workers_of
from trainwatch.status import Status
from trainwatch.words import count, percent

PER_CORE = "run_instance:trainwatch_dataloader_workers_per_core:ratio"
WORKERS = "trainwatch_dataloader_workers"
CORES = "trainwatch_cpu_utilization_ratio"  # a series per core
HISTOGRAM_BINS = 100  # Debugger's number


@dataclass(frozen=True)
class DataloaderParameters(Parameters):
    min_threshold: Annotated[AnyPercent, "too few workers: below this share of the node's cores"] = 70
    max_threshold: Annotated[AnyPercent, "too many workers: above this share of the node's cores"] = 200


@rule
class Dataloader(Rule[DataloaderParameters, Times]):
    """Fires once per node. It estimates no lost time: DataStarved does."""

    parameters_type = DataloaderParameters
    subject = "An unsuitable number of loader workers"
    question = "Does the number of data-loading workers suit the number of cores?"
    description = (
        "Compares the workers of all training loaders of a node with its cores. Too few leave cores idle "
        "that could prepare data; too many only compete for the cores."
    )
    recommendation = "Set the number of workers to about the number of cores that each rank may use."
    topic = "data loading"
    distance = 3
    view = "loading"
    symptom = IDLE_GPUS

    @property
    def measure(self) -> Progress:
        return Progress()

    @property
    def details_of(self) -> tuple[Usage]:
        return (Usage(),)

    def judge(self, view: Times) -> Judgement:
        """Decides on workers per core."""
        few, many = fraction(self.parameters.min_threshold), fraction(self.parameters.max_threshold)
        return judgement(~np.isnan(view), (view, (view < few) | (view > many)))

    def prometheus_rules(self, scraping: Scraping) -> PrometheusRules:
        low, high = self.parameters.min_threshold, self.parameters.max_threshold
        return PrometheusRules(
            targets=SAMPLES,
            every=4 * MINUTE,
            records=[
                # The training loader of each rank counts, or its largest loader if no loader trains.
                Record(
                    PER_CORE,
                    f"""
                    sum without (rank) (
                      max without (phase) ({WORKERS}{{phase="train"}})
                        or
                      max without (phase) ({WORKERS})
                    )
                      / ignoring (run) group_left ()
                    count without (cpu) ({CORES})
                    """,
                )
            ],
            alerts=[
                Alert(
                    f"{PER_CORE} < {ratio(low)}\n  or {PER_CORE} > {ratio(high)}",
                    severity="info",
                    pending=240,  # ranks start their loaders at different times
                    summary="The number of data-loading workers does not suit the cores of "
                    "{{ $labels.instance }}",
                    description="The loaders of run {{ $labels.run }} have {{ $value | humanizePercentage }} "
                    "as many workers as {{ $labels.instance }} has cores "
                    f"(fires below {low:g} % and above {high:g} %).",
                )
            ],
        )

    def scraped(self, now: Moment, scraping: Scraping) -> Scraped[Times]:
        workers = now(WORKERS)
        training = {labels: value for labels, value in workers.items() if ("phase", "train") in labels}
        of_rank = {
            labels: max(values)
            for chosen in (workers, training)  # the training loader counts, if a rank has one
            for labels, values in grouped(chosen, "phase").items()
        }
        cores = grouped(now(CORES, of_run=False), "cpu")
        shares = {
            labels: found / len(cores[node])
            for labels, found in summed(of_rank, "rank").items()
            if (node := without(labels, "run")) in cores
        }
        nodes = list(shares)
        return Scraped(nodes, column(shares, nodes), now(SAMPLES), {PER_CORE: shares})

    def conclude(self, run: RunMeasurements, tallies: Tallies) -> Verdict:
        found = [_Loaders(name, run) for name in run.nodes]
        known = [loaders for loaders in found if loaders.workers is not None and loaders.cores]
        if not known:
            return Verdict(
                Status.NOT_ENOUGH_DATA, "No data loader was seen: pass loaders through trainwatch.watch."
            )
        view = np.array([(loaders.workers or 0) / loaders.cores for loaders in known])
        fired = list(compress(known, self.judge(view).fired))
        shown = max(fired or known, key=lambda loaders: abs(loaders.percent - 100))
        return Verdict(
            Status.FOUND if fired else Status.HEALTHY,
            f"{shown.node} has {count(shown.cores, 'core')} and {count(shown.workers or 0, 'worker')} "
            f"that load data ({percent(shown.percent)}){shown.notes()}.",
            len(fired),
            len(fired),
            int(sum(loaders.seconds for loaders in known)),
            details=_details(known),
        )


class _Loaders:
    """The loaders of a node, from the facts of each rank's last process."""

    def __init__(self, name: str, run: RunMeasurements) -> None:
        self.node = name
        measured, progress = run.nodes[name], run.nodes[name][Progress()]
        in_facts = next((len(node.cpus) for node in run.facts.nodes if node.node == name), 0)
        self.cores = measured[Usage()].cores or in_facts
        processes = [ranks[-1] for ranks in ranks_of(run.facts, name).values()]
        workers = [number for process in processes if (number := workers_of(process)) is not None]
        self.workers = sum(workers) if workers else None
        self.percent = 100 * (self.workers or 0) / self.cores if self.cores else 0.0
        self.seconds = max(0.0, progress.last_end - progress.first_start)
        self.waits = progress.data_waits
        loaders = [loader for process in processes for loader in process.loaders]
        self.pin_memory = _agreed(loader.pin_memory for loader in loaders)
        self.prefetch = _agreed(loader.prefetch_factor for loader in loaders)

    def notes(self) -> str:
        pinned = {True: ", memory is pinned", False: ", memory is not pinned"}.get(self.pin_memory, "")
        return pinned + (f", each prefetches {self.prefetch}" if self.prefetch is not None else "")


def _agreed(values: Iterable[Any]) -> Any:
    """Returns the common value of all known values, otherwise None."""
    known = {value for value in values if value is not None}
    return known.pop() if len(known) == 1 else None


def _details(found: Sequence[_Loaders]) -> dict[str, Any]:
    """Returns Debugger's fields for the node with the fewest workers per core; `nodes` has all nodes."""
    least = min(found, key=lambda loaders: loaders.percent)
    return {
        "cores": least.cores,
        "dataloaders": least.workers,
        "num_workers": least.workers,
        "pin_memory": least.pin_memory,
        "prefetch": least.prefetch,
        "dataloading_time": _waits(least.waits),
        "nodes": {
            node.node: {"cores": node.cores, "workers": node.workers, "percent": node.percent}
            for node in found
        },
    }


def _waits(waits: SizeSketch) -> dict[str, Any]:
    """Returns Debugger's histogram and percentiles of the seconds that steps waited for data."""
    if not waits.count:
        return {}
    probs, binedges = waits.histogram(HISTOGRAM_BINS)
    percentiles = {f"p{percent}": waits.percentile(percent) for percent in (25, 50, 95)}
    return {**percentiles, "probs": probs.tolist(), "binedges": binedges.tolist()}
