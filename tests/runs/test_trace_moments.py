"""The lines of operators, from samples of the thread that calls them."""

import json
from collections import Counter
from pathlib import Path
from typing import Any

from stepscope.runs.traces.events import OPERATOR, load
from stepscope.runs.traces.moments import JUST_ENDED, place_of, places_of
from stepscope.training.window_files import LINE

OUTER, INNER, END = 0.0, 1000.0, 5000.0
OPERATORS = [("aten::linear", OUTER, END), ("aten::addmm", INNER, 2000.0), ("aten::copy_", 9000.0, 9010.0)]


def places(tmp_path: Path, samples: list[tuple[float, str]], thread: int = 1) -> dict[str, dict[str, int]]:
    events: list[dict[str, Any]] = [
        {"ph": "X", "cat": "cpu_op", "name": name, "ts": begin, "dur": end - begin, "pid": 1, "tid": 1}
        for name, begin, end in OPERATORS
    ]
    events += [
        {"ph": "i", "cat": LINE, "name": place, "ts": at, "pid": 1, "tid": thread} for at, place in samples
    ]
    path = tmp_path / "trace.json"
    path.write_text(json.dumps({"traceEvents": events}))
    trace = load(path)
    return {name: dict(found) for name, found in places_of(trace, trace.of(OPERATOR)).items()}


def test_a_sample_is_of_all_operators_that_run(tmp_path: Path) -> None:
    assert places(tmp_path, [(500.0, "a.py:1"), (1500.0, "a.py:2"), (3000.0, "a.py:3")]) == {
        "aten::linear": {"a.py:1": 1, "a.py:2": 1, "a.py:3": 1},
        "aten::addmm": {"a.py:2": 1},
    }


def test_a_sample_just_after_an_operator_is_of_it_and_a_later_one_of_none(tmp_path: Path) -> None:
    samples = [(9010.0 + JUST_ENDED, "a.py:1"), (9011.0 + JUST_ENDED, "a.py:2"), (-50.0, "a.py:3")]
    assert places(tmp_path, samples) == {"aten::copy_": {"a.py:1": 1}}


def test_a_sample_of_another_thread_says_nothing(tmp_path: Path) -> None:
    assert places(tmp_path, [(1500.0, "a.py:2")], thread=2) == {}


def test_a_line_is_named_only_if_most_of_enough_samples_are_there() -> None:
    assert place_of([Counter({"a.py:1": 2}), Counter({"a.py:1": 1, "a.py:2": 3})]) == "a.py:1"
    assert place_of([Counter({"a.py:1": 2})]) == ""
    assert place_of([Counter({"a.py:1": 3, "a.py:2": 2, "a.py:3": 2})]) == ""
    assert place_of([]) == ""
