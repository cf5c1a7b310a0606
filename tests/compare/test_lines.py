"""Lines of code before and after a change."""

from dataclasses import replace

from stepscope.compare.lines import compared_lines
from stepscope.evaluation.analysis import Analysis
from stepscope.runs.model import LineTime, ThreadTime

from tests.support.analysis import nothing_found


def run(**seconds: float) -> Analysis:
    lines = tuple(
        LineTime("train", "data_wait", f"data.py:{number}", name, "json.loads", "", "", {"running": value})
        for number, (name, value) in enumerate(seconds.items())
    )
    worker = ThreadTime("n1", 0, "loader worker", 1, 100.0, 100.0, 0.0, 0.0, lines)
    training = ThreadTime("n1", 0, "training", 1, 100.0, 100.0, 0.0, 0.0, lines)
    return replace(nothing_found(), threads=[training, worker])


def test_a_line_that_moved_is_the_same_line_and_one_that_went_away_is_at_zero() -> None:
    before, after = run(load=90, step=10), run(other=1, step=99)
    assert [(line.name, line.a, line.b) for line in compared_lines(before, after)] == [
        ("json.loads, in step (data.py)", 0.1, 0.99),
        ("json.loads, in load (data.py)", 0.9, 0.0),
        ("json.loads, in other (data.py)", 0.0, 0.01),
    ]


def test_runs_without_line_samples_are_not_compared_by_them() -> None:
    assert compared_lines(run(load=90), nothing_found()) == []
