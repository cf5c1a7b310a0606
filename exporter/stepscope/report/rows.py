"""The rows of the tables in the section "Details", from the details of the rules."""

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from stepscope.common.words import gauge
from stepscope.evaluation.analysis import Analysis, BoxPlot
from stepscope.report.shares import Whole, whole_of
from stepscope.rules.collective_hang import CollectiveHang
from stepscope.rules.load_balancing import LoadBalancing
from stepscope.rules.parts.base import RuleClass
from stepscope.rules.parts.shares import OTHERS, PHASE_NAMES
from stepscope.rules.step_outlier import StepOutlier
from stepscope.rules.training_stalled import TrainingStalled


def boxes(analysis: Analysis, quantity: Literal["utilisation", "memory"]) -> list[BoxPlot]:
    """Returns the box plots of the GPUs."""
    return [box for box in analysis.box_plots if box.quantity == quantity and box.device != "CPU"]


@dataclass(frozen=True)
class Outlier:
    """A step that took far longer than others of its rank and phase."""

    rank: int
    phase: str
    number: int
    seconds: float
    times_the_median: float
    component: str | None  # the slow one, if known


def outliers(analysis: Analysis) -> list[Outlier]:
    """Returns the longest outliers of each rank and phase, by rank, phase and number."""
    found = []
    for series in analysis.details_of(StepOutlier).get("step_details", {}).values():
        median = series["step_stats"]["p50"]
        found += [
            Outlier(
                series["rank"],
                series["phase"],
                step["number"],
                step["seconds"],
                step["seconds"] / median if median else 0.0,
                step["component"],
            )
            for step in series.get("longest", [])
        ]
    return sorted(found, key=lambda outlier: (outlier.rank, outlier.phase, outlier.number))


@dataclass(frozen=True)
class Pair:
    """Two GPUs of a node, and the distances between the distributions of their utilisation."""

    node: str
    one: str
    other: str
    kolmogorov_smirnov: float  # 0..1; the rule's
    jensen_shannon: float


def pairs(analysis: Analysis) -> list[Pair]:
    """Returns the pairs of nodes on which LoadBalancing fired, the most different one first."""
    found = [
        Pair(node, one, other, gap, details["distances"][one][other])
        for node, details in analysis.details_of(LoadBalancing).items()
        for one, gaps in details["kolmogorov_smirnov"].items()
        for other, gap in gaps.items()
    ]
    return sorted(found, key=lambda pair: -pair.kolmogorov_smirnov)


def stalls(analysis: Analysis) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = analysis.details_of(TrainingStalled).get("stalls", [])
    return found


def places(analysis: Analysis) -> list[dict[str, Any]]:
    """Returns where each rank was in a hang, or is now: nothing if no rank was anywhere for long."""
    ranks: list[dict[str, Any]] = analysis.details_of(CollectiveHang).get("ranks", [])
    told = any(rank["component"] for rank in ranks) or not analysis.finished
    return ranks if len(ranks) > 1 and told else []


def gauges(analysis: Analysis) -> list[tuple[str, ...]]:
    """Returns each gauge of the newest process, and its first, lowest, highest and last value as written."""
    newest = max((each.start for each in analysis.gauge_histories), default=None)
    rows = []
    for each in analysis.gauge_histories:
        if each.start == newest:
            finite = each.values[np.isfinite(each.values)]
            extremes = (finite.min(), finite.max()) if len(finite) else (np.nan, np.nan)
            values = (each.values[0], *extremes, each.values[-1])
            rows.append((each.name, *(gauge(float(value)) for value in values)))
    return rows


def during(analysis: Analysis, rule: RuleClass) -> tuple[Whole, Whole]:
    """Returns what ran in the samples or steps that a rule counts: phases, and components inside the steps.

    As in Debugger, components exclude the forward and backward pass if both are known.
    """
    details = analysis.details_of(rule)
    keys = {label: phase for phase, label in PHASE_NAMES.items()} | {OTHERS: "other"}
    shares = {keys.get(label, label): percent for label, percent in details.get("phase", {}).items()}
    return whole_of(shares), whole_of(details.get("general", {}))
