"""When rules held, in words: from when to when, where, and at worst what."""

import sys
from dataclasses import replace
from typing import Any

import pytest
from stepscope.analysis import tables
from stepscope.common.console import Console
from stepscope.common.status import Status
from stepscope.evaluation.analysis import Analysis, Band
from stepscope.evaluation.as_json import rule_json
from stepscope.report.charts import chart_data
from stepscope.report.held import held, only_at_times, together
from stepscope.report.html import render_html
from stepscope.report.markdown import render_markdown
from stepscope.report.printed import print_verdict
from stepscope.report.verdict import verdict

from tests.support import analysis as made

DAY = 86_400.0


def band(begin: float, end: float, subject: str = "", **changes: Any) -> Band:
    """A band from one minute to another of a run that began at 13:27."""
    known = Band(
        "node-a", subject, made.START + 60 * begin, made.START + 60 * end, False, 0.83, "83 % of the samples"
    )
    return replace(known, **changes)


def run(*bands: Band, status: Status = Status.HEALTHY, **changes: Any) -> Analysis:
    return made.slow_loader(rules=[made.rule(status=status, bands=list(bands))], **changes)


def said(*bands: Band, finished: bool = True, status: Status = Status.FOUND) -> str:
    analysis = run(*bands, finished=finished, status=status)
    return held(analysis, analysis.rules[0])


@pytest.mark.parametrize(
    ("bands", "sentence"),
    [
        ([], ""),
        ([band(3, 15)], "It held from 13:30:00 to 13:42:00 UTC on node-a, at worst 83 % of the samples."),
        ([band(3, 3)], "It held at 13:30:00 UTC on node-a, at worst 83 % of the samples."),
        (
            [band(3, 15), band(20, 22)],
            "It held from 13:30:00 to 13:42:00 UTC on node-a, at worst 83 % of the samples, "
            "the longest of 2 times.",
        ),
        (
            [band(3, 15, "GPU 1"), band(4, 17, "GPU 0"), band(5, 6, "GPU 2")],
            "It held from 13:31:00 to 13:44:00 UTC on GPU 0 of node-a (and 2 more GPUs), "
            "at worst 83 % of the samples.",
        ),
        (
            [band(0, 24 * 60)],
            "It held from 2026-11-20 13:27:00 to 2026-11-21 13:27:00 UTC on node-a, "
            "at worst 83 % of the samples.",
        ),
    ],
)
def test_a_rule_says_when_it_held(bands: list[Band], sentence: str) -> None:
    assert said(*bands) == sentence


@pytest.mark.parametrize(
    ("ranks", "places", "where"),
    [
        (1, ["rank 0, train", "rank 0, eval"], "node-a"),
        (
            4,
            ["rank 0, train", "rank 0, eval", "rank 1, train", "rank 1, eval"],
            "rank 0, train of node-a (and 1 more rank)",
        ),
        (2, ["rank 0, train", "rank 1, eval"], "both ranks"),
    ],
)
def test_a_rank_that_held_in_several_phases_is_one_rank(ranks: int, places: list[str], where: str) -> None:
    bands = [band(3, 15, place) for place in places]
    analysis = run(*bands, ranks=ranks)
    assert f" UTC on {where}, at worst" in held(analysis, analysis.rules[0])


@pytest.mark.parametrize(
    ("name", "values", "worst"),
    [
        ("CPUBottleneck", {0.83: "83 % of the samples", 0.95: "95 % of the samples"}, 0.95),
        ("BatchSize", {0.3: "a 95th percentile of 30 %", 0.2: "a 95th percentile of 20 %"}, 0.2),
        ("GPUMemoryNearlyFull", {0.96: "96 % in use", 1200.0: "full in 20 min", 0.97: "97 % in use"}, 0.97),
        ("Straggler", {0.5: "500 ms more own time per step", 1.0: "1.00 s more own time per step"}, 1.0),
    ],
)
def test_the_worst_value_is_that_of_all_times_of_the_same_condition(
    name: str, values: dict[float, str], worst: float
) -> None:
    bands = [
        band(10 * at, 10 * at + 5 - at, f"GPU {at}", worst=value, words=words)
        for at, (value, words) in enumerate(values.items())
    ]
    analysis = made.slow_loader(rules=[made.rule(name, Status.FOUND, bands=bands)])
    assert f", at worst {values[worst]}, the longest" in held(analysis, analysis.rules[0])


def test_a_live_run_says_whether_it_still_holds() -> None:
    assert said(band(3, 15), finished=False).startswith("It no longer holds: it held from 13:30:00")
    lasting = said(band(3, 4), band(9, 15, lasts=True), finished=False)
    assert lasting.startswith("It has held from 13:36:00 to 13:42:00 UTC")


def test_what_held_for_a_time_is_said_although_the_whole_run_is_quiet(
    capsys: pytest.CaptureFixture[str],
) -> None:
    analysis = run(band(3, 15))
    sentence = (
        "Not over the whole run, but for a time: CPUBottleneck held from 13:30:00 to 13:42:00 UTC on node-a, "
        "at worst 83 % of the samples."
    )
    assert verdict(analysis).sentences == [
        "Healthy over the whole run: 1 rule judged, nothing found.",
        sentence,
    ]
    assert sentence in render_markdown(analysis)
    assert sentence.replace("83 %", "83\u00a0%") in render_html(analysis)
    print_verdict(Console(sys.stderr), analysis)
    assert sentence in capsys.readouterr().err


def test_a_finding_of_the_whole_run_is_not_said_to_be_quiet() -> None:
    assert only_at_times(run(band(3, 15), status=Status.FOUND)) == []


def test_only_some_rules_that_held_are_in_the_verdict() -> None:
    rules = [made.rule(name, bands=[band(1, 2)]) for name in "ABCDE"]
    *listed, more = only_at_times(made.slow_loader(rules=rules))
    assert len(listed) == 3
    assert more == "So did 2 more rules: see the table of rules."


def test_bands_that_touch_are_drawn_as_one() -> None:
    one, two, three = band(1, 3, "GPU 0"), band(2, 5, "GPU 1"), band(6, 7)
    assert together([three, two, one]) == [[one, two], [three]]
    chart = chart_data(run(one, two, three))["heatmap-0"]
    assert chart["bands"] == [
        {
            "name": "CPUBottleneck",
            "spans": [
                [
                    1000 * one.start,
                    1000 * two.end,
                    "both GPUs, at worst 83 % of the samples",
                ],
                [1000 * three.start, 1000 * three.end, "node-a, at worst 83 % of the samples"],
            ],
        }
    ]


def test_bands_of_another_node_are_not_on_the_heatmap() -> None:
    assert chart_data(run(band(1, 2, node="node-b")))["heatmap-0"]["bands"] == []


def test_programs_and_notebooks_get_each_band() -> None:
    analysis = run(band(3, 15, "GPU 1"))
    [row] = rule_json(analysis.rules[0])["bands"]
    assert (row["start"], row["end"], row["subject"]) == (made.START + 180, made.START + 900, "GPU 1")
    [row] = tables.bands(analysis.rules).to_pylist()
    assert (row["rule"], row["worst"], row["start"].minute) == ("CPUBottleneck", 0.83, 30)
