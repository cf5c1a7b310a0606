"""Measured numbers. Each is written once, as a field of a class in sample.py.

`power_watts: float = gauge("Power drawn.", bits=32)` of a GPU is the metric `stepscope_gpu_power_watts` with
this help text, and the column `gpu_power_watts` of recordings. Names of counters end in `_total` there.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from math import nan
from typing import Any, Literal

from stepscope.exporter.sampling.families import Family

_KEY = "quantity"  # in the metadata of a field


@dataclass(frozen=True, slots=True)
class Quantity:
    """A number of a node, a GPU or a run: its attribute of the sample, its metric and its column."""

    kind: Literal["gauge", "counter"]
    help: str  # of the metric; "": there is none
    labels: tuple[str, ...]  # of the metric
    bits: int  # of the column; 0: it is not recorded
    full_only: bool = False  # only the profile `full` has the metric, because nothing reads it
    part_of: str = ""  # the metric, if the sample has only a part of it; "": it is called like the attribute
    attribute: str = ""
    prefix: str = ""

    @property
    def column(self) -> str:
        return self._named(self.attribute)

    @property
    def metric(self) -> str:
        return f"stepscope_{self._named(self.part_of or self.attribute)}"

    def family(self) -> Family:
        return Family(self.metric, self.kind, self.help, self.labels)

    def _named(self, name: str) -> str:
        return f"{self.prefix}{name}{'_total' if self.kind == 'counter' else ''}"


def gauge(help: str = "", *labels: str, bits: int = 64, full_only: bool = False) -> Any:
    """Returns a field for a number that may fall. Ratios, watts and degrees need 32 bits, bytes 64."""
    return _number(Quantity("gauge", help, labels, bits, full_only))


def counter(help: str = "", *labels: str, bits: int = 64, full_only: bool = False, part_of: str = "") -> Any:
    """Returns a field for a number that only grows. With 64 bits, it is exact up to 9e15."""
    return _number(Quantity("counter", help, labels, bits, full_only, part_of))


def _number(quantity: Quantity) -> Any:
    return field(default=nan, metadata={_KEY: quantity})


def per_core(help: str) -> dict[str, Quantity]:
    """Returns the metadata of a field for a list of ratios, one per core."""
    return {_KEY: Quantity("gauge", help, ("cpu",), 32)}


def quantities_of(sample: type[Any], subject: Literal["", "gpu", "run"]) -> Mapping[str, Quantity]:
    """Returns the quantities of a class of sample.py, by attribute. Metrics have the label `subject`."""
    labels, prefix = ((subject,), f"{subject}_") if subject else ((), "")
    return {
        item.name: replace(known, labels=(*labels, *known.labels), attribute=item.name, prefix=prefix)
        for item in fields(sample)
        if (known := item.metadata.get(_KEY)) is not None
    }
