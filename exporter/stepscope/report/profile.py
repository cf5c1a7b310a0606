"""The profile windows of a run in words and rows: operators per rank and device, windows, findings."""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from stepscope.common.words import capitalised, count, duration, listing, share, signed_duration, size
from stepscope.evaluation.analysis import Analysis, DevicePasses, DeviceProfile
from stepscope.evaluation.profile import CPU, own
from stepscope.report.devices import headline as devices_headline
from stepscope.report.sentences import device_name
from stepscope.runs.model import PYTHON, DeviceMemory, ProfileWindow

OPERATORS, TOP = 10, 3  # rows per device, and operators in a sentence
DEVICES = 4  # in short forms of the report; the page and the JSON have all
WINDOWS = 20  # rows, the latest
CHANGED = "From the first to the last window of each rank"
CHANGES = "Operator", "Device", "Called from", "First", "Last", "Change"
OPTIMIZER = "Optimizer"
STATES = {"open": "its process ended in the window", "lost": "its trace is gone"}


class Row(NamedTuple):
    """One operator."""

    name: str
    place: str  # file:line that calls it; "": not known
    shapes: str  # of its inputs; "": not recorded
    own: str  # time without the operators that it called
    total: str
    calls: int
    share: str  # of the windows' steps
    part: float  # 0..1


def rows(device: DeviceProfile) -> list[Row]:
    """Returns the most expensive operators of a device."""
    return [
        Row(
            each.operator,
            each.place,
            each.shapes,
            duration(own(each)),
            duration(each.seconds),
            each.calls,
            share(own(each), device.step_seconds) if device.step_seconds else "–",
            min(1.0, own(each) / device.step_seconds) if device.step_seconds else 0.0,
        )
        for each in device.operators[:OPERATORS]
    ]


def has_places(device: DeviceProfile | DeviceMemory) -> bool:
    """Returns whether the line that calls one of its operators is known."""
    return any(each.place for each in device.operators[:OPERATORS])


def has_shapes(device: DeviceProfile) -> bool:
    """Returns whether a window recorded the shapes of inputs."""
    return any(each.shapes for each in device.operators[:OPERATORS])


class MemoryRow(NamedTuple):
    """One operator, per step of the windows."""

    name: str
    place: str
    allocated: str
    kept: str  # of it, beyond the operator's end
    calls: str  # allocations
    share: str  # of what all operators allocated
    part: float  # 0..1


def memory_rows(device: DeviceMemory) -> list[MemoryRow]:
    """Returns the operators that allocated most."""
    steps, total = device.steps or 1, sum(each.allocated for each in device.operators)
    return [
        MemoryRow(
            each.operator,
            each.place,
            size(each.allocated / steps),
            size(max(0, each.allocated - each.freed) / steps),
            f"{each.allocations / steps:.3g}",
            share(each.allocated, total),
            each.allocated / total,
        )
        for each in device.operators[:OPERATORS]
        if each.allocated
    ]


def memory_title(device: DeviceMemory) -> str:
    """Returns "Memory of rank 0, CPU: 8 steps, at most 12.3 MB at once"."""
    of = f"{count(device.steps, 'step')}, " if device.steps else ""
    return (
        f"Memory of rank {device.rank}, {device_name(device.device)}: {of}at most {size(device.most)} at once"
    )


def memory_sentence(device: DeviceMemory) -> str:
    """Returns "rank 0 allocates on CPU per step: 12.3 MB in aten::linear (train.py:9) and ..."."""
    top = memory_rows(device)[:TOP]
    found = listing([f"{row.allocated} in {_called(row)}" for row in top])
    return f"rank {device.rank} allocates on {device_name(device.device)} per step: {found}"


def changes(analysis: Analysis) -> list[tuple[str, ...]]:
    """Returns rows with CHANGES: self times per step."""
    found = analysis.profile.changes if analysis.profile is not None else ()
    return [
        (
            each.operator,
            device_name(each.device),
            each.place or "–",
            duration(each.a),
            duration(each.b),
            signed_duration(each.difference),
        )
        for each in found
    ]


class ModuleRow(NamedTuple):
    """One module, or a part of the steps without one."""

    name: str
    forward: str  # without the modules that it called, as `backward`
    backward: str
    total: str  # with them
    share: str  # of the windows' steps, without them
    part: float  # 0..1


MODULES = "Module", "Forward", "Backward", "Total", "Share of steps"


def module_rows(device: DevicePasses) -> list[ModuleRow]:
    """Returns the modules in which passes take longest, and the optimizer."""
    of = device.step_seconds
    rows = [
        (
            each.module,
            duration(each.forward),
            duration(each.backward),
            each.total,
            each.forward + each.backward,
        )
        for each in device.modules[:OPERATORS]
    ]
    optimizer = (OPTIMIZER, "–", "–", device.optimizer, device.optimizer)
    return [
        ModuleRow(name, forward, backward, duration(total), share(own, of), min(1.0, own / of))
        for name, forward, backward, total, own in (*rows, optimizer)
        if own and of
    ]


def passes(analysis: Analysis) -> list[DevicePasses]:
    """Returns the passes of each rank by module: on its GPUs, or of the host if it used none."""
    known = analysis.profile.passes if analysis.profile is not None else ()
    with_gpu = {(each.rank, each.node) for each in known if each.device != CPU}
    return [each for each in known if each.device != CPU or (each.rank, each.node) not in with_gpu]


def passes_title(device: DevicePasses) -> str:
    """Returns "Modules of rank 0, CPU: forward 30 %, backward 50 % and optimizer 12 % of 8 steps"."""
    return (
        f"Modules of rank {device.rank}, {device_name(device.device)}: {listing(_parts(device))} of "
        f"{count(device.steps, 'step')}"
    )


def _parts(device: DevicePasses) -> list[str]:
    seconds = {"forward": device.forward, "backward": device.backward, "optimizer": device.optimizer}
    return [f"{name} {share(of_part, device.step_seconds)}" for name, of_part in seconds.items()]


def kinds(device: DeviceProfile) -> str:
    """Returns "Matrix products 61 %, elementwise 20 % and attention 19 % of its time"; "" without kernels."""
    whole = sum(device.kinds.values())
    found = [f"{kind} {share(seconds, whole)}" for kind, seconds in device.kinds.items()]
    return f"{capitalised(listing(found))} of what it did." if found else ""


def passes_sentence(device: DevicePasses) -> str:
    """Returns "rank 0 on CPU: forward 30 %, ...; most by module: 31 % in Net.head (Linear) and ..."."""
    top = [row for row in module_rows(device) if row.name != OPTIMIZER][:TOP]
    found = listing([f"{row.share} in {row.name}" for row in top])
    parts = listing(_parts(device))
    return f"rank {device.rank} on {device_name(device.device)}: {parts}; most by module: {found}"


def kinds_by_device(analysis: Analysis) -> list[str]:
    """Returns "GPU 0 of rank 1: matrix products 61 % ..." of the first devices."""
    with_kinds = [device for device in _devices(analysis) if device.kinds][:DEVICES]
    return [f"{device_name(each.device)} of rank {each.rank}: {kinds(each)}" for each in with_kinds]


def _called(row: Row | MemoryRow) -> str:
    return f"{row.name} ({row.place})" if row.place else row.name


def title(device: DeviceProfile) -> str:
    """Returns "Rank 0, CPU: 8 steps, 12.3 ms"."""
    steps = f": {count(device.steps, 'step')}, {duration(device.step_seconds)}" if device.steps else ""
    return f"Rank {device.rank}, {device_name(device.device)}{steps}"


def sentence(device: DeviceProfile) -> str:
    """Returns "rank 0 on CPU, of 8 profiled steps: 31 % in aten::addmm (train.py:9) and ..."."""
    top = [row for row in rows(device) if row.part][:TOP]
    found = listing([f"{row.share} in {_called(row)}" for row in top])
    of = count(device.steps, "profiled step")
    place = "in" if device.device.startswith(PYTHON) else "on"
    return f"rank {device.rank} {place} {device_name(device.device)}, of {of}: {found}"


def sentences(analysis: Analysis) -> list[str]:
    """Returns a sentence for each of the first devices, and how many more there are."""
    devices = [device for device in _devices(analysis) if device.steps and device.operators]
    said = [f"{capitalised(sentence(device))}." for device in devices[:DEVICES]]
    said += [f"{capitalised(memory_sentence(each))}." for each in memory(analysis)[:DEVICES]]
    said += [f"{capitalised(passes_sentence(each))}." for each in passes(analysis)[:DEVICES]]
    said += [*gpus(analysis), *kinds_by_device(analysis)]
    more = len(devices) - DEVICES
    return [*said, f"The report has {count(more, 'more device')}."] if more > 0 else said


def gpus(analysis: Analysis) -> list[str]:
    """Says what the GPUs did in the windows, and what the one that waited most waited for; [] without one."""
    traces = analysis.profile.traces if analysis.profile is not None else None
    return devices_headline(traces) if traces is not None else []


def headline(analysis: Analysis) -> str:
    """Returns one sentence about all windows."""
    written = [window for window in analysis.windows if window.state == "written"]
    ranks = len({window.rank for window in written})
    lost = len(analysis.windows) - len(written)
    if not written:
        return "No window has a trace."
    without = f", and {lost} without a trace" if lost else ""
    return f"{count(len(written), 'window')} of {count(ranks, 'rank')}{without}."


def windows(analysis: Analysis) -> Sequence[ProfileWindow]:
    """Returns the latest windows."""
    return analysis.windows[-WINDOWS:]


def state(window: ProfileWindow) -> str:
    """Returns "written", "skipped: the script's own profiler is active"."""
    reason = window.reason or STATES.get(window.state, "")
    return f"{window.state}: {reason}" if reason else window.state


def steps(window: ProfileWindow) -> str:
    """Returns "2 to 9"."""
    known = window.last is not None and window.last >= window.first
    return f"{window.first} to {window.last}" if known else f"from {window.first}"


def memory(analysis: Analysis) -> list[DeviceMemory]:
    """Returns the devices on which a window recorded allocations."""
    known = analysis.profile.memory if analysis.profile is not None else ()
    return [device for device in known if memory_rows(device)]


def _devices(analysis: Analysis) -> Iterator[DeviceProfile]:
    if analysis.profile is not None:
        yield from analysis.profile.devices
