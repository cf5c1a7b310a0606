"""Predicted against measured: what the report of A said a change would do, and what B shows it did."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from trainwatch.compare.compared_run import ComparedRun
from trainwatch.report.document import SCHEMA_VERSION
from trainwatch.report.figures import figure
from trainwatch.report.right_sizing import Prediction, predictions

STORED = "report.json"  # what `trainwatch run` and `trainwatch report` leave beside the page
READABLE = (1, SCHEMA_VERSION)  # predictions have not changed since
SAME_WORK = 0.01  # numbers of steps that differ by less are the same work


@dataclass(frozen=True)
class CheckedPrediction:
    """A predicted figure and what B's is; `in_range` is None where the two cannot be compared."""

    prediction: Prediction
    made: float  # how much of the resource B has
    measured: float | None
    in_range: bool | None
    why_not: str = ""  # where they cannot be compared

    @property
    def as_suggested(self) -> bool:
        return self.made == self.prediction.suggested


def stored_predictions(directory: Path) -> list[Prediction] | None:
    """Those in the report beside a recording; None where there is no report of this format.

    A report is something that a person may move, cut or edit: one that does not fit is no report.
    """
    try:
        document = json.loads((directory / STORED).read_text(encoding="utf-8"))
        if document["schema_version"] not in READABLE:
            return None
        return [_prediction(row) for row in document["predictions"]]
    except (OSError, ValueError, KeyError, TypeError):
        return None


def predictions_of(run: ComparedRun) -> list[Prediction]:
    """Those stored when its report was written, else computed now; what it would cost is always computed."""
    now = predictions(run.analysis, run.price)
    stored = stored_predictions(Path(run.place))
    if stored is None:
        return now
    return [one for one in stored if one.metric != "cost"] + [one for one in now if one.metric == "cost"]


def checked_predictions(a: ComparedRun, b: ComparedRun, phase: str | None) -> list[CheckedPrediction]:
    """Of A's predictions those whose change was made in B, held against B's figures."""
    found = []
    for one in predictions_of(a):
        has = _HAS.get(one.change, _nothing)(b)
        was = _HAS.get(one.change, _nothing)(a)
        if has is None or was != one.current or (has - was) * (one.suggested - one.current) <= 0:
            continue
        found.append(_checked(one, has, a, b, phase))
    return found


def _checked(
    one: Prediction, made: float, a: ComparedRun, b: ComparedRun, phase: str | None
) -> CheckedPrediction:
    measured = figure(b.analysis, one.metric, b.price)
    why_not = ""
    if measured is None:
        why_not = "B does not tell"
    elif one.metric != "step_seconds_mean" and not _same_work(a, b, phase):
        why_not = "B made another number of steps"
    elif one.metric == "cost" and a.price != b.price:
        why_not = "B's nodes have another price"
    in_range = None if why_not or measured is None else one.low <= measured <= one.high
    return CheckedPrediction(one, made, measured, in_range, why_not)


def _same_work(a: ComparedRun, b: ComparedRun, phase: str | None) -> bool:
    if phase is None:
        return True  # nobody counted
    before, after = (sum(one.count for one in run.steps[phase]) / len(run.steps[phase]) for run in (a, b))
    return abs(after - before) <= SAME_WORK * before


def _prediction(row: dict[str, Any]) -> Prediction:
    """Raises KeyError or TypeError where the row is none."""
    kinds = {item.name: str if item.type == "str" else (int, float) for item in fields(Prediction)}
    for name, kind in kinds.items():
        if not isinstance(row[name], kind):
            raise TypeError(f"{name} is {row[name]!r}")
    return Prediction(**{name: row[name] for name in kinds})


def _nothing(_: ComparedRun) -> float | None:
    return None


def _of_train_loaders(setting: str) -> Callable[[ComparedRun], float | None]:
    def read(run: ComparedRun) -> float | None:
        return _same(loader.get(setting) for loader in run.analysis.loaders if loader["phase"] == "train")

    return read


def _same(values: Any) -> float | None:
    """The number that all have alike."""
    found = set(values)
    return found.pop() if len(found) == 1 else None


def _cores(run: ComparedRun) -> float | None:
    return _same(run.analysis.cores.values())


def _gpus(run: ComparedRun) -> float | None:
    return _same(len(names) for names in run.analysis.gpus.values())


# How much of its resource a run has, by the change that a prediction is about.
_HAS: dict[str, Callable[[ComparedRun], float | None]] = {
    "more_workers": _of_train_loaders("workers"),
    "fewer_workers": _of_train_loaders("workers"),
    "larger_batch": _of_train_loaders("batch_size"),
    "more_cores": _cores,
    "fewer_cores": _cores,
    "fewer_gpus": _gpus,
    "fewer_nodes": lambda run: len(run.analysis.nodes) or None,
}
