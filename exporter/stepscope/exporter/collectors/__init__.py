"""The exporter's collectors: one module per source, whose class is marked with `@collector`."""

import sys
from argparse import ArgumentParser, BooleanOptionalAction
from collections.abc import Iterable, Mapping
from graphlib import TopologicalSorter
from importlib import import_module
from pathlib import Path
from typing import Any, ClassVar

from stepscope.exporter.sampling.collector import Collector, marked_collectors
from stepscope.exporter.sampling.sample import Sample


def discover() -> list[type[Collector]]:
    """Returns every collector in this folder, by name, but after those whose part of the sample it reads.

    If a module cannot be imported, a collector of the same name replaces it. That collector fails at each
    tick with the reason, so `stepscope_collector_success` and the log show it.
    """
    files = [file for folder in __path__ for file in Path(folder).glob("[!_]*.py")]
    found = {each.name: each for each in map(_collector_in, files) if each is not None}
    before = {name: sorted(found.keys() & set(found[name].after)) for name in sorted(found)}
    return [found[name] for name in TopologicalSorter(before).static_order()]


def add_flags(parser: ArgumentParser, collectors: Iterable[type[Collector]]) -> None:
    """Adds `--[no-]collector.NAME` for each collector, and the collector's own flags."""
    group = parser.add_argument_group("collectors", "each is on unless --no-collector.NAME is given")
    for collector in collectors:
        group.add_argument(
            f"--collector.{collector.name}",
            dest=_switch(collector),
            action=BooleanOptionalAction,
            default=True,
        )
        collector.add_arguments(parser)


def enabled(flags: Mapping[str, Any], collectors: Iterable[type[Collector]]) -> list[Collector]:
    """Returns the collectors that the flags leave on, made from the flags."""
    return [
        collector(*(flags[name] for name in collector.settings))
        for collector in collectors
        if flags[_switch(collector)]
    ]


def summary(collector: type[Collector]) -> str:
    """Returns the first line of the docstring of a collector's module."""
    if issubclass(collector, _Unusable):
        return f"cannot be used: {collector.reason}"
    lines = (sys.modules[collector.__module__].__doc__ or "").strip().splitlines()
    return lines[0].rstrip(".") if lines else collector.name


def _collector_in(file: Path) -> type[Collector] | None:
    try:
        module = import_module(f"{__name__}.{file.stem}")
    except Exception as error:  # noqa: BLE001 - whatever a module raises, the others must work
        if "\n@collector\n" not in file.read_text():
            return None
        reason = " ".join(str(error).split()) or type(error).__name__
        return type(file.stem, (_Unusable,), {"name": file.stem, "reason": reason})
    return next((each for each in marked_collectors if each.__module__ == module.__name__), None)


def _switch(collector: type[Collector]) -> str:
    return f"collector_{collector.name}"


class _Unusable(Collector):
    """Replaces a collector whose module cannot be imported."""

    reason: ClassVar[str]

    def collect(self, sample: Sample) -> None:
        raise RuntimeError(f"the collector's module could not be imported: {self.reason}")
