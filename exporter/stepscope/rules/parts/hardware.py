"""Defines rules on the hardware of nodes, whether or not a run uses it: each is a file with `@hardware_rule`.

They only alert: recordings do not have their values, so reports have nothing to judge. Healthy hardware is
silent.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import Any, NamedTuple, TypeVar

from stepscope.rules.parts.parameters import Parameters
from stepscope.rules.parts.promql import Alert, Scraping
from stepscope.rules.parts.registry import all_rules
from stepscope.rules.parts.silences import SILENCES

PORT = "Port {{ $labels.port }} of {{ $labels.device }} on {{ $labels.instance }}"
RESEAT_GPU = "Drain the node when the run ends. Reseat the GPU or its riser, and compare with another slot."
REPLACE_CABLE = (
    "Clean or replace the cable and its transceivers, then compare with another port of the switch."
)


class Advised(NamedTuple):
    """An alert, and what to do."""

    alert: Alert
    recommendation: str


Alerts = Iterator[Advised]


def advised(expression: str, summary: str, description: str, recommendation: str, **more: Any) -> Advised:
    """Returns an alert with what to do. `more`: the other fields of the alert."""
    return Advised(Alert(expression, summary, description, **more), recommendation)


class HardwareRule(Parameters, ABC):
    """A rule, named like its class. Its fields are its parameters; the module's docstring names a source."""

    @abstractmethod
    def alerts(self, scraping: Scraping) -> Alerts:
        """Yields the alerts; docs/rules.md has a section on the rule."""


R = TypeVar("R", bound=type[HardwareRule])


def hardware_rule(marked: R) -> R:
    """Registers a class as a rule on hardware."""
    SILENCES[marked.__name__] = marked
    return marked


def hardware_rules() -> list[type[HardwareRule]]:
    """Returns every rule on hardware, by name."""
    all_rules()  # imports the files of all rules
    return [kind for _, kind in sorted(SILENCES.items()) if issubclass(kind, HardwareRule)]
