"""The figures that are set side by side, each under the name by which --fail-if knows it."""

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace

from stepscope.common.words import NO_NUMBER, change, points
from stepscope.compare.bootstrap import Interval, intervals, statistics
from stepscope.compare.compared_run import ComparedRun, mean_over_ranks
from stepscope.compare.parts import step_time
from stepscope.compare.work import Work
from stepscope.measurements.device_times import shares_of
from stepscope.measurements.training_gauges import last_level
from stepscope.report import shares
from stepscope.report.figures import cost_of_run, saving

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
    "step_mean": ("A step, mean", "s", True),
    "step_p50": ("A step, median", "s", True),
    "step_p95": ("A step, p95", "s", True),
    "steps_per_second": ("Throughput", "steps/s", False),
    "tokens_per_second": ("Throughput", "tokens/s", False),
    "samples_per_second": ("Throughput", "samples/s", False),
    "mfu": ("Model FLOPs utilisation (MFU)", "%", False),
    "cost_per_1000_steps": ("Cost of 1000 steps", "$", True),
    "energy_per_step": ("Energy of the GPUs per step", "J", True),
    "item_mean": ("An item, mean", "s", True),
    "items_per_second": ("Throughput", "items/s", False),
    "cost_per_1000_items": ("Cost of 1000 items", "$", True),
    "energy_per_item": ("Energy of the GPUs per item", "J", True),
    "data_wait": ("Waiting for data, of the steps' time", "%", True),
    "device_compute": ("GPU computing, of its traced time", "%", False),
    "device_communication": ("GPU in exposed communication, of its traced time", "%", True),
    "device_copy": ("GPU copying memory, of its traced time", "%", True),
    "device_idle": ("GPU idle, of its traced time", "%", True),
    "device_host_wait": ("GPU idle until the host launched work, of its traced time", "%", True),
    "loss": ("Loss at the end", "", True),
    "time_to_first_step": ("Until the first step", "s", True),
    "steps": ("Steps of the whole run", "", None),
    "items": ("Items of the whole run", "", None),
    "duration": ("Duration of the whole run", "s", True),
    "cost": ("Cost of the whole run", "$", True),
    "energy": ("Energy of the GPUs, whole run", "J", True),
}
USAGE_KINDS = {
    f"{key}_{statistic}": (f"{name}, {statistic}", "B/s" if key in ("network", "disk") else "%", None)
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
    def is_share(self) -> bool:
        return self.unit == "%"

    @property
    def change(self) -> float | None:
        """Returns (B - A) / |A|, but B - A in points for a share; None if a value is unknown or A is 0."""
        if self.a is None or self.b is None:
            return None
        if self.is_share:
            return self.b - self.a
        if math.isclose(self.a, self.b):  # sums of times differ by rounding
            return 0.0
        return (self.b - self.a) / abs(self.a) if self.a else None  # a loss may be negative

    @property
    def seen_change(self) -> float | None:
        """Returns the change; 0 if the runs are too noisy to show one."""
        return 0.0 if self.interval is not None and not self.interval.seen else self.change


def figures(a: ComparedRun, b: ComparedRun, phase: str | None, work: Work) -> dict[str, Figure]:
    """Returns the figures by key, without those that neither run has. `phase`: whose steps are compared."""
    items = work.items_per_step or (None, None)
    values = _values(a, phase, items[0]), _values(b, phase, items[1])
    usage = _usage(a), _usage(b)
    known = _intervals(a, b, phase, work)
    found = {}
    for kinds, (of_a, of_b) in ((_ordered(work), values), (USAGE_KINDS, usage)):
        for key, (name, unit, less_is_better) in kinds.items():
            before, after = _finite(of_a.get(key)), _finite(of_b.get(key))
            if before is not None or after is not None:
                found[key] = Figure(key, name, unit, less_is_better, before, after, known.get(key))
    for each in ("step", "item"):
        time, pace = found.get(f"{each}_mean"), found.get(f"{each}s_per_second")
        if time and pace and time.interval and time.change is not None and pace.change is not None:
            # As wide as that of the step time, around its own change.
            both = (1 + pace.change) * (1 + time.change)
            low, high = (both / (1 + bound) - 1 for bound in (time.interval.high, time.interval.low))
            found[pace.key] = replace(pace, interval=Interval(low, high))
    return found


def _ordered(work: Work) -> dict[str, tuple[str, str, bool | None]]:
    """Returns KINDS; figures per item before those per step if items are what is compared."""
    first = [key for key in KINDS if "item" in key and key != "items"] if work.unit == "item" else []
    return {key: KINDS[key] for key in (*first, *KINDS)}


def _finite(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None


def _values(run: ComparedRun, phase: str | None, items: float | None) -> dict[str, float | None]:
    """Returns the values by key. `items`: those of a step; None unless they are known in both runs."""
    analysis = run.analysis
    values: dict[str, float | None] = {
        "duration": analysis.run_seconds,
        "cost": cost_of_run(analysis, run.price),
        "energy": analysis.energy.joules if analysis.energy else None,
    }
    for each in analysis.counted:
        if (key := f"{each.name}_per_second") in ("tokens_per_second", "samples_per_second"):
            values[key] = each.per_second
    if analysis.flops_utilisation is not None:
        values["mfu"] = 100 * analysis.flops_utilisation
    if (loss := last_level(analysis.gauge_histories)) is not None:
        values["loss"] = loss.level
    if analysis.start is not None and analysis.first_step_start is not None and not analysis.is_trace:
        values["time_to_first_step"] = analysis.first_step_start - analysis.start
    devices = shares_of(analysis.devices)
    if devices is not None:
        values |= {f"device_{part}": share for part, share in devices.parts.items()}
        values["device_host_wait"] = devices.idle_for["host"]
    if phase is not None:
        values |= dict(_of_steps(run, phase, values, items))
    elif run.workload and values["duration"]:
        values["item_mean"] = values["duration"] / run.workload
        values["items_per_second"] = run.workload / values["duration"]
        values |= dict(_per_unit(values, run.workload, "item"))
    return values


def _of_steps(
    run: ComparedRun, phase: str, values: dict[str, float | None], items: float | None
) -> Iterator[tuple[str, float]]:
    step = step_time(run, phase)
    yield "step_mean", step.seconds
    yield from _per_unit(values, step.count, "step")
    if items:
        yield "item_mean", step.seconds / items
        yield from _per_unit(values, step.count * items, "item")
    kept = statistics(mean_over_ranks(run.steps[phase]))
    yield from ((f"step_{name}", kept[name]) for name in ("p50", "p95"))
    if shares.data_wait(run.analysis) is not None:
        yield "data_wait", 100 * step.components.get("data_wait", 0.0) / step.seconds
    first, last = run.analysis.first_step_start, run.analysis.last_step_end
    between = run.analysis.unobserved_seconds
    if first is not None and last is not None and last - first > between:
        pace = step.count / (last - first - between)
        yield "steps_per_second", pace
        if items:
            yield "items_per_second", pace * items


def _per_unit(values: dict[str, float | None], units: float, unit: str) -> Iterator[tuple[str, float]]:
    """Yields the number of units (steps or items) of the whole run, and what one costs."""
    yield f"{unit}s", units
    for total, key, number in (("cost", f"cost_per_1000_{unit}s", 1000), ("energy", f"energy_per_{unit}", 1)):
        amount = values[total]
        if amount is not None:
            yield key, amount / units * number


def _usage(run: ComparedRun) -> dict[str, float | None]:
    rows = {row.resource: row for row in run.usage}
    return {
        f"{key}_{statistic}": getattr(rows[name], statistic)
        for key, name in RESOURCES.items()
        if name in rows
        for statistic in UTILISATION
    }


def _intervals(a: ComparedRun, b: ComparedRun, phase: str | None, work: Work) -> dict[str, Interval]:
    if phase is None:
        return {}
    found = intervals(mean_over_ranks(a.steps[phase]), mean_over_ranks(b.steps[phase]))
    known = {f"step_{name}": interval for name, interval in found.items()}
    if "mean" in found and work.items_per_step:  # the number of items has no variance
        before, after = work.items_per_step
        low, high = ((1 + bound) * before / after - 1 for bound in (found["mean"].low, found["mean"].high))
        known["item_mean"] = Interval(low, high)
    return known


def saved(before: float, after: float) -> float:
    """Returns the share that is saved, of the amounts as printed, so that readers can check it."""
    return saving(before, after) if before >= 0.995 else (before - after) / before if before else 0.0


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
    """Writes the change: of money that of the amounts as printed, of a share in points."""
    if figure.is_share and figure.change is not None:
        return points(figure.change)
    if figure.unit == "$" and figure.a and figure.b is not None:
        return change(-saved(figure.a, figure.b))
    return NO_NUMBER if figure.change is None else change(figure.change)
