"""Whether what a panel gets is of the shape that it draws."""

import math
import re
from collections.abc import Iterable
from dataclasses import replace
from itertools import pairwise
from typing import Any

from tests.support.grafana import POINTS, Reader, Series, panels

Panel = dict[str, Any]


def complaints(reader: Reader, panel: Panel) -> dict[str, str]:
    """What is wrong with a panel, by the letter of the target; `*` for the panel as a whole."""
    if variable := panel.get("repeat"):
        options = reader.options(variable)
        assert options, f"${variable} has no values"
        found: dict[str, str] = {}
        for option in (options[0], options[-1]):
            chosen = replace(reader, chosen={**reader.chosen, variable: [option]})
            found |= complaints(chosen, {**panel, "repeat": None})
        return found
    points = panel.get("maxDataPoints", POINTS)
    answers = {target["refId"]: reader.series(target, points) for target in panel["targets"]}
    wrong = {letter: "gives nothing" for letter, series in answers.items() if not series}
    series = {letter: its for letter, its in answers.items() if its}
    wrong |= {letter: reason for letter, its in series.items() if (reason := _wrong(panel, letter, its))}
    if reason := _of_the_whole(reader, panel, [one for its in series.values() for one in its]):
        wrong["*"] = reason
    return wrong


def _wrong(panel: Panel, letter: str, series: list[Series]) -> str | None:
    target = next(each for each in panel["targets"] if each["refId"] == letter)
    if panel["type"] == "heatmap":
        return _wrong_histogram(series) if target["format"] == "heatmap" else _wrong_rows(series)
    has_numbers = all(any(map(math.isfinite, one.values)) for one in series)
    if panel["type"] in ("stat", "bargauge", "timeseries") and not has_numbers:
        return "has a series without a number"
    if panel["type"] == "timeseries" and not any(len(one.values) > 1 for one in series):
        return "has no two points"
    return None


def _wrong_histogram(series: list[Series]) -> str | None:
    """Grafana takes cumulative counts apart by `le`, and needs each bound once, and one that has them all."""
    bounds = [one.labels.get("le") for one in series]
    if None in bounds or any(len(one.labels) > 1 for one in series):
        return "is not by le alone"
    ordered = sorted(series, key=lambda one: float(one.labels["le"]))
    whole = "+Inf" in bounds or all(math.isclose(share, 1) for share in ordered[-1].values)
    if not whole or len(set(bounds)) < len(bounds):
        return "lacks a bound, or has one twice"
    last = [one.values[-1] for one in ordered]
    if any(low > high + 1e-6 * max(high, 1) for low, high in pairwise(last)):
        return "is not cumulative"
    return None if max(last) > 0 or any(max(one.values) > 0 for one in series) else "counts nothing"


def _wrong_rows(series: list[Series]) -> str | None:
    """A row a series: drawn in the order in which Prometheus gives them, and not at all where it is 0."""
    names = [one.name for one in series]
    if names != sorted(names, key=_by_number):
        return f"has rows that are not in the order of their names: {names}"
    if any(not 0.01 <= value <= 1 for one in series for value in one.values):
        return "has values outside of 0.01 to 1"
    return None


def _of_the_whole(reader: Reader, panel: Panel, series: list[Series]) -> str | None:
    names = [one.name for one in series]
    if panel["type"] == "table":
        return _wrong_table(reader, panel)
    if panel["type"] == "barchart":
        columns = reader.matrix_of(panel)
        if not columns or not all(columns.values()):
            return "has no bars"
    elif panel["type"] != "stat" and len(set(names)) < len(names):
        return f"has two series of one name: {_twice(names)}"
    if any(not name or "{{" in name for name in names):
        return f"has a series without a name: {names}"
    return None


def _wrong_table(reader: Reader, panel: Panel) -> str | None:
    rows = reader.table_of(panel)
    headings = set(_option(panel, "organize", "renameByName").values())
    missing = headings - {heading for row in rows for heading in row} - {"Cluster"}  # no label is required
    if missing:
        return f"lacks the columns {sorted(missing)}"
    sorting = {one["displayName"] for one in panel["options"]["sortBy"]}
    return None if sorting <= headings else f"is sorted by {sorting - headings}, which is no column"


def _option(panel: Panel, transformation: str, name: str) -> Any:
    (found,) = (each for each in panel["transformations"] if each["id"] == transformation)
    return found["options"][name]


def _by_number(name: str) -> list[str | int]:
    """core 9 before core 10."""
    return [int(part) if part.isdigit() else part for part in re.split(r"(\d+)", name)]


def _twice(names: Iterable[str]) -> list[str]:
    seen = list(names)
    return sorted({name for name in seen if seen.count(name) > 1})


def all_complaints(reader: Reader) -> dict[tuple[str, str], str]:
    """Of all panels of the dashboard: by title and letter."""
    return {
        (panel["title"], letter): reason
        for panel in panels(reader.dashboard)
        for letter, reason in complaints(reader, panel).items()
    }
