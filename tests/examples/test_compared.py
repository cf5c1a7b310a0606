"""Two real runs of the example: one without loader workers, then one with two of them."""

import json
import math
import sys
from collections.abc import Callable
from typing import Any

import pytest

from tests.examples.conftest import Observed
from tests.support.processes import ran

pytestmark = pytest.mark.alone("it compares two runs, which other tests could slow down unevenly")

STEPS = 60
PRICE = 3.6  # dollars an hour: a tenth of a cent a second


@pytest.fixture(scope="module")
def compared(observed: Callable[..., Observed]) -> dict[str, Any]:
    slow, fixed = (observed(way, STEPS).folder for way in ("workers", "none"))
    command = [sys.executable, "-m", "stepscope", "compare", str(slow), str(fixed), "--format", "json"]
    prices = ["--price-a", str(PRICE), "--price-b", str(PRICE)]
    result = ran([*command, *prices])
    assert result.returncode == 0, result.stderr
    document: dict[str, Any] = json.loads(result.stdout)
    return document


def test_the_comparison_of_a_slow_and_a_mended_run_shows_the_true_saving(compared: dict[str, Any]) -> None:
    for side in ("a", "b"):
        run = compared[side]
        seconds = run["end"] - run["start"]
        assert compared["figures"]["duration"][side] == pytest.approx(seconds)
        assert compared["figures"]["cost"][side] == pytest.approx(seconds / 3600 * PRICE)
        assert compared["figures"]["steps"][side] == STEPS
        assert compared["figures"]["item_mean"][side] == pytest.approx(
            compared["figures"]["step_mean"][side] / 64
        )


def test_its_parts_sum_to_it_and_waiting_for_data_is_what_was_saved(compared: dict[str, Any]) -> None:
    for difference in compared["parts"].values():
        parts = {part["key"]: part["difference"] for part in difference["parts"]}
        assert math.fsum(parts.values()) == pytest.approx(difference["difference"], abs=1e-5)
        assert difference["difference"] == pytest.approx(difference["b"] - difference["a"])
    step = {part["key"]: part for part in compared["parts"]["step"]["parts"]}
    assert min(step, key=lambda key: float(step[key]["difference"])) == "data_wait"
    assert step["data_wait"]["b"] < 0.7 * step["data_wait"]["a"]


def test_it_says_what_was_changed_and_which_rule_went_away(compared: dict[str, Any]) -> None:
    changed = {one["name"]: (one["a"], one["b"]) for one in compared["settings"] if one["differs"]}
    assert changed.pop("Loader of train steps: workers") == ("0", "2")
    assert changed.keys() <= {"Command", "Loader of eval steps: workers"}
    assert "64" in [
        one["b"] for one in compared["settings"] if one["name"] == "Loader of train steps: batch size"
    ]
    fates = {one["rule"]: one["fate"] for one in compared["rules"]}
    assert fates["Dataloader"] == "went away"


def test_what_the_first_report_predicted_for_more_workers_is_held_against_the_second_run(
    compared: dict[str, Any],
) -> None:
    predicted = {one["metric"]: one for one in compared["predictions"] if one["change"] == "more_workers"}
    if not predicted:  # other processes filled the cores meanwhile
        assert "full of neighbours" in next(
            one["a"] for one in compared["rules"] if one["rule"] == "DataStarved"
        )
        return
    step = predicted["step_seconds_mean"]
    assert (step["current"], step["made"]) == (0, 2)
    assert step["measured_in_b"] == pytest.approx(compared["figures"]["step_mean"]["b"])
    assert step["in_range"] == (step["low"] <= step["measured_in_b"] <= step["high"])
