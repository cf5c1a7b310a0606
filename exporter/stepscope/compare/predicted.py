"""Checks predictions: compares the effect that the report of A predicted with the measured one in B."""

import json
from collections.abc import Callable
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from stepscope.compare.compared_run import ComparedRun
from stepscope.compare.work import Work
from stepscope.report.document import SCHEMA_VERSION
from stepscope.report.figures import METRICS, figure
from stepscope.report.right_sizing import Prediction, predictions
from stepscope.runs.malformed import MALFORMED

STORED = "report.json"  # `stepscope run` and `stepscope report` write it next to the page


@dataclass(frozen=True)
class CheckedPrediction:
    """A predicted figure, and the measured figure of B. `in_range`: None if they cannot be compared."""

    prediction: Prediction
    made: float  # how much of the resource B has
    measured: float | None
    in_range: bool | None
    why_not: str = ""  # if they cannot be compared

    @property
    def as_suggested(self) -> bool:
        return self.made == self.prediction.suggested


def stored_predictions(directory: Path) -> list[Prediction] | None:
    """Returns the predictions of the report next to a recording; None without a report of this format.

    People may move, cut or edit a report: one with other fields counts as no report.
    """
    try:
        document = json.loads((directory / STORED).read_text(encoding="utf-8"))
        if document["schema_version"] != SCHEMA_VERSION:
            return None
        return [_prediction(content) for content in document["predictions"]]
    except (OSError, *MALFORMED):
        return None


def checked_predictions(a: ComparedRun, b: ComparedRun, work: Work) -> list[CheckedPrediction]:
    """Compares those predictions of A whose change was made in B with B's figures."""
    found, made = [], predictions(a.analysis, a.price)
    if (stored := stored_predictions(Path(a.place))) is not None:  # but for the cost, at the price of now
        made = [row for row in stored if row.metric != "cost"] + [row for row in made if row.metric == "cost"]
    for prediction in made:
        amount_of = _AMOUNT_OF.get(prediction.change)
        before, after = (amount_of(run) if amount_of else None for run in (a, b))
        if after is None or before is None or before != prediction.current:
            continue
        if (after - before) * (prediction.suggested - prediction.current) > 0:
            found.append(_checked(prediction, after, a, b, work))
    return found


def _checked(
    predicted: Prediction, made: float, a: ComparedRun, b: ComparedRun, work: Work
) -> CheckedPrediction:
    measured = figure(b.analysis, predicted.metric, b.price)
    why_not = ""
    if measured is None:
        why_not = "B did not record it"
    elif predicted.metric != "step_seconds_mean" and work.same is False:
        why_not = "B did different work"
    elif predicted.metric == "cost" and a.price != b.price:
        why_not = "B's nodes have a different price"
    in_range = None if why_not or measured is None else predicted.low <= measured <= predicted.high
    return CheckedPrediction(predicted, made, measured, in_range, why_not)


def _prediction(content: dict[str, Any]) -> Prediction:
    """Raises one of MALFORMED if the content is of another kind."""
    if content["metric"] not in METRICS:
        raise KeyError(content["metric"])
    kinds = {item.name: str if item.type is str else (int, float) for item in fields(Prediction)}
    for name, kind in kinds.items():
        if not isinstance(content[name], kind):
            raise TypeError(f"{name} is {content[name]!r}")
    return Prediction(**{name: content[name] for name in kinds})


def _of_train_loaders(setting: str) -> Callable[[ComparedRun], float | None]:
    def read(run: ComparedRun) -> float | None:
        return _same(loader.get(setting) for loader in run.analysis.loaders if loader["phase"] == "train")

    return read


def _same(values: Any) -> float | None:
    """Returns the number that all share; None if they differ."""
    found = set(values)
    return found.pop() if len(found) == 1 else None


# How much of the resource a run has, by the change that a prediction suggests.
_AMOUNT_OF: dict[str, Callable[[ComparedRun], float | None]] = {
    "more_workers": _of_train_loaders("workers"),
    "larger_batch": _of_train_loaders("batch_size"),
    "more_cores": lambda run: _same(run.analysis.cores.values()),
    "fewer_cores": lambda run: _same(run.analysis.cores.values()),
    "fewer_gpus": lambda run: _same(len(names) for names in run.analysis.gpus.values()),
    "fewer_nodes": lambda run: len(run.analysis.nodes) or None,
}
