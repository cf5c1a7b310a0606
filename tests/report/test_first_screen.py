"""What a reader sees first: the reports of five runs, on a desk, a tablet and a phone."""

from pathlib import Path
from typing import NamedTuple

import pytest
from selenium import webdriver
from stepscope.evaluation.analysis import Analysis
from stepscope.report.html import render_html
from stepscope.report.verdict import verdict

from tests.support import analysis as made
from tests.support.browser import DRAW_ALL, console_errors, in_dark_mode, inaccessible, open_page
from tests.support.five_runs import FIVE_RUNS, RunOf
from tests.support.scenarios import WrittenScenarios

RUNS: dict[str, RunOf] = {**FIVE_RUNS, "slow loader": lambda _: made.slow_loader()}
OF_FIVE_RUNS = pytest.mark.parametrize("shown", FIVE_RUNS, indirect=True)
HEIGHT, WORDS = 3500, 1200  # at most: of the page at 1400 pixels, and on it, before anything is unfolded
WORDS_SHOWN = "return document.body.innerText.split(/\\s+/).filter(Boolean).length"
HEIGHT_OF_PAGE = "return document.documentElement.scrollHeight"
# What is wider than its place: the page, or a text that its box cuts off.
CUT = """
  const seen = [...document.querySelectorAll("body *")].filter((one) => one.checkVisibility());
  const boxed = (one) => one.closest(".scroll, .hidden, .skip, svg");
  const ends = (one) => one.getBoundingClientRect().right > innerWidth + 1;
  const cut = (one) => ends(one) || one.scrollWidth > one.clientWidth + 1;
  const blocks = seen.filter((one) => !boxed(one) && getComputedStyle(one).display !== "inline" && cut(one));
  return blocks.map((one) => one.outerHTML.slice(0, 99));
"""
# What must be on the first screen, and where it ends.
BOTTOM = "return document.querySelector(arguments[0]).getBoundingClientRect().bottom"
UNFOLD_ALL = "document.querySelectorAll('details').forEach((one) => one.open = true)"


class Shown(NamedTuple):
    analysis: Analysis
    page: Path


@pytest.fixture(scope="module")
def shown(
    request: pytest.FixtureRequest, scenarios: WrittenScenarios, tmp_path_factory: pytest.TempPathFactory
) -> Shown:
    """The report of a run, rendered once for all tests."""
    analysis = RUNS[request.param](scenarios)
    page = tmp_path_factory.mktemp("shown") / "report.html"
    page.write_text(render_html(analysis), encoding="utf-8")
    return Shown(analysis, page)


@pytest.mark.parametrize(
    ("shown", "dark"),
    [
        *((run, False) for run in FIVE_RUNS),
        *((run, True) for run in FIVE_RUNS if run != "64 ranks"),
        pytest.param("64 ranks", True, marks=pytest.mark.trial),  # the others have its colours
    ],
    indirect=["shown"],
)
def test_the_report_is_accessible(browser: webdriver.Chrome, shown: Shown, dark: bool) -> None:
    in_dark_mode(browser, dark)
    open_page(browser, shown.page, 1400)
    if not dark:  # what is folded differs in its colours only
        assert inaccessible(browser) == []
    browser.execute_script(UNFOLD_ALL)
    assert inaccessible(browser) == []
    assert console_errors(browser) == []


@OF_FIVE_RUNS
def test_the_first_screen_holds_the_verdict_and_the_strip(browser: webdriver.Chrome, shown: Shown) -> None:
    open_page(browser, shown.page, 1400, 900)
    said = verdict(shown.analysis)
    text = browser.find_element("css selector", ".verdict").text
    assert text.startswith(f"{said.status.icon} {said.status}\n")
    assert said.sentence.replace("`", "") in text.replace("\u00a0", " ")
    for part in (".verdict", ".glance", ".strip"):
        assert browser.execute_script(BOTTOM, part) <= 900, part


@OF_FIVE_RUNS
@pytest.mark.parametrize("width", [1400, 768, 400])
def test_nothing_is_cut(browser: webdriver.Chrome, shown: Shown, width: int) -> None:
    open_page(browser, shown.page, width)
    assert browser.execute_script(CUT) == []


@pytest.mark.parametrize("shown", RUNS, indirect=True)
def test_the_page_is_short_until_it_is_unfolded(browser: webdriver.Chrome, shown: Shown) -> None:
    open_page(browser, shown.page, 1400)
    browser.execute_script(DRAW_ALL)
    assert browser.execute_script(HEIGHT_OF_PAGE) <= HEIGHT
    assert browser.execute_script(WORDS_SHOWN) <= WORDS
