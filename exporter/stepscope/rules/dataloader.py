"""Dataloader: the number of data-loading workers does not suit the number of cores.

Source: SageMaker Debugger's Dataloader (which its report leaves out). Debugger guesses the workers from how
many were active in a second; here they are the configured workers of the loaders. Debugger does not look at
time: too few workers fire even if no step ever waits for a batch. Here the wait of steps decides. Debugger's
count is in the JSON.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import compress
from typing import Annotated, Any, NamedTuple

import numpy as np

from stepscope.common.status import Status
from stepscope.common.words import count, percent
from stepscope.measurements.measure import Measure, RunMeasurements
from stepscope.measurements.own_cores import OWN_CORES
from stepscope.measurements.progress import PROGRESS
from stepscope.measurements.scraped import STEPS, Moment, Scraped, column
from stepscope.measurements.sketch import SizeSketch
from stepscope.measurements.steps import RankComponents
from stepscope.measurements.usage import USAGE
from stepscope.rules.cpu_throttled import LIMIT
from stepscope.rules.parts.base import Rule, Verdict
from stepscope.rules.parts.expressions import Record, Shared
from stepscope.rules.parts.judgement import Booleans, Judgement, Tallies, judgement
from stepscope.rules.parts.parameters import AnyPercent, Parameters, Percent, fraction
from stepscope.rules.parts.promql import MINUTE, Alert, PrometheusRules, Scraping, ratio
from stepscope.rules.parts.registry import rule
from stepscope.rules.parts.remedies import HOOKS
from stepscope.rules.parts.topics import IDLE_GPUS
from stepscope.runs.model import Times, ranks_of, workers_of
from stepscope.training.layout import PY_WORKERS

PER_CORE = "run_instance:stepscope_dataloader_workers_per_core:ratio"
WORKERS = "stepscope_dataloader_workers"
ALL_WORKERS = "run_instance:stepscope_dataloader_workers:sum"
WAITED = "run_instance:stepscope_data_wait:most_ratio"
WAIT = "stepscope_step_component_seconds_total"
CORES = "stepscope_cpus"  # of the node
CPUS = "stepscope_run_cpus"
HISTOGRAM_BINS = 100  # Debugger's number
DATA_WAITS = Measure(RankComponents, "data_wait")


class Loading(NamedTuple):
    """The workers and the waits of each node; elementwise."""

    per_core: Times  # workers per core that the run may use
    waited: Times  # the largest share of its step time that a rank waited for data; NaN: not timed


@dataclass(frozen=True)
class DataloaderParameters(Parameters):
    min_threshold: Annotated[AnyPercent, "too few workers: below this share of the run's cores"] = 70
    max_threshold: Annotated[AnyPercent, "too many workers: above this share of the run's cores"] = 200
    data_wait: Annotated[
        Percent, "too few workers: only if a rank waits for data for more than this share of its step time"
    ] = 10


@rule
class Dataloader(Rule[DataloaderParameters, Loading]):
    """Fires once per node. It estimates no lost time: DataStarved does."""

    subject = "An unsuitable number of loader workers"
    question = "Does the number of data-loading workers suit the number of cores?"
    description = (
        "Compares the workers of all training loaders on a node with the cores that the run may use there. "
        "Too few leave cores idle that could prepare data: they count only if steps wait for it. Too many "
        "only compete for the cores."
    )
    recommendation = "Set the number of workers to about the number of cores that each rank may use."
    topic = "data loading"
    distance = 3
    explains_late_data = 2
    view = "loading"
    symptom = IDLE_GPUS

    measure = PROGRESS
    details_of = (USAGE, OWN_CORES, DATA_WAITS)

    def judge(self, view: Loading) -> Judgement:
        """Decides on workers per core; whether few of them are too few is known only if waits were timed."""
        few, many = self._beyond(view.per_core)
        late = view.waited > fraction(self.parameters.data_wait)
        known = ~np.isnan(view.per_core) & ~(few & np.isnan(view.waited))
        return judgement(known, (view.per_core, (few & late) | many))

    def _beyond(self, per_core: Times) -> tuple[Booleans, Booleans]:
        """Returns which nodes have few workers per core, and which have many."""
        least, most = fraction(self.parameters.min_threshold), fraction(self.parameters.max_threshold)
        return per_core < least, per_core > most

    def prometheus_rules(self, scraping: Scraping) -> PrometheusRules:
        low, high = self.parameters.min_threshold, self.parameters.max_threshold
        cpus = scraping.held(CPUS)
        waits = scraping.held(f'{WAIT}{{component="data_wait"}}')
        # All cores of the node count if it is not known which of them the run may use.
        per_core = f"""
            {ALL_WORKERS} / (({scraping.held(LIMIT)} < {cpus}) or {cpus})
              or
            {ALL_WORKERS} / ignoring (run) group_left () {scraping.held(CORES)}
            """
        return PrometheusRules(
            targets=Record(PER_CORE, per_core),
            every=4 * MINUTE,
            records=[
                # The training loader of each rank counts, or its largest loader if no loader trains.
                Record(
                    ALL_WORKERS,
                    f"""
                    sum without (rank) (
                      max without (phase) ({scraping.held(f'{WORKERS}{{phase="train"}}')})
                        or
                      max without (phase) ({scraping.held(WORKERS)})
                    )
                    """,
                ),
                Record(PER_CORE, per_core),
                # Since each rank's start: that is steadier than the last minutes.
                Record(
                    WAITED,
                    f"""
                    max without (rank) (
                      sum without (phase, component) ({waits})
                        / sum without (phase) ({scraping.held(f"{STEPS}_sum")})
                    )
                    """,
                ),
            ],
            alerts=[
                Alert(
                    f"{PER_CORE} < {ratio(low)} and {WAITED} > {ratio(self.parameters.data_wait)}\n"
                    f"  or {PER_CORE} > {ratio(high)}",
                    severity="info",
                    pending=240,  # ranks start their loaders at different times
                    summary="The number of data-loading workers does not suit the cores of "
                    "{{ $labels.instance }}",
                    description="The loaders of run {{ $labels.run }} have {{ $value | humanizePercentage }} "
                    "as many workers as the run may use cores of {{ $labels.instance }} "
                    f"(fires below {low:g} %, if steps wait for data, and above {high:g} %).",
                )
            ],
        )

    def scraped(self, now: Moment, scraping: Scraping) -> Scraped[Loading]:
        of_training, every = (
            scraping.held(f"{WORKERS}{of_phase}").max_without("phase") for of_phase in ('{phase="train"}', "")
        )
        limits, allowed = scraping.held(LIMIT), scraping.held(CPUS)
        of_node = Shared(scraping.held(CORES, of_run=False), ignoring=("run",))
        workers = (of_training | every).sum_without("rank")
        per_core = workers / ((limits < allowed) | allowed) | workers / of_node
        waits = scraping.held(f'{WAIT}{{component="data_wait"}}').sum_without("phase", "component")
        waited = (waits / scraping.held(f"{STEPS}_sum").sum_without("phase")).max_without("rank")
        records = {ALL_WORKERS: workers, PER_CORE: per_core, WAITED: waited}
        found = {name: expression.value(now) for name, expression in records.items()}
        nodes = list(found[PER_CORE])
        view = Loading(column(found[PER_CORE], nodes), column(now.recorded(WAITED), nodes))
        return Scraped(nodes, view, found)

    def conclude(self, run: RunMeasurements, tallies: Tallies) -> Verdict:
        found = [_Loaders(name, run) for name in run.nodes]
        known = [loaders for loaders in found if loaders.workers is not None and loaders.cores]
        if not known:
            return Verdict(
                Status.NOT_ENOUGH_DATA,
                f"No data loader with workers was seen. {HOOKS} see those of PyTorch and Keras; pass others "
                "through `stepscope.watch`.",
            )
        per_core = np.array([(loaders.workers or 0) / loaders.cores for loaders in known])
        judged = self.judge(Loading(per_core, np.array([loaders.waited for loaders in known]) / 100))
        fired = list(compress(known, judged.fired))
        unknown = list(compress(known, ~judged.enough))
        shown = max(fired or unknown or known, key=lambda loaders: abs(loaders.percent - 100))
        wrong = (", too few" if shown.percent < 100 else ", too many") if fired else ""
        loading = f"{count(shown.workers or 0, 'worker')} that load data ({percent(shown.percent)}{wrong})"
        few, many = self._beyond(per_core)
        wait = shown.wait_in_words() if few[known.index(shown)] else ""
        return Verdict(
            Status.FOUND if fired else Status.NOT_ENOUGH_DATA if unknown else Status.HEALTHY,
            f"{shown.node} has {shown.of_cores()} {loading}{shown.notes()}{wait}.",
            len(fired),
            len(fired),
            int(sum(loaders.seconds for loaders in known)),
            recommendation=shown.advice() if fired else None,
            details=_details(known),
            debugger_triggered=int(np.count_nonzero(few | many)),
        )


class _Loaders:
    """The loaders of a node, from the facts of each rank's last process."""

    def __init__(self, name: str, run: RunMeasurements) -> None:
        self.node = name
        measured, progress = run.nodes[name], run.nodes[name][PROGRESS]
        in_facts = next((len(node.cpus) for node in run.facts.nodes if node.node == name), 0)
        own = measured[OWN_CORES]
        self.of_node = measured[USAGE].cores or in_facts
        self.limit = own.limit
        self.cores = float(own.allowed) if own.allowed == own.allowed else float(self.of_node)
        processes = [ranks[-1] for ranks in ranks_of(run.facts, name).values()]
        workers = [number for process in processes if (number := workers_of(process)) is not None]
        self.workers = sum(workers) if workers else None
        self.ranks = len(processes)
        self.percent = 100 * (self.workers or 0) / self.cores if self.cores else 0.0
        self.seconds = max(0.0, progress.last_end - progress.first_start)
        self.waits = progress.data_waits
        shares = [rank.percent for rank in measured[DATA_WAITS].ranks.values() if rank.whole]
        self.waited = max(shares, default=np.nan)  # percent of the step time of the rank that waited most
        loaders = [loader for process in processes for loader in process.loaders]
        self.pin_memory = _agreed(loader.pin_memory for loader in loaders)
        self.prefetch = _agreed(loader.prefetch_factor for loader in loaders)
        of_keras = any(PY_WORKERS in process.gauges for process in processes)
        self.option = "workers" if of_keras else "num_workers"

    def of_cores(self) -> str:
        """Returns "8 cores and", or "192 cores, of which the run may use 4 because of its CPU limit, and"."""
        node = count(self.of_node, "core")
        if self.cores >= self.of_node:
            return f"{node} and"
        reason = " because of its CPU limit" if self.cores == self.limit else ""
        return f"{node}, of which the run may use {self.cores:g}{reason}, and"

    def advice(self) -> str | None:
        """Returns what to do if the run may use a part of the node; None for the rule's recommendation."""
        if self.cores >= self.of_node:
            return None
        each = max(1, round(self.cores / max(self.ranks, 1)))
        more = ""
        if (self.workers or 0) > self.cores:
            what = "CPU limit" if self.cores == self.limit else "affinity or cpuset"
            more = f", or raise its {what} to {self.workers} cores"
        return f"Give each rank {count(each, 'worker')} ({self.option}={each}){more}."

    def wait_in_words(self) -> str:
        """Returns "; steps of a rank waited for data for up to 47 % of their time", or that it is unknown."""
        if np.isnan(self.waited):
            return "; no step was timed, so it is unknown whether they are too few"
        return f"; steps of a rank waited for data for up to {percent(self.waited)} of their time"

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
        "cores": least.of_node,
        "allowed_cores": least.cores,
        "dataloaders": least.workers,
        "num_workers": least.workers,
        "pin_memory": least.pin_memory,
        "prefetch": least.prefetch,
        "dataloading_time": _waits(least.waits),
        "nodes": {
            node.node: {
                "cores": node.of_node,
                "allowed_cores": node.cores,
                "workers": node.workers,
                "percent": node.percent,
            }
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
