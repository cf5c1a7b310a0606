"""The page as a file: safe with any name, complete without scripts, nothing loaded from elsewhere."""

import base64
import hashlib
import json
import re
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from jinja2 import DictLoader, Environment
from stepscope.common.status import Status
from stepscope.demo.scenarios import all_scenarios
from stepscope.evaluation.account import Account, Key, Leaf
from stepscope.evaluation.analysis import Analysis
from stepscope.measurements.timeline import StepMark
from stepscope.report import shares
from stepscope.report.details import KINDS
from stepscope.report.html import SCRIPTS, SECTIONS, pace_now, render_html
from stepscope.report.page import CompiledTemplates
from stepscope.runs.gauge_history import GaugeHistory
from stepscope.runs.model import PHASES

from tests.support import analysis as made
from tests.support.scenarios import WrittenScenarios

EVERY_ANALYSIS = pytest.mark.parametrize("analysis", made.EVERY_ANALYSIS, ids=lambda make: make.__name__)
WITHOUT_END_TAG = {"meta", "link", "input", "br", "img"}


class Page(HTMLParser):
    """Elements in order, text by section, what scripts and styles hold."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.texts: dict[str, str] = {}
        self.scripts: list[tuple[dict[str, str | None], str]] = []
        self.styles: list[str] = []
        self.unclosed: list[str] = []
        self._section = ""
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attributes)))
        if tag not in WITHOUT_END_TAG:
            self.unclosed.append(tag)
        if tag == "section":
            self._section = str(dict(attributes)["id"])
        if tag == "script":
            self.scripts.append((dict(attributes), ""))

    def handle_endtag(self, tag: str) -> None:
        assert self.unclosed.pop() == tag
        if tag == "section":
            self._section = ""
        elif self._section and tag in ("td", "th"):
            self.texts[self._section] += " "

    def handle_data(self, data: str) -> None:
        if self.unclosed and self.unclosed[-1] == "script":
            attributes, before = self.scripts[-1]
            self.scripts[-1] = (attributes, before + data)
        elif self.unclosed and self.unclosed[-1] == "style":
            self.styles.append(data)
        elif self._section:
            self.texts[self._section] = self.texts.get(self._section, "") + data

    @property
    def data(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(
            next(text for attributes, text in self.scripts if attributes.get("id") == "chart-data")
        )
        return found

    @property
    def policy(self) -> str:
        return next(
            str(attributes["content"])
            for tag, attributes in self.elements
            if attributes.get("http-equiv") == "Content-Security-Policy"
        )


@cache
def page_of(analysis: Callable[[], Analysis]) -> Page:
    """Returns the page of an analysis, rendered once. Do not change it."""
    return Page(render_html(analysis()))


def words_of(text: str) -> str:
    return re.sub(r"\s+", " ", text).replace("\u202f", " ")


@EVERY_ANALYSIS
def test_every_section_is_there_and_opens_with_a_sentence(analysis: Callable[[], Analysis]) -> None:
    page = page_of(analysis)
    assert list(page.texts) == list(SECTIONS)
    assert page.unclosed == []
    for section, title in SECTIONS.items():
        opening = words_of(page.texts[section]).removeprefix(f" {title} ")
        assert re.match(r"[^.]{10,}[.!:;]", opening), f"{section}: {opening[:80]}"


@EVERY_ANALYSIS
def test_an_id_is_used_once_and_each_link_leads_to_one(analysis: Callable[[], Analysis]) -> None:
    elements = page_of(analysis).elements
    ids = [attributes["id"] for _, attributes in elements if "id" in attributes]
    assert len(ids) == len(set(ids))
    links = [str(attributes["href"]) for tag, attributes in elements if tag == "a"]
    assert links
    for link in links:
        assert link.startswith("#")
        assert link[1:] in ids


@EVERY_ANALYSIS
def test_nothing_is_loaded_from_elsewhere(analysis: Callable[[], Analysis]) -> None:
    for tag, attributes in page_of(analysis).elements:
        assert tag not in ("iframe", "object", "embed", "base", "form", "img")
        assert "src" not in attributes
        assert not [name for name in attributes if name.startswith("on")]
        if tag == "link":
            assert str(attributes["href"]).startswith("data:image/svg+xml,")


def test_hostile_names_are_text_and_nothing_else() -> None:
    page = Page(render_html(made.hostile()))
    tame = page_of(made.slow_loader)
    assert len(page.scripts) == len(tame.scripts)
    assert "img" not in [tag for tag, _ in page.elements]
    for section in ("verdict", "summary", "usage", "time", "rules", "details", "measured"):
        assert made.HOSTILE in page.texts[section], section
    assert made.HOSTILE in page.data["heatmap-0"]["rows"]
    assert f"steps-{made.HOSTILE}" in page.data


def test_only_the_scripts_and_the_style_of_the_file_are_allowed() -> None:
    page = page_of(made.slow_loader)
    directives = dict(directive.split(" ", 1) for directive in page.policy.split("; "))
    runnable = [text for attributes, text in page.scripts if attributes.get("type") != "application/json"]
    assert len(runnable) == len(SCRIPTS)
    assert directives["script-src"].split() == [hash_of(text) for text in runnable]
    assert directives["style-src"].split() == [hash_of(text) for text in page.styles]
    assert directives["default-src"] == directives["connect-src"] == "'none'"
    assert "unsafe" not in page.policy


def test_only_the_live_page_may_ask_for_itself() -> None:
    live = Page(render_html(made.slow_loader(finished=False), refresh_seconds=2))
    assert "connect-src 'self'" in live.policy
    runnable = [text for attributes, text in live.scripts if attributes.get("type") != "application/json"]
    assert all(hash_of(text) in live.policy for text in runnable)
    assert len(runnable) == len(SCRIPTS) + 1


@pytest.mark.parametrize("first", [0, 5, 290])
def test_the_pace_of_a_restarted_run_is_that_of_its_last_attempt(first: int) -> None:
    before = [StepMark(number, "train", made.START + number, 1.0) for number in range(300)]
    again = [
        StepMark(number, "train", made.START + 400 + 0.5 * number, 0.5) for number in range(first, first + 20)
    ]
    run = made.slow_loader(timelines=[replace(made.timeline("node-a"), marks=[*before, *again])])
    assert pace_now(run, 1000).startswith(f"step {first + 19} of 1000, 2 steps/s, ETA ")
    assert pace_now(replace(run, timelines=[replace(run.timelines[0], marks=[*before, *again[:1]])])) == (
        f"step {first}"
    )


def test_the_verdict_names_what_cost_most_and_what_to_do() -> None:
    verdict = words_of(page_of(made.slow_loader).texts["verdict"])
    first, second = verdict.index("GPUs sat idle"), verdict.index("18 of 1800 train steps")
    lead = "Your run spent about 60 % of its time, 7 min 11 s of 12 min, waiting for busy CPU cores."
    assert verdict.index(lead) < first < second
    assert "What to do Give the data loader more than its 2 workers" in verdict
    assert "best case 7 min 11 s" in verdict
    assert "$" not in verdict


def test_with_a_price_the_verdict_speaks_of_money() -> None:
    verdict = words_of(Page(render_html(made.slow_loader(), price=14.688)).texts["verdict"])
    assert "7 min 11 s of 12 min ($1.76)" in verdict
    assert "Cost$2.94$14.69 per node and hour" in verdict


def test_what_several_rules_saw_is_told_once() -> None:
    found = [
        made.rule("CPUBottleneck", Status.FOUND, finding="Pinned.", seconds_lost=300.0),
        made.rule("DataStarved", Status.FOUND, finding="Starved.", seconds_lost=280.0),
        made.rule("LowGPUUtilization", Status.FOUND, finding="Idle.", seconds_lost=600.0),
    ]
    page = Page(render_html(made.slow_loader(rules=found)))
    assert "4 min 40 s of 12 min, waiting for data." in words_of(page.texts["verdict"])
    assert len([tag for tag, _ in page.elements if tag == "article"]) == 1
    assert page.texts["verdict"].index("Starved.") < page.texts["verdict"].index("Pinned.")
    assert "Idle." in page.texts["verdict"]


def test_what_costs_no_time_is_called_a_risk() -> None:
    leak = made.rule("GPUMemoryLeak", Status.FOUND, finding="It grows.")
    full = made.rule("GPUMemoryNearlyFull", Status.FOUND, finding="It is nearly full.")
    verdict = words_of(Page(render_html(made.slow_loader(rules=[full, leak]))).texts["verdict"])
    assert "Steadily growing GPU memory puts your run at risk; no time was lost." in verdict


def test_idle_gpus_without_another_cause_are_the_problem_themselves() -> None:
    idle = made.rule("LowGPUUtilization", Status.FOUND, finding="Idle.", seconds_lost=60.0)
    verdict = words_of(Page(render_html(made.slow_loader(rules=[idle]))).texts["verdict"])
    assert "Idle GPUs cost your run about 8.3 % of its time, 1 min of 12 min." in verdict


def test_a_run_without_findings_says_so_and_what_was_judged() -> None:
    verdict = words_of(Page(render_html(made.nothing_found())).texts["verdict"])
    assert "Healthy: 4 rules judged, nothing found." in verdict
    assert "What could be saved" not in verdict


def test_what_could_not_be_judged_is_in_the_verdict_and_the_reason_with_the_rules() -> None:
    page = Page(render_html(made.no_gpu()))
    verdict, rules = (words_of(page.texts[section]) for section in ("verdict", "rules"))
    assert (
        "? not enough data CPUBottleneck, IOBottleneck, LowGPUUtilization: No GPU was seen on any node."
        in rules
    )
    assert "Not enough data: only the start and pauses could be judged, not where the time goes." in verdict


def test_a_run_of_which_nothing_could_be_judged_does_not_look_like_a_good_one() -> None:
    text = render_html(made.one_sample())
    assert "Collecting: no step has finished yet." in text
    assert "Healthy" not in text


def test_a_failed_command_is_said_on_the_first_screen() -> None:
    verdict = Page(render_html(made.slow_loader(exit_status=137))).texts["verdict"]
    assert "Failed: the command ended with exit status 137 (128 + 9: SIGKILL)" in verdict


def test_parts_sum_to_what_the_table_says() -> None:
    time = words_of(page_of(made.slow_loader).texts["time"])
    assert "All ranks together 24 min 100 %" in time
    assert "All steps 22 min 100 %" in time
    assert "Rest of the steps 37.5 s 2.8 %" in time


def test_operators_and_operations_sum_to_what_was_recorded() -> None:
    time = words_of(page_of(made.slow_loader).texts["time"])
    assert "aten::conv2d 30.0 s 60 %" in time
    assert "All other operators 5.00 s 10 %" in time
    assert "All operators 50.0 s 100 %" in time
    assert "volta_sgemm 6 min 40 s 100 %" in time
    assert "GPU 0 6 min 40 s 89 %" in time
    assert "All devices 7 min 30 s 100 %" in time
    assert "All operations 30.0 s 100 %" in time
    assert "in 33 % of the time the device did nothing else" in time
    assert "The backward pass took 1.4 times as long as the forward pass." in time
    assert "Both 6 min 100 %" in time


def test_samples_with_a_low_gpu_sum_to_all_of_them() -> None:
    details = words_of(page_of(made.slow_loader).texts["details"])
    for row in (
        "A core was pinned 1000 91 %",
        "Both 21 1.9 %",
        "Neither 69 6.3 %",
        "Some GPU low 1100 100 %",
    ):
        assert row in details
    assert "in 93 % and waited for I/O in 2.8 %; neither explains 6.3 %" in details


def test_counts_of_samples_are_no_times() -> None:
    said = words_of(page_of(made.slow_loader).texts["details"])
    assert "A core was pinned: 91 %" in said
    assert "A core was pinned: 16 min" not in said


@pytest.mark.parametrize("name", sorted(all_scenarios()))
def test_the_shares_of_each_table_of_a_scenario_sum_to_its_whole(
    name: str, scenarios: WrittenScenarios
) -> None:
    analysis = scenarios.written(name).recording
    wholes = [shares.parts_of_the_run(analysis), shares.phases(analysis), shares.inside_steps(analysis)]
    wholes += [shares.passes(analysis), *map(shares.low_gpu_causes, analysis.low_gpu_snapshots)]
    for whole in wholes:
        assert sum(part.seconds for part in whole.parts) == pytest.approx(whole.seconds)
        assert sum(part.fraction for part in whole.parts) == pytest.approx(1)
    run, phases, inside, passes, *low = wholes
    assert run.seconds == pytest.approx(analysis.run_seconds)
    assert phases.seconds == pytest.approx(sum(analysis.phase_seconds.values()))
    in_steps = sum(part.seconds for part in phases.parts if part.key in PHASES)
    assert inside.seconds == pytest.approx(in_steps)
    timed = {name: analysis.component_seconds[name] for name in ("forward", "backward")}
    assert passes.seconds == pytest.approx(sum(timed.values()))
    assert [whole.seconds for whole in low] == [row.low for row in analysis.low_gpu_snapshots]


def test_what_passed_outside_of_steps_is_not_inside_them() -> None:
    leaves = [
        ("before_first_step", "", 4.0),
        ("train", "gc", 2.0),
        ("train", "host", 6.0),
        ("eval", "gc", 1.0),
    ]
    parts = tuple(Leaf(Key(part, name), seconds / 13, {0: seconds}) for part, name, seconds in leaves)
    counters = {"gc": 8.0, "forward": 1.0}  # mostly before the first step
    analysis = made.slow_loader(account=Account(13.0, 1, parts), component_seconds=counters)
    inside = {part.key: part.seconds for part in shares.inside_steps(analysis).parts}
    assert inside == {"gc": 3.0, "rest": 6.0}
    assert "Training steps took 62 % of the 13.0 s" in words_of(page_of(lambda: analysis).texts["time"])


def test_components_that_cover_more_than_the_steps_have_no_rest() -> None:
    analysis = made.slow_loader(
        phase_seconds={"train": 10.0}, component_seconds={"forward": 8.0, "backward": 4.0}
    )
    time = words_of(Page(render_html(analysis)).texts["time"])
    assert "All steps 12.0 s 100 %" in time
    assert "Rest of the steps" not in time


def test_a_backtick_in_a_name_is_a_backtick() -> None:
    text = render_html(made.slow_loader(unknowns=["The file `a<b` is gone.", "A lone ` stays."]))
    assert "The file <code>a&lt;b</code> is gone." in text
    assert "A lone ` stays." in text


def test_an_amount_stays_on_one_line() -> None:
    text = render_html(made.slow_loader(unknowns=["Took 1 h 05 min, 3 min 20 s or 12.3 ms; 71 % of 5 min."]))
    kept = "Took 1~h~05~min, 3~min~20~s or 12.3~ms; 71~% of 5~min."
    assert kept.replace("~", "\u00a0") in text


@EVERY_ANALYSIS
def test_each_view_is_there_or_says_why_there_is_nothing(analysis: Callable[[], Analysis]) -> None:
    page = page_of(analysis)
    views = {attributes["id"]: tag for tag, attributes in page.elements if "id" in attributes}
    assert all(views[kind.id] in ("details", "span") for kind in KINDS if not kind.is_optional)
    assert not any(kind.id in views for kind in KINDS if kind.is_optional)


def test_gauges_are_a_view_with_their_first_lowest_highest_and_last_values() -> None:
    history = GaugeHistory("node-a", 0, 1, 0.0, "loss", np.arange(3.0), np.array([4.0, 0.5, np.nan]))
    page = Page(render_html(made.slow_loader(gauge_histories=[history])))
    words = " ".join(words_of(page.texts["details"]).split())
    assert "1 gauge of rank 0" in words
    assert "loss 4 0.5 4 NaN" in words


def test_views_are_open_where_a_rule_fired() -> None:
    rules = [
        made.rule("CPUBottleneck", Status.FOUND, finding="Starved."),
        made.rule("IOBottleneck", finding="Not starved."),
    ]
    page = Page(render_html(made.slow_loader(rules=rules)))
    opened = [
        attributes["id"] for tag, attributes in page.elements if tag == "details" and "open" in attributes
    ]
    assert opened == ["steps", "gpus", "bottlenecks"]


def test_a_rule_that_explains_more_time_stands_higher_however_often_others_fired() -> None:
    rules = [
        made.rule("CPUBottleneck", Status.FOUND, triggered=2, seconds_lost=9.0),
        made.rule("StepOutlier", Status.FOUND, triggered=30, seconds_lost=1.0),
        made.rule("IOBottleneck"),
    ]
    text = words_of(Page(render_html(made.slow_loader(rules=rules))).texts["rules"])
    assert text.index("CPUBottleneck") < text.index("StepOutlier") < text.index("IOBottleneck")


def test_outliers_are_told_with_what_ran_during_them() -> None:
    details = words_of(page_of(made.slow_loader).texts["details"])
    assert "train 0 400 990 ms 2.8 × Checkpoint" in details
    assert "train 0 1200 700 ms 2.0 × no single component" in details
    assert (
        "100 % training steps; inside steps, apart from forward and backward pass, mostly checkpoint"
        in details
    )


def test_waiting_is_told_with_its_percentiles_and_drawn_in_bins_that_are_known() -> None:
    page = page_of(made.slow_loader)
    assert "A quarter of the waits took 100 ms or less, half 200 ms, 95 % 600 ms." in page.texts["details"]
    (waits,) = page.data["waits"]["series"]
    assert sum(waits["counts"]) == sum(made.LOADER_DETAILS["dataloading_time"]["probs"])
    widths = [high - low for low, high in zip(waits["edges"], waits["edges"][1:], strict=False)]
    assert min(widths[:-1]) >= 0.02 * waits["edges"][-1] - 1e-9


def test_energy_is_told_in_kilowatt_hours_and_a_step() -> None:
    details = words_of(page_of(made.slow_loader).texts["details"])
    assert "The GPUs took 0.583 kWh, 1.17 kJ for each step of all ranks together." in details
    assert "GPU 0 0.292 kWh" in details


def test_a_day_of_8_gpus_and_96_cores_is_well_below_6_megabytes() -> None:
    day = replace(made.slow_loader(), heatmaps=[made.heatmap("node-a", 8, 96, columns=1440)])
    assert len(render_html(day).encode()) < 2_000_000


def test_charts_are_those_of_the_node_that_they_name() -> None:
    gpus = {"head": 0, "small": 1, "large": 2}
    run = made.slow_loader(
        nodes=list(gpus),
        heatmaps=[made.heatmap(node, number, 2) for node, number in gpus.items()],
        utilisation_histograms=[
            each for node, number in gpus.items() for each in made.histograms(node, number)
        ],
    )
    page = Page(render_html(run))
    labels = {
        str(each["data-chart"]): str(each["aria-label"]) for _, each in page.elements if "data-chart" in each
    }
    drawn = {name: label for name, label in labels.items() if name.startswith(("memory", "balance"))}
    assert len(drawn) == 3  # one GPU is compared with none
    for name, label in drawn.items():
        (number,) = [number for node, number in gpus.items() if node in label]
        assert len(page.data[name]["series"]) == number


def test_a_heatmap_comes_through_as_one_byte_a_cell() -> None:
    heatmap = replace(made.heatmap("node-a", 1, 1, columns=3), values=[[0, None, 100], [7, 8, 9]])
    data = Page(render_html(made.slow_loader(heatmaps=[heatmap]))).data["heatmap-0"]
    assert list(base64.b64decode(data["cells"])) == [0, 255, 100, 7, 8, 9]
    assert (data["gpuRows"], data["columns"], data["rows"]) == (1, 3, ["GPU 0", "CPU 0"])


def hash_of(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


def test_bottlenecks_phases_and_steps_are_marked_on_the_heatmap() -> None:
    data = page_of(made.slow_loader).data["heatmap-0"]
    (starved,) = data["starved"]  # nothing was I/O-bound
    assert starved["name"] == "CPU-bound"
    assert list(base64.b64decode(starved["cells"])) == [70] * 240
    assert [phase["phase"] for phase in data["timeline"]["phases"]] == ["train", "eval"]
    assert list(base64.b64decode(data["timeline"]["phases"][1]["cells"]))[8:10] == [0, 75]
    assert data["timeline"]["marks"][0] == [1, 1000 * (made.START + 1.5)]


def test_compiled_templates_are_kept_where_that_is_possible(tmp_path: Path) -> None:
    for folder, kept in ((tmp_path, 1), (tmp_path / "missing", 0)):
        compiled = CompiledTemplates(str(folder))
        pages = Environment(loader=DictLoader({"sum": "{{ 1 + 1 }}"}), bytecode_cache=compiled)
        assert pages.get_template("sum").render() == "2"
        assert len(list(folder.glob("*"))) == kept


@pytest.mark.parametrize("length", [0, 20, 40, 100])
def test_a_damaged_compiled_template_is_compiled_again(tmp_path: Path, length: int) -> None:
    def rendered() -> str:
        compiled = CompiledTemplates(str(tmp_path))
        return (
            Environment(loader=DictLoader({"sum": "{{ 1 + 1 }}"}), bytecode_cache=compiled)
            .get_template("sum")
            .render()
        )

    assert rendered() == "2"
    (file,) = tmp_path.iterdir()
    whole = file.read_bytes()
    file.write_bytes(whole[:length])
    assert rendered() == "2"
    assert file.read_bytes() == whole
