"""Right-sizing: predicts the effect of fewer or more devices, cores or workers, and of a larger batch.

Every prediction is for one change, with everything else as before. docs/right-sizing.md derives the numbers.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import astuple, dataclass, replace
from typing import Any

from stepscope.common.status import Status
from stepscope.common.words import (
    count,
    duration,
    in_words,
    listing,
    money,
    number,
    rough_duration,
    rough_money,
    share,
)
from stepscope.evaluation.analysis import Analysis
from stepscope.report import figures
from stepscope.report.figures import cost
from stepscope.report.price_list import Machine, machine_of
from stepscope.report.step_model import (
    Factor,
    batch_times,
    cores_enough,
    enough_of,
    faster_loading,
    fewer_cores,
    fewer_devices,
    larger_batch,
    loading_in_workers,
)
from stepscope.report.usage import WELL_USED
from stepscope.rules.batch_size import BatchSize
from stepscope.rules.data_starved import DataStarved
from stepscope.rules.low_gpu_utilization import LowGPUUtilization
from stepscope.rules.parts.data_loading import SHORT_FETCH

WELL = WELL_USED / 100
FILL = 0.9  # of a GPU's memory: the rest is for what the allocator cannot use, and for longer inputs
UNUSED_UTILISATION, UNUSED_MEMORY = 1.0, 5.0  # percent: a driver and a monitor may take this
ENOUGH_SAMPLES = 120  # of a node, before predicting its needs: a minute at 500 ms


@dataclass(frozen=True)
class Prediction:
    """One figure of the next run, if one thing is changed and nothing else."""

    change: str  # "more_workers", "more_cores", "larger_batch", "fewer_nodes", "fewer_gpus" or "fewer_cores"
    resource: str  # counted by `current` and `suggested`: "loader workers of a rank"
    current: float
    suggested: float
    metric: str  # a key of figures.METRICS
    measured: float  # in this run; seconds, dollars or a ratio, as `metric` says
    expected: float
    low: float
    high: float
    sentence: str
    assumption: str


@dataclass(frozen=True)
class _Change:
    """A change, with its effect on the time of the training steps and on the cost."""

    name: str
    resource: str
    current: float
    suggested: float
    words: str  # "With 2 loader workers per rank instead of 1"
    assumption: str
    factor: Factor  # of the time for the same work
    nodes: int | None = None  # that are paid for; None: the price of such a machine is unknown
    price_factor: float = 1.0  # of a node
    price_assumption: str = ""
    price: float | None = None  # of a node, if its type is in the price list; None: `price_factor` holds
    step: Factor | None = None  # of a step, if the work per step changes; None: same as `factor`


def predictions(
    analysis: Analysis,
    price: float | None = None,
    machines: Sequence[Machine] = (),
) -> list[Prediction]:
    """Returns the changes worth trying, those that make the run faster first; empty for a well-used machine.

    `price`: dollars per hour of one node. `machines`: of which the change names the cheapest that serves, if
    the run's own is one of them.
    """
    found: list[Prediction] = []
    run, current = _Run(analysis), machine_of(analysis, machines, price)
    for change in _changes(run):
        named = change if current is None else _on_machine(change, run, current, machines)
        found += _predictions(analysis, named, price)
    return found


class _Run:
    """The figures that decide about changes. Shares are 0..1."""

    def __init__(self, analysis: Analysis) -> None:
        self.analysis = analysis
        self.nodes = len(analysis.nodes)
        self.gpus = _same(len(names) for names in analysis.gpus.values())  # of each node
        self.cores = _same(analysis.cores.values())  # of each node
        self.ranks = math.ceil(analysis.ranks / max(self.nodes, 1))  # of a node
        self.whole = analysis.world_size <= analysis.ranks  # every rank was seen
        self.samples = analysis.samples_taken / max(self.nodes, 1)
        self.gpu = _busiest_gpu(analysis)
        self.cpu = figures.cpu_utilization_mean(analysis)
        self.cpu_p99 = _highest(analysis, "CPU", "p99")
        self.memory = max((use.memory_max for use in analysis.gpu_use), default=math.nan) / 100
        self.waits = analysis.found(DataStarved)
        self.loading = _waiting_longest(analysis.details_of(DataStarved))

        result = analysis.result_of(LowGPUUtilization)
        self.load_judged = result is not None and result.status.judged
        # Whether data comes too late: usage would then be different with faster loading.
        self.starved = any(
            rule.definition.waits_for_data and rule.status is Status.FOUND for rule in analysis.rules
        )


def _changes(run: _Run) -> Iterator[_Change]:
    yield from _more_workers(run)
    yield from _more_cores(run)
    yield from _larger_batch(run)
    yield from list(_fewer_nodes(run)) or list(_unused_gpus(run)) or _fewer_gpus(run)
    yield from _fewer_cores(run)


# ---------------------------------------------------------------------------- the loader and its cores


@dataclass(frozen=True)
class _Loading:
    """The data loading of one rank, from the details of DataStarved."""

    waiting: float  # share of the step time
    cause: str | None
    workers: int | None
    cores: float  # for each rank of the node
    needed: int | None  # workers that would keep up; None: fetches were not timed
    suggested: int | None  # workers; None: more are no remedy, or it is not known
    step: float  # seconds


def _waiting_longest(details: Mapping[str, Any]) -> _Loading | None:
    """Returns the loading of the rank that waited longest; None if steps, waits or cores are not known."""
    rows = details.get("ranks", [])
    if not rows:
        return None
    row = max(rows, key=lambda row: row["data_wait_seconds"])
    if row["cores"] is None:
        return None
    waiting = min(row["percent"] / 100, 0.999)  # two clocks: a step is never all waiting
    step = row["step_seconds"] / row["steps"]
    workers = row["workers"], row["cores"], row["workers_needed"], row["workers_suggested"]
    return _Loading(waiting, row["cause"], *workers, step)


def _more_workers(run: _Run) -> Iterator[_Change]:
    loading = run.loading
    if not run.waits or loading is None:
        return
    workers, suggested = loading.workers, loading.suggested
    if suggested is None and loading.needed is None and loading.cause == "too few workers":
        suggested = max(1, int(loading.cores))
    if workers is None or suggested is None or suggested <= workers:
        return
    yield _Change(
        "more_workers",
        "loader workers of a rank",
        workers,
        suggested,
        f"With {count(suggested, 'loader worker')} per rank instead of {number(workers)}",
        (
            "Each worker has its own core and storage keeps up: batches come "
            f"{number(suggested / workers)} times as fast until no step waits for them."
            if workers
            else "Workers make batches while the rank computes. Cores and storage keep up with them, and "
            "handing a batch over takes some milliseconds at most."
        ),
        faster_loading(loading.waiting, suggested / workers)
        if workers
        else loading_in_workers(loading.waiting, suggested, SHORT_FETCH / loading.step),
        run.nodes,
    )


def _more_cores(run: _Run) -> Iterator[_Change]:
    loading, cores = run.loading, run.cores
    if not run.waits or loading is None or loading.cause != "heavy transform" or not cores:
        return
    keeping_up = None if loading.needed is None else math.ceil(loading.needed * max(run.ranks, 1))
    suggested = 2 * cores if keeping_up is None else min(keeping_up, 2 * cores)
    if suggested <= cores:
        return
    enough = keeping_up is None or keeping_up == suggested
    yield _Change(
        "more_cores",
        "cores of a node",
        cores,
        suggested,
        f"With {suggested} cores per node instead of {cores}",
        "The loader gets as many more workers as there are cores, and batches come "
        f"{number(suggested / cores)} times as fast until no step waits for them."
        + ("" if enough else f" To keep up altogether, this transform would take {keeping_up} cores."),
        faster_loading(loading.waiting, suggested / cores),
    )


# ------------------------------------------------------------------------------ GPUs, nodes and cores


def _larger_batch(run: _Run) -> Iterator[_Change]:
    if not run.analysis.found(BatchSize) or run.starved or run.gpu is None or not run.memory > 0:
        return
    times = batch_times(run.gpu, run.memory, WELL, FILL)
    if times < 2:
        return
    sizes = {loader.get("batch_size") for loader in run.analysis.loaders if loader["phase"] == "train"}
    known = sizes.pop() if len(sizes) == 1 else None
    current = known or 1
    factor = larger_batch(run.gpu, times, min(_loaders_busy(run.analysis), 1.0))
    of_a_step = Factor(factor.expected * times, 1.0 if factor.low * times < 1 else factor.low * times, times)
    yield _Change(
        "larger_batch",
        "items of a rank's batch" if known else "batch, as a multiple of today's",
        current,
        current * times,
        f"With batches of {times * known} instead of {known}"
        if known
        else f"With batches {in_words(times)} times as large",
        f"Kernels take {in_words(times)} times as long and the gaps between them stay as they are; the "
        f"GPU's memory is then at most {share(times * run.memory, 1)} full instead of "
        f"{share(run.memory, 1)}, and the model learns as much from as many items.",
        factor,
        run.nodes,
        step=of_a_step,
    )


def _fewer_nodes(run: _Run) -> Iterator[_Change]:
    used = [use for use in (run.gpu, run.cpu_p99) if use is not None]
    if run.nodes < 2 or not used or not run.whole or not _may_shrink(run):
        return
    nodes = enough_of(run.nodes, max(used), WELL)
    if nodes == run.nodes:
        return
    times = run.nodes // nodes
    yield _Change(
        "fewer_nodes",
        "nodes",
        run.nodes,
        nodes,
        f"With {count(nodes, 'node')} instead of {run.nodes}",
        f"Each node does the work of {in_words(times)}, one after the other, with as many loader workers in "
        "all as before; the global batch stays, and data comes as fast as it did.",
        fewer_devices(run.gpu if run.gpu is not None else max(used), nodes / run.nodes, run.starved),
        nodes,
    )


def _unused_gpus(run: _Run) -> Iterator[_Change]:
    used = _most_used_gpus_of_a_node(run.analysis)
    if not run.gpus or not 0 < used < run.gpus or not run.load_judged:
        return
    yield _gpus_change(
        run,
        used,
        f"The run used no more than {used} of them: the others did nothing in 95 % of the samples, and "
        "next to none of their memory was in use.",
        Factor(1.0, 1.0, 1.0),
    )


def _fewer_gpus(run: _Run) -> Iterator[_Change]:
    if not run.gpus or run.gpu is None or not run.whole or not _may_shrink(run):
        return
    gpus = enough_of(run.gpus, run.gpu, WELL)
    if gpus == run.gpus:
        return
    times = run.gpus // gpus
    yield _gpus_change(
        run,
        gpus,
        f"Each GPU does the work of {in_words(times)}, one after the other (gradients of {in_words(times)} "
        "batches summed up), the cores stay"
        + (", and data comes as fast as it did." if run.starved else ", and gaps between kernels stay."),
        fewer_devices(run.gpu, gpus / run.gpus, run.starved),
    )


def _gpus_change(run: _Run, gpus: int, assumption: str, factor: Factor) -> _Change:
    assert run.gpus
    of_node = "" if run.nodes == 1 else " per node"
    return _Change(
        "fewer_gpus",
        "GPUs of a node",
        run.gpus,
        gpus,
        f"With {count(gpus, 'GPU')}{of_node} instead of {run.gpus}",
        assumption,
        factor,
        run.nodes,
        gpus / run.gpus,
        f" A machine with {count(gpus, 'GPU')} costs {gpus}/{run.gpus} of the price; at most as much as now.",
    )


_OTHER_MACHINE = ("fewer_gpus", "fewer_cores", "more_cores")  # changes of the node itself


def _on_machine(change: _Change, run: _Run, current: Machine, machines: Sequence[Machine]) -> _Change:
    """Returns the change with the cheapest type that has what it needs, if that is another one.

    With fewer GPUs, cores keep up at 70 % of their p99, but stay if ranks wait for data. Memory holds what
    was used at most.
    """
    used = _highest(run.analysis, "CPU memory", "max")
    if change.name not in _OTHER_MACHINE or used is None:
        return change
    gpus, cores = float(current.gpus), float(current.cores)
    if change.name == "fewer_gpus":
        gpus = change.suggested
        if not run.starved and run.cpu_p99 is not None and run.samples >= ENOUGH_SAMPLES:
            cores = cores_enough(current.cores, run.cpu_p99, WELL, least=max(1, int(gpus)))
    else:
        cores = change.suggested
    memory = min(used / FILL, 1.0) * current.memory_gib
    serving = [machine for machine in machines if machine.has(current, gpus, cores, memory)]
    best = min(serving, key=lambda machine: machine.price_per_hour, default=current)
    if best == current or (change.name != "more_cores" and best.price_per_hour >= current.price_per_hour):
        return change
    named = f"({current.name} to {best.name})"
    return replace(
        change,
        resource=f"{change.resource} {named}",
        words=f"{change.words} {named}",
        nodes=run.nodes,
        price=best.price_per_hour,
        price_assumption=f" {best}.",
    )


def _may_shrink(run: _Run) -> bool:
    return run.load_judged if run.gpu is not None else run.samples >= ENOUGH_SAMPLES


def _fewer_cores(run: _Run) -> Iterator[_Change]:
    if run.starved or not run.cores or run.cpu_p99 is None or run.cpu is None:
        return
    if run.samples < ENOUGH_SAMPLES:
        return
    cores = cores_enough(run.cores, run.cpu_p99, WELL, least=max(run.ranks, run.gpus or 0))
    if cores > run.cores / 2:
        return
    yield _Change(
        "fewer_cores",
        "cores of a node",
        run.cores,
        cores,
        f"With {count(cores, 'core')} per node instead of {run.cores}",
        f"In 99 % of the samples all cores together did the work of {number(run.cores * run.cpu_p99)} cores. "
        "At worst they did it in bursts on all cores at once, and these would take longer.",
        fewer_cores(run.cpu, cores / run.cores),
    )


# -------------------------------------------------------------------------------- figures and words


def _predictions(analysis: Analysis, change: _Change, price: float | None) -> Iterator[Prediction]:
    step, run = figures.step_seconds_mean(analysis), analysis.run_seconds
    # The script decides what a step is on fewer devices: one large step, or several small ones.
    if step is not None and change.name not in ("fewer_gpus", "fewer_nodes"):
        bounds = [step * factor for factor in astuple(change.step or change.factor)]
        yield _prediction(change, "step_seconds_mean", step, bounds, change.assumption)
    if run is None or run <= 0:
        return
    training = figures.steps_seconds(analysis)
    training = run if training is None else min(training, run)
    seconds = [run - training + training * factor for factor in astuple(change.factor)]
    yield _prediction(change, "run_seconds", run, seconds, change.assumption)
    if price is not None and change.nodes is not None and analysis.nodes:
        prices = [price * factor for factor in (change.price_factor, change.price_factor, 1.0)]
        if change.price is not None:
            prices = [change.price] * 3
        bill = [cost(change.nodes, *each) for each in zip(seconds, prices, strict=True)]
        yield _prediction(
            change,
            "cost",
            cost(len(analysis.nodes), run, price),
            bill,
            change.assumption + change.price_assumption,
        )


_WOULD: dict[str, tuple[str, Callable[[float], str], Callable[[float], str]]] = {
    "step_seconds_mean": ("the mean training step would take", duration, rough_duration),
    "run_seconds": ("the run would take", duration, rough_duration),
    "cost": ("the run would cost", money, rough_money),
}


def predicted_figure(metric: str, value: float, measured: float) -> str:
    """Writes a predicted figure to two digits; if they do not change, as it was measured."""
    _, exact, rough = _WOULD[metric]
    return exact(measured) if rough(value) == rough(measured) else rough(value)


def _prediction(
    change: _Change, metric: str, measured: float, values: list[float], assumption: str
) -> Prediction:
    expected, low, high = values
    would, exact, _ = _WOULD[metric]
    was = exact(measured)
    said, least, most = (predicted_figure(metric, value, measured) for value in values)
    about = f"about {said} instead of {was}" if said != was else f"{was}, as it did"
    bounds = [f"{word} {limit}" for word, limit in (("at least", least), ("at most", most)) if limit != said]
    within = f" ({listing(bounds)})" if bounds else ""
    return Prediction(
        change=change.name,
        resource=change.resource,
        current=change.current,
        suggested=change.suggested,
        metric=metric,
        measured=measured,
        expected=expected,
        low=low,
        high=high,
        sentence=f"{change.words} {would} {about}{within}.",
        assumption=assumption,
    )


# ------------------------------------------------------------------------------ reading an analysis


def _busiest_gpu(analysis: Analysis) -> float | None:
    """Returns the mean utilisation during training of the GPU that was used most; None if none was read.

    Without steps the time of training is unknown: then its 95th percentile over the run.
    """
    if analysis.steps:
        return max(figures.gpu_utilization_means(analysis), default=None)
    known = [use.p95 / 100 for use in analysis.gpu_use if math.isfinite(use.p95)]
    return max(known, default=None)


def _most_used_gpus_of_a_node(analysis: Analysis) -> int:
    """Returns the number of used GPUs on the node with most of them; unread GPUs count as used."""
    used = dict.fromkeys(analysis.nodes, 0)
    for use in analysis.gpu_use:
        unused = use.p95 < UNUSED_UTILISATION and use.memory_p95 < UNUSED_MEMORY
        used[use.node] = used.get(use.node, 0) + (not unused)
    return max(used.values(), default=0)


def _loaders_busy(analysis: Analysis) -> float:
    """Returns the share of training in which the workers of the busiest loader fetched; 0 if unknown."""
    seconds = figures.steps_seconds(analysis)
    timed = [
        loader["fetch_seconds"] / loader["workers"]
        for loader in analysis.loaders
        if loader["phase"] == "train" and loader["workers"]
    ]
    return max(timed, default=0.0) / seconds if seconds else 0.0


def _highest(analysis: Analysis, resource: str, statistic: str) -> float | None:
    """Returns the highest value of all nodes, 0..1."""
    values = [getattr(row, statistic) for row in analysis.usage if row.resource == resource]
    known = [value / 100 for value in values if math.isfinite(value)]
    return max(known, default=None)


def _same(numbers: object) -> int | None:
    """Returns the number that all nodes share; None if they differ or have none."""
    found = set(numbers)  # type: ignore[call-overload]
    return found.pop() or None if len(found) == 1 else None
