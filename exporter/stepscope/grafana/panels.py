"""The kinds of panels, as plain dictionaries for Grafana 9.4 and later.

Sources: the panels' schemas in grafana/grafana (public/app/plugins/panel/*/panelcfg.cue).
`defaults.custom` is never empty, because migrations of some versions expect it. Every panel must have a
description.
"""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, Literal, NamedTuple

from stepscope.grafana.looks import BLUE, Override, by_name, by_pattern, dashed_thresholds, fixed, steps
from stepscope.grafana.queries import DATASOURCE, Target

Panel = dict[str, Any]

WIDTH = 24  # columns of Grafana's grid
LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"  # of queries
COLUMNS = 500  # of heatmaps; more would not be visible
LEGEND = {"showLegend": True, "displayMode": "list", "placement": "bottom", "calcs": []}
# For many series: it scrolls, and takes nothing of the height.
LEGEND_BESIDE = {
    **LEGEND,
    "displayMode": "table",
    "placement": "right",
    "calcs": ["lastNotNull"],
    "width": 280,
}
# Instead of "No data": nothing that is missing looks healthy.
NOTHING = "not measured; the verdict in Run overview or Cluster says why"
EMPTY_CELL = "–"
NOTHING_HIDDEN = {"tooltip": False, "viz": False, "legend": False}
VIRIDIS = {
    "mode": "scheme",
    "scheme": "Viridis",
    "steps": 64,
    "exponent": 0.5,
    "fill": "dark-orange",
    "reverse": False,
    "scale": "exponential",
    "min": 0,
    "max": 1,
}
# Its darkest colour is visible on a dark page: a rare value does not look like none.
VISIBLE = {**VIRIDIS, "scheme": "Cool"}


def time_series(
    title: str,
    description: str,
    *targets: Target,
    unit: str = "none",
    width: int = 12,
    height: int = 8,
    stacked: bool = False,
    lowest: float | None = 0,
    highest: float | None = None,
    logarithmic: bool = False,
    points: int | None = None,
    at_least: float | None = None,
    many: bool | None = None,
    nothing: str = NOTHING,
    overrides: Sequence[Override] = (),
) -> Panel:
    """Draws lines over time, or `stacked` areas for parts of a sum. `points` limits their number.

    The axis reaches `at_least` that high. `many` series have their legend to the right, where the long names
    of thresholds would hide the values; the description then explains the dashed line. By default, these are
    series that are named by a label or a variable, in a panel that is not narrow.
    """
    if many is None:
        many = width >= WIDTH // 2 and any("{" in target["legendFormat"] for target in targets)
    custom = {
        "drawStyle": "line",
        "lineInterpolation": "linear",
        "lineWidth": 1,
        "fillOpacity": 60 if stacked else 0,
        "gradientMode": "none",
        "showPoints": "never",
        "pointSize": 5,
        "spanNulls": False,
        "axisPlacement": "auto",
        "axisLabel": "",
        "scaleDistribution": {"type": "log", "log": 10} if logarithmic else {"type": "linear"},
        "stacking": {"mode": "normal" if stacked else "none", "group": "A"},
        "thresholdsStyle": {"mode": "off"},
        "hideFrom": NOTHING_HIDDEN,
        **({"axisSoftMax": at_least} if at_least is not None else {}),
    }
    options = {
        "legend": LEGEND_BESIDE if many else LEGEND,
        "tooltip": {"mode": "multi", "sort": "desc"},
    }
    colours = {"mode": "palette-classic"}
    fields = _fields(
        custom,
        unit,
        [*overrides, dashed_thresholds(in_legend=not many)],
        lowest,
        highest,
        color=colours,
        # Grafana would write the text at each mark of a logarithmic axis.
        noValue=None if logarithmic else nothing,
    )
    limit = {"maxDataPoints": points} if points else {}
    return _panel("timeseries", title, description, targets, width, height, options, fields, **limit)


shares = partial(time_series, unit="percentunit", highest=1)  # from 0 to 100 %


def stat(
    title: str,
    description: str,
    *targets: Target,
    unit: str = "none",
    width: int = 4,
    height: int = 4,
    decimals: int | None = None,
    thresholds: Mapping[str, Any] | None = None,
    show: Literal["value", "name", "value_and_name"] = "value",
    sideways: bool = False,
    size: int | None = None,
    mappings: Sequence[dict[str, Any]] = (),
    nothing: str = "not known",
) -> Panel:
    """Shows one big value per series, or the text `nothing` if there is no value.

    Sentences need a `size` in pixels: the one that Grafana chooses cuts those of two lines.
    """
    options = {
        "reduceOptions": {"values": False, "calcs": ["lastNotNull"], "fields": ""},
        "orientation": "horizontal" if sideways else "auto",
        "textMode": show,
        "colorMode": "value" if thresholds or mappings else "none",
        "graphMode": "none",
        "justifyMode": "auto",
        "text": {"valueSize": size, "titleSize": size} if size else {},
    }
    fields = _fields(
        {"hideFrom": NOTHING_HIDDEN},
        unit,
        (),
        color={"mode": "thresholds"},
        thresholds=thresholds or steps("text"),
        decimals=decimals,
        noValue=nothing,
        mappings=list(mappings),
    )
    return _panel("stat", title, description, targets, width, height, options, fields)


def bars(
    title: str,
    description: str,
    *targets: Target,
    unit: str,
    width: int = 12,
    highest: float | None = None,
    nothing: str = NOTHING,
    overrides: Sequence[Override] = (),
) -> Panel:
    """Draws one horizontal bar per series, to compare values at one moment.

    Round differences of times: some nanoseconds of rounding error would look like a measurement.
    """
    options = {
        "reduceOptions": {"values": False, "calcs": ["lastNotNull"], "fields": ""},
        "orientation": "horizontal",
        "displayMode": "basic",
        "showUnfilled": True,
        "minVizWidth": 0,
        "minVizHeight": 10,
        "valueMode": "text",
    }
    custom = {"hideFrom": NOTHING_HIDDEN}
    fields = _fields(
        custom, unit, overrides, 0, highest, color=fixed(BLUE), thresholds=steps(BLUE), noValue=nothing
    )
    return _panel("bargauge", title, description, targets, width, 8, options, fields)


class Column(NamedTuple):
    """A column of a table: the label or the query that it shows, and its look, as of `by_name`."""

    heading: str  # "": it is not shown
    shows: str | Target
    look: Mapping[str, Any]


def column(heading: str, shows: str | Target, **look: Any) -> Column:
    return Column(heading, shows, look)


def unshown(target: Target) -> Column:
    """Returns a query that only adds labels to the rows."""
    return Column("", target, {})


def table(
    title: str,
    description: str,
    *columns: Column,
    width: int = WIDTH,
    height: int = 8,
    sort_by: tuple[str, bool] | None = None,
    nothing: str = NOTHING,
    overrides: Sequence[Override] = (),
) -> Panel:
    """Shows the rows of instant queries, merged by their labels.

    `sort_by` is a heading, and whether the highest value comes first. Units are of columns: a unit of the
    table would apply to a rank, too.
    """
    targets = [each.shows for each in columns if not isinstance(each.shows, str)]
    values = iter([f"Value #{letter}" for letter in LETTERS] if len(targets) > 1 else ["Value"])
    fields = [each.shows if isinstance(each.shows, str) else next(values) for each in columns]
    shown = {name: each.heading for name, each in zip(fields, columns, strict=True) if each.heading}
    looks = [by_name(each.heading, **each.look) for each in columns if each.look]
    options = {
        "showHeader": True,
        "cellHeight": "sm",
        "footer": {"show": False, "reducer": ["sum"], "countRows": False, "fields": ""},
        "sortBy": [{"displayName": sort_by[0], "desc": sort_by[1]}] if sort_by else [],
    }
    custom = {"align": "auto", "displayMode": "auto", "inspect": False, "filterable": False}
    cells = by_pattern(".*", noValue=EMPTY_CELL)  # `nothing` is for the table as a whole
    look = _fields(
        custom,
        "none",
        [cells, *looks, *overrides],
        color=fixed("text"),
        thresholds=steps("text"),
        noValue=nothing,
    )
    merged = [
        {"id": "merge", "options": {}},
        {"id": "filterFieldsByName", "options": {"include": {"names": list(shown)}}},
        {
            "id": "organize",
            "options": {
                "excludeByName": {},
                "indexByName": {name: index for index, name in enumerate(shown)},
                "renameByName": shown,
            },
        },
    ]
    return _panel("table", title, description, targets, width, height, options, look, transformations=merged)


def bar_chart(
    title: str, description: str, target: Target, across: str, colour: str, overrides: Sequence[Override]
) -> Panel:
    """Draws a group of bars per number of the label `across`, one bar per value of the label `colour`.

    Both axes are ratios.
    """
    first_column = f"{across}\\{colour}"  # Grafana's name for it in a matrix
    options = {
        "xField": first_column,
        "orientation": "vertical",
        "barWidth": 0.9,
        "groupWidth": 0.8,
        "barRadius": 0,
        "showValue": "never",
        "stacking": "none",
        "fullHighlight": False,
        "xTickLabelRotation": 0,
        "xTickLabelSpacing": 0,
        "legend": LEGEND,
        "tooltip": {"mode": "multi", "sort": "none"},
    }
    custom = {
        "lineWidth": 0,
        "fillOpacity": 90,
        "gradientMode": "none",
        "axisPlacement": "auto",
        "axisLabel": "",
        "scaleDistribution": {"type": "linear"},
        "thresholdsStyle": {"mode": "off"},
        "hideFrom": NOTHING_HIDDEN,
    }
    unit, colours = "percentunit", {"mode": "palette-classic"}
    columns = [*overrides, by_name(first_column, unit=unit)]
    fields = _fields(custom, unit, columns, 0, 1, color=colours, noValue=NOTHING)
    # Sorts as numbers; the axis of bars must be text.
    matrix = [
        _converted(across, "number"),
        {"id": "sortBy", "options": {"fields": {}, "sort": [{"field": across}]}},
        _converted(across, "string"),
        {
            "id": "groupingToMatrix",
            "options": {"rowField": across, "columnField": colour, "valueField": "Value"},
        },
    ]
    size = WIDTH, 9
    return _panel("barchart", title, description, (target,), *size, options, fields, transformations=matrix)


def _converted(field: str, type: str) -> dict[str, Any]:
    conversions = [{"targetField": field, "destinationType": type}]
    return {"id": "convertFieldType", "options": {"fields": {}, "conversions": conversions}}


def device_heatmap(title: str, description: str, *targets: Target, height: int = 16, names: int = 0) -> Panel:
    """Draws one row per device, from dark (0) to bright (1).

    The targets have one series per row. Prometheus sorts series by their labels, so numbers are padded with
    zeros; the axis is reversed, so that the first is on top. Grafana draws no cell for 0 (an empty bucket),
    so values must be at least 0.01. `names` is the width of long names in pixels.
    """
    axis = {"reverse": True, "unit": "short", **({"axisWidth": names} if names else {})}
    return _heatmap(title, description, targets, WIDTH, height, axis, 0, VIRIDIS, "utilisation")


def histogram_heatmap(title: str, description: str, target: Target, unit: str) -> Panel:
    """Draws a histogram over time: the brightness is the share of each bucket, in per cent of the column."""
    whole = {"decimals": 0} if unit == "percentunit" else {}  # otherwise 56.0 % next to 48 %
    axis = {"reverse": False, "unit": unit, **whole}
    return _heatmap(title, description, (target,), 12, 9, axis, 1, VISIBLE, "share")


def section(title: str, collapsed: bool = False) -> Panel:
    """Returns a heading across the page; panels below a collapsed one ask nothing until it is opened."""
    return {
        "type": "row",
        "title": title,
        "collapsed": collapsed,
        "panels": [],
        "gridPos": {"h": 1, "w": WIDTH, "x": 0, "y": 0},
    }


def repeated(panel: Panel, variable: str, in_a_row: int) -> Panel:
    """Repeats a panel for each value of a variable, with `in_a_row` panels next to each other."""
    return {**panel, "repeat": variable, "repeatDirection": "h", "maxPerRow": in_a_row}


def _heatmap(
    title: str,
    description: str,
    targets: Sequence[Target],
    width: int,
    height: int,
    axis: dict[str, Any],
    decimals: int,
    colours: dict[str, Any],
    value: str,
) -> Panel:
    tooltip = {"show": True, "mode": "single", "showColorScale": True, "yHistogram": not axis["reverse"]}
    options = {
        "calculate": False,
        "calculation": {},
        "cellGap": 0,
        "cellRadius": 0,
        "exemplars": {"color": "rgba(255,0,255,0.7)"},
        "filterValues": {"le": 1e-9},
        "legend": {"show": True},
        "showValue": "never",
        "tooltip": tooltip,
        "yAxis": {"axisPlacement": "left", **axis},
        "cellValues": {"unit": "percentunit", "decimals": decimals},
        "color": colours,
        "rowsFrame": {"layout": "auto", "value": value},
    }
    custom = {"hideFrom": NOTHING_HIDDEN, "scaleDistribution": {"type": "linear"}}
    fields: dict[str, Any] = {"defaults": {"custom": custom, "noValue": NOTHING}, "overrides": []}
    size, points = (width, height), {"maxDataPoints": COLUMNS}
    return _panel("heatmap", title, description, targets, *size, options, fields, **points)


def _panel(
    type: str,
    title: str,
    description: str,
    targets: Sequence[Target],
    width: int,
    height: int,
    options: dict[str, Any],
    fields: dict[str, Any],
    **more: Any,
) -> Panel:
    if not description.strip():
        raise ValueError(f"{title}: has no description")
    if not targets:
        raise ValueError(f"{title}: has no query")
    return {
        "type": type,
        "title": title,
        "description": " ".join(description.split()),
        "datasource": DATASOURCE,
        "gridPos": {"h": height, "w": width, "x": 0, "y": 0},
        "targets": [{"refId": letter, **target} for letter, target in zip(LETTERS, targets, strict=False)],
        "options": options,
        "fieldConfig": fields,
        **more,
    }


def _fields(
    custom: dict[str, Any],
    unit: str,
    overrides: Sequence[Override],
    lowest: float | None = None,
    highest: float | None = None,
    **more: Any,
) -> dict[str, Any]:
    defaults: dict[str, Any] = {
        "custom": custom,
        "unit": unit,
        "mappings": [],
        "thresholds": steps("text"),
        "min": lowest,
        "max": highest,
        **more,
    }
    return {
        "defaults": {name: value for name, value in defaults.items() if value is not None},
        "overrides": list(overrides),
    }
