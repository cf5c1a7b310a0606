"""The sentences of the report: what each section found, said before any table or chart.

Each function takes the whole analysis and returns sentences, the finding first. A part that was not
measured gives a sentence that says so and why; nothing is said that the analysis does not hold.
"""

from collections.abc import Sequence
from dataclasses import asdict
from math import isfinite

from stepscope.common.status import Status
from stepscope.common.words import (
    amount,
    capitalised,
    count,
    duration,
    listing,
    moment,
    number,
    percent,
    share,
    uncapitalised,
)
from stepscope.evaluation.analysis import Analysis, RuleResult
from stepscope.measurements.heatmap import Heatmap
from stepscope.measurements.steps import StepDistribution
from stepscope.measurements.usage import UsageRow
from stepscope.report import shares
from stepscope.rules import all_rules
from stepscope.rules.overall_framework_metrics import OverallFrameworkMetrics
from stepscope.rules.parts.remedies import HOOKS, HOW_TO_SEE_STEPS
from stepscope.rules.parts.topics import Effect
from stepscope.rules.step_outlier import StepOutlier
from stepscope.runs.model import PYTHON, Gap

GAPS = 10  # listed; report.json has all

# ------------------------------------------------------------------------------------------- gaps


def gaps(found: Sequence[Gap]) -> list[str]:
    """Says that parts of the run are missing, then which; [] if nothing is missing."""
    if not found:
        return []
    more = f"{len(found) - GAPS} more are in report.json."
    return [
        "This run is incomplete. The figures exclude what is missing:",
        *map(_gap, found[:GAPS]),
        *([more] if len(found) > GAPS else []),
    ]


def _gap(gap: Gap) -> str:
    if gap.what == "run":
        return f"The run’s command, start, end and exit status are missing: {gap.reason}."
    if gap.what == "file":
        return f"{uncapitalised(gap.reason)}. This file was left out."
    rows = "Totals of ranks" if gap.what == "ranks" else gap.what.capitalize()
    if gap.count is not None:
        rows = count(gap.count, rows[:-1].lower())
    verb = "is" if gap.count == 1 else "are"
    return f"{rows} of {gap.node} {verb} missing{_between(gap.start, gap.end)}: {gap.reason}."


def _between(start: float | None, end: float | None) -> str:
    if start is not None and end is not None:
        return f" between {moment(start)} and {moment(end)}"
    if end is not None:
        return f" before {moment(end)}"
    return "" if start is None else f" after {moment(start)}"


def _how_to_see_steps(analysis: Analysis) -> str:
    return "" if analysis.no_steps else HOW_TO_SEE_STEPS  # the verdict has said it


# ---------------------------------------------------------------------------------------- verdict


def decided(analysis: Analysis) -> list[RuleResult]:
    """Returns the rules that can fire, without optional ones whose matter the run does not have."""
    there = (rule for rule in analysis.rules if rule.details or not rule.definition.is_optional)
    return [rule for rule in there if not is_overview(rule)]


def is_overview(rule: RuleResult) -> bool:
    """Returns whether the rule never fires and only informs."""
    return rule.about.effect is Effect.OVERVIEW


def in_order(analysis: Analysis) -> list[RuleResult]:
    """Returns the rules in the order of the analysis; overviews come last."""
    return sorted(analysis.rules, key=is_overview)


def counts(analysis: Analysis) -> dict[Status, int]:
    """Returns how many rules are in each state, if any is; overviews do not count."""
    states = [rule.status for rule in decided(analysis)]
    return {state: states.count(state) for state in Status if state in states}


def not_judged(analysis: Analysis) -> dict[tuple[Status, str], list[str]]:
    """Returns the rules that could not be judged, by their state and the reason."""
    reasons: dict[tuple[Status, str], list[str]] = {}
    for rule in sorted(decided(analysis), key=lambda rule: list(Status).index(rule.status)):
        if not rule.status.judged:
            reasons.setdefault((rule.status, rule.finding), []).append(rule.rule)
    return reasons


# ------------------------------------------------------------------------------------------- run


def hardware(analysis: Analysis) -> str:
    """Writes "2 nodes with 16 GPUs and 128 cores"."""
    cores = sum(analysis.cores.values())
    traced = {(device.node, device.rank, device.device) for device in analysis.devices if device.seconds}
    gpus = sum(len(names) for names in analysis.gpus.values()) or len(traced)
    # Debugger's own reports have the use of GPUs, and not how many there were.
    used = any(row.resource == "GPU" and isfinite(row.p50) for row in analysis.usage)
    none = "no GPU seen" if analysis.is_trace else "no GPU"
    parts = [count(gpus, "GPU") if gpus else "GPUs" if used else none]
    if cores:
        parts.append(count(cores, "core"))
    return f"{count(len(analysis.nodes), 'node')} with {' and '.join(parts)}" if analysis.nodes else "no node"


EVIDENCE = {
    "processes": "its processes were on them",
    "devices": "its training processes reported them",
    "environment": "CUDA_VISIBLE_DEVICES limits it to them",
    "node": "nothing else was seen on the node",
}


def evidence_of_gpus(analysis: Analysis) -> list[str]:
    """Returns how it is known which GPUs the run used, if that was recorded."""
    known = sorted({use.by for use in analysis.gpu_use if use.by})
    if not known:
        return []
    return [f"Its GPUs are known because {listing([EVIDENCE[by] for by in known])}."]


def run_summary(analysis: Analysis) -> list[str]:
    whole = analysis.run_seconds
    lasted = duration(whole) if whole is not None else "an unknown time"
    verb = "took" if analysis.finished else "has been observed for"
    if analysis.is_trace:
        return [f"{traced(analysis)}.", *evidence_of_gpus(analysis)]
    parts = shares.parts_of_the_run(analysis)
    sentences = [f"The run {verb} {lasted} on {hardware(analysis)}.", *evidence_of_gpus(analysis)]
    if parts.parts:
        words = [f"{share(part.seconds, parts.seconds)} {part.name.lower()}" for part in parts.parts]
        sentences.append(f"Its time: {listing(words)}.")
        if parts.fraction("initialization") > parts.fraction("training_loop"):
            sentences.append("Its initialization took longer than its training loop.")
    else:
        sentences.append(
            "No step was recorded, so it cannot be split into initialization, training loop and "
            f"finalization. {_how_to_see_steps(analysis)}".rstrip()
        )
    return sentences


def traced(analysis: Analysis) -> str:
    """Writes "The trace covers 667 ms with 6 steps of each of 8 ranks, on 2 nodes with 8 GPUs"."""
    steps = sorted({row.count for row in analysis.steps})
    number_of = (
        count(steps[0], "step") if len(steps) == 1 else f"{steps[0]} to {steps[-1]} steps" if steps else ""
    )
    of = f" of each of {analysis.ranks} ranks" if analysis.ranks > 1 else ""
    seconds = duration(analysis.run_seconds)
    return f"The trace covers {seconds} with {number_of or 'no known step'}{of}, on {hardware(analysis)}"


# --------------------------------------------------------------------------------------- heatmap


def heatmap(heatmap: Heatmap) -> str:
    """Names the idlest and the busiest GPU, the busiest core, and the mean of the cores."""
    means = {label: mean for label, mean in row_means(heatmap).items() if mean is not None}
    gpus = {label: mean for label, mean in means.items() if label.startswith("GPU")}
    cores = {label: mean for label, mean in means.items() if label not in gpus}
    sentences = []
    if gpus:
        low, high = min(gpus, key=gpus.__getitem__), max(gpus, key=gpus.__getitem__)
        each = low if len(gpus) == 1 else f"Each of the {len(gpus)} GPUs"
        sentences.append(
            f"{each} was {percent(gpus[low])} busy on average."
            if percent(gpus[low]) == percent(gpus[high])
            else f"GPUs were {percent(gpus[low])} ({low}) to {percent(gpus[high])} ({high}) busy on average."
        )
    if cores:
        high = max(cores, key=cores.__getitem__)
        mean = sum(cores.values()) / len(cores)
        others = f"; all {len(cores)} cores together {percent(mean)}" if len(cores) > 1 else ""
        sentences.append(f"The busiest core, {high}, was {percent(cores[high])} busy{others}.")
    return " ".join(sentences) or "No utilisation was sampled."


def row_means(heatmap: Heatmap) -> dict[str, float | None]:
    """Returns the mean of each row in percent; None if nothing was sampled."""
    means: dict[str, float | None] = {}
    for label, row in zip(heatmap.rows, heatmap.values, strict=True):
        known = [value for value in row if value is not None]
        means[label] = sum(known) / len(known) if known else None
    return means


# ----------------------------------------------------------------------------------------- steps


def steps(analysis: Analysis) -> list[str]:
    """Describes typical and slow steps per phase, the slowest rank if they differ, and the outliers."""
    if not analysis.steps:
        return [f"No step was recorded. {_how_to_see_steps(analysis)}".rstrip()]
    sentences = [_phase_steps(phase, rows) for phase, rows in shares.steps_by_phase(analysis).items()]
    outliers = analysis.result_of(StepOutlier)
    return [*sentences, outliers.finding] if outliers and outliers.status is Status.FOUND else sentences


def _phase_steps(phase: str, rows: list[StepDistribution]) -> str:
    slowest = max(rows, key=lambda row: row.p50)
    total = sum(row.count for row in rows)
    if total == 1:
        return f"One {phase} step was recorded; it took {duration(slowest.mean)}."
    if len(rows) == 1:
        return (
            f"{number(total)} {phase} steps: half took {duration(slowest.p50)} or less, one of twenty more "
            f"than {duration(slowest.p95)}, the longest {duration(slowest.max)}."
        )
    fastest = min(rows, key=lambda row: row.p50)
    if duration(fastest.p50) == duration(slowest.p50):
        return (
            f"{number(total)} {phase} steps on {len(rows)} ranks: the median is {duration(slowest.p50)} on "
            f"each of them; the longest step took {duration(max(row.max for row in rows))}."
        )
    return (
        f"{number(total)} {phase} steps on {len(rows)} ranks: the median is {duration(fastest.p50)} on rank "
        f"{fastest.rank} (fastest) and {duration(slowest.p50)} on rank {slowest.rank} (slowest); the longest "
        f"step took {duration(max(row.max for row in rows))}."
    )


# ------------------------------------------------------------------------------------------ time


def phases(analysis: Analysis) -> str:
    whole = shares.parts_of_account(analysis)
    if not whole.parts:
        return f"No phase was recorded. {_how_to_see_steps(analysis)}".rstrip()
    largest = whole.largest
    together = "both ranks" if analysis.ranks == 2 else f"all {analysis.ranks} ranks"
    whose = "the training process" if analysis.ranks <= 1 else f"{together} together"
    part = share(largest.seconds, whole.seconds)
    return f"{largest.name} took {part} of the {duration(whole.seconds)} of {whose}."


def inside_steps(analysis: Analysis) -> str:
    whole = shares.inside_steps(analysis)
    if not whole.parts:
        return (
            f"What happened inside the steps was not recorded. {HOOKS} see it in PyTorch. "
            "Elsewhere, wrap the loader in `stepscope.watch(loader)` and parts of the step in "
            '`with stepscope.component("forward"):`.'
        )
    ordered = sorted(whole.parts, key=lambda part: -part.seconds)[:2]
    first, *second = [f"{part.name.lower()} {share(part.seconds, whole.seconds)}" for part in ordered]
    then = f", then {second[0]}" if second else ""
    return f"Steps took {duration(whole.seconds)}: {first}{then}."


def passes(analysis: Analysis) -> str:
    seconds = {part.key: part.seconds for part in shares.passes(analysis).parts}
    times = number(seconds["backward"] / seconds["forward"])
    return f"The backward pass took {times} times as long as the forward pass."


def communication(analysis: Analysis) -> str:
    whole = shares.communication(analysis)
    largest = whole.largest
    sentence = (
        f"Collective operations took {duration(whole.seconds)}, "
        f"{share(largest.seconds, whole.seconds)} of it in {largest.name}"
    )
    exposed = analysis.details_of(OverallFrameworkMetrics).get("communication_exposed_seconds")
    if exposed is None:
        return f"{sentence}."
    return f"{sentence}; in {share(exposed, whole.seconds)} of the time the device did nothing else."


def operators(device: str, whole: shares.Whole) -> str:
    largest = whole.largest
    return (
        f"Operators on {device_name(device)} took {duration(whole.seconds)}; most went into {largest.name} "
        f"({share(largest.seconds, whole.seconds)})."
    )


def device_name(device: str) -> str:
    """Writes "cpu" as "CPU", "gpu0" as "GPU 0", and "python" as "Python"."""
    if device.startswith(PYTHON):
        return capitalised(device)
    kind, number = device[:3].upper(), device[3:].strip()
    return f"{kind} {number}".strip() if kind in ("CPU", "GPU") else device


def operators_by_device(analysis: Analysis) -> shares.Whole:
    """Returns the time of all operators on each device; empty unless there are several."""
    seconds = {device_name(device): whole.seconds for device, whole in shares.operators(analysis).items()}
    return shares.whole_of(seconds if len(seconds) > 1 else {})


def ran_during(what: tuple[shares.Whole, shares.Whole]) -> str:
    """Describes the phases and the components that ran in certain samples or steps."""
    phases, components = what
    said = listing([f"{share(part.fraction, 1)} {part.name.lower()}" for part in phases.parts])
    if not components.parts:
        return f"{said}."
    largest = components.largest
    return (
        f"{said}; inside steps, apart from forward and backward pass, mostly {largest.name.lower()} "
        f"({share(largest.fraction, 1)})."
    )


# --------------------------------------------------------------------------------------- loading


def loading(analysis: Analysis) -> list[str]:
    """Says whether steps wait for data, and whether workers compute or wait."""
    waited = shares.data_wait(analysis)
    if not analysis.loaders:
        seen = f"Steps waited for data {share(waited, 1)} of their time. " if waited else ""
        return [
            f"{seen}No data loader was watched. {HOOKS} watch PyTorch's. `stepscope.watch(loader)` "
            "shows the workers of others, and their time."
        ]
    sentences = []
    if waited is not None:
        sentences.append(
            f"Steps waited for data {share(waited, 1)} of their time."
            if waited
            else "Steps did not wait for data."
        )
    workers = sorted({loader["workers"] for loader in analysis.loaders if loader.get("workers") is not None})
    if workers:
        span = count(workers[0], "worker") if len(workers) == 1 else f"{workers[0]} to {workers[-1]} workers"
        each = "The loader has" if len(analysis.loaders) == 1 else "Each loader has"
        each = each if len(workers) == 1 else "The loaders have"
        inline = " (it loads in the training process itself)" if workers == [0] else ""
        sentences.append(f"{each} {span}{inline}.")
    wall, computing, core_wait = (
        sum(loader.get(name) or 0.0 for loader in analysis.loaders)
        for name in ("fetch_seconds", "fetch_cpu_seconds", "fetch_core_wait_seconds")
    )
    if wall > 0 and computing > 0:
        computed = f"While it fetched, a worker computed {share(min(computing, wall), wall)} of the time"
        sentences.append(
            f"{computed} and waited for a free core {share(min(core_wait, wall), wall)}; what remains "
            f"it waited for storage or similar."
            if core_wait > 0
            else f"{computed}; the rest it waited, for storage or for a free core."
        )
    return sentences or ["A data loader was watched; nothing was fetched yet."]


# ------------------------------------------------------------------------------- rules, measuring


def rules(analysis: Analysis) -> str:
    if not analysis.rules:
        return "No rule was evaluated."
    states = [f"{number} {state}" for state, number in counts(analysis).items()]
    return f"{count(len(decided(analysis)), 'rule')}: {listing(states)}."


def measuring_failures(analysis: Analysis) -> list[str]:
    """Says what of Stepscope's own work failed or is missing; how training ended is another matter."""
    failed = [rule.rule for rule in analysis.rules if rule.status is Status.FAILED]
    return [*map(_gap, analysis.gaps), *(f"The rule {name} failed." for name in failed)]


def measured(analysis: Analysis) -> list[str]:
    taken, missed = analysis.samples_taken, analysis.samples_missed
    lost = f"{number(missed)} missed ({share(missed, taken + missed)} of all)." if missed else "none missed."
    sentences = [
        f"{count(taken, 'sample')} taken, every {duration(analysis.interval)} per node; {lost}"
        if taken or missed
        else "No samples of cores and GPUs were taken."
    ]
    if analysis.steps:
        sentences.append("The training processes timed every step; steps are not sampled.")
    if analysis.rules:
        sentences.append(_parameters(analysis))
    sentences.append(
        "Nothing was sent anywhere. This file is self-contained and loads nothing from the network."
    )
    return sentences


def _parameters(analysis: Analysis) -> str:
    defaults = {name: asdict(rule.parameters_type()) for name, rule in all_rules().items()}
    changed = [
        f"{rule.rule}.{name}={value}"
        for rule in analysis.rules
        for name, value in rule.parameters.items()
        if value != defaults.get(rule.rule, {}).get(name, value)
    ]
    if not changed:
        return "All rules were judged with their default parameters, which the table of rules lists."
    return f"Changed parameters: {listing([f'`{setting}`' for setting in changed])}."


def value(row: UsageRow, statistic: str) -> str:
    return amount(getattr(row, statistic), row.unit)
