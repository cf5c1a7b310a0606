"""Classifies findings: their effect on a run, and which rules detect the same problem."""

from dataclasses import dataclass
from enum import StrEnum
from typing import Literal

# The topic of a rule whose finding anything that costs time may cause.
ANY_TOPIC = "any"


class Effect(StrEnum):
    """The effect of a finding on a run."""

    TIME = "time"  # slows the run down
    RISK = "risk"  # may end the run, but costs no time until then
    OVERVIEW = "overview"  # the rule never fires: other findings refer to it


@dataclass(frozen=True)
class About:
    """The relation of a rule to other rules; the fields are those of Rule."""

    subject: str
    effect: Effect = Effect.TIME
    topic: str = ""
    distance: int = 0
    view: str = ""
    is_symptom: bool = False
    symptom: str = ""  # its name
    judges: tuple[str, ...] = ()  # components of steps
    effect_of: str = ""  # the topic of findings that explain what the rule sees


@dataclass(frozen=True)
class Symptom:
    """An effect of several causes: the alert of a cause silences the alerts of its symptom.

    `scope` is the cause's own node, or all nodes of the run.
    """

    name: str
    scope: Literal["node", "run"] = "node"


IDLE_GPUS = Symptom("idle GPUs")
LONG_COMMUNICATION = Symptom("long communication", "run")  # ranks wait for a slow rank on any node
