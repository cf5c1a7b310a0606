"""What a comparison says, in sentences, text, Markdown and JSON."""

import json
import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from stepscope.common.status import Status
from stepscope.compare import sentences, tables
from stepscope.compare.changes import changed_rules
from stepscope.compare.compared_run import ComparedRun, read_run
from stepscope.compare.comparison import Comparison, compare
from stepscope.compare.document import as_json
from stepscope.compare.figures import saved
from stepscope.compare.gate import parse
from stepscope.compare.html import _at_a_glance, _mood, _waterfall, render_comparison
from stepscope.compare.text import as_markdown, as_text
from stepscope.runs.open import open_source

from tests.support.analysis import HOSTILE, rule
from tests.support.compared import idle_run, run_of
from tests.support.scenarios import WrittenScenarios
from tests.support.shifted_source import ShiftedSource
from tests.support.source import START

GOLDEN = Path(__file__).parent / "golden"
STEADY = np.full(100, 0.1)


def with_exit_status(run: ComparedRun, status: int) -> ComparedRun:
    return replace(run, analysis=replace(run.analysis, exit_status=status))


def waterfall(comparison: Comparison) -> list[dict[str, Any]]:
    assert comparison.run is not None
    bars: list[dict[str, Any]] = _waterfall(comparison.run)["bars"]
    return bars


def first(a: ComparedRun, b: ComparedRun) -> str:
    return sentences.verdict(compare(a, b))[0]


def test_the_published_case_saves_what_was_published() -> None:
    before, after = idle_run(503, nodes=3, price=14.688), idle_run(502, nodes=2, price=3.825)
    assert first(before, after) == "B took 8 min 22 s instead of 8 min 23 s; it saves $5.09, 82.6 %."
    assert first(after, before).endswith("it costs $5.09 more, 475.7 %.")


def test_of_marks_without_a_length_only_the_runs_are_compared() -> None:
    """Marks of steps that all have length 0 say nothing about the time of a step."""
    assert first(run_of([0.5] * 30), run_of([0.0] * 30)) == "B took 6.00 s instead of 21.0 s."


def test_one_step_that_compiles_does_not_hide_that_the_others_became_faster() -> None:
    a, b = (run_of([6.0, *[seconds] * 315]) for seconds in (0.04, 0.015))
    said = first(a, b)
    assert said.startswith("No difference seen in the time per step (−")
    assert said.endswith("), but half of the steps took 15.0 ms or less in B and 40.0 ms in A.")


def test_speed_and_money_are_the_first_sentence() -> None:
    a, b = (
        run_of([0.18] * 1000, data_wait=0.1, price=100.0),
        run_of([0.1] * 1000, data_wait=0.02, price=100.0),
    )
    said = sentences.verdict(compare(a, b))
    assert said[0] == "B is 1.8 times as fast per step; it saves $2.23, 43.1 %."
    assert said[1] == "Waiting for data takes 80.0 ms less per step (all of the difference)."


@pytest.mark.parametrize(
    ("factor", "words"),
    [
        (0.5, "B is 2 times as fast per step."),
        (3.0, "B takes 3 times as long per step."),
        (1.04, "B takes 4.0 % more time per step."),
        (0.97, "B takes 3.0 % less time per step."),
        (1.0, "No difference seen in the time per step (0 % to 0 %)."),
    ],
)
def test_how_fast_b_is(factor: float, words: str) -> None:
    assert first(run_of(STEADY), run_of(STEADY * factor)) == words


def test_noise_is_no_difference() -> None:
    random = np.random.default_rng(9)
    a, b = (run_of(0.1 * np.exp(0.3 * random.normal(size=100))) for _ in range(2))
    said = sentences.verdict(compare(a, b))
    assert said[0].startswith("No difference seen in the time per step (−")
    assert len(said) == 1, "what is no difference has no explanation"
    assert "no difference seen (" in as_text(compare(a, b))


def test_too_few_steps_are_said_to_be_too_few() -> None:
    assert first(run_of([0.2] * 5), run_of([0.1] * 5)) == (
        "B is 2 times as fast per step (too few steps to be sure)."
    )


def test_runs_with_different_batches_are_compared_by_item() -> None:
    a, b = run_of(STEADY, loader={"batch_size": 16}), run_of(STEADY * 1.5, loader={"batch_size": 32})
    assert first(a, b) == "B is 1.33 times as fast per item."


def test_runs_of_different_lengths_compare_costs_of_1000_steps_and_say_why() -> None:
    a, b = run_of([0.1] * 2000, price=36.0), run_of([0.05] * 1000, price=36.0)
    said = sentences.verdict(compare(a, b))
    assert said[0] == "B is 2 times as fast per step; 1000 steps cost $0.56 instead of $1.03, 45.6 % less."
    assert said[1] == (
        "B made 1000 steps per rank and A 2000: different work, so compare them per step, not as a whole."
    )
    assert said[2] == (
        "To compare the whole runs, give the items that each processed: `--workload-a N --workload-b N`."
    )


def test_headline_tiles_tables_and_waterfall_agree_when_a_slower_run_did_less_work() -> None:
    """The whole run of B is shorter, only because it did half the work."""
    a, b = run_of([0.1] * 2000, price=36.0), run_of([0.15] * 1000, price=36.0)
    comparison = compare(a, b)
    said = sentences.verdict(comparison)
    assert (
        said[0] == "B takes 1.5 times as long per step; 1000 steps cost $1.56 instead of $1.03, 51.5 % more."
    )
    page = render_comparison(comparison)
    tiles = page.partition('<dl class="glance">')[2].partition("</dl>")[0]
    assert "Duration" not in tiles
    assert "better" not in tiles
    assert re.search(r'<dd>B: 150\sms</dd><dd class="note bad">A: 100\sms; ', tiles)
    rows = {row[0]: row[-1] for row in tables.figures(comparison).rows}
    assert next(iter(rows)) == "A step, mean"
    assert rows["Duration of the whole run"] == rows["Cost of the whole run"] == "different work"
    assert sentences.parts_of_the_run(comparison) == (
        "A took 3 min 26 s, and would need 1 min 46 s for the work of B. "
        "B took 2 min 36 s, 50.0 s more. The steps take 50.0 s more (all of the difference)."
    )
    bars = waterfall(comparison)
    assert [bar["kind"] for bar in bars] == ["total", "more", "total"]
    assert bars[0]["name"] == "A, for B's work"


def test_noise_makes_no_tile_and_no_bill_better_or_worse() -> None:
    random = np.random.default_rng(9)
    a, b = (run_of(0.1 * np.exp(0.3 * random.normal(size=100)), price=36.0) for _ in range(2))
    comparison = compare(a, b)
    assert "cost" not in sentences.verdict(comparison)[0]
    assert {figure.mood for figure in _at_a_glance(comparison)} == {""}
    assert "no difference seen" in {row[0]: row[-1] for row in tables.figures(comparison).rows}["Throughput"]
    slow_start = run_of(np.full(100, 0.1), other=60.0, price=36.0)
    said = sentences.verdict(compare(slow_start, run_of(np.full(100, 0.1), price=36.0)))
    assert "it saves $0.60" in said[0], "more than noise: a shorter start"
    assert said[1:] == ["Between steps takes 1 min less (all of the difference)."]


@pytest.mark.parametrize(
    ("runs", "mood"),
    [
        (lambda: (run_of(STEADY), run_of(STEADY / 2)), "good"),
        (lambda: (run_of(STEADY), run_of(STEADY * 2)), "bad"),
        (lambda: (run_of(STEADY), run_of(STEADY)), "open"),
        (lambda: (run_of([0.2] * 5), run_of([0.1] * 5)), "open"),  # too few steps
        (lambda: (idle_run(20, 1), idle_run(10, 1)), "open"),  # perhaps B did half the work
        (lambda: [replace(idle_run(seconds, 1), workload=9.0) for seconds in (20, 10)], "good"),
        (lambda: (run_of(STEADY), with_exit_status(run_of(STEADY / 2), 1)), "bad"),
    ],
)
def test_only_a_sure_improvement_looks_good(runs: Callable[[], Sequence[ComparedRun]], mood: str) -> None:
    a, b = runs()
    comparison = compare(a, b)
    assert _mood(comparison) == mood
    if mood == "open":
        assert {figure.mood for figure in _at_a_glance(comparison)} == {""}


def test_runs_with_other_batches_but_the_same_items_did_the_same_work() -> None:
    a = run_of([0.1] * 200, loader={"batch_size": 16}, price=36.0)
    b = run_of([0.15] * 100, loader={"batch_size": 32}, price=36.0)
    said = sentences.verdict(compare(a, b))
    assert said[:2] == [
        "B is 1.33 times as fast per item; it saves $0.05, 19.2 %.",
        "The steps take 1.56 ms less per item.",
    ]


def test_the_same_price_for_the_same_time_is_the_same_cost() -> None:
    run = run_of(STEADY, price=36.0)
    assert first(run, run).endswith("; it costs the same, $0.16.")


def test_a_run_that_failed_or_did_not_finish_is_said_to() -> None:
    run = run_of(STEADY)
    failed = replace(run, analysis=replace(run.analysis, exit_status=3, finished=False))
    said = " ".join(sentences.verdict(compare(run, failed)))
    assert said.startswith("B failed: the command ended with exit status 3 at ")
    assert "B has not finished" in said


def test_runs_of_which_nothing_is_known_are_said_to_be_incomparable() -> None:
    run = idle_run(10, 1)
    unknown = replace(run, analysis=replace(run.analysis, start=None, end=None), ranks=())
    assert first(unknown, unknown) == (
        "Neither steps nor durations are known in both runs, so speed and cost cannot be compared."
    )
    assert "it cannot be split" in as_text(compare(unknown, unknown))


@pytest.mark.parametrize(
    ("before", "after", "fate"),
    [
        (Status.FOUND, Status.HEALTHY, "went away"),
        (Status.FOUND, Status.FOUND, "stayed"),
        (Status.HEALTHY, Status.FOUND, "appeared"),
        (Status.NOT_ENOUGH_DATA, Status.FOUND, "found, but not judged in A"),
        (Status.FOUND, Status.NOT_ENOUGH_DATA, "can no longer be judged"),
        (Status.HEALTHY, Status.NOT_ENOUGH_DATA, None),
        (Status.HEALTHY, Status.HEALTHY, None),
    ],
)
def test_what_became_of_a_rule(before: Status, after: Status, fate: str | None) -> None:
    run = run_of(STEADY)
    a, b = (
        replace(run, analysis=replace(run.analysis, rules=[rule("CPUBottleneck", status)]))
        for status in (before, after)
    )
    assert [one.fate for one in changed_rules(a, b)] == ([] if fate is None else [fate])


def test_a_configuration_that_is_not_known_on_one_side_is_no_difference() -> None:
    a = run_of(STEADY, loader={"workers": 1, "batch_size": 32, "pin_memory": False})
    b = run_of(STEADY, loader={"workers": 8, "batch_size": None, "pin_memory": True}, ranks=2)
    changed = {one.name: (one.a, one.b) for one in compare(a, b).changed_settings}
    assert changed == {
        "World size": ("1", "2"),
        "Loader of train steps: workers": ("1", "8"),
        "Loader of train steps: pinned memory": ("no", "yes"),
    }


def test_the_saving_of_a_few_cents_is_not_rounded_away() -> None:
    assert saved(0.004, 0.001) == pytest.approx(0.75)
    assert saved(0.0, 0.0) == 0


def compared_hostile() -> Comparison:
    run = run_of(STEADY, data_wait=0.01, loader={"workers": 1}, gpu=0.5, price=3.0)
    analysis = replace(
        run.analysis,
        run=HOSTILE + "\n\x1b[31m",
        command=HOSTILE,
        framework=HOSTILE,
        versions={HOSTILE: HOSTILE},
        rules=[rule("CPUBottleneck", Status.FOUND, finding=HOSTILE, recommendation=HOSTILE)],
    )
    hostile = replace(run, place=HOSTILE, analysis=analysis)
    return compare(hostile, replace(run, place=HOSTILE), [parse("any_rule"), parse("step_p50>+1%")])


def test_hostile_names_stay_names_in_markdown_and_text() -> None:
    comparison = compared_hostile()
    text, markdown = as_text(comparison), as_markdown(comparison)
    assert "\x1b" not in text + markdown
    outside_code = re.sub(r"(`+).*?\1", "", markdown)
    tags = re.findall(r"(?<!\\)<[^>]*>", outside_code)
    assert {tag.split(" ")[0].strip("</>") for tag in tags} <= {"details", "details><summary", "summary"}


def test_the_document_is_json_without_nan_and_holds_what_the_text_says() -> None:
    document: dict[str, Any] = json.loads(
        as_json(compared_hostile()), parse_constant=lambda word: pytest.fail(f"{word} is no JSON")
    )
    assert document["format"] == 1
    assert document["work"] == {"unit": "step", "a": 100, "b": 100, "same": True}
    assert document["a"]["source"] == HOSTILE
    assert document["figures"]["step_mean"]["interval"] == [0.0, 0.0]
    assert document["figures"]["step_mean"]["difference_seen"] is False
    assert document["figures"]["cost"]["change"] == 0
    parts = document["parts"]["run"]
    assert sum(part["difference"] for part in parts["parts"]) == pytest.approx(parts["difference"], abs=1e-6)
    assert [one["state"] for one in document["conditions"]] == ["inconclusive", "passed"]
    assert document["rules"] == [
        {
            "rule": "CPUBottleneck",
            "fate": "can no longer be judged",
            "a": HOSTILE,
            "b": document["rules"][0]["b"],
        }
    ]


def test_tables_leave_out_what_is_too_small_to_be_seen_and_their_sums_are_right() -> None:
    comparison = compare(run_of(STEADY, data_wait=1e-9), run_of(STEADY * 2, data_wait=2e-9))
    assert comparison.step is not None
    table = tables.parts(comparison.step, "Step")
    assert [row[0] for row in table.rows] == ["Rest of the steps"]
    assert table.total == ("Total", "100 ms", "200 ms", "+100 ms", "+100 %")


def test_the_golden_comparison_of_few_dataloaders_with_healthy(
    scenarios: WrittenScenarios, golden: Callable[[Path, str], None]
) -> None:
    comparison = scenario_pair(scenarios)
    golden(GOLDEN / "few-dataloaders-healthy.txt", as_text(comparison))
    golden(GOLDEN / "few-dataloaders-healthy.md", as_markdown(comparison))


def test_the_comparison_of_scenarios_shows_the_true_saving_and_its_parts(scenarios: WrittenScenarios) -> None:
    """What the scenarios are made of: a step waits 0.27 s and computes 0.3 s, then 0.002 s and 0.36 s."""
    comparison = scenario_pair(scenarios)
    assert comparison.step is not None
    parts = {part.key: part.difference for part in comparison.step.parts}
    assert parts["data_wait"] == pytest.approx(0.002 - 0.27, rel=0.01)
    assert parts["forward"] == pytest.approx(0.31 * (0.36 - 0.3), rel=0.05)
    assert parts["backward"] == pytest.approx(0.59 * (0.36 - 0.3), rel=0.05)
    assert sum(parts.values()) == pytest.approx(comparison.step.total)
    assert {one.rule: one.fate for one in comparison.rules} == {
        "DataStarved": "went away",
        "Dataloader": "went away",
        "LowGPUUtilization": "went away",
    }
    step = comparison.figures["step_mean"]
    assert step.interval is not None
    assert step.change is not None
    assert step.interval.low <= step.change <= step.interval.high
    cost = comparison.figures["cost_per_1000_steps"]
    assert cost.a is not None
    assert cost.b is not None
    assert cost.b / cost.a == pytest.approx((1 + step.change), rel=0.02)  # the same nodes at the same price


def scenario_pair(scenarios: WrittenScenarios) -> Comparison:
    """Two scenarios as if both had begun at the same whole minute, so that scans are always the same."""
    before, after = (
        read_run(name, ShiftedSource(open_source(scenarios.written(name).recording_directory), START), 14.688)
        for name in ("few-dataloaders", "healthy")
    )
    return compare(before, after, [parse("step_p50>+3%"), parse("any_rule")])
