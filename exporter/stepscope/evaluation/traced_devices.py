"""Finds what the devices of a trace mostly did instead of computing, if no rule has found its reason.

It also says whether traces show enough of a run to call it healthy: a few kernels always look busy.
"""

from collections.abc import Iterator

from stepscope.common.words import count, duration, percent
from stepscope.evaluation.analysis import Analysis, RuleResult
from stepscope.evaluation.unexplained import REMEDIES, finding
from stepscope.rules.communication_bound import CommunicationBound
from stepscope.rules.data_starved import DataStarved
from stepscope.rules.host_bound import HostBound, gpu_name, remedy
from stepscope.rules.parts.base import RuleClass
from stepscope.rules.straggler import Straggler
from stepscope.runs.model import PHASES, DeviceTime, RankFacts, RunFacts

LEAST_STEPS, LEAST_SECONDS = 3, 1.0  # one of both: fewer steps may be the first ones, or between two pauses
SHORTEST = 0.01  # seconds, with any number of steps: pauses of a run take as long
LEAST_SEEN = 0.9  # of a rank's steps, or of its capture, on a device: the rest is idle, or was not recorded
# The rule that judges a reason for idle time, and where the rows of its details have what it measured.
EXPLAINED_BY: dict[str, tuple[RuleClass, str, str]] = {
    "host": (HostBound, "devices", "waited_seconds"),
    "data": (DataStarved, "ranks", "data_wait_seconds"),
    "collective": (CommunicationBound, "ranks", "communication_seconds"),
}
WAITS = {
    "host": ("for the host to launch work", ""),  # HostBound's remedy depends on what the host did
    "data": ("for data", REMEDIES["data_wait"]),
    "collective": ("for a collective on the host", REMEDIES["communication"]),
    "launch": (
        "for launched work to begin",
        "Look in the trace at what the device waits for after the launch: another stream, such as by "
        "cudaStreamWaitEvent, or the work of another process.",
    ),
    "unknown": (
        "for a reason that the trace does not show",
        "The work of the device is joined to no call that launched it. If the host was not recorded "
        "(ProfilerActivity.CPU), record it: then the report says what the device waits for.",
    ),
}
KEEP = "Keep data on the device"
# By the kind of copy that took most: what it did, and what helps.
COPY_LESS = {
    "pageable": (
        ", most of it from pageable memory of the host",
        f"{KEEP}, and copy what remains from pinned memory (`pin_memory=True`) with `non_blocking=True`.",
    ),
    "to device": (
        ", most of it from the host",
        f"{KEEP}, and copy what remains from pinned memory with `non_blocking=True` while it computes.",
    ),
    "to host": (
        ", most of it to the host",
        "Copy results to the host less often: sum them up on the device, and copy the sum.",
    ),
    "in device": (
        ", most of it inside of the device",
        "Look in the trace for the operators that copy, such as `clone`, `contiguous`, `cat` and `repeat`: "
        "views and `expand` copy nothing.",
    ),
    "fill": (
        ", most of it to fill memory with one value",
        "Fill less memory: allocate with `torch.empty` what is overwritten, and set gradients to None "
        "instead of zero.",
    ),
    "unknown": (
        "",
        "Look in the trace at what is copied, and keep it on the device if it comes from the host.",
    ),
}


def traced_devices(analysis: Analysis) -> Iterator[RuleResult]:
    """Yields a finding for each large part of the time of the device that computed least."""
    devices = [device for device in analysis.devices if device.seconds]
    if not devices:
        yield from _communication(analysis)
        return
    worst = max(devices, key=lambda device: 1 - device.compute / device.seconds)
    of = f" (of {len(devices)} GPUs the one that computed least)" if len(devices) > 1 else ""
    who = f"{gpu_name(worst)} of rank {worst.rank}{of}"
    explained = {reason: _explained(analysis, reason, worst) for reason in WAITS}
    waits = {reason: max(worst.idle_for[reason] - explained[reason], 0.0) for reason in WAITS}
    if idle := sum(waits.values()):
        reason = max(waits, key=lambda each: waits[each])
        words, helps = WAITS[reason]
        most = f", {duration(waits[reason])} of it {words}"
        said = f"{who} was idle for{' another' if any(explained.values()) else ''}"
        yield from _large(analysis, "Idle GPU", said, idle, worst, most, helps or remedy(worst))
    most, helps = COPY_LESS[max(worst.copies, key=lambda kind: worst.copies[kind], default="unknown")]
    yield from _large(
        analysis, "Copies of memory", f"{who} only copied memory for", worst.copy, worst, most, helps
    )
    if not analysis.found(CommunicationBound):
        said, helps = f"{who} only communicated for", REMEDIES["communication"]
        yield from _large(analysis, "Exposed communication", said, worst.communication, worst, "", helps)


def _explained(analysis: Analysis, reason: str, device: DeviceTime) -> float:
    """Returns the seconds of a device's idle time that a rule has found on its rank."""
    if reason not in EXPLAINED_BY:
        return 0.0
    rule, rows, seconds = EXPLAINED_BY[reason]
    of_device = {"node": device.node, "rank": device.rank, "gpu": gpu_name(device)}
    return sum(
        float(row[seconds])
        for row in analysis.details_of(rule).get(rows, ())
        if row["triggered"] and all(row.get(name, value) == value for name, value in of_device.items())
    )


def _communication(analysis: Analysis) -> Iterator[RuleResult]:
    """Yields a finding for communication in steps of a trace without a device, if no rule explains it."""
    steps = sum(analysis.phase_seconds.get(phase, 0.0) for phase in PHASES)
    explained = analysis.found(CommunicationBound) or analysis.found(Straggler)
    if not analysis.is_trace or not steps or not analysis.run_seconds or explained:
        return
    part = analysis.component_seconds.get("communication", 0.0) / steps
    if part >= analysis.large:
        said = f"The ranks waited in communication for {percent(100 * part)} of their steps' time."
        lost = part * analysis.run_seconds
        yield finding("Exposed communication", said, REMEDIES["communication"], lost)


def _large(
    analysis: Analysis, title: str, said: str, seconds: float, device: DeviceTime, most: str, helps: str
) -> Iterator[RuleResult]:
    part = seconds / device.seconds
    if part >= analysis.large:
        words = f"{said} {percent(100 * part)} of the {duration(device.seconds)} that were traced{most}."
        yield finding(title, words, helps, seconds)


def too_little(facts: RunFacts) -> str:
    """Returns what the traces of a run do not show, as a clause; "" if they show enough."""
    if facts.start is None or facts.end is None or not facts.ranks:
        return ""
    seconds = facts.end - facts.start - facts.unobserved_seconds
    steps = min(sum(rank.steps.values()) for rank in facts.ranks)
    if seconds < SHORTEST or (steps < LEAST_STEPS and seconds < LEAST_SECONDS):
        known = count(steps, "step") if steps else "no known step"
        return f"the trace covers only {duration(seconds)} with {known}"
    return next(filter(None, (_unseen(rank, facts) for rank in facts.ranks)), "")


def _unseen(rank: RankFacts, facts: RunFacts) -> str:
    """Returns for how little of the trace a device was seen; "" if for most, or if there is none."""
    stepping = sum(rank.phase_seconds.values())
    spans = (each for each in facts.captures if (each.node, each.rank) == (rank.node, rank.rank))
    captured = stepping or sum(each.end - each.start for each in spans)
    devices = [each for each in facts.devices if (each.node, each.rank) == (rank.node, rank.rank)]
    seen = max((each.seconds for each in devices), default=0.0)
    if not seen or seen >= LEAST_SEEN * captured:
        return ""
    part = f"{duration(seen)} of the {duration(captured)} {'of its steps' if stepping else 'that it covers'}"
    return f"the trace shows the device of rank {rank.rank} for only {part}"
