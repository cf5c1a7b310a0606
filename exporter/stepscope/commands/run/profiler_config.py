"""Reads a ProfilerConfig of SageMaker as JSON: what its settings mean for `stepscope run`, if anything.

FILE is a ProfilerConfig of SageMaker's API, or a document that has one, such as the answer of
describe-training-job. Its parts are objects, or strings of JSON. Source of names and defaults: SageMaker's
API reference, and the Debugger pages of its developer guide.
"""

import json
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from stepscope.common.errors import UserError
from stepscope.training.window_plans import LONGEST, MOST_STEPS, OFF_CPU, ON_CPU, OPERATORS
from stepscope.training.window_plans import PYTHON as WALL

# Settings without a meaning here, and what to do instead. Names are compared without case, as Debugger does.
NOT_ROTATED = "files of a recording are not rotated"
INSTEAD = {
    "S3OutputPath": "nothing is uploaded; copy the folder of the run, `stepscope report` reads s3:// too",
    "LocalPath": "use --out",
    "RotateMaxFileSizeInBytes": NOT_ROTATED,
    "RotateFileCloseIntervalInSeconds": NOT_ROTATED,
    "FileOpenFailThreshold": NOT_ROTATED,
    "MetricsRegex": "waits for data are recorded in all steps, of all loaders",
    "HorovodProfilingConfig": "set HOROVOD_TIMELINE for the command; `stepscope report` reads that file",
    "SMDataParallelProfilingConfig": "collectives of SageMaker's own library are not recorded",
}
DATALOADER, DETAILED, PYTHON = "DataloaderProfilingConfig", "DetailedProfilingConfig", "PythonProfilingConfig"
RANGE = ("StartStep", "NumSteps", "StartTimeInSecSinceEpoch", "DurationInSeconds", "Duration")
PARTS = {
    DATALOADER: (*RANGE, "MetricsRegex"),
    DETAILED: RANGE,
    PYTHON: (*RANGE, "ProfilerName", "cProfileTimer"),
}
TIMERS = {"default": WALL, "total_time": WALL, "cpu_time": ON_CPU, "off_cpu_time": OFF_CPU}
RULES = "ProfilerRuleConfigurations"
OF_JOB = {  # settings next to the ProfilerConfig
    RULES: "parameters of rules are not read; use --set Rule.parameter=value",
    "DebugHookConfig": "tensors are not recorded",
    "DebugRuleConfigurations": "rules on tensors have no twin",
}
TOP = ("ProfilingIntervalInMilliseconds", "ProfilingParameters", "DisableProfiler", "ProfilerEnabled")
SOON = 0.001  # seconds: as early as a window can begin
LONG = LONGEST - 1  # seconds: the longest window
MOST = 1e11  # of steps, seconds and milliseconds: a window has no more digits


@dataclass(frozen=True)
class ProfilerConfig:
    """The settings of a ProfilerConfig, as `stepscope run` has them."""

    interval: float | None  # seconds between samples
    windows: tuple[str, ...]  # as --profile has them
    notes: tuple[str, ...]  # one line for each setting that is not followed


@dataclass(frozen=True)
class _Window:
    """From `begin` to `end`: the first and last step, or seconds since the first step or since the epoch."""

    begin: float
    end: float
    steps: bool
    kind: str = OPERATORS
    date: bool = False

    @property
    def form(self) -> tuple[bool, bool]:
        return self.steps, self.date

    def __str__(self) -> str:
        if self.steps:
            text = f"{self.begin:.0f}:{self.end:.0f}"
        else:
            begin = f"@{self.begin:.3f}" if self.date else _duration(self.begin)
            text = f"at={begin},for={_duration(self.end - self.begin)}"
        return f"{text},{self.kind}" if self.kind else text


def read_profiler_config(path: Path, now: float) -> ProfilerConfig:
    """Reads the file; `now` is seconds since the epoch. Raises UserError for what is no ProfilerConfig."""
    try:
        document = _object(path.read_bytes().decode(), str(path))
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
        raise UserError(f"{path}: cannot be read ({reason}); give a ProfilerConfig as JSON") from error
    return _Reader(path, now).config(document)


class _Reader:
    """Reads one file, and notes what is not followed."""

    def __init__(self, path: Path, now: float) -> None:
        self._path, self._now = path, now
        self._notes: dict[str, list[str]] = {}  # names of settings by what is said of them

    def config(self, document: Mapping[str, Any]) -> ProfilerConfig:
        job = _by_name(document, ("ProfilerConfig",), OF_JOB)
        given = _by_name(job.get("ProfilerConfig", job), TOP, INSTEAD)
        parameters = self._part(given, "ProfilingParameters", (*PARTS, *TOP, *INSTEAD))
        disabled, enabled = given.get("DisableProfiler"), parameters.get("ProfilerEnabled")
        if str(disabled).lower() == "true" or str(enabled).lower() == "false":
            raise UserError(
                f"{self._path}: disables the profiler; enable it, or run the command without `stepscope run`"
            )
        milliseconds = self._number(given, "ProfilingIntervalInMilliseconds")
        if milliseconds is not None and milliseconds <= 0:
            raise UserError(f"{self._path}: ProfilingIntervalInMilliseconds must be above 0, such as 500")
        for name, said in OF_JOB.items():
            if job.get(name) and (name != RULES or _sets_parameters(job[name])):
                self._note(name, said)
        for name in [*given, *parameters]:
            if name not in (*TOP, *PARTS, *OF_JOB, "ProfilerConfig"):
                self._note(name, INSTEAD.get(name, "is not known"))
        self._dataloader(self._part(parameters, DATALOADER, PARTS[DATALOADER]))
        windows = self._windows(parameters)
        notes = tuple(f"{', '.join(names)}: {said}" for said, names in self._notes.items())
        return ProfilerConfig(
            None if milliseconds is None else milliseconds / 1000, tuple(map(str, windows)), notes
        )

    def _dataloader(self, given: Mapping[str, Any]) -> None:
        if given.get("MetricsRegex", ".*") != ".*":
            self._note("MetricsRegex", INSTEAD["MetricsRegex"])
        if given.keys() & set(RANGE):
            self._note(DATALOADER, INSTEAD["MetricsRegex"])

    def _windows(self, parameters: Mapping[str, Any]) -> list[_Window]:
        """Returns at most one window of operators and one of Python functions, one after the other."""
        operators = self._window(DETAILED, self._part(parameters, DETAILED, PARTS[DETAILED]))
        given = self._part(parameters, PYTHON, PARTS[PYTHON])
        functions = self._window(PYTHON, given)
        if functions is not None and str(given.get("ProfilerName", "cProfile")).lower() == "pyinstrument":
            self._note(PYTHON, "lines of Python are sampled in all steps; Pyinstrument is not used")
            functions = None
        timer = str(given.get("cProfileTimer", "default")).lower()
        if functions is not None and timer not in TIMERS:
            self._note("cProfileTimer", "the times of functions include waits")
        kind = TIMERS.get(timer, WALL)
        if operators and functions and operators.form == functions.form:
            gap = 2 if operators.steps else 1.0  # there is at least one step between two windows
            if functions.begin < operators.end + gap and operators.begin < functions.end + gap:
                length = functions.end - functions.begin
                begin = operators.end + gap
                functions = replace(functions, begin=begin, end=begin + length)
                self._note(PYTHON, "its window is after that of the operators: one profiler at a time")
        return [
            replace(window, kind=each)
            for window, each in ((operators, OPERATORS), (functions, kind))
            if window is not None
        ]

    def _window(self, part: str, given: Mapping[str, Any]) -> _Window | None:
        first, count, start, duration, other = (self._number(given, name) for name in RANGE)
        duration = other if duration is None else duration
        if first is not None or count is not None:
            return self._of_steps(
                part, 1 if first is None else int(first), 1 if count is None else int(count)
            )
        if start is None and duration is None:
            return None
        date = start is not None and start > self._now
        begin = start if date and start is not None else SOON
        if start is not None and not date:
            said = "is over: its window begins with the first step"
            self._note(f"{part}.StartTimeInSecSinceEpoch", said)
        seconds = 1.0 if duration is None else duration
        if not 0 < seconds <= LONG:
            self._note(f"{part}.Duration", f"a window takes up to {LONG:g} s")
            seconds = LONG
        return _Window(begin, begin + seconds, steps=False, date=date)

    def _of_steps(self, part: str, first: int, count: int) -> _Window:
        if first < 1:
            self._note(f"{part}.StartStep", "a window begins at step 1 at the earliest")
        if not 0 < count <= MOST_STEPS:
            self._note(f"{part}.NumSteps", f"a window has 1 to {MOST_STEPS} steps")
        begin = max(first, 1)
        return _Window(begin, begin + min(max(count, 1), MOST_STEPS) - 1, steps=True)

    def _part(self, given: Mapping[str, Any], name: str, names: tuple[str, ...]) -> dict[str, Any]:
        value = given.get(name)
        if value is None:
            return {}
        where = f"{self._path}: {name}"
        return _by_name(_object(value, where) if isinstance(value, str) else value, names, where=where)

    def _number(self, given: Mapping[str, Any], name: str) -> float | None:
        value = given.get(name)
        if value is None:
            return None
        try:
            number = float(value)
        except (TypeError, ValueError, OverflowError):
            number = math.nan
        if not abs(number) < MOST:
            raise UserError(f"{self._path}: {name} is {value!r:.40}; give a number of at most 11 digits")
        return number

    def _note(self, name: str, said: str) -> None:
        names = self._notes.setdefault(said, [])
        if name not in names:
            names.append(name)


def _by_name(given: Any, *known: Any, where: str = "ProfilerConfig") -> dict[str, Any]:
    """Returns the settings by their names as they are written here. Raises UserError for no object."""
    if not isinstance(given, Mapping):
        raise UserError(f"{where}: is not an object of JSON; give a ProfilerConfig")
    written = {name.lower(): name for names in known for name in names}
    return {written.get(str(name).lower(), str(name)): value for name, value in given.items()}


def _sets_parameters(rules: Any) -> bool:
    """Returns whether a rule has parameters; each names itself among them."""
    given = [rule.get("RuleParameters") for rule in rules if isinstance(rule, Mapping)]
    return any(isinstance(each, Mapping) and each.keys() - {"rule_to_invoke"} for each in given)


def _object(text: str, where: str) -> Any:
    """Parses JSON, also with the comma before a closing bracket that SageMaker's SDK writes."""
    try:
        return json.loads(re.sub(r",(\s*[}\]])", r"\1", text))
    except (ValueError, RecursionError) as error:
        raise UserError(f"{where}: is not JSON ({error}); give a ProfilerConfig as JSON") from error


def _duration(seconds: float) -> str:
    return f"{max(round(seconds * 1000), 1)}ms"
