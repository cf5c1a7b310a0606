"""Debugger's own reports as a source: `profiler-reports/<Rule>.json`, often all that is left of a job.

They hold what each rule counted, percentiles of the machine's use, and when the job began and ended.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from stepscope.common.errors import UserError
from stepscope.runs.debugger.files import OUTPUT, job_name
from stepscope.runs.malformed import moment, naming
from stepscope.runs.model import NodeFacts, NodeSamples, RunFacts, Source, Steps

FOLDER = "profiler-reports"
COUNTS = ("RuleTriggered", "Violations", "Datapoints")


def report_files(place: Path) -> list[Path]:
    """Returns the reports in the directory, in its profiler-output/, or in their profiler-reports/."""
    folders = (place / OUTPUT / FOLDER, place / FOLDER, *([place] if place.name == FOLDER else []))
    return next((found for folder in folders if (found := sorted(folder.glob("*.json")))), [])


class DebuggerReports(Source):
    """The reports of a job whose readings and events are gone.

    Raises UserError if one is damaged, or Stepscope's own.
    """

    def __init__(self, place: Path) -> None:
        self._rules = {path.stem: _content(path) for path in report_files(place)}
        if not self._rules:
            raise UserError(f"{place} holds no report of Debugger's ({FOLDER}/<Rule>.json)")
        self._name = job_name((place.parent if place.name == FOLDER else place).absolute())

    @property
    def facts(self) -> RunFacts:
        start, end = (self._time(name) for name in ("job_start", "job_end"))
        usage = self._rules.get("OverallSystemUsage", {}).get("Details", {})
        nodes = sorted(
            {node for of_nodes in usage.values() if isinstance(of_nodes, dict) for node in of_nodes}
        )
        return RunFacts(
            name=self._name,
            start=start,
            end=end,
            nodes=tuple(NodeFacts(node) for node in nodes),
            reported=self._rules,
            unknowns=(
                "Only Debugger's reports are left: they show what its rules counted, with its parameters. "
                "Readings (system/) and events (framework/) are missing, so no rule was judged again.",
                *([] if start is not None else ["When the job began and ended is missing, and so its cost."]),
            ),
        )

    def read(self) -> Iterator[NodeSamples | Steps]:
        """Yields nothing: reports hold neither samples nor steps."""
        yield from ()

    def _time(self, name: str) -> float | None:
        value = self._rules.get("MaxInitializationTime", {}).get("Details", {}).get(name)
        return moment(value) if value else None


def _content(path: Path) -> dict[str, Any]:
    with naming(path, "a report of Debugger's", "copy it again, or remove it"):
        content: dict[str, Any] = json.loads(path.read_bytes())
        if "finding" in content:
            raise UserError(
                f"{path.parent} are rules of a report of Stepscope: give the recording it is about"
            )
        details = content.get("Details") or {}
        for value in details.values() if path.stem == "OverallSystemUsage" else ():
            value.items()
        if path.stem == "MaxInitializationTime":
            [moment(details[name]) for name in ("job_start", "job_end") if details.get(name)]
        return {**{name: max(int(content.get(name) or 0), 0) for name in COUNTS}, "Details": dict(details)}
