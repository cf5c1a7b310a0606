"""The figures that are set side by side, each under the name by which --fail-if knows it."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

from trainwatch.compare.bootstrap import Interval, intervals, statistics
from trainwatch.compare.compared_run import ComparedRun
from trainwatch.compare.parts import step_time
from trainwatch.compare.step_series import mean_over_ranks
from trainwatch.report import cost, shares
from trainwatch.report.cost import cost_of_run
from trainwatch.words import NO_NUMBER, change

UTILISATION = ("p50", "p95", "p99", "max", "min")
RESOURCES = {
    "gpu": "GPU",
    "gpu_memory": "GPU memory",
    "cpu": "CPU",
    "cpu_memory": "CPU memory",
    "io_wait": "I/O wait",
    "network": "Network",
    "disk": "Disk",
}
# By figure: its name, its unit, and whether less is better (None: neither).
KINDS: dict[str, tuple[str, str, bool | None]] = {
    "duration": ("Duration", "s", True),
    "cost": ("Cost", "$", True),
    "cost_per_1000_steps": ("Cost of 1000 steps", "$", True),
    "energy": ("Energy of the GPUs", "J", True),
    "energy_per_step": ("Energy of a step", "J", True),
    "steps": ("Steps", "", None),
    "step_mean": ("A step, mean", "s", True),
    "step_p50": ("A step, median", "s", True),
    "step_p95": ("A step, p95", "s", True),
    "item_mean": ("An item, mean", "s", True),
    "steps_per_second": ("Throughput", "steps/s", False),
    "items_per_second": ("Throughput", "items/s", False),
    "data_wait": ("Waiting for data", "%", True),
    "time_to_first_step": ("Until the first step", "s", True),
}
USAGE_KINDS = {
    f"{key}_{statistic}": (
        f"{name}, {statistic}",
        "B/s" if key in ("network", "disk") else "%",
        None,
    )
    for key, name in RESOURCES.items()
    for statistic in UTILISATION
}
ALIASES = {"throughput": "steps_per_second"}  # what people call it


@dataclass(frozen=True)
class Figure:
    """One figure of both runs, None if unknown. `less_is_better`: None if neither direction is."""

    key: str
    name: str
    unit: str  # s, $, J, %, B/s, steps/s, items/s; "" is a number
    less_is_better: bool | None
    a: float | None
    b: float | None
    interval: Interval | None = None  # of the change, for step times

    @property
    def change(self) -> float | None:
        """Returns (B - A) / A; None if a value is unknown or A is 0."""
        if self.a is None or self.b is None:
            return None
        if self.a == self.b:
            return 0.0
        return (self.b - self.a) / self.a if self.a else None

    @property
    def seen_change(self) -> float | None:
        """Returns the change; 0 if the runs are too noisy to show one."""
        return 0.0 if self.interval is not None and not self.interval.seen else self.change


def figures(a: ComparedRun, b: ComparedRun, phase: str | None) -> dict[str, Figure]:
    """Returns the figures by key, without those that neither run has. `phase`: whose steps are compared."""
    values = _values(a, phase), _values(b, phase)
    usage = _usage(a), _usage(b)
    known = _intervals(a, b, phase)
    found = {}
    for kinds, (of_a, of_b) in ((KINDS, values), (USAGE_KINDS, usage)):
        for key, (name, unit, less_is_better) in kinds.items():
            before, after = _finite(of_a.get(key)), _finite(of_b.get(key))
            if before is not None or after is not None:
                found[key] = Figure(key, name, unit, less_is_better, before, after, known.get(key))
    return found


def _finite(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None


def global_batch(run: ComparedRun, phase: str | None) -> int | None:
    """Returns the items per step of all ranks together; None if a loader's batch size is unknown."""
    sizes = [loader.get("batch_size") for loader in run.analysis.loaders if loader["phase"] == phase]
    if not sizes or None in sizes or len(set(sizes)) > 1:
        return None
    return int(sizes[0] * max(run.analysis.world_size, 1))  # type: ignore[operator]  # it is no None


def _values(run: ComparedRun, phase: str | None) -> dict[str, float | None]:
    analysis = run.analysis
    values: dict[str, float | None] = {
        "duration": shares.run_seconds(analysis),
        "cost": cost_of_run(analysis, run.price),
        "energy": analysis.energy.joules if analysis.energy else None,
    }
    if analysis.start is not None and analysis.first_step_start is not None:
        values["time_to_first_step"] = analysis.first_step_start - analysis.start
    if phase is not None:
        values |= dict(_of_steps(run, phase, values))
    return values


def _of_steps(run: ComparedRun, phase: str, values: dict[str, float | None]) -> Iterator[tuple[str, float]]:
    step = step_time(run, phase)
    yield "steps", step.count
    yield "step_mean", step.seconds
    items = global_batch(run, phase)
    if items:
        yield "item_mean", step.seconds / items
    kept = statistics(mean_over_ranks(run.steps[phase]))
    yield from ((f"step_{name}", kept[name]) for name in ("p50", "p95"))
    yield "data_wait", 100 * step.components.get("data_wait", 0.0) / step.seconds
    for total, each in (("cost", "cost_per_1000_steps"), ("energy", "energy_per_step")):
        amount = values[total]
        if amount is not None:
            yield each, amount / step.count * (1000 if total == "cost" else 1)
    first, last = run.analysis.first_step_start, run.analysis.last_step_end
    if first is not None and last is not None and last > first:
        pace = step.count / (last - first)
        yield "steps_per_second", pace
        if items:
            yield "items_per_second", pace * items


def _usage(run: ComparedRun) -> dict[str, float | None]:
    rows = {row.resource: row for row in run.usage}
    return {
        f"{key}_{statistic}": getattr(rows[name], statistic)
        for key, name in RESOURCES.items()
        if name in rows
        for statistic in UTILISATION
    }


def _intervals(a: ComparedRun, b: ComparedRun, phase: str | None) -> dict[str, Interval]:
    if phase is None:
        return {}
    found = intervals(mean_over_ranks(a.steps[phase]), mean_over_ranks(b.steps[phase]))
    known = {f"step_{name}": interval for name, interval in found.items()}
    before, after = global_batch(a, phase), global_batch(b, phase)
    if "mean" in found and before and after:  # the batch size has no variance
        low, high = ((1 + bound) * before / after - 1 for bound in (found["mean"].low, found["mean"].high))
        known["item_mean"] = Interval(low, high)
    return known


def saved(before: float, after: float) -> float:
    """Returns the share that is saved, of the amounts as printed, so that readers can check it."""
    return cost.saving(before, after) if before >= 0.995 else (before - after) / before if before else 0.0


def change_of(figure: Figure) -> str:
    """Writes the change and its interval, if there is one; "no difference seen" if it contains zero."""
    if figure.change is None:
        return NO_NUMBER
    if figure.interval is None:
        return change_in_percent(figure)
    between = f"{change(figure.interval.low)} to {change(figure.interval.high)}"
    if not figure.interval.seen:
        return f"no difference seen ({between})"
    return f"{change_in_percent(figure)} ({between})"


def change_in_percent(figure: Figure) -> str:
    """Writes the change; for money that of the amounts as printed, so that readers can check it."""
    if figure.unit == "$" and figure.a and figure.b is not None:
        return change(-saved(figure.a, figure.b))
    return NO_NUMBER if figure.change is None else change(figure.change)
