"""Figures of a run that a prediction is about, and that a later run is held against.

Each is a function of an analysis; None where the run did not tell.
"""

from __future__ import annotations

from collections.abc import Callable

from trainwatch.evaluation.analysis import Analysis, StepDistribution
from trainwatch.measurements.heatmap import Heatmap
from trainwatch.report import shares
from trainwatch.report.cost import cost_of_run


def figure(analysis: Analysis, metric: str, price: float | None = None) -> float | None:
    """The figure of that name (a key of METRICS); cost needs the price of a node for an hour."""
    return cost_of_run(analysis, price) if metric == "cost" else METRICS[metric](analysis)


def main_steps(analysis: Analysis) -> list[StepDistribution]:
    """Of each rank the training steps; where there are none, those of the phase that took most time."""
    phases = shares.steps_by_phase(analysis).values()
    rows = [row for row in analysis.steps if row.phase == "train"]
    return rows or max(phases, key=lambda rows: sum(row.count * row.mean for row in rows), default=[])


def step_seconds_mean(analysis: Analysis) -> float | None:
    """The mean duration of a training step, over all steps of all ranks, in seconds."""
    rows = main_steps(analysis)
    count = sum(row.count for row in rows)
    return sum(row.count * row.mean for row in rows) / count if count else None


def steps_seconds(analysis: Analysis) -> float | None:
    """How long the rank that trained longest was in training steps, in seconds."""
    return max((row.count * row.mean for row in main_steps(analysis)), default=None)


def gpu_utilization_means(analysis: Analysis) -> list[float]:
    """The mean utilisation of each GPU that was read, 0..1, between the first step and the last.

    Of a run without steps over the whole of it. From the heatmap, so to half a percent point.
    """
    return [mean for label, mean in _means(analysis) if label.startswith("GPU")]


def cpu_utilization_mean(analysis: Analysis) -> float | None:
    """The mean utilisation of all cores, 0..1, over the same time."""
    cores = [mean for label, mean in _means(analysis) if not label.startswith("GPU")]
    return sum(cores) / len(cores) if cores else None


def gpu_utilization_mean(analysis: Analysis) -> float | None:
    """The mean over all GPUs, 0..1, over the same time."""
    gpus = gpu_utilization_means(analysis)
    return sum(gpus) / len(gpus) if gpus else None


METRICS: dict[str, Callable[[Analysis], float | None]] = {
    "run_seconds": shares.run_seconds,
    "step_seconds_mean": step_seconds_mean,
    "gpu_utilization_mean": gpu_utilization_mean,
    "cost": lambda _: None,  # of no run without a price
}


def _means(analysis: Analysis) -> list[tuple[str, float]]:
    """Of each row of the heatmaps its name and its mean while training went on."""
    found = []
    for heatmap in analysis.heatmaps:
        columns = _columns_in_training(analysis, heatmap)
        for label, row in zip(heatmap.rows, heatmap.values, strict=True):
            known = [value for value in row[columns] if value is not None]
            if known:
                found.append((label, sum(known) / len(known) / 100))
    return found


def _columns_in_training(analysis: Analysis, heatmap: Heatmap) -> slice:
    """The columns that lie wholly between the first step and the last; all, where there are none."""
    first, last = analysis.first_step_start, analysis.last_step_end
    if first is None or last is None:
        return slice(None)
    inside = [
        number
        for number, time in enumerate(heatmap.times)
        if time >= first and time + heatmap.column_seconds <= last
    ]
    return slice(inside[0], inside[-1] + 1) if inside else slice(None)
