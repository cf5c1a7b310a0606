"""Results in a JSON file: one line per run, after the circumstances."""

import json
import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from stepscope import __version__

from benchmarks.page import machine
from trials.fault_matrix.case import Case
from trials.fault_matrix.play import Alert, Finding, Seen
from trials.fault_matrix.score import Result
from trials.fault_matrix.training import Truth

FOLDER = Path(__file__).parent / "results"


@dataclass(frozen=True)
class Stored:
    """The results of a matrix."""

    date: str
    version: str  # of Stepscope
    machine: str
    results: Sequence[Result]

    @property
    def seeds(self) -> list[int]:
        """Returns the seeds of the faults."""
        return sorted({result.case.seed for result in self.results if result.is_fault})


def write(file: Path, results: Sequence[Result]) -> None:
    """Writes all results, with today's date and this machine."""
    date = datetime.now(UTC).strftime("%Y-%m-%d")
    head = {"date": date, "version": __version__, "machine": machine()}
    lines = [f"{json.dumps(name)}: {json.dumps(value)}," for name, value in head.items()]
    runs = ",\n".join(json.dumps(asdict(result), separators=(",", ":")) for result in results)
    text = "\n".join(["{", *lines, '"runs": [', runs, "]}", ""])
    partial = file.with_suffix(".part")
    partial.write_text(text, encoding="utf-8")
    os.replace(partial, file)


def read(file: Path) -> Stored:
    """Reads such a file."""
    document = json.loads(file.read_text(encoding="utf-8"))
    results = [_result(run) for run in document["runs"]]
    return Stored(document["date"], document["version"], document["machine"], results)


def _result(run: dict[str, Any]) -> Result:
    truth, seen = run["truth"], run["seen"]
    return Result(
        Case(**run["case"]),
        Truth(**{**truth, "rules": tuple(truth["rules"]), "not_alerts": tuple(truth.get("not_alerts", ()))}),
        Seen(
            seen["status"],
            [Finding(**finding) for finding in seen["findings"]],
            seen["not_enough_data"],
            [Alert(**alert) for alert in seen["alerts"]],
        ),
    )
