"""One file per scenario, whose class is marked with `@scenario`."""

from __future__ import annotations

import pkgutil
from importlib import import_module

from stepscope.demo.scenario import Scenario, marked_scenarios


def all_scenarios() -> dict[str, type[Scenario]]:
    """Returns every scenario by its name, in alphabetical order."""
    for module in pkgutil.iter_modules(__path__):
        import_module(f"{__name__}.{module.name}")
    return {scenario.name: scenario for scenario in sorted(marked_scenarios, key=lambda each: each.name)}


def summary(scenario: type[Scenario]) -> str:
    """Returns what is simulated, in a line: the first one of the docstring."""
    return (scenario.__doc__ or "").strip().splitlines()[0].rstrip(".")
