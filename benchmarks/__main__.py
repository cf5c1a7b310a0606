"""Runs the benchmarks, prints a table with verdicts and can write it into benchmarks/README.md."""

import argparse
import re
import sys
from collections.abc import Sequence
from importlib import import_module
from importlib.util import find_spec
from math import isnan, nan

from benchmarks import Row
from benchmarks.page import BENCHMARKS, markdown, write_table

MODULES = (
    "step",
    "hooks",
    "other_hooks",
    "lines",
    "gpu_tick",
    "tick",
    "scrape",
    "memory",
    "evaluation",
    "report",
    "debugger_reading",
    "traces",
    "rules_at_scale",
)
PAGE = BENCHMARKS
HEAD = ("what", "measured", "budget", "verdict")

Verdict = tuple[str, str, str, str]  # what, measured, budget, verdict


def main(words: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("module", nargs="*", help=f"only these of {', '.join(MODULES)} (default: all)")
    parser.add_argument(
        "--markdown", action="store_true", help=f"also write the table into {PAGE.parent.name}/{PAGE.name}"
    )
    arguments = parser.parse_args(words)
    unknown = set(arguments.module) - set(MODULES)
    if unknown:
        parser.error(f"no such benchmark: {', '.join(sorted(unknown))}; there are {', '.join(MODULES)}")
    table = print_table([row for module in arguments.module or MODULES for row in _measure(module)])
    if arguments.markdown:
        # The groups of rules are printed only: their sum has the budget.
        measured = [row for row in table if row[1] and ", every " not in row[0]]
        write_table(PAGE, "make bench", markdown(HEAD, measured))
    return 0


def print_table(rows: Sequence[Row]) -> list[Verdict]:
    """Judges the rows and prints them."""
    table = [judge(row) for row in rows]
    print("\n".join(_aligned([HEAD, *table])))
    return table


def judge(row: Row) -> Verdict:
    """Returns a row in words, with "holds" or "MISSED" if it has a budget."""
    what, value, unit, budget = row
    verdict = ""
    match = re.match(r"(<=|>=) *([0-9][0-9_,]*(?:\.[0-9]+)?)", budget)
    if match and not isnan(value):
        limit = float(match[2].replace(",", "").replace("_", ""))
        holds = value <= limit if match[1] == "<=" else value >= limit
        verdict = "holds" if holds else "MISSED"
    measured = "" if isnan(value) else f"{shown(value)} {unit}".strip()
    return what, measured, budget, verdict


def shown(value: float) -> str:
    """Formats a number with three significant digits and commas between thousands."""
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def _measure(name: str) -> list[Row]:
    """Returns the rows of one module, or one row with the reason if it cannot be measured."""
    if find_spec(f"benchmarks.{name}") is None:
        return [(f"{name}: missing", nan, "", "")]
    print(f"measuring {name} ...", file=sys.stderr)
    try:
        rows: list[Row] = import_module(f"benchmarks.{name}").rows()
    except Exception as error:  # noqa: BLE001 - the other benchmarks must still get their rows
        return [(f"{name}: {type(error).__name__}: {error}", nan, "", "")]
    return rows


def _aligned(table: Sequence[Verdict]) -> list[str]:
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    return [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in table
    ]


if __name__ == "__main__":
    sys.exit(main())
