"""The page as a file: safe with any name, complete without scripts, nothing loaded from elsewhere."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from collections.abc import Callable
from dataclasses import replace
from html.parser import HTMLParser
from typing import Any

import pytest
from trainwatch.evaluation.analysis import Analysis
from trainwatch.report.html import SCRIPTS, SECTIONS, render_html

from tests.support import analysis as made

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


def words_of(text: str) -> str:
    return re.sub(r"\s+", " ", text).replace("\u202f", " ")


@EVERY_ANALYSIS
def test_every_section_is_there_and_opens_with_a_sentence(analysis: Callable[[], Analysis]) -> None:
    page = Page(render_html(analysis()))
    assert list(page.texts) == list(SECTIONS)
    assert page.unclosed == []
    for section, title in SECTIONS.items():
        opening = words_of(page.texts[section]).removeprefix(f" {title} ")
        assert re.match(r"[^.]{10,}[.!:;]", opening), f"{section}: {opening[:80]}"


@EVERY_ANALYSIS
def test_an_id_is_used_once_and_each_link_leads_to_one(analysis: Callable[[], Analysis]) -> None:
    elements = Page(render_html(analysis())).elements
    ids = [attributes["id"] for _, attributes in elements if "id" in attributes]
    assert len(ids) == len(set(ids))
    links = [str(attributes["href"]) for tag, attributes in elements if tag == "a"]
    assert links
    for link in links:
        assert link.startswith("#")
        assert link[1:] in ids


@EVERY_ANALYSIS
def test_nothing_is_loaded_from_elsewhere(analysis: Callable[[], Analysis]) -> None:
    for tag, attributes in Page(render_html(analysis())).elements:
        assert tag not in ("iframe", "object", "embed", "base", "form", "img")
        assert "src" not in attributes
        assert not [name for name in attributes if name.startswith("on")]
        if tag == "link":
            assert str(attributes["href"]).startswith("data:image/svg+xml,")


def test_hostile_names_are_text_and_nothing_else() -> None:
    page = Page(render_html(made.hostile()))
    tame = Page(render_html(made.slow_loader()))
    assert len(page.scripts) == len(tame.scripts)
    assert "img" not in [tag for tag, _ in page.elements]
    for section in ("verdict", "summary", "usage", "steps", "time", "loading", "rules", "measured"):
        assert made.HOSTILE in page.texts[section], section
    assert made.HOSTILE in page.data["heatmap-0"]["rows"]
    assert f"steps-{made.HOSTILE}" in page.data


def test_only_the_scripts_and_the_style_of_the_file_are_allowed() -> None:
    page = Page(render_html(made.slow_loader()))
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


def test_the_verdict_names_what_cost_most_and_what_to_do() -> None:
    verdict = words_of(Page(render_html(made.slow_loader())).texts["verdict"])
    first, second = verdict.index("GPUs sat idle"), verdict.index("18 of 1800 train steps")
    assert verdict.index("Two things slowed this run down") < first < second
    assert "What to do Give the data loader more than its 2 workers" in verdict
    assert "Estimated cost: 7 min 11 s, 60 % of the run." in verdict


def test_a_run_without_findings_says_so_and_what_was_judged() -> None:
    verdict = words_of(Page(render_html(made.nothing_found())).texts["verdict"])
    assert "Nothing was found: 4 rules judged, none fired." in verdict
    assert "What could not be judged" not in verdict


def test_what_could_not_be_judged_is_in_the_verdict_with_the_reason() -> None:
    verdict = words_of(Page(render_html(made.no_gpu())).texts["verdict"])
    assert "CPUBottleneck, IOBottleneck, LowGPUUtilization: No GPU was seen on any node." in verdict
    assert "Nothing was found: 1 rule judged" in verdict


def test_a_run_of_which_nothing_could_be_judged_does_not_look_like_a_good_one() -> None:
    text = render_html(made.one_sample())
    assert "Nothing could be judged yet." in text
    assert "Nothing was found" not in text


def test_a_failed_command_is_said_on_the_first_screen() -> None:
    verdict = Page(render_html(made.slow_loader(exit_status=137))).texts["verdict"]
    assert "The command ended with exit status 137" in verdict


def test_parts_sum_to_what_the_table_says() -> None:
    time = words_of(Page(render_html(made.slow_loader())).texts["time"])
    assert "All ranks together 24 min 100 %" in time
    assert "All steps 22 min 100 %" in time
    assert "Rest of the steps 37.5 s 2.8 %" in time


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


def test_a_day_of_8_gpus_and_96_cores_is_well_below_6_megabytes() -> None:
    day = replace(made.slow_loader(), heatmaps=[made.heatmap("node-a", 8, 96, columns=1440)])
    assert len(render_html(day).encode()) < 2_000_000


def test_a_heatmap_comes_through_as_one_byte_a_cell() -> None:
    heatmap = replace(made.heatmap("node-a", 1, 1, columns=3), values=[[0, None, 100], [7, 8, 9]])
    data = Page(render_html(made.slow_loader(heatmaps=[heatmap]))).data["heatmap-0"]
    assert list(base64.b64decode(data["cells"])) == [0, 255, 100, 7, 8, 9]
    assert (data["gpuRows"], data["columns"], data["rows"]) == (1, 3, ["GPU 0", "CPU 0"])


def hash_of(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"
