"""HostBound: a GPU waits for its host, which launches work too late.

Source: our own threshold for the idle time that Meta's Holistic Trace Analysis calls "host wait": no stream
of the GPU runs anything, and the work that ends the gap was launched only during the gap. Waits for data, for
collectives on the host and for the profiler are other causes and do not count. Only a trace shows launches.
Without one, the timed components of steps show what the host did instead of launching (host_in_steps.py).
The rule has no alert.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Annotated, Any

from stepscope.common.status import Status
from stepscope.common.words import count, duration, listing, others, percent
from stepscope.measurements.device_times import shares_of
from stepscope.measurements.measure import RunMeasurements
from stepscope.measurements.step_totals import STEP_TOTALS
from stepscope.measurements.steps import STEP_DURATIONS
from stepscope.rules.parts.base import OfWholeRun, Verdict, status_of
from stepscope.rules.parts.host_in_steps import HostPart, largest_part
from stepscope.rules.parts.judgement import Tallies
from stepscope.rules.parts.parameters import Parameters, Percent
from stepscope.rules.parts.registry import rule
from stepscope.rules.parts.shares import summed
from stepscope.rules.parts.topics import IDLE_GPUS
from stepscope.runs.model import DeviceTime, HostTime

NAMED = 3  # parts of the host's time in the finding
LISTED = 20  # in the details
SYNCHRONISING_SHARE = 2  # percent of the device's time in calls that wait for it, from which they are named
LARGE = 25  # percent of the wait, from which what the host did gets its remedy
LATER_WORK = (
    "Give the GPU more work per launch: CUDA graphs or torch.compile, a fused optimizer (fused=True), or a "
    "larger batch."
)
SYNCHRONISES_LESS = (
    "Wait for the GPU less often: call .item(), .cpu() and print only every some steps, and copy "
    "from pinned memory with non_blocking=True."
)
REMEDIES = {
    "operator": LATER_WORK,
    "computing": "Those operators compute on the host: create and change tensors on the GPU (device='cuda'), "
    "or in the loader's workers. If it was their first call, leave the first steps out (warmup).",
    "runtime": LATER_WORK,
    "slow call": "Those calls take milliseconds instead of microseconds: the first use of a kernel loads its "
    "module, or another thread or process holds the driver. Leave the first steps out of the trace "
    "(warmup), and look again.",
    "python": "Take that Python code out of the steps, or let another process do it.",
    "synchronising": SYNCHRONISES_LESS,
    "memory": "Let PyTorch keep the memory that it has: no torch.cuda.empty_cache() in steps, batches of "
    "equal shape, PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True, and pinned memory allocated once.",
    "capture": "Graphs are captured once: leave these steps out of the trace (warmup). If they are captured "
    "again and again, give all batches the same shapes.",
    "gc": "Collect garbage between steps: gc.disable(), and gc.collect() every some hundred.",
    "not recorded": "Record with with_stack=True: then the report shows which Python code the host ran.",
}


@dataclass(frozen=True)
class HostBoundParameters(Parameters):
    threshold: Annotated[Percent, "the rule fires above this share of a GPU's time in a trace"] = 20
    component_threshold: Annotated[
        Percent,
        "or if every rank spends more than this share of its step time in copies to the device, in "
        "checkpoints or in garbage collection",
    ] = 10


@rule
class HostBound(OfWholeRun[HostBoundParameters]):
    """Seconds lost: the wait of the GPU that waited longest, or what every rank spent in the component."""

    subject = "Waiting for the host"
    question = "Does a GPU wait because its host launches work too late?"
    description = (
        "Adds up the time in which a GPU was idle until the host launched the next work. Shows which "
        "operators, Python functions and synchronising calls the host ran meanwhile. Needs a trace. Without "
        "one, only copies to the device, checkpoints and garbage collection in steps are judged."
    )
    recommendation = LATER_WORK
    judges = ("host_to_device", "checkpoint", "gc")
    view = "devices"

    measure = STEP_DURATIONS
    details_of = (STEP_TOTALS,)
    symptom = IDLE_GPUS

    def conclude(self, run: RunMeasurements, tallies: Tallies) -> Verdict:
        devices = [device for device in run.facts.devices if device.seconds]
        fired = [device for device in devices if _share(device) > self.parameters.threshold]
        part = None if devices else largest_part(run)
        if part and part.least > self.parameters.component_threshold:
            return _of_steps(part)
        known = [device for device in devices if device.knows_launches or not device.idle]
        worst = max(fired or known, key=_waited, default=None)
        return Verdict(
            status_of(len(fired), len(known)),
            _why_not(devices) if worst is None else _finding(worst, devices),
            len(fired),
            len(fired),
            len(devices),
            _waited(worst) if fired and worst is not None else 0.0,
            remedy(worst) if fired and worst is not None else None,
            {"devices": [_details(device, device in fired) for device in devices]} if devices else {},
        )


def _of_steps(part: HostPart) -> Verdict:
    """Returns the verdict on a component of steps that takes too much time of every rank."""
    ranks = [
        {
            "node": rank.node,
            "rank": rank.rank,
            "seconds": rank.seconds,
            "percent": rank.percent,
            "triggered": 1,
        }
        for rank in part.ranks
    ]
    return Verdict(
        Status.FOUND,
        part.words(),
        len(ranks),
        len(ranks),
        len(ranks),
        part.seconds,
        part.remedy,
        {"component": part.component, "ranks": ranks},
        cause_known=part.component != "gc",  # what was collected, and why just then, is not known
    )


def _waited(device: DeviceTime) -> float:
    return device.idle_for["host"]


def _share(device: DeviceTime) -> float:
    return 100 * _waited(device) / device.seconds


def _why_not(devices: Sequence[DeviceTime]) -> str:
    if devices:
        return (
            "The trace does not show which calls launched the GPU's work. Record the activity CPU, if it was "
            "not."
        )
    return "No GPU's work is in a trace. With torch.profiler, record the activity CUDA."


def _finding(worst: DeviceTime, devices: Sequence[DeviceTime]) -> str:
    where = f"{gpu_name(worst)} of rank {worst.rank}"
    sentence = (
        f"{where} waited for its host for {percent(_share(worst))} of its time ({duration(_waited(worst))})"
    )
    sentence += others([_share(device) for device in devices if device is not worst], "GPU")
    parts = [_words(part, worst) for part in worst.host[:NAMED]]
    if parts and _waited(worst):
        sentence += f". Meanwhile the host ran {listing(parts)}"
    waits = _synchronising(worst)
    if waits:
        calls, seconds = sum(wait.calls for wait in waits), sum(wait.seconds for wait in waits)
        sites = f", most at {waits[0].site}" if waits[0].site else ""
        sentence += (
            f". {count(calls, 'call')} waited for the GPU ({duration(seconds)}): {waits[0].name}{sites}"
        )
    return f"{sentence}."


def gpu_name(device: DeviceTime) -> str:
    """Returns "GPU 0", "TPU 3"."""
    kind = next((kind for kind in ("gpu", "tpu", "npu") if device.device.startswith(kind)), "")
    return f"{kind.upper() or 'device'} {device.device.removeprefix(kind)}"


def _words(part: HostTime, device: DeviceTime) -> str:
    name = part.name or "code that the profiler did not record"
    name = f"{count(part.calls, part.kind)} of {name}" if part.kind == "slow call" else name
    site = f" at {part.site}" if part.site and part.site != part.name else ""
    return f"{name}{site} ({percent(100 * part.seconds / _waited(device))} of the wait)"


def _synchronising(device: DeviceTime) -> Sequence[HostTime]:
    """Returns the calls that wait for the device, if they took a share worth naming."""
    seconds = sum(part.seconds for part in device.synchronising)
    return device.synchronising if 100 * seconds > SYNCHRONISING_SHARE * device.seconds else ()


def remedy(device: DeviceTime) -> str:
    """Returns what helps against what the host did for a large part of the wait."""
    seconds = summed({REMEDIES[part.kind]: part.seconds} for part in device.host)
    longest = sorted(seconds, key=lambda helps: -seconds[helps])
    chosen = [helps for helps in longest if 100 * seconds[helps] >= LARGE * _waited(device)]
    if _synchronising(device):
        chosen.append(SYNCHRONISES_LESS)
    return " ".join(dict.fromkeys(chosen or longest[:1] or [LATER_WORK]))


def _details(device: DeviceTime, triggered: bool) -> dict[str, Any]:
    shares = shares_of([device])
    assert shares is not None
    return {
        "node": device.node,
        "rank": device.rank,
        "gpu": gpu_name(device),
        "steps": device.steps,
        "seconds": device.seconds,
        "percent": shares.parts,
        "idle_percent": shares.idle_for,
        "waited_seconds": _waited(device),
        "triggered": int(triggered),
        "host": [asdict(part) for part in device.host[:LISTED]],
        "synchronising": [asdict(part) for part in device.synchronising[:LISTED]],
    }
