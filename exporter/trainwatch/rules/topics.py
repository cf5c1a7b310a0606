"""What a finding means for a run, and how the findings of several rules belong together."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Literal

# The topic of a rule whose finding may come from anything that costs time.
ANY_TOPIC = "any"


class Effect(str, Enum):
    TIME = "time"  # slows the run down
    RISK = "risk"  # may end the run, and costs no time until then
    OVERVIEW = "overview"  # the rule never fires: it shows what the other findings refer to


@dataclass(frozen=True)
class About:
    """How a rule's finding fits in with those of other rules; the fields are those of Rule."""

    subject: str
    effect: Effect = Effect.TIME
    topic: str = ""
    distance: int = 0
    view: str = ""


@dataclass(frozen=True)
class Symptom:
    """What a cause looks like from elsewhere: the alert of a cause silences those of its symptom.

    `scope` is where: on the cause's own node, or on all nodes of the run.
    """

    name: str
    scope: Literal["node", "run"] = "node"


IDLE_GPUS = Symptom("idle GPUs")
LONG_COMMUNICATION = Symptom("long communication", "run")  # ranks wait for a slow one on whatever node
