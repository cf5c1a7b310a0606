"""The run in short: the few numbers on the first screen, and the facts of the run summary."""

import math
from dataclasses import dataclass

from stepscope.common.words import (
    UNKNOWN,
    count,
    duration,
    gauge,
    listing,
    moment,
    money,
    number,
    percent,
    share,
    span,
)
from stepscope.evaluation.analysis import Analysis
from stepscope.measurements.counted import Counted
from stepscope.report import sentences, shares
from stepscope.report.ended import status_in_words
from stepscope.report.figures import cost_of_run, main_steps, step_seconds_mean
from stepscope.training.layout import FLOPS, SETTINGS

GAUGES = 8  # shown; the recording and the JSON have all


@dataclass(frozen=True)
class Figure:
    """One figure on the first screen."""

    name: str
    value: str
    note: str
    mood: str = ""  # of a comparison: good, bad, or nothing


def at_a_glance(analysis: Analysis, price: float | None = None) -> list[Figure]:
    """Returns the figures; `price`: dollars per hour of one node."""
    return [
        _duration(analysis),
        *_bill(analysis, price),
        _utilisation(analysis, "GPU"),
        _utilisation(analysis, "CPU"),
        _steps(analysis),
        *_throughput(analysis),
        _waiting(analysis),
    ]


def _duration(analysis: Analysis) -> Figure:
    name = "Duration" if analysis.finished else "Duration so far"
    ranks = count(analysis.ranks, "rank") if analysis.ranks else "no rank seen"
    return Figure(name, duration(analysis.run_seconds), f"{count(len(analysis.nodes), 'node')}, {ranks}")


def _bill(analysis: Analysis, price: float | None) -> list[Figure]:
    bill = cost_of_run(analysis, price)
    if bill is None or price is None:
        return []
    name = "Cost" if analysis.finished else "Cost so far"
    return [Figure(name, money(bill), f"{money(price)} per node and hour")]


def _utilisation(analysis: Analysis, resource: str) -> Figure:
    """Returns the mean over the run, of the GPU that was used least and of the one used most.

    The use of cores is that of the run itself, if it was measured, of those that it may use. Sources without
    samples over time have only a median.
    """
    if resource == "CPU" and (nodes := analysis.run_cores):
        shares = [100 * node.own / node.allowed for node in nodes]
        allowed, others = sum(node.allowed for node in nodes), sum(node.others for node in nodes)
        note = f"of the {allowed:g} cores it may use; others {percent(100 * others / allowed)}"
        return Figure("CPU in use", span(min(shares), max(shares)), note)
    traced = [device for device in analysis.devices if device.seconds]
    if resource == "GPU" and traced:
        busy = [100 * device.busy / device.seconds for device in traced]
        return Figure("GPU in use", span(min(busy), max(busy)), "of its traced time")
    rows = [row for row in analysis.usage if row.resource == resource and math.isfinite(row.p50)]
    name = f"{resource} in use"
    if not rows:
        absent = resource == "GPU" and not any(analysis.gpus.values())
        return Figure(name, "–", "no GPU was seen" if absent else "not read")
    top = f"p95 {percent(max(row.p95 for row in rows))}"
    means = _means(analysis, resource)
    if means:
        return Figure(name, span(min(means), max(means)), f"on average, {top}")
    low, high = min(row.p50 for row in rows), max(row.p50 for row in rows)
    return Figure(name, span(low, high), f"in half of the samples, {top}")


def _means(analysis: Analysis, resource: str) -> list[float]:
    """Returns the mean use of each GPU, or of the cores of each node, as the heatmaps show them."""
    found = []
    for one in analysis.heatmaps:
        rows = sentences.row_means(one).items()
        means = [
            mean
            for label, mean in rows
            if label.startswith("GPU") == (resource == "GPU") and mean is not None
        ]
        found += means if resource == "GPU" else [sum(means) / len(means)] if means else []
    return found


def _steps(analysis: Analysis) -> Figure:
    if not analysis.steps:
        return Figure("Steps", "–", "none recorded")
    rows, mean = main_steps(analysis), step_seconds_mean(analysis)
    slowest, fastest = max(rows, key=lambda row: row.p50), min(rows, key=lambda row: row.p50)
    ranks = f" on rank {slowest.rank}, the slowest" if len(rows) > 1 else ""
    if len(rows) > 1 and duration(slowest.p50) == duration(fastest.p50):
        ranks = f" on each of {len(rows)} ranks"
    note = f"mean of {number(sum(row.count for row in rows))}; median {duration(slowest.p50)}{ranks}"
    return Figure(f"{slowest.phase.capitalize()} step", duration(mean), note)


def _throughput(analysis: Analysis) -> list[Figure]:
    """Returns tokens or samples per second, and MFU, if the script counts them."""
    paces = {each.name: each for each in analysis.counted if each.per_second is not None}
    found = []
    each = paces.get("tokens") or paces.get("samples")
    if each is not None and each.per_second is not None:
        pace = f"{_amount(each.per_second)} {each.name}/s"
        found.append(Figure("Throughput", pace, f"{_amount(each.total)} {each.name} in all"))
    if analysis.flops_utilisation is not None:
        said = "of the peak that the script gives"
        if not any(each.name == FLOPS for each in analysis.counted):
            said += ", by the operators of profile windows"
        found.append(Figure("MFU", percent(100 * analysis.flops_utilisation), said))
    return found


def _waiting(analysis: Analysis) -> Figure:
    waited = shares.data_wait(analysis)
    if waited is None:
        return Figure("Waiting for data", "–", "not measured")
    return Figure("Waiting for data", share(waited, 1), "of the time in steps")


def facts(analysis: Analysis, price: float | None = None) -> list[tuple[str, str]]:
    """Returns names and values; `price`: dollars per hour of one node."""
    end = moment(analysis.end_date) if analysis.finished else "not yet, or not recorded"
    bill = cost_of_run(analysis, price)
    cost = f"{money(bill)}, at {money(price)} per node and hour" if bill is not None and price else ""
    named = [
        ("Command", analysis.command or UNKNOWN),
        ("Start", moment(analysis.date)),
        ("End", end),
        ("Duration", duration(analysis.run_seconds)),
        ("Exit status", status_in_words(analysis)),
        ("Framework", analysis.framework or UNKNOWN),
        ("Gauges", _gauges(analysis)),
        ("Counted", listing([_counted(each) for each in analysis.counted])),
        ("Ranks", _ranks(analysis)),
        ("Nodes", _shortened(analysis.nodes) or "none"),
        ("GPUs", _models(analysis)),
        ("Cores", _cores(analysis)),
        ("Cost", cost),
    ]
    return [(name, value) for name, value in named if value]


def _gauges(analysis: Analysis) -> str:
    """Returns the last values of what script and framework name, the framework's step and epoch first."""
    first = [name for name in ("global_step", "epoch", "loss") if name in analysis.gauges]
    names = [*first, *(name for name in analysis.gauges if name not in first and name not in SETTINGS)]
    more = [f"{len(names) - GAUGES} more"] if len(names) > GAUGES else []
    return listing([f"{name} {gauge(analysis.gauges[name])}" for name in names[:GAUGES]] + more)


def _counted(counted: Counted) -> str:
    pace = "" if counted.per_second is None else f" ({_amount(counted.per_second)} per second)"
    return f"{_amount(counted.total)} {counted.name}{pace}"


def _amount(value: float) -> str:
    return number(value) if value < 1e9 else f"{value:.3g}"


def _ranks(analysis: Analysis) -> str:
    if not analysis.ranks:
        return "none seen"
    if analysis.world_size > analysis.ranks:
        return f"{analysis.ranks} of {analysis.world_size} seen"
    return str(analysis.ranks)


def _models(analysis: Analysis) -> str:
    """Returns the models and their number over all nodes: "8 × NVIDIA H100"."""
    models: dict[str, int] = {}
    for names in analysis.gpus.values():
        for name in names:
            model = name.partition(": ")[2] or "GPU of an unknown model"
            models[model] = models.get(model, 0) + 1
    return listing([f"{count} × {model}" for model, count in models.items()]) or "none seen"


def _cores(analysis: Analysis) -> str:
    sizes = sorted({size for size in analysis.cores.values() if size})
    if not sizes:
        return UNKNOWN
    if len(analysis.cores) == 1:
        return str(sizes[0])
    span = str(sizes[0]) if len(sizes) == 1 else f"{sizes[0]} to {sizes[-1]}"
    return f"{count(sum(analysis.cores.values()), 'core')}, {span} per node"


def _shortened(names: list[str]) -> str:
    if len(names) <= 4:
        return listing(names)
    return f"{len(names)}: {', '.join(names[:3])}, … {names[-1]}"
