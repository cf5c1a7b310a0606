"""The record of predictions: what counts, what is widened, and what a damaged file costs."""

import json
import os
import random
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as some
from stepscope.commands.cli import main
from stepscope.common.errors import UserError
from stepscope.common.status import Status
from stepscope.report.html import render_html
from stepscope.report.markdown import render_markdown
from stepscope.report.predicted_savings import predicted_savings
from stepscope.report.right_sizing import predictions
from stepscope.report.step_model import Factor, widened
from stepscope.report.track_record import (
    RECORD,
    Outcome,
    Score,
    TrackRecord,
    add_outcomes,
    read_record,
    record_of,
)

from tests.report.test_html import Page
from tests.report.test_right_sizing import run as starved_run
from tests.support import analysis as made

SHARES = some.floats(-1.0, 1.0)
SMALL = some.floats(0.0, 0.3)


def outcome(number: int = 0, achieved: float = 0.3, kind: str = "DataStarved", **more: float) -> Outcome:
    """A saving of up to 40 % was predicted for run `a-NUMBER`; `b-NUMBER` achieved this one."""
    values = {"predicted": 0.4, "low": 0.0, "high": 0.4, "widened": 0.0, "noise": 0.01, **more}
    return Outcome(
        kind, f"a-{number}", f"b-{number}", a_start=number, b_start=number + 0.5, achieved=achieved, **values
    )


@some.composite
def outcomes(draw: some.DrawFn) -> list[Outcome]:
    """Outcomes of two kinds between few runs, so that runs are compared several times."""
    found = []
    for _ in range(draw(some.integers(0, 25))):
        a, later = draw(some.integers(0, 30)), draw(some.integers(1, 3))
        low, high = sorted((draw(SHARES), draw(SHARES)))
        found.append(
            Outcome(
                draw(some.sampled_from(("DataStarved", "more_workers"))),
                f"run-{a}",
                f"run-{a + later}",
                a_start=a,
                b_start=a + later,
                predicted=(low + high) / 2,
                low=low,
                high=high,
                widened=draw(SMALL),
                achieved=draw(SHARES),
                noise=draw(SMALL),
            )
        )
    return found


@given(outcomes(), some.randoms(use_true_random=False))
def test_neither_the_order_nor_the_repetition_of_outcomes_matters(
    recorded: list[Outcome], chance: random.Random
) -> None:
    shuffled = [*recorded, *chance.sample(recorded, len(recorded) // 2)]
    chance.shuffle(shuffled)
    assert TrackRecord(tuple(shuffled)).scores == TrackRecord(tuple(recorded)).scores


@given(outcomes())
def test_coverage_is_a_share_and_no_run_counts_twice(recorded: list[Outcome]) -> None:
    for score in TrackRecord(tuple(recorded)).scores.values():
        assert 0 <= score.coverage <= 1
        assert score.error == pytest.approx(score.achieved - score.predicted)
        for runs in ([each.a for each in score.outcomes], [each.b for each in score.outcomes]):
            assert len(runs) == len(set(runs))


@given(some.lists(some.tuples(SHARES, SMALL), min_size=1, max_size=40))
def test_widening_is_never_negative_and_holds_nine_in_ten(values: Sequence[tuple[float, float]]) -> None:
    score = Score(
        "kind", tuple(outcome(at, achieved, noise=noise) for at, (achieved, noise) in enumerate(values))
    )
    more = score.widening
    assert more >= 0
    again = [
        replace(each, low=each.low - more, high=each.high + more, widened=more) for each in score.outcomes
    ]
    wider = Score("kind", tuple(again))
    if len(values) < 9:
        assert more == 0
    else:
        assert sum(each.miss <= 1e-12 for each in again) >= 0.9 * len(values)
        assert (more > 0) == (score.held < -(-9 * (len(values) + 1) // 10))
    assert wider.widening == pytest.approx(more), "it is computed from the range before any widening"


@given(some.floats(0.01, 1), some.floats(0, 1), some.floats(0, 1), SMALL, SMALL)
def test_widening_a_range_never_narrows_it(
    low: float, up: float, further: float, less: float, more: float
) -> None:
    factor = Factor(low + up, low, low + up + further)
    little, much = widened(factor, less), widened(factor, less + more)
    assert 0 < much.low <= little.low <= factor.low
    assert factor.high <= little.high <= much.high
    assert much.expected == factor.expected


def test_a_saving_outside_its_range_by_no_more_than_the_noise_held() -> None:
    assert outcome(achieved=0.409).held
    assert not outcome(achieved=0.411).held
    assert not outcome(achieved=-0.02).held


def test_one_fix_compared_with_several_runs_before_it_is_one_outcome() -> None:
    fixed = [replace(outcome(at, kind="more_workers"), b="fixed", b_start=10.0) for at in range(5)]
    (score,) = TrackRecord(tuple(fixed)).scores.values()
    assert [each.a for each in score.outcomes] == ["a-4"], "the newest run before the fix"


# ------------------------------------------------------------------------------------------ the file


def test_a_pair_that_is_compared_again_is_recorded_once(tmp_path: Path) -> None:
    first, other = outcome(1), outcome(2)
    assert add_outcomes(tmp_path, first.a, first.b, [first]) == [first]
    assert add_outcomes(tmp_path, other.a, other.b, [other]) == [other]
    before = (tmp_path / RECORD).stat().st_mtime_ns, (tmp_path / RECORD).read_text()
    assert add_outcomes(tmp_path, first.a, first.b, [first]) == []
    assert ((tmp_path / RECORD).stat().st_mtime_ns, (tmp_path / RECORD).read_text()) == before
    corrected = replace(first, achieved=0.2)
    assert add_outcomes(tmp_path, first.a, first.b, [corrected]) == [corrected]
    assert read_record(tmp_path).recorded == (corrected, other)


def test_without_an_outcome_no_file_is_written(tmp_path: Path) -> None:
    assert add_outcomes(tmp_path, "a", "b", []) == []
    assert list(tmp_path.iterdir()) == []


def line(**changes: object) -> str:
    return json.dumps({"format": 1, **outcome().__dict__, **changes})


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("{", "JSONDecodeError"),
        ("[]", "TypeError"),
        ("{}", "KeyError: 'format'"),
        (line(format=2), "format 2 is of a newer Stepscope; update this one"),
        (line(achieved="much"), "could not convert"),
        (line(achieved=float("nan")), "nan is not finite"),
        (line(low=0.5), "its range is not in order"),
        (line(noise=-1), "its range is not in order"),
        ("\ud800".encode("utf-8", "surrogatepass").decode("utf-8", "replace"), "JSONDecodeError"),
    ],
)
def test_a_damaged_line_is_named_and_nothing_is_overwritten(tmp_path: Path, text: str, why: str) -> None:
    path = tmp_path / RECORD
    path.write_text(f"{line()}\n\n{text}\n")
    with pytest.raises(UserError) as raised:
        add_outcomes(tmp_path, "a", "b", [outcome(7)])
    assert str(raised.value).startswith(f"{path}, line 3: ")
    assert why in str(raised.value)
    assert "\n" not in str(raised.value)
    assert path.read_text() == f"{line()}\n\n{text}\n"


def test_only_the_record_of_a_folder_of_runs_is_read(tmp_path: Path) -> None:
    for folder in (tmp_path / "stepscope-runs", tmp_path / "my-model"):
        (folder / "run").mkdir(parents=True)
        (folder / RECORD).write_text("[0.1, 0.9]\n")  # what a model predicted
    said: list[str] = []
    assert record_of(tmp_path / "my-model" / "run", None, said.append) == TrackRecord()
    assert said == []
    assert record_of(tmp_path / "stepscope-runs" / "run", None, said.append) == TrackRecord()
    (line,) = said
    assert line.startswith(f"{tmp_path / 'stepscope-runs' / RECORD}, line 1: not the outcome of a prediction")
    assert line.endswith("; until then, predictions are not compared with earlier ones")


def test_a_report_knows_only_outcomes_of_runs_before_its_own(tmp_path: Path) -> None:
    folder = tmp_path / "stepscope-runs"
    folder.mkdir()
    for each in (outcome(1), outcome(2), outcome(3)):  # the later runs began at 1.5, 2.5 and 3.5
        add_outcomes(folder, each.a, each.b, [each])
    assert record_of(folder / "a-2", 2.0).recorded == (outcome(1),)
    assert record_of(folder / "b-2", 2.5).recorded == (outcome(1),)
    assert record_of(folder / "later", None).recorded == (outcome(1), outcome(2), outcome(3))


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_an_unreadable_record_is_named(tmp_path: Path) -> None:
    (tmp_path / RECORD).touch(mode=0)
    with pytest.raises(UserError, match="cannot be read: Permission denied; make it readable, or remove it"):
        read_record(tmp_path)


def test_a_folder_in_place_of_the_record_is_named(tmp_path: Path) -> None:
    (tmp_path / RECORD).mkdir()
    with pytest.raises(UserError, match="cannot be read: a link, a directory, a pipe"):
        read_record(tmp_path)


# -------------------------------------------------------------------------------- what reports say

TWELVE_OF_FOURTEEN = TrackRecord(tuple(outcome(at, 0.3 if at < 12 else 0.5) for at in range(14)))
EIGHT_OF_NINE = TrackRecord(tuple(outcome(at, 0.3 if at else 0.5) for at in range(9)))
STARVED = made.slow_loader(rules=[made.rule("DataStarved", Status.FOUND, seconds_lost=300.0)])


@pytest.mark.parametrize(
    "words",
    [
        lambda record: Page(render_html(STARVED, record=record)).texts["verdict"],
        lambda record: render_markdown(STARVED, record=record),
    ],
    ids=["page", "markdown"],
)
def test_a_saving_says_how_earlier_predictions_of_its_kind_fared(words: Callable[[TrackRecord], str]) -> None:
    said = "12 of 14 earlier predictions of this kind held"
    assert said in words(TWELVE_OF_FOURTEEN).replace("\u00a0", " ")
    others = TrackRecord(tuple(replace(each, kind="Straggler") for each in TWELVE_OF_FOURTEEN.recorded))
    assert "earlier prediction" not in words(others)
    assert "earlier prediction" not in words(TrackRecord())


def test_a_kind_that_held_too_seldom_has_a_wider_range() -> None:
    (now,) = predicted_savings(STARVED)
    (wider,) = predicted_savings(STARVED, EIGHT_OF_NINE)
    assert (wider.outcomes, wider.held) == (9, 8)
    assert wider.widened == pytest.approx(0.09), "0.5 was achieved, 0.4 + 0.01 of noise at most predicted"
    assert (wider.low, wider.high) == pytest.approx((now.low - 0.09, now.high + 0.09))
    assert wider.predicted == now.predicted
    assert wider.in_words.startswith("8 of 9 earlier predictions of this kind held, so its range is wider: −")
    all_held = TrackRecord(tuple(outcome(at) for at in range(9)))
    (same,) = predicted_savings(STARVED, all_held)
    assert (same.low, same.high, same.widened) == (now.low, now.high, 0.0)


def test_right_sizing_widens_time_cost_and_sentence() -> None:
    loading: dict[str, Any] = {"percent": 60.0, "cause": "too few workers", "workers": 1, "workers_needed": 3}
    run = starved_run(fired=("DataStarved",), node="node-a", rank=0, **loading)
    record = TrackRecord(tuple(replace(each, kind="more_workers") for each in EIGHT_OF_NINE.recorded))
    before = {(row.change, row.metric): row for row in predictions(run, 36.0)}
    after = {(row.change, row.metric): row for row in predictions(run, 36.0, record.widening)}
    assert before.keys() == after.keys() >= {("more_workers", name) for name in ("run_seconds", "cost")}
    for (change, _), row in before.items():
        wider = after[change, row.metric]
        assert wider.expected == row.expected
        if change == "more_workers":
            assert wider.low < row.low
            assert wider.high > row.high
            assert wider.sentence != row.sentence
        else:
            assert wider == row
    more = 0.09 * before["more_workers", "step_seconds_mean"].measured
    step, wide = before["more_workers", "step_seconds_mean"], after["more_workers", "step_seconds_mean"]
    assert (wide.low, wide.high) == pytest.approx((step.low - more, step.high + more))
    page = Page(render_html(run, record=record)).texts["summary"]
    assert "8 of 9 earlier predictions of this kind held, so its range is wider" in page.replace(
        "\u00a0", " "
    )


# ------------------------------------------------------------------------------------- stepscope score


def score(capsys: pytest.CaptureFixture[str], *words: str | Path) -> tuple[int, str, str]:
    status = main(["score", *map(str, words)])
    return status, *capsys.readouterr()


def test_the_score_has_a_row_per_kind(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    workers = outcome(20, -0.05, "more_workers")
    for each in (*TWELVE_OF_FOURTEEN.recorded, workers):
        add_outcomes(tmp_path, each.a, each.b, [each])
    status, out, err = score(capsys, tmp_path)
    assert (status, err) == (0, "")
    heading, *rows = out.splitlines()
    assert heading.split() == [
        *("Prediction", "Outcomes", "Held", "Coverage", "Predicted", "Achieved", "Error", "Widened", "by")
    ]
    assert [" ".join(row.split()) for row in rows] == [
        "DataStarved 14 12 86 % 40 % 33 % −7.1 points +9.0 points",
        "more workers 1 0 0 % 40 % −5.0 % −45.0 points –",
    ]
    document = json.loads(score(capsys, tmp_path, "--json")[1])
    starved, more_workers = document["kinds"]
    assert (document["format"], document["nominal_coverage"]) == (1, 0.9)
    assert (starved["held"], starved["coverage"], len(starved["outcomes"])) == (12, 12 / 14, 14)
    assert more_workers["outcomes"][0]["held"] is False


def test_without_outcomes_the_score_says_how_to_get_one(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    hint = "no predictions with an outcome yet: compare a run with a later one\n"
    assert score(capsys) == (0, hint, "")
    assert score(capsys, tmp_path) == (0, hint, "")
    assert json.loads(score(capsys, "--json")[1])["kinds"] == []
    status, _, err = score(capsys, "nowhere")
    assert (status, err.splitlines()) == (
        2,
        ["stepscope: nowhere: is no directory; give a folder of runs, as stepscope-runs"],
    )
