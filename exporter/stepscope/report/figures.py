"""Figures of a run: predictions estimate them, and a comparison checks them against a later run.

Each is a function of an analysis; None if the run did not record it.
"""

from collections.abc import Callable

from stepscope.evaluation.analysis import Analysis
from stepscope.measurements.heatmap import Heatmap
from stepscope.measurements.steps import StepDistribution
from stepscope.report import shares


def figure(analysis: Analysis, metric: str, price: float | None = None) -> float | None:
    """Returns the figure of that name (a key of METRICS); cost needs the price of a node per hour."""
    return cost_of_run(analysis, price) if metric == "cost" else METRICS[metric](analysis)


def main_steps(analysis: Analysis) -> list[StepDistribution]:
    """Returns the training steps per rank; without any, those of the phase that took most time."""
    phases = shares.steps_by_phase(analysis).values()
    rows = [row for row in analysis.steps if row.phase == "train"]
    return rows or max(phases, key=lambda rows: sum(row.count * row.mean for row in rows), default=[])


def step_seconds_mean(analysis: Analysis) -> float | None:
    """Returns the mean duration of a training step, over all steps of all ranks, in seconds."""
    rows = main_steps(analysis)
    count = sum(row.count for row in rows)
    return sum(row.count * row.mean for row in rows) / count if count else None


def steps_seconds(analysis: Analysis) -> float | None:
    """Returns the seconds in training steps of the rank that trained longest."""
    return max((row.count * row.mean for row in main_steps(analysis)), default=None)


def gpu_utilization_means(analysis: Analysis) -> list[float]:
    """Returns the mean utilisation of each GPU that was read, 0..1, between the first step and the last.

    Without steps, over the whole run. The heatmap is accurate to half a percentage point.
    """
    return [mean for label, mean in _means(analysis) if label.startswith("GPU")]


def cpu_utilization_mean(analysis: Analysis) -> float | None:
    """Returns the mean utilisation of all cores, 0..1, over the same time."""
    cores = [mean for label, mean in _means(analysis) if not label.startswith("GPU")]
    return sum(cores) / len(cores) if cores else None


def gpu_utilization_mean(analysis: Analysis) -> float | None:
    """Returns the mean over all GPUs, 0..1, over the same time."""
    gpus = gpu_utilization_means(analysis)
    return sum(gpus) / len(gpus) if gpus else None


METRICS: dict[str, Callable[[Analysis], float | None]] = {
    "run_seconds": lambda analysis: analysis.run_seconds,
    "step_seconds_mean": step_seconds_mean,
    "gpu_utilization_mean": gpu_utilization_mean,
    "cost": lambda _: None,  # needs a price
}


def _means(analysis: Analysis) -> list[tuple[str, float]]:
    """Returns the name of each row of the heatmaps and its mean during training."""
    found = []
    for heatmap in analysis.heatmaps:
        columns = _columns_in_training(analysis, heatmap)
        for label, row in zip(heatmap.rows, heatmap.values, strict=True):
            known = [value for value in row[columns] if value is not None]
            if known:
                found.append((label, sum(known) / len(known) / 100))
    return found


def _columns_in_training(analysis: Analysis, heatmap: Heatmap) -> slice:
    """Returns the columns between the first step and the last; all columns if there are none."""
    first, last = analysis.first_step_start, analysis.last_step_end
    if first is None or last is None:
        return slice(None)
    inside = [
        number
        for number, time in enumerate(heatmap.times)
        if time >= first and time + heatmap.column_seconds <= last
    ]
    return slice(inside[0], inside[-1] + 1) if inside else slice(None)


def cost(nodes: int, seconds: float, price_per_hour: float) -> float:
    """Returns the cost of `nodes` that are all rented for `seconds`; the price is per node and hour.

    Source: how clouds bill training, and how SageMaker's profiler case computes it: 3 nodes x 503 s x
    $14.688/h = $6.16 against 2 nodes x 502 s x $3.825/h = $1.07.
    """
    return nodes * seconds / 3600 * price_per_hour


def cost_of_run(analysis: Analysis, price_per_hour: float | None) -> float | None:
    """Returns the cost of all nodes that were seen; None without a price or a known duration."""
    seconds = analysis.run_seconds
    if price_per_hour is None or seconds is None or not analysis.nodes:
        return None
    return cost(len(analysis.nodes), seconds, price_per_hour)


def cost_of_finding(analysis: Analysis, seconds: float, price_per_hour: float | None) -> float | None:
    """Returns the cost of lost seconds: all nodes are paid while one loses time. At most the run's cost.

    None without a price, lost time, or a known duration.
    """
    whole = analysis.run_seconds
    if price_per_hour is None or seconds <= 0 or whole is None or not analysis.nodes:
        return None
    return cost(len(analysis.nodes), min(seconds, whole), price_per_hour)


def saving(before: float, after: float) -> float:
    """Returns the saved share of amounts in whole cents, as on a bill: the published case saves 82.6 %.

    Negative if `after` is more; 0 if `before` is 0.
    """
    before, after = round(before, 2), round(after, 2)
    return (before - after) / before if before else 0.0
