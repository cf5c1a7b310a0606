"""The parameters of the alerts on Stepscope itself and on hardware, which no report has."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated

from stepscope.rules.parts.parameters import Errors, Factor, Minutes, Parameters, Percent


@dataclass(frozen=True)
class ExporterDown(Parameters):
    minutes: Annotated[Minutes, "an exporter is down for this time on a node with an active run"] = 3
    idle_minutes: Annotated[Minutes, "or for this time on another node"] = 15


@dataclass(frozen=True)
class ExporterMissing(Parameters):
    minutes: Annotated[Minutes, "others have known the node for this time"] = 15


@dataclass(frozen=True)
class GPULost(Parameters):
    minutes: Annotated[Minutes, "the driver gives no readings for this time"] = 2
    gone_minutes: Annotated[Minutes, "or listed the GPU this time ago, and no longer does"] = 15


@dataclass(frozen=True)
class CollectorFailing(Parameters):
    minutes: Annotated[Minutes, "a collector fails for this time"] = 5


@dataclass(frozen=True)
class SamplesMissed(Parameters):
    threshold: Annotated[Percent, "the exporter missed more than this share of its samples in 5 minutes"] = 5


@dataclass(frozen=True)
class LimitReached(Parameters):
    minutes: Annotated[Minutes, "a limit leaves something out for this time"] = 5


@dataclass(frozen=True)
class ScrapeIntervalDiffers(Parameters):
    factor: Annotated[Factor, "scrapes are more often or more seldom than expected by this factor"] = 1.5


@dataclass(frozen=True)
class RunFailed(Parameters):
    minutes: Annotated[Minutes, "the alert stays for this time"] = 60


@dataclass(frozen=True)
class PCIeLinkDegraded(Parameters):
    utilization: Annotated[Percent, "the GPU is in use: its mean utilisation in 15 minutes is above this"] = (
        10
    )


@dataclass(frozen=True)
class PCIeReplays(Parameters):
    threshold: Annotated[Errors, "more replays per minute than this, over 15 minutes"] = 8


@dataclass(frozen=True)
class NVLinkErrors(Parameters):
    threshold: Annotated[Errors, "more checksum errors and replays in 15 minutes than this"] = 100


@dataclass(frozen=True)
class CorrectedMemoryErrors(Parameters):
    threshold: Annotated[Errors, "more corrected memory errors of a GPU in an hour than this"] = 100


@dataclass(frozen=True)
class PowerBrake(Parameters):
    threshold: Annotated[Percent, "the power brake slowed the GPU for more of 15 minutes than this"] = 5


@dataclass(frozen=True)
class InfinibandLinkDown(Parameters):
    minutes: Annotated[Minutes, "a port that was active in the last day is not, for this time"] = 2
    threshold: Annotated[Errors, "or its link went down more often in an hour than this"] = 2


@dataclass(frozen=True)
class InfinibandErrors(Parameters):
    threshold: Annotated[Errors, "more errors of one kind in an hour than this"] = 10


@dataclass(frozen=True)
class DiskFilling(Parameters):
    minutes: Annotated[Minutes, "the file system is full before that at the rate of the last 6 hours"] = 240
    free: Annotated[Percent, "and less than this is free"] = 20
    full: Annotated[Percent, "or less than this is free"] = 1


SILENCES: Mapping[str, type[Parameters]] = {
    kind.__name__: kind
    for kind in (
        ExporterDown,
        ExporterMissing,
        GPULost,
        CollectorFailing,
        SamplesMissed,
        LimitReached,
        ScrapeIntervalDiffers,
        RunFailed,
        PCIeLinkDegraded,
        PCIeReplays,
        NVLinkErrors,
        CorrectedMemoryErrors,
        PowerBrake,
        InfinibandLinkDown,
        InfinibandErrors,
        DiskFilling,
    )
}
