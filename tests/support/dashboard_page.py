"""A dashboard as a page: the same queries and the same places, drawn in a plain way instead of by Grafana.

For looking at what a reader would see where there is no Grafana, and for the pictures in docs/dashboards.md.
"""

import json
import math
import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from stepscope.grafana.page import laid_out

from tests.support.grafana import POINTS, Reader, Series

ASSETS = Path(__file__).parents[2] / "exporter" / "stepscope" / "report" / "assets"
SCRIPT = Path(__file__).with_name("dashboard_page.js")
ROW = 34  # pixels of a row of Grafana's grid
THEMES = {
    "dark": {"page": "#111217", "panel": "#181b1f", "text": "#ccccdc", "line": "#2c3235"},
    "light": {"page": "#f4f5f5", "panel": "#ffffff", "text": "#24292e", "line": "#dcdfe3"},
}


def write_page(reader: Reader, file: Path, theme: str = "dark", only: tuple[int, ...] = ()) -> None:
    """The whole dashboard, or only the panels of some ids one below the other, as one HTML file."""
    drawn = []
    below = 0
    for panel in opened(reader.dashboard):
        if only and panel["id"] not in only:
            continue
        place = panel["gridPos"] if not only else {**panel["gridPos"], "x": 0, "y": below, "w": 24}
        below += place["h"]
        drawn.append({**_drawn(_one_of_repeated(reader, panel), panel), "place": place})
    data = {"panels": drawn, "theme": THEMES[theme], "row": ROW, "start": reader.start, "end": reader.end}
    library = next(ASSETS.glob("echarts-*.min.js")).read_text(encoding="utf-8")
    text = json.dumps(data).replace("</", "<\\/")
    file.write_text(
        f"<!doctype html><meta charset=utf-8><title>{reader.dashboard['title']}</title><body>"
        f"<script>{library}</script><script>const dashboard = {text};</script>"
        f"<script>{SCRIPT.read_text(encoding='utf-8')}</script>",
        encoding="utf-8",
    )


def opened(dashboard: Mapping[str, Any]) -> list[dict[str, Any]]:
    """All panels, placed as if every section was open."""
    flat = [each for panel in dashboard["panels"] for each in (panel, *panel.get("panels", ()))]
    return laid_out([{**panel, "panels": []} if panel["type"] == "row" else panel for panel in flat])


def height(reader: Reader) -> int:
    """Of the whole page, in pixels."""
    places = (one["gridPos"] for one in opened(reader.dashboard))
    return ROW * max(int(place["y"] + place["h"]) for place in places) + 40


def _one_of_repeated(reader: Reader, panel: Mapping[str, Any]) -> Reader:
    variable = panel.get("repeat")
    if not variable:
        return reader
    return replace(reader, chosen={**reader.chosen, variable: [sorted(reader.options(variable))[0]]})


def _drawn(reader: Reader, panel: Mapping[str, Any]) -> dict[str, Any]:
    """What the script needs of a panel."""
    title = panel["title"]
    if variable := panel.get("repeat"):
        title = title.replace(f"${variable}", str(reader.chosen[variable][0]))
    common = {"type": panel["type"], "title": title}
    if panel["type"] == "row":
        return common
    defaults = panel["fieldConfig"]["defaults"]
    common |= {"unit": defaults.get("unit", ""), "price": reader.variables.get("price")}
    if panel["type"] == "table":
        return {**common, **_table(reader, panel)}
    if panel["type"] == "barchart":
        return {**common, "columns": reader.matrix_of(panel)}
    points = panel.get("maxDataPoints", POINTS)
    series = [one for target in panel["targets"] for one in reader.series(target, points)]
    if panel["type"] == "heatmap":
        cumulative = panel["targets"][0]["format"] == "heatmap"
        rows = _taken_apart(series) if cumulative else [_row(one) for one in series]
        return {
            **common,
            "rows": rows,
            "top": None if cumulative else 1,
            "axis": panel["options"]["yAxis"]["unit"],
        }
    stacked = defaults["custom"].get("stacking", {}).get("mode") == "normal"
    return {
        **common,
        "stacked": stacked,
        "highest": defaults.get("max"),
        "series": [{**_row(one), "colour": _colour(panel, one.name)} for one in series],
    }


def _row(series: Series) -> dict[str, Any]:
    values = [value if math.isfinite(value) else None for value in series.values]
    return {"name": series.name, "points": list(zip(series.times, values, strict=True))}


def _taken_apart(buckets: list[Series]) -> list[dict[str, Any]]:
    """What Grafana does with the format heatmap: the counts between two bounds, the greatest bound on top."""
    ordered = sorted(buckets, key=lambda one: float(one.labels["le"]))
    rows = []
    below: dict[float, float] = {}
    for bucket in ordered:
        counts = dict(zip(bucket.times, bucket.values, strict=True))
        points = [(time, max(count - below.get(time, 0.0), 0.0)) for time, count in counts.items()]
        rows.append({"name": bucket.labels["le"], "points": points})
        below = counts
    return rows[::-1]


def _table(reader: Reader, panel: Mapping[str, Any]) -> dict[str, Any]:
    (organize,) = (one for one in panel["transformations"] if one["id"] == "organize")
    headings = list(organize["options"]["renameByName"].values())
    words = {
        override["matcher"]["options"]: its["value"][0]["options"]
        for override in panel["fieldConfig"]["overrides"]
        for its in override["properties"]
        if its["id"] == "mappings"
    }
    rows = reader.table_of(panel)
    for sorting in reversed(panel["options"]["sortBy"]):
        name = sorting["displayName"]
        rows.sort(key=lambda row: (row.get(name) is None, row.get(name, "")), reverse=sorting["desc"])
    cells = []
    for row in rows:
        of_row = []
        for heading in headings:
            value = row.get(heading, "")
            key = f"{value:g}" if isinstance(value, float) else value
            word = words.get(heading, {}).get(key)
            of_row.append([word["text"], word["color"]] if word else [value, "text"])
        cells.append(of_row)
    return {"headings": headings, "cells": cells}


def _colour(panel: Mapping[str, Any], name: str) -> str | None:
    for override in panel["fieldConfig"]["overrides"]:
        wanted = override["matcher"]["options"]
        is_regex = override["matcher"]["id"] == "byRegexp"
        if re.search(wanted.strip("/"), name) if is_regex else wanted == name:
            for its in override["properties"]:
                if its["id"] == "color":
                    return str(its["value"]["fixedColor"])
    return None
