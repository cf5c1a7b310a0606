"""The benchmarks' table: verdicts, and the page that it is written into."""

from dataclasses import replace
from math import isnan, nan
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from stepscope.evaluation.engine import evaluate
from stepscope.runs.open import open_source

from benchmarks import rules_at_scale, scale
from benchmarks.__main__ import HEAD, PAGE, judge
from benchmarks.page import BEGIN, END, markdown, read_table, write_table
from benchmarks.report import record
from tests.support.prometheus import needs_prometheus


@pytest.mark.parametrize(
    ("value", "budget", "verdict"),
    [
        (1.5, "<= 1.5", "holds"),
        (1.6, "<= 1.5", "MISSED"),
        (10.0, ">= 10", "holds"),
        (9.9, ">= 10", "MISSED"),
        (9_999_999.0, ">= 10,000,000", "MISSED"),
        (12e6, ">= 10_000_000 a second", "holds"),
        (3.0, "", ""),
        (nan, "<= 1.5", ""),
    ],
)
def test_a_value_is_judged_by_the_words_of_its_budget(value: float, budget: str, verdict: str) -> None:
    assert judge(("tick", value, "ms", budget))[3] == verdict


def test_numbers_have_three_digits_and_their_unit() -> None:
    assert judge(("tick", 0.123456, "ms CPU", ""))[1] == "0.123 ms CPU"
    assert judge(("tick", 12_345_678.9, "a second", ""))[1] == "12,345,679 a second"
    assert judge(("tick", nan, "ms", ""))[1] == ""


def test_the_table_replaces_the_one_before_and_nothing_else(tmp_path: Path) -> None:
    page = tmp_path / "README.md"
    page.write_text(f"before\n\n{BEGIN}\nstale\n{END}\n\nafter\n")
    table = markdown(HEAD, [judge(("a | b", 1.0, "ms", "<= 2"))])
    write_table(page, "make bench", table)
    first = page.read_text()
    assert first.startswith(f"before\n\n{BEGIN}\n")
    assert first.endswith(f"\n{END}\n\nafter\n")
    assert "stale" not in first
    assert (
        "| what | measured | budget | verdict |\n|---|---|---|---|\n| a / b | 1 ms | <= 2 | holds |\n"
        in first
    )
    write_table(page, "make bench", table)
    assert page.read_text() == first
    assert read_table(page) == [["a / b", "1 ms", "<= 2", "holds"]]


def test_the_real_page_has_its_markers_once() -> None:
    text = PAGE.read_text(encoding="utf-8")
    assert (text.count(BEGIN), text.count(END)) == (1, 1)


def test_the_recording_that_reports_are_measured_on_is_read_like_any_other(tmp_path: Path) -> None:
    record(tmp_path / "recording", hours=0.05)
    analysis = evaluate(open_source(tmp_path / "recording"))
    assert (analysis.samples_taken, analysis.samples_missed, analysis.unknowns) == (360, 0, [])
    assert (len(analysis.gpu_use), analysis.cores) == (8, {"node": 96})
    assert [row.count for row in analysis.steps] == 8 * [450]
    assert analysis.energy is not None


@needs_prometheus
def test_every_rule_is_measured_and_a_small_cluster_is_not_held_against_the_budget_of_a_large_one() -> None:
    measured = rules_at_scale.measure(nodes=2, warming=4, measured=4, every=1.0, troubled=())
    assert measured.failed == []
    assert {group.name for group in measured.groups} >= {"stepscope-LoadBalancing", "stepscope-meta"}
    assert [group.name for group in measured.groups if not (group.evaluations and group.samples)] == []
    read = {group.name: sum(group.samples) for group in measured.groups}
    assert read["stepscope-LoadBalancing"] >= 2 * 2 * 8 * 51  # both ends of 51 buckets of each GPU
    rows = rules_at_scale.table(measured)
    assert rows[0][0].startswith("all rules for 2 nodes, 16 GPUs, ")
    assert all(budget == "" and not isnan(value) for _, value, _, budget in rows)
    thousand = rules_at_scale.table(replace(measured, nodes=rules_at_scale.NODES))
    assert thousand[0][3] == rules_at_scale.BUDGET


def test_nodes_of_a_run_have_ranks_of_their_own_and_runs_have_names() -> None:
    scraped = b'steps{run="simulated",rank="1"} 5\n'
    node: Any = SimpleNamespace(go=lambda _: None, exporter=SimpleNamespace(scrape=lambda _: scraped))
    texts = scale.NodeTexts([node, node])
    texts.advance()
    assert texts.metrics(0) == b'steps{run="run-0000",rank="1"} 5\n'
    assert texts.metrics(17) == b'steps{run="run-0002",rank="9"} 5\n'
