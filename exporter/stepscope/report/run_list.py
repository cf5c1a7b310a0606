"""Reads a folder of runs: what `stepscope list` prints and the index page shows.

Only run.json and report.json of each run are read, never its samples.
A folder that cannot be read costs itself.
"""

import json
import math
from bisect import bisect_left
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from stepscope.common.errors import UserError, describe, did_you_mean
from stepscope.common.shared_files import read_file
from stepscope.common.status import Status
from stepscope.common.words import capitalised, number
from stepscope.exporter.ledgers.presence import FINISHED, UNSAID
from stepscope.measurements.training_gauges import LOSSES, plain_name
from stepscope.report.ended import STOPPED
from stepscope.runs.malformed import MALFORMED, DamageError, moment, whole
from stepscope.runs.recording.files import RUN_FILE, RUNS, RunFile, folders, is_recorded_now

DOCUMENT = "report.json"
DOCUMENT_BYTES = 64 << 20
PAGE = "report.html"
NO_END = "Its end was not recorded. "  # it was killed, or an exporter records it
NO_REPORT = "No report was written: `stepscope report` writes it."


@dataclass(frozen=True)
class ListedRun:
    """One run of a folder. Times are in seconds, None where not known."""

    directory: Path
    name: str
    run: str
    status: Status
    verdict: str  # one sentence
    start: float | None = None
    seconds: float | None = None
    exit_status: int | None = None
    cost: float | None = None  # dollars
    step_seconds: float | None = None  # mean of the training steps of all ranks
    step_change: float | None = None  # from the step time of the run before, as a ratio
    loss: str = ""  # the last one, as written; "": none was published

    @property
    def page(self) -> Path | None:
        """Returns its report, None without one. A run in progress has its live page there."""
        page = self.directory / PAGE
        return page if page.is_file() else None


@dataclass(frozen=True)
class RunList:
    """The runs of a folder, the newest first, and what in it is no run."""

    folder: Path
    runs: list[ListedRun]
    unreadable: dict[str, str]  # name of the folder: why
    unread: int = 0  # older ones that were left out


def read_folder(folder: Path, newest: int | None = None) -> RunList:
    """Reads all runs of the folder, or those written last. Raises OSError if the folder cannot be read."""
    folder.stat()  # `folders` takes a missing one for an empty one
    every = [path for path in folders(folder) if path.name[0] != "."]
    directories = sorted(sorted(every, key=_changed, reverse=True)[:newest])
    read = {directory.name: _read_or_reason(directory) for directory in directories}
    runs = [run for run in read.values() if isinstance(run, ListedRun)]
    unreadable = {name: reason for name, reason in read.items() if isinstance(reason, str)}
    runs.sort(
        key=lambda run: (-math.inf if run.start is None else run.start, run.directory.name), reverse=True
    )
    return RunList(folder, _with_changes(runs), unreadable, len(every) - len(directories))


def _changed(directory: Path) -> float:
    """Returns when a folder was written last; minus infinity if it is gone, or its server is."""
    with suppress(OSError):
        return directory.stat().st_mtime
    return -math.inf


def _read_or_reason(directory: Path) -> ListedRun | str:
    try:
        return read_listed(directory)
    except DamageError as error:
        return f"{RUN_FILE} is damaged: {error}"
    except (OSError, UserError) as error:
        return describe(error)


def read_listed(directory: Path) -> ListedRun:
    """Reads one run. Raises OSError, UserError or DamageError if it is no run or damaged."""
    run = RunFile.read(directory)
    document = _document(directory)
    if run is None and document is None:
        raise UserError(f"is not a run: it has neither {RUN_FILE} nor {DOCUMENT}")
    known = _from_document(directory, document) if document else _from_run_file(directory, run)
    if run is not None and run.end is None and is_recording(directory):
        return replace(known, status=Status.COLLECTING, verdict="In progress.")
    return known


def run_before(run: ListedRun, runs: Iterable[ListedRun]) -> ListedRun | None:
    """Returns the newest earlier run of the same name."""
    earlier = [
        other
        for other in runs
        if other.name == run.name
        and other.directory != run.directory
        and other.start is not None
        and run.start is not None
        and other.start < run.start
    ]
    return max(earlier, key=lambda other: other.start or 0.0, default=None)


def find_before(directory: Path, name: str, start: float | None) -> ListedRun | None:
    """Returns the newest earlier run of that name in the folder that the run is in; reads little of each."""
    earlier = []
    for path in folders(directory.absolute().parent) if start is not None else ():
        with suppress(OSError, UserError, DamageError):
            run = RunFile.read(path)
            if run and run.name == name and run.start is not None and run.start < (start or 0.0):
                earlier.append((run.start, path))
    if not earlier:
        return None
    with suppress(OSError, UserError, DamageError):
        return read_listed(max(earlier)[1])
    return None


def find_run(text: str) -> Path:
    """Returns the run that a user means: a directory, or the newest run with that name or that beginning.

    Raises UserError if there is none in stepscope-runs/.
    """
    if Path(text).is_dir():
        return Path(text)
    runs = {path: _name_and_start(path) for path in folders(RUNS)} if RUNS.is_dir() else {}
    matching = (
        [path for path in runs if path.name == text]
        or [path for path, (name, _) in runs.items() if name == text]
        or [path for path in runs if path.name.startswith(text)]
    )
    if not matching:
        names = [*(path.name for path in runs), *(name for name, _ in runs.values() if name)]
        hint = did_you_mean(text, names, "`stepscope list` lists the runs")
        raise UserError(f"there is no run {text} in {RUNS}; {hint}")
    return max(matching, key=lambda path: runs[path][1])


def source_of(text: str) -> str:
    """Returns what to read: the text if it is a path or an address, otherwise the run of that name.

    Raises UserError if stepscope-runs/ has no such run.
    """
    return text if "/" in text or Path(text).exists() or not RUNS.is_dir() else str(find_run(text))


def _name_and_start(directory: Path) -> tuple[str, float]:
    """Returns a run's name, and when it began; "" and minus infinity if that is not known."""
    with suppress(OSError, UserError, DamageError):
        run = RunFile.read(directory)
        if run is not None:
            return run.name, -math.inf if run.start is None else run.start
    return "", -math.inf


def _with_changes(runs: list[ListedRun]) -> list[ListedRun]:
    """Adds to each run, the newest first, the change from the step time of the run before of its name."""
    changed = []
    known: dict[str, list[tuple[float, float]]] = {}  # start and step time of the earlier runs, by name
    for run in reversed(runs):
        if run.start is not None and run.step_seconds:
            earlier = known.setdefault(run.name, [])
            before = bisect_left(earlier, (run.start,))
            earlier.append((run.start, run.step_seconds))
            if before:
                run = replace(run, step_change=run.step_seconds / earlier[before - 1][1] - 1)
        changed.append(run)
    return changed[::-1]


def _document(directory: Path) -> dict[str, Any] | None:
    try:
        document = json.loads(read_file(directory / DOCUMENT, DOCUMENT_BYTES))
    except FileNotFoundError:
        return None
    except (ValueError, RecursionError) as error:
        raise UserError(f"{DOCUMENT} cannot be read: {describe(error)}") from error
    if not isinstance(document, dict) or not isinstance(document.get("run"), dict):
        raise UserError(f"{DOCUMENT} is not a report of Stepscope")
    return document


def _from_document(directory: Path, document: dict[str, Any]) -> ListedRun:
    try:
        run, verdict = document["run"], document["verdict"]
        return ListedRun(
            directory,
            name=str(run["name"]),
            run=str(run["run"]),
            status=Status(verdict["status"]),
            verdict=str(next(iter(verdict["sentences"]), "")),
            start=None if run["start"] is None else moment(run["start"]),
            seconds=_number(run["seconds"]),
            exit_status=None if run["exit_status"] is None else whole(run["exit_status"]),
            cost=_number((document.get("cost") or {}).get("amount")),
            step_seconds=_number(_step_seconds(document["steps"])),
            loss=_loss(run.get("gauges") or {}),
        )
    except MALFORMED as error:
        raise UserError(f"{DOCUMENT} is not a report of Stepscope") from error


def _from_run_file(directory: Path, run: RunFile | None) -> ListedRun:
    assert run is not None
    how = run.ended if run.ended not in ("", FINISHED, UNSAID) else ""
    if run.exit_status and not how:
        how = f"exit status {run.exit_status}"
    status = Status.NOT_ENOUGH_DATA
    if how:
        status = Status.STOPPED if how.removeprefix("signal ") in STOPPED else Status.FAILED
        how = f"{capitalised(status)}: {how}. "
    return ListedRun(
        directory,
        run.name,
        run.run,
        status,
        f"{how}{NO_REPORT}" if how else f"{NO_END if run.end is None else ''}{NO_REPORT}",
        start=run.start,
        seconds=None if run.start is None or run.end is None else run.end - run.start,
        exit_status=run.exit_status,
    )


def is_recording(directory: Path) -> bool:
    """Returns whether a process records there: `stepscope run`, or the exporter of a node."""
    return any(map(is_recorded_now, (directory, *folders(directory))))


def _step_seconds(rows: list[dict[str, Any]]) -> float | None:
    train = [row for row in rows if row["phase"] == "train"]
    count = sum(row["count"] for row in train)
    return sum(row["count"] * row["mean"] for row in train) / count if count else None


def _loss(gauges: dict[str, Any]) -> str:
    """Returns the last loss of a report's gauges, in which null is not finite."""
    name = next((name for name in gauges if plain_name(name) in LOSSES), None)
    if name is None:
        return ""
    value = _number(gauges[name])
    return "not finite" if value is None else number(value)


def _number(value: Any) -> float | None:
    return float(value) if isinstance(value, (int, float)) and math.isfinite(value) else None
