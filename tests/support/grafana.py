"""A dashboard as Grafana would ask Prometheus for it: variables filled in, targets run, tables merged.

Sources: the Prometheus datasource of grafana/grafana (getRangeScopedVars, getRateIntervalScopedVariable,
interpolateQueryExpr, metricFindQuery) and its transformations.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any
from urllib.parse import quote

import requests

from tests.support.prometheus import Prometheus
from tests.support.waiting import SECONDS

POINTS = 1000  # about the width of a panel in pixels

_VARIABLE = re.compile(r"\$\{(\w+)(?::(\w+))?\}|\$([A-Za-z_]\w*)|\[\[(\w+)\]\]")
_LEGEND = re.compile(r"\{\{\s*(\w+)\s*\}\}")
_LABEL_VALUES = re.compile(r"label_values\((.+), *(\w+)\)")
_QUERY_RESULT = re.compile(r"query_result\((.+)\)")

Labels = dict[str, str]
Row = dict[str, Any]


@dataclass(frozen=True)
class Series:
    name: str
    labels: Labels
    values: list[float]
    times: list[float]


@dataclass
class Reader:
    """Somebody who looks at a dashboard at some time range, having chosen some values of variables."""

    server: Prometheus
    dashboard: Mapping[str, Any]
    start: float
    end: float
    chosen: dict[str, str | Sequence[str]] = field(default_factory=dict)
    scrape_seconds: int = 15  # the datasource's "scrape interval"

    @cached_property
    def variables(self) -> dict[str, str]:
        """What each variable is filled in with, in the order in which they depend on each other."""
        span = round(self.end - self.start)
        known = {"__range_s": f"{span}", "__range": f"{span}s", "__range_ms": f"{1000 * span}"}
        for variable in self.dashboard["templating"]["list"]:
            name = variable["name"]
            if name in self.chosen:
                known[name] = _written(self.chosen[name], variable)
            elif variable["type"] == "query":
                known[name] = self._first(variable, known)
            elif variable["type"] == "textbox":
                known[name] = variable["query"]
        return known

    def options(self, name: str) -> list[str]:
        """What there is to choose for a variable."""
        (variable,) = (each for each in self.dashboard["templating"]["list"] if each["name"] == name)
        return self._options(variable, self.variables)

    def interval(self, points: int = POINTS) -> int:
        """What `$__interval` is, in seconds: never less than between two scrapes."""
        return max(self.scrape_seconds, round((self.end - self.start) / points))

    def fill(self, text: str, points: int = POINTS) -> str:
        interval = self.interval(points)
        intervals = {
            "__interval": f"{interval}s",
            "__interval_ms": f"{1000 * interval}",
            "__rate_interval": f"{max(interval + self.scrape_seconds, 4 * self.scrape_seconds)}s",
        }
        return _filled(text, self.variables | intervals)

    def panel(self, title: str) -> dict[str, Any]:
        (panel,) = (each for each in panels(self.dashboard) if each["title"] == title)
        return panel

    def series(self, target: Mapping[str, Any], points: int = POINTS) -> list[Series]:
        """What a target gives in a panel of so many points; of an instant one each series has one value."""
        expression = self.fill(target["expr"], points)
        times = {"time": self.end} if target.get("instant") else self._steps(self.interval(points))
        found = self._query("query" if target.get("instant") else "query_range", expression, times)
        answer = []
        for one in found:
            found_values = [one["value"]] if "value" in one else one["values"]
            labels = one["metric"]
            answer.append(
                Series(
                    _named(labels, self.fill(target["legendFormat"])),
                    labels,
                    [float(value) for _, value in found_values],
                    [float(time) for time, _ in found_values],
                )
            )
        return answer

    def lines(self, title: str) -> dict[str, Series]:
        """All series of a panel by their legends."""
        panel = self.panel(title)
        points = panel.get("maxDataPoints", POINTS)
        found = [series for target in panel["targets"] for series in self.series(target, points)]
        by_name = {series.name: series for series in found}
        assert len(by_name) == len(found), f"{title}: {sorted(series.name for series in found)}"
        return by_name

    def table(self, title: str) -> list[Row]:
        return self.table_of(self.panel(title))

    def table_of(self, panel: Mapping[str, Any]) -> list[Row]:
        """The rows of a table by their headings: merged where labels are the same, then renamed."""
        single = len(panel["targets"]) == 1
        merged: list[Row] = []
        for target in panel["targets"]:
            value = "Value" if single else f"Value #{target['refId']}"
            for series in self.series(target):
                row: Row = {**series.labels, value: series.values[0]}
                same = [one for one in merged if _agree(one, row)]
                for one in same:
                    one.update(row)
                if not same:
                    merged.append(row)
        (organize,) = (each for each in panel["transformations"] if each["id"] == "organize")
        headings = organize["options"]["renameByName"]
        return [{headings[name]: value for name, value in row.items() if name in headings} for row in merged]

    def matrix(self, title: str) -> dict[str, dict[float, float]]:
        return self.matrix_of(self.panel(title))

    def matrix_of(self, panel: Mapping[str, Any]) -> dict[str, dict[float, float]]:
        """A bar chart: by what stands side by side, the values from left to right."""
        (matrix,) = (each for each in panel["transformations"] if each["id"] == "groupingToMatrix")
        across, beside = matrix["options"]["rowField"], matrix["options"]["columnField"]
        assert panel["options"]["xField"] == f"{across}\\{beside}"
        columns: dict[str, dict[float, float]] = {}
        for series in self.series(panel["targets"][0]):
            column = columns.setdefault(series.labels[beside], {})
            assert float(series.labels[across]) not in column
            column[float(series.labels[across])] = series.values[0]
        return columns

    def _steps(self, interval: int) -> dict[str, float]:
        return {"start": self.start - self.start % interval, "end": self.end, "step": interval}

    def _query(self, path: str, expression: str, times: Mapping[str, float]) -> list[dict[str, Any]]:
        # Grafana posts: an expression may be longer than an address.
        answer = requests.post(
            f"{self.server.url}/api/v1/{path}", {"query": expression, **times}, timeout=SECONDS
        ).json()
        assert answer["status"] == "success", f"{expression}: {answer['error']}"
        result: list[dict[str, Any]] = answer["data"]["result"]
        return result

    def _first(self, variable: Mapping[str, Any], known: Mapping[str, str]) -> str:
        """What Grafana chooses for a variable of which nothing is said."""
        if variable["includeAll"]:
            return str(variable.get("allValue") or _written(self._options(variable, known), variable))
        return (self._options(variable, known) or [""])[0]

    def _options(self, variable: Mapping[str, Any], known: Mapping[str, str]) -> list[str]:
        query = _filled(variable["query"]["query"], known)
        if match := _LABEL_VALUES.fullmatch(query):
            times = {"start": str(self.start), "end": str(self.end)}
            return list(self.server.get(f"label/{match[2]}/values", **{"match[]": match[1]}, **times))
        match = _QUERY_RESULT.fullmatch(query)
        assert match, query
        results = []
        for one in self._query("query", match[1], {"time": self.end}):
            name = one["metric"].pop("__name__", "")
            labels = ",".join(f'{label}="{value}"' for label, value in one["metric"].items())
            results.append(f"{name}{{{labels}}} {one['value'][1]}")
        pattern = re.compile(variable["regex"].strip("/"))
        return [match[1] for match in map(pattern.search, results) if match]


def panels(dashboard: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """All panels with something to show, those within collapsed sections as well."""
    for panel in dashboard["panels"]:
        if panel["type"] != "row":
            yield panel
        yield from panels({"panels": panel.get("panels", ())})


def variables_in(text: str) -> set[str]:
    return {next(filter(None, match)) for match in _VARIABLE.findall(text)}


def _filled(text: str, known: Mapping[str, str]) -> str:
    def value(match: re.Match[str]) -> str:
        name = next(filter(None, match.groups()))
        assert name in known, f"${name} is not known in {text}"
        return quote(known[name], safe="") if match[2] == "percentencode" else known[name]

    return _VARIABLE.sub(value, text)


def _named(labels: Labels, legend: str) -> str:
    return _LEGEND.sub(lambda match: labels.get(match[1], ""), legend)


def _written(value: str | Sequence[str], variable: Mapping[str, Any]) -> str:
    """A chosen value in a query: several as a regular expression."""
    if isinstance(value, str):
        return re.escape(value).replace("\\", "\\\\") if variable.get("multi") else value
    return "(" + "|".join(re.escape(one).replace("\\", "\\\\") for one in value) + ")"


def _agree(row: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    """Whether two rows have the same values in the labels that both have: Grafana's `merge`."""
    common = row.keys() & other.keys()
    return bool(common) and all(row[name] == other[name] for name in common)
