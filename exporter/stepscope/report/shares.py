"""Parts of a whole: the three parts of the run, the phases, and the components inside steps."""

from collections.abc import Mapping
from dataclasses import dataclass

from stepscope.evaluation import account
from stepscope.evaluation.analysis import Analysis
from stepscope.measurements.heatmap import LowGpuSamples
from stepscope.measurements.steps import StepDistribution
from stepscope.rules.overall_framework_metrics import OverallFrameworkMetrics
from stepscope.rules.parts.shares import summed
from stepscope.runs.model import COMPONENTS, PHASES

PHASE_ORDER = ("initialization", *PHASES, "other", "finalization")

NAMES = account.NAMES | {
    "training_loop": "Training loop",
    "initialization": "Initialization",
    "finalization": "Finalization",
    "other": "Between steps",
    "rest": "Rest of the steps",
    "pinned_core": "A core was pinned",
    "waiting_core": "A core waited for I/O",
    "pinned_and_waiting": "Both",
    "neither": "Neither",
}


@dataclass(frozen=True)
class Part:
    """One part of a whole: `fraction` (0..1) its share, `before` the sum before."""

    key: str
    seconds: float
    fraction: float
    before: float

    @property
    def name(self) -> str:
        return NAMES.get(self.key, self.key)

    @property
    def classes(self) -> str:
        """Returns the classes of the style sheet that colour it."""
        return self.key.replace("_", "-").replace("/", " ")


@dataclass(frozen=True)
class Whole:
    """Parts that sum to `seconds`. Empty where nothing was measured."""

    parts: list[Part]
    seconds: float

    @property
    def largest(self) -> Part:
        return max(self.parts, key=lambda part: part.seconds)

    def fraction(self, key: str) -> float:
        return next((part.fraction for part in self.parts if part.key == key), 0.0)


def parts_of_the_run(analysis: Analysis) -> Whole:
    """Returns initialization, training loop and finalization; empty without steps, and for a trace.

    A run without a known end counts as still in its training loop.
    """
    start, first, last, end = (
        analysis.start,
        analysis.first_step_start,
        analysis.last_step_end,
        analysis.last_seen,
    )
    if start is None or first is None or last is None or end is None or analysis.is_trace:
        return Whole([], 0.0)
    if analysis.end is None:
        last = end
    return whole_of(
        {
            "initialization": first - start,
            "training_loop": last - first - analysis.unobserved_seconds,
            "finalization": end - last,
        }
    )


def where_time_went(analysis: Analysis) -> Whole:
    """Returns the account of all ranks. Only the start and the main phase have their components."""
    if analysis.account is None:
        return Whole([], 0.0)
    in_detail = (analysis.account.main_phase, account.WITHOUT_STEPS)

    def name(key: account.Key) -> str:
        return (
            key.component if key.part in in_detail else key.label if key.part == account.BEFORE else key.part
        )

    return whole_of(summed({name(leaf.key): leaf.seconds} for leaf in analysis.account.leaves))


def parts_of_account(analysis: Analysis) -> Whole:
    """Returns the account of all ranks without components; the phases if there is no account."""
    if analysis.account is None:
        return phases(analysis)
    return whole_of({part: sum(analysis.account.by_rank(part).values()) for part in account.PARTS})


def phases(analysis: Analysis) -> Whole:
    """Seconds of every phase, all ranks together."""
    return whole_of(
        {phase: analysis.phase_seconds[phase] for phase in sorted(analysis.phase_seconds, key=_place)}
    )


def steps_by_phase(analysis: Analysis) -> dict[str, list[StepDistribution]]:
    """Groups steps by phase, training first, with the ranks in the order of the analysis."""
    phases = sorted({row.phase for row in analysis.steps}, key=_place)
    return {phase: [row for row in analysis.steps if row.phase == phase] for phase in phases}


def _place(phase: str) -> tuple[int, str]:
    return PHASE_ORDER.index(phase) if phase in PHASE_ORDER else len(PHASE_ORDER), phase


def inside_steps(analysis: Analysis) -> Whole:
    """Returns the seconds per component of all ranks together, and the rest of the steps.

    Counters of components also have what was outside of steps. They are used only without an account.
    """
    if analysis.account is not None:
        leaves = (leaf for leaf in analysis.account.leaves if leaf.key.part in PHASES)
        found = summed({leaf.key.component: leaf.seconds} for leaf in leaves)
        rest = found.pop(account.HOST, 0.0)
        return whole_of({**found, "rest": rest}) if any(found.values()) else Whole([], 0.0)
    components = {name: analysis.component_seconds.get(name, 0.0) for name in COMPONENTS}
    components |= {k: v for k, v in analysis.component_seconds.items() if k not in COMPONENTS}
    steps = sum(analysis.phase_seconds.get(phase, 0.0) for phase in PHASES)
    named = sum(components.values())
    return whole_of({**components, "rest": steps - named}) if named > 0 else Whole([], 0.0)


def data_wait(analysis: Analysis) -> float | None:
    """Returns the share (0..1) of the steps' time in which they waited for data; None if not measured."""
    waited = inside_steps(analysis).fraction("data_wait")
    return waited if waited or (analysis.loaders and analysis.component_seconds) else None


def passes(analysis: Analysis) -> Whole:
    """Returns forward and backward pass, if both were timed."""
    timed = {name: analysis.component_seconds.get(name, 0.0) for name in ("forward", "backward")}
    return whole_of(timed) if all(seconds > 0 for seconds in timed.values()) else Whole([], 0.0)


def operators(analysis: Analysis) -> dict[str, Whole]:
    """Returns, by device, the time of each operator and of all others together; empty without operators."""
    found = analysis.details_of(OverallFrameworkMetrics)
    totals = found.get("operator_total_seconds", {})
    parts = {
        device: _with_the_rest(seconds, totals.get(device, 0.0), "All other operators")
        for device, seconds in found.get("operator_seconds", {}).items()
    }
    return {device: whole for device, whole in parts.items() if whole.parts}  # without those of 0 s


def communication(analysis: Analysis) -> Whole:
    """Returns the time per collective operation of all ranks together; empty without operations."""
    found = analysis.details_of(OverallFrameworkMetrics)
    total = found.get("communication_total_seconds", 0.0)
    return _with_the_rest(found.get("communication_seconds", {}), total, "All other operations")


def _with_the_rest(seconds: dict[str, float], total: float, name: str) -> Whole:
    """Adds a part for the rest of `total`, unless it is only rounding."""
    rest = total - sum(seconds.values())
    return whole_of({**seconds, name: rest} if rest > 1e-9 * total else seconds)


def low_gpu_causes(row: LowGpuSamples) -> Whole:
    """Returns samples (not seconds) with a low GPU, by the state of the cores."""
    neither = row.low - row.cpu - row.io - row.both
    return whole_of(
        {"pinned_core": row.cpu, "waiting_core": row.io, "pinned_and_waiting": row.both, "neither": neither}
    )


def whole_of(seconds: Mapping[str, float]) -> Whole:
    """Drops parts of no time, or of slightly negative time because of two clocks."""
    positive = {key: value for key, value in seconds.items() if value > 0}
    total = sum(positive.values())
    parts: list[Part] = []
    before = 0.0
    for key, value in positive.items():
        parts.append(Part(key, value, value / total, before))
        before += value / total
    return Whole(parts, total)
