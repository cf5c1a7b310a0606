"""The parameters of the alerts on Stepscope itself, which no report has."""

from dataclasses import dataclass
from typing import Annotated

from stepscope.rules.parts.parameters import Factor, Minutes, Parameters, Percent, Runs


class Silence(Parameters):
    """Base of these parameters."""


@dataclass(frozen=True)
class ExporterDown(Silence):
    minutes: Annotated[Minutes, "an exporter is down for this time on a node with an active run"] = 3
    idle_minutes: Annotated[Minutes, "or for this time on another node"] = 15


@dataclass(frozen=True)
class ExporterMissing(Silence):
    minutes: Annotated[Minutes, "others have known the node for this time"] = 15


@dataclass(frozen=True)
class GPULost(Silence):
    minutes: Annotated[Minutes, "the driver gives no readings for this time"] = 2
    gone_minutes: Annotated[Minutes, "or listed the GPU this time ago, and no longer does"] = 15


@dataclass(frozen=True)
class CollectorFailing(Silence):
    minutes: Annotated[Minutes, "a collector fails for this time"] = 5


@dataclass(frozen=True)
class SamplesMissed(Silence):
    threshold: Annotated[Percent, "the exporter missed more than this share of its samples in 5 minutes"] = 5


@dataclass(frozen=True)
class LimitReached(Silence):
    minutes: Annotated[Minutes, "a limit leaves something out for this time"] = 5


@dataclass(frozen=True)
class ScrapeIntervalDiffers(Silence):
    factor: Annotated[Factor, "scrapes are more often or more seldom than expected by this factor"] = 1.5


@dataclass(frozen=True)
class RunFailed(Silence):
    minutes: Annotated[Minutes, "the alert stays for this time"] = 60


@dataclass(frozen=True)
class RunsStalled(Silence):
    share: Annotated[Percent, "more than this share of a cluster's runs have stalled"] = 25
    runs: Annotated[Runs, "and at least so many"] = 5


# Rules on hardware add themselves (hardware.py).
SILENCES: dict[str, type[Parameters]] = {kind.__name__: kind for kind in Silence.__subclasses__()}
