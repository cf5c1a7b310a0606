"""One file a scenario. Being in this folder is being listed."""

from __future__ import annotations

import pkgutil
from functools import cache
from importlib import import_module

from trainwatch.demo.scenario import Scenario


@cache
def all_scenarios() -> dict[str, type[Scenario]]:
    """Every scenario by its name, in alphabetical order."""
    found: dict[str, type[Scenario]] = {}
    for module in pkgutil.iter_modules(__path__):
        members = vars(import_module(f"{__name__}.{module.name}")).values()
        for member in members:
            if isinstance(member, type) and issubclass(member, Scenario) and member is not Scenario:
                found[member.name] = member
    return dict(sorted(found.items()))


def summary(scenario: type[Scenario]) -> str:
    """What is simulated, in a line: the first one of the docstring."""
    return (scenario.__doc__ or "").strip().splitlines()[0].rstrip(".")
