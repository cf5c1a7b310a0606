"""What the exporter can read: one module a source. Being in this folder is the registration."""

from __future__ import annotations

import inspect
from argparse import ArgumentParser, BooleanOptionalAction, Namespace
from collections.abc import Iterable
from importlib import import_module
from pkgutil import iter_modules

from trainwatch.sampling.collector import Collector
from trainwatch.sampling.families import Family
from trainwatch.sampling.sample import Sample


def discover() -> list[type[Collector]]:
    """Every collector in this folder, by name.

    A module that cannot be imported takes no other down: it becomes a collector of the module's name
    that fails at each tick with the reason, so `trainwatch_collector_success` and the log show it.
    """
    found = [collector for module in iter_modules(__path__) for collector in _collectors_in(module.name)]
    return sorted(found, key=lambda collector: collector.name)


def add_flags(parser: ArgumentParser, collectors: Iterable[type[Collector]]) -> None:
    """`--[no-]collector.NAME` for each collector, and the collector's own flags."""
    group = parser.add_argument_group("collectors", "each is on unless its --no-collector.NAME is given")
    for collector in collectors:
        group.add_argument(
            f"--collector.{collector.name}",
            dest=_switch(collector),
            action=BooleanOptionalAction,
            default=True,
        )
        collector.add_arguments(parser)


def enabled(arguments: Namespace, collectors: Iterable[type[Collector]]) -> list[Collector]:
    """The collectors that the flags leave on, made from the flags."""
    return [
        collector.from_arguments(arguments)
        for collector in collectors
        if getattr(arguments, _switch(collector))
    ]


def summary(collector: type[Collector]) -> str:
    """What a collector reads, in a line: the first one of its module's docstring."""
    module = inspect.getmodule(collector)
    lines = (module.__doc__ or "").strip().splitlines() if module else []
    return lines[0].rstrip(".") if lines else collector.name


def _collectors_in(name: str) -> list[type[Collector]]:
    try:
        module = import_module(f"{__name__}.{name}")
    except Exception as error:  # noqa: BLE001 - whatever a module raises, the others must work
        return [_unusable(name, error)]
    return [
        member
        for member in vars(module).values()
        if inspect.isclass(member)
        and issubclass(member, Collector)
        and not inspect.isabstract(member)
        and member.__module__ == module.__name__  # not one that was only imported there
    ]


def _switch(collector: type[Collector]) -> str:
    return f"collector_{collector.name}"


def _unusable(module_name: str, reason: Exception) -> type[Collector]:
    class Unusable(Collector):
        __doc__ = f"cannot be used: {reason}"
        name = module_name

        @classmethod
        def from_arguments(cls, arguments: Namespace) -> Collector:  # noqa: ARG003
            return cls()

        @property
        def families(self) -> Iterable[Family]:
            return ()

        def collect(self, sample: Sample) -> None:
            raise RuntimeError(f"the collector's module could not be imported: {reason!r}")

    return Unusable
