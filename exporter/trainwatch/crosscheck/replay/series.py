"""The text of a scrape as series: their labels and values."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence, Set

from trainwatch.sampling.exposition import Exposition
from trainwatch.sampling.families import Family

_LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')
_ESCAPED = re.compile(r"\\(.)")


def values_of(
    exposition: Exposition, families: Sequence[Family], names: Set[str]
) -> Iterator[tuple[str, str]]:
    """Each series of these names as it is written, `name{labels}`, and its value."""
    chosen = [family for family in families if not names.isdisjoint(_series_of(family))]
    for line in exposition.write(chosen, "text").decode().splitlines():
        if not line.startswith("#"):
            series, _, value = line.rpartition(" ")
            yield series, value


def name_and_labels(series: str) -> tuple[str, dict[str, str]]:
    """`name{label="value"}` apart."""
    name, _, labels = series.partition("{")
    return name, {
        label: _ESCAPED.sub(lambda match: "\n" if match[1] == "n" else match[1], value)
        for label, value in _LABEL.findall(labels)
    }


def _series_of(family: Family) -> tuple[str, ...]:
    """The names under which Prometheus stores it."""
    suffixes = ("_bucket", "_sum", "_count") if family.kind == "histogram" else ("",)
    return tuple(f"{family.name}{suffix}" for suffix in suffixes)
