"""The time of devices in a trace: shares that sum to 100 %, and what devices waited for."""

import math
from collections.abc import Iterable
from dataclasses import dataclass

from stepscope.runs.model import IDLE_REASONS, DeviceTime

UNKNOWN = "unknown"  # of IDLE_REASONS: no launch is in the trace
PARTS = ("compute", "copy", "communication", "idle")


@dataclass(frozen=True)
class DeviceShares:
    """Percent of the time of one device, or of several together; `parts` sum to 100."""

    parts: dict[str, float]  # by PARTS
    idle_for: dict[str, float]  # by IDLE_REASONS; NaN: not measured; their sum is parts["idle"]
    seconds: float


def shares_of(devices: Iterable[DeviceTime]) -> DeviceShares | None:
    """Returns the shares of the devices together; None without any time."""
    found = list(devices)
    seconds = sum(device.seconds for device in found)
    if not seconds:
        return None
    idle_for = {
        reason: 100 * sum(device.idle_for[reason] for device in found) / seconds for reason in IDLE_REASONS
    }
    if any(device.idle for device in found) and not any(device.knows_launches for device in found):
        idle_for = {reason: share if reason == UNKNOWN else math.nan for reason, share in idle_for.items()}
    return DeviceShares(
        {part: 100 * sum(getattr(device, part) for device in found) / seconds for part in PARTS},
        idle_for,
        seconds,
    )
