"""What the report of A predicted, held against B."""

import json
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
from stepscope.compare import predicted
from stepscope.compare.compared_run import ComparedRun
from stepscope.compare.comparison import compare
from stepscope.compare.predicted import CheckedPrediction, stored_predictions
from stepscope.compare.sentences import prediction as sentence
from stepscope.compare.work import work_of
from stepscope.report.right_sizing import Prediction, predictions
from stepscope.report.write import write_report

from tests.support.compared import run_of
from tests.support.comparisons import MORE_WORKERS


def stored(directory: Path, *rows: Prediction | dict[str, Any]) -> str:
    """A report.json in that directory that holds these predictions."""
    known = [row if isinstance(row, dict) else asdict(row) for row in rows]
    (directory / "report.json").write_text(json.dumps({"schema_version": 1, "predictions": known}))
    return str(directory)


def trained(step: float, workers: int = 2, steps: int = 100, **more: Any) -> ComparedRun:
    return run_of([step] * steps, loader={"workers": workers, "batch_size": 32}, **more)


def checked_predictions(a: ComparedRun, b: ComparedRun) -> list[CheckedPrediction]:
    return predicted.checked_predictions(a, b, work_of(a, b, "train"))


def only(a: ComparedRun, b: ComparedRun) -> CheckedPrediction:
    (checked,) = checked_predictions(a, b)
    return checked


def test_a_prediction_that_came_true_is_said_to_lie_in_its_range(tmp_path: Path) -> None:
    checked = only(trained(0.5, place=stored(tmp_path, MORE_WORKERS)), trained(0.26, workers=4))
    assert checked.measured == pytest.approx(0.26)
    assert (checked.made, checked.in_range) == (4, True)
    assert sentence(checked) == (
        "Predicted for 4 instead of 2 loader workers of a rank: a step takes 250 ms (200 ms to 500 ms). "
        "Measured: 260 ms, within the predicted range."
    )


def test_a_prediction_that_failed_is_said_to_lie_outside(tmp_path: Path) -> None:
    checked = only(trained(0.5, place=stored(tmp_path, MORE_WORKERS)), trained(0.6, workers=8))
    assert checked.in_range is False
    assert not checked.as_suggested
    assert "Measured with 8: 600 ms, outside the predicted range." in sentence(checked)


@pytest.mark.parametrize("workers", [2, 1])
def test_a_change_that_was_not_made_is_not_held_against_b(tmp_path: Path, workers: int) -> None:
    a = trained(0.5, place=stored(tmp_path, MORE_WORKERS))
    assert checked_predictions(a, trained(0.3, workers=workers)) == []


def test_another_number_of_steps_makes_whole_runs_incomparable(tmp_path: Path) -> None:
    whole = replace(MORE_WORKERS, metric="run_seconds", expected=31.0, low=25.0, high=56.0)
    a = trained(0.5, place=stored(tmp_path, MORE_WORKERS, whole))
    step, run = checked_predictions(a, trained(0.25, workers=4, steps=200))
    assert (step.in_range, run.in_range) == (True, None)
    assert "Not comparable: B did different work." in sentence(run)
    _, same = checked_predictions(a, trained(0.25, workers=4))
    assert same.in_range is True


def test_costs_are_not_compared_where_the_price_changed(monkeypatch: pytest.MonkeyPatch) -> None:
    cost = replace(MORE_WORKERS, metric="cost", expected=0.3, low=0.2, high=0.5)
    monkeypatch.setattr(predicted, "predictions", lambda *_: [cost])
    a = trained(0.5, price=36.0)
    checked = only(a, trained(0.25, workers=4, price=10.0))
    assert (checked.in_range, checked.why_not) == (None, "B's nodes have a different price")
    assert only(a, trained(0.25, workers=4, price=36.0)).in_range is True


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "{}",
        '{"schema_version": 99, "predictions": []}',
        '{"schema_version": 1, "predictions": [{"change": "more_workers"}]}',
        '{"schema_version": 1, "predictions": 7}',
    ],
)
def test_a_report_that_does_not_fit_is_no_report(tmp_path: Path, text: str) -> None:
    (tmp_path / "report.json").write_text(text)
    assert stored_predictions(tmp_path) is None


@pytest.mark.parametrize("wrong", [{"low": "<script>"}, {"metric": "accuracy"}])
def test_a_prediction_with_a_word_for_a_number_or_of_no_figure_of_ours_is_not_believed(
    tmp_path: Path, wrong: dict[str, str]
) -> None:
    stored(tmp_path, {**asdict(MORE_WORKERS), **wrong})
    assert stored_predictions(tmp_path) is None


def test_what_a_report_stores_is_read_back(tmp_path: Path) -> None:
    run = trained(0.5, data_wait=0.4)
    write_report(run.analysis, tmp_path)
    read = stored_predictions(tmp_path)
    assert read is not None
    assert read == predictions(run.analysis)


def test_without_a_report_the_predictions_are_made_anew() -> None:
    a = trained(0.5, workers=1, data_wait=0.4, cpu=0.9)
    expected = [one for one in predictions(a.analysis) if one.change == "more_workers"]
    found = compare(a, trained(0.2, workers=4)).predictions
    assert [one.prediction for one in found] == expected
