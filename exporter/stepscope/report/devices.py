"""The sentences about the devices of a trace: their shares, and what they waited for."""

from collections.abc import Mapping

from stepscope.common.words import count, duration, listing, percent
from stepscope.evaluation.analysis import Analysis
from stepscope.measurements.device_times import shares_of
from stepscope.rules.host_bound import gpu_name
from stepscope.runs.model import DeviceTime

PARTS = {
    "compute": "compute",
    "communication": "exposed communication",
    "copy": "memory copies",
    "idle": "idle",
}
REASONS = {
    "host": "the host to launch work",
    "data": "data",
    "collective": "a collective on the host",
    "profiler": "the profiler",
    "launch": "launched work to begin",
    "unknown": "an unknown cause",
}
HARDLY = 0.001  # of the time of a device


def headline(analysis: Analysis) -> list[str]:
    """Says what the devices did, and what the one that was idle longest waited for; [] without a trace."""
    devices = [device for device in analysis.devices if device.seconds]
    if not devices:
        return []
    worst = max(devices, key=lambda device: (device.idle + device.communication) / device.seconds)
    steps = "an unknown number of steps" if worst.steps is None else count(worst.steps, "step")
    of = f" (of {len(devices)} GPUs the one that waited most)" if len(devices) > 1 else ""
    who = f"{gpu_name(worst)} of rank {worst.rank}{of} was traced for {duration(worst.seconds)}, {steps}"
    return [f"{who}. Its time: {parts_in_words(worst)}. {_waited(worst)}"]


def parts_in_words(device: DeviceTime) -> str:
    """Returns the shares in percent, as numbers that sum to 100.0."""
    return listing([f"{PARTS[part]} {value:.1f} %" for part, value in percents(device).items()])


def percents(device: DeviceTime) -> dict[str, float]:
    """Returns the shares of a device's time by PARTS, as numbers that sum to 100.0."""
    shares = shares_of([device])
    assert shares is not None
    return rounded(shares.parts)


def rounded(percents: Mapping[str, float]) -> dict[str, float]:
    """Returns percentages with one decimal that still sum to 100: the largest remainders are rounded up."""
    tenths = {part: int(10 * value) for part, value in percents.items()}
    by_remainder = sorted(percents, key=lambda part: tenths[part] - 10 * percents[part])
    for part in by_remainder[: 1000 - sum(tenths.values())]:
        tenths[part] += 1
    return {part: tenths[part] / 10 for part in PARTS}


def _waited(device: DeviceTime) -> str:
    waits = {REASONS[reason]: seconds for reason, seconds in device.idle_for.items() if seconds}
    if device.communication:
        waits["other ranks or the network, in exposed communication"] = device.communication
    cause = max(waits, key=waits.__getitem__, default=None)
    if cause is None:
        return "It never waited."
    if waits[cause] < HARDLY * device.seconds:
        return f"It hardly waited: less than 0.1 % of its time for {cause}."
    share = percent(100 * waits[cause] / device.seconds)
    return f"It waited mostly for {cause}: {duration(waits[cause])}, {share} of its time."


def reasons_in_words(device: DeviceTime) -> str:
    """Returns the reasons for idle time, the longest first."""
    waits = sorted(device.idle_for.items(), key=lambda item: -item[1])
    return (
        listing([f"{REASONS[reason]} ({duration(seconds)})" for reason, seconds in waits if seconds]) or "–"
    )
