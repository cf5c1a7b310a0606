"""A price list of instance types, which the user gives: which one a run has, and which one would serve.

    name,price_per_hour,gpus,gpu,gpu_memory_gib,cores,memory_gib
    p3.8xlarge,12.24,4,V100,16,32,244

The same as YAML is a list of mappings. `name`, `price_per_hour`, `gpus`, `cores` and `memory_gib` are needed.
"""

from __future__ import annotations

import csv
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import MISSING, dataclass, fields
from pathlib import Path
from typing import Any

import yaml

from stepscope.common.errors import UserError
from stepscope.common.words import count, money, number
from stepscope.evaluation.analysis import Analysis

GIB = 2.0**30
ALIKE = 0.1  # a GPU of "16 GB" has 15.8 to 16.2 GiB


@dataclass(frozen=True)
class Machine:
    """One line of the list."""

    name: str
    price_per_hour: float  # dollars
    gpus: int
    cores: int  # logical, as the operating system counts them
    memory_gib: float
    gpu: str = ""  # a part of its model's name: "V100"; "": any
    gpu_memory_gib: float = 0.0  # 0: any

    def __str__(self) -> str:
        gpus = f"{count(self.gpus, 'GPU')}, " if self.gpus else ""
        return (
            f"{self.name} has {gpus}{count(self.cores, 'core')} and {number(self.memory_gib)} GiB for "
            f"{money(self.price_per_hour)} per hour"
        )

    def has(self, other: Machine, gpus: float, cores: float, memory_gib: float) -> bool:
        """Returns whether it has as much as is needed, and the same kind of GPU as `other`."""
        kind = (self.gpu.lower(), self.gpu_memory_gib) == (other.gpu.lower(), other.gpu_memory_gib)
        enough = self.gpus >= gpus and self.cores >= cores and self.memory_gib >= memory_gib
        return enough and (kind or not gpus)


def read_price_list(path: Path) -> tuple[Machine, ...]:
    """Reads CSV (`.csv`) or YAML. Raises UserError, in one line, for what is no such list."""
    try:
        text = path.read_text(encoding="utf-8-sig")  # Excel begins UTF-8 with a mark
        table = csv.DictReader(text.splitlines(), restkey="a value without a column")
        rows = list(table) if path.suffix == ".csv" else yaml.safe_load(text)
    except OSError as error:
        raise UserError(f"{path}: cannot be read ({error.strerror}); give a list of prices") from None
    except (yaml.YAMLError, csv.Error, ValueError, RecursionError):  # such as a date that there is not
        raise UserError(f"{path}: is neither YAML nor, as a .csv, CSV; write a row per type") from None
    if not isinstance(rows, list) or not rows:
        raise UserError(f"{path}: has no rows; write a row per instance type with {', '.join(_NEEDED)}")
    machines = tuple(_machine(row, f"{path}, type {place}") for place, row in enumerate(rows, 1))
    names = [machine.name for machine in machines]
    if twice := next((name for name in names if names.count(name) > 1), None):
        raise UserError(f"{path}: {twice} has several rows; keep one")
    return machines


def _text(value: Any) -> str:
    if not isinstance(value, str | int | float) or isinstance(value, bool) or not str(value).strip():
        raise ValueError
    return str(value).strip()


def _amount(value: Any) -> float:
    amount = float(_text(value).removeprefix("$"))
    if not 0 <= amount < math.inf:
        raise ValueError
    return amount


def _whole(value: Any) -> int:
    if not _amount(value).is_integer():
        raise ValueError
    return int(_amount(value))


_KINDS: dict[str, tuple[Callable[[Any], Any], str]] = {
    "str": (_text, "a name"),
    "float": (_amount, "a number of 0 or more"),
    "int": (_whole, "a whole number of 0 or more"),
}
_FIELDS = {field.name: field for field in fields(Machine)}
_NEEDED = [name for name, field in _FIELDS.items() if field.default is MISSING]


def _machine(row: Any, where: str) -> Machine:
    if not isinstance(row, Mapping):
        raise UserError(f"{where}: is no row; write {', '.join(_NEEDED)}")
    given = {name: value for name, value in row.items() if value not in (None, "")}
    if unknown := [str(name) for name in given if name not in _FIELDS]:
        raise UserError(f"{where}: {unknown[0]} is unknown; the columns are {', '.join(_FIELDS)}")
    if missing := [name for name in _NEEDED if name not in given]:
        raise UserError(f"{where}: {missing[0]} is missing; write {', '.join(_NEEDED)}")
    values = {}
    for name, value in given.items():
        parse, kind = _KINDS[str(_FIELDS[name].type)]
        try:
            values[name] = parse(value)
        except ValueError:
            raise UserError(f"{where}: {name}={value!r} is not {kind}; correct it") from None
    return Machine(**values)


def machine_of(analysis: Analysis, machines: Iterable[Machine], price: float | None = None) -> Machine | None:
    """Returns the only type that looks like every node; of several, the only one with this price."""
    alike = [machine for machine in machines if _looks_like(machine, analysis)]
    if len(alike) > 1 and price is not None:
        alike = [machine for machine in alike if machine.price_per_hour == price]
    return alike[0] if len(alike) == 1 else None


def price_of_node(analysis: Analysis, machines: Sequence[Machine], price: float | None) -> float | None:
    """Returns the price given, or that of the run's type; None if neither is known."""
    found = machine_of(analysis, machines) if price is None else None
    return found.price_per_hour if found else price


def _looks_like(machine: Machine, analysis: Analysis) -> bool:
    sizes = [use.memory_bytes / GIB for use in analysis.gpu_use if use.memory_bytes]
    allowed = [use.memory_capacity / GIB for use in analysis.run_use]  # NaN if unknown; less, if limited
    # A model follows the number of a GPU, if it is known.
    models = [name.partition(": ")[2].lower() for names in analysis.gpus.values() for name in names]
    listed = machine.gpu_memory_gib
    return (
        bool(analysis.nodes)
        and all(len(analysis.gpus.get(node, ())) == machine.gpus for node in analysis.nodes)
        and all(analysis.cores.get(node) == machine.cores for node in analysis.nodes)
        and all(machine.gpu.lower() in model for model in models if model)
        and not any(size > (1 + ALIKE) * machine.memory_gib for size in allowed)
        and (not listed or all(abs(size - listed) <= ALIKE * listed for size in sizes))
    )
