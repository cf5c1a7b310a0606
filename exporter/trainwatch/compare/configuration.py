"""What was set up differently in the two runs."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from trainwatch.compare.compared_run import ComparedRun
from trainwatch.report.facts import facts
from trainwatch.words import UNKNOWN

# Of the report's facts those that are set up, and do not come about.
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
        """Where one of them is not known nothing can be said."""
        return self.a != self.b and UNKNOWN not in (self.a, self.b)


def settings(a: ComparedRun, b: ComparedRun) -> list[Setting]:
    """Everything that is known of how either run was set up, also what both have alike."""
    both = _of(a), _of(b)
    names = dict.fromkeys(name for one in both for name in one)
    return [Setting(name, *(one.get(name, UNKNOWN) for one in both)) for name in names]


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
    """The one value that all ranks have, or the values that there are."""
    return ", ".join(dict.fromkeys(_written(value) for value in values))


def _written(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return UNKNOWN if value is None else str(value)
