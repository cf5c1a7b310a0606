"""Lists the settings that differ between the two runs."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from trainwatch.compare.compared_run import ComparedRun
from trainwatch.report.facts import facts
from trainwatch.words import UNKNOWN

# The facts of the report that are settings, not results.
SET_UP = ("Command", "Framework", "GPUs", "Cores")
LOADER_SETTINGS = {
    "workers": "workers",
    "batch_size": "batch size",
    "pin_memory": "pinned memory",
    "prefetch_factor": "prefetch factor",
}


@dataclass(frozen=True)
class Setting:
    name: str
    a: str
    b: str

    @property
    def differs(self) -> bool:
        """Returns whether both values are known and different."""
        return self.a != self.b and UNKNOWN not in (self.a, self.b)


def settings(a: ComparedRun, b: ComparedRun) -> list[Setting]:
    """Returns every known setting of either run, also those that are equal."""
    both = _of(a), _of(b)
    names = dict.fromkeys(name for values in both for name in values)
    return [Setting(name, *(values.get(name, UNKNOWN) for values in both)) for name in names]


def _of(run: ComparedRun) -> dict[str, str]:
    analysis = run.analysis
    known = dict(facts(analysis))
    values = {name: known[name] for name in SET_UP}
    values["Number of nodes"] = str(len(analysis.nodes))
    values["World size"] = str(analysis.world_size or analysis.ranks)
    for phase in dict.fromkeys(loader["phase"] for loader in analysis.loaders):
        loaders = [loader for loader in analysis.loaders if loader["phase"] == phase]
        for key, name in LOADER_SETTINGS.items():
            values[f"Loader of {phase} steps: {name}"] = _all(loader.get(key) for loader in loaders)
    values["Price of a node"] = UNKNOWN if run.price is None else f"${run.price:g}/h"
    for name, version in analysis.versions.items():
        values[f"Version of {name}"] = version
    values["Time between samples"] = f"{analysis.interval:g} s"
    return values


def _all(values: Iterable[Any]) -> str:
    """Returns the value that all ranks share, or the different values."""
    return ", ".join(dict.fromkeys(_written(value) for value in values))


def _written(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return UNKNOWN if value is None else str(value)
