"""The page of a comparison as a reader has it: wide and narrow, light and dark, by keyboard, on paper."""

import base64
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import pytest
from selenium import webdriver
from stepscope.compare.comparison import Comparison
from stepscope.compare.html import render_comparison
from stepscope.compare.text import as_markdown

from tests.support import comparisons as made
from tests.support.browser import (
    COLOURS_OF,
    DRAW_ALL,
    OVERFLOW,
    console_errors,
    in_dark_mode,
    inaccessible,
    open_page,
    reached_by_keyboard,
    without_javascript,
)


def opened(
    browser: webdriver.Chrome, folder: Path, comparison: Comparison, width: int = 1440
) -> webdriver.Chrome:
    page = folder / "comparison.html"
    page.write_text(render_comparison(comparison), encoding="utf-8")
    open_page(browser, page, width)
    browser.execute_script(DRAW_ALL)
    return browser


@pytest.mark.parametrize("width", [360, 1440])
@pytest.mark.parametrize("make", made.EVERY_COMPARISON, ids=lambda make: make.__name__)
def test_no_error_in_the_console_and_nothing_wider_than_the_page(
    browser: webdriver.Chrome, tmp_path: Path, make: Callable[[], Comparison], width: int
) -> None:
    opened(browser, tmp_path, make(), width)
    assert console_errors(browser) == []
    assert browser.execute_script(OVERFLOW) == 0
    assert browser.execute_script("return window.hacked") is None


def test_the_verdict_is_the_first_thing_that_is_read(browser: webdriver.Chrome, tmp_path: Path) -> None:
    opened(browser, tmp_path, made.mended())
    verdict, failed = browser.find_elements("css selector", "#compared article")
    assert verdict.text.splitlines()[0].startswith("B is 1.57 times as fast per step; it saves ")
    assert failed.text.splitlines()[0] == "2 failed of 3 conditions."
    assert "any_rule: StepOutlier fired in B and not in A" in failed.text
    assert failed.rect["y"] + failed.rect["height"] < 900, "both are on the first screen"


def test_the_button_copies_the_comparison_as_markdown(browser: webdriver.Chrome, tmp_path: Path) -> None:
    opened(browser, tmp_path, made.mended())
    browser.execute_script("navigator.clipboard.writeText = async (text) => { window.copied = text; }")
    browser.find_element("css selector", ".actions button").click()
    assert browser.execute_script("return window.copied") == as_markdown(made.mended())


@pytest.mark.parametrize("dark", [False, True])
def test_the_waterfall_ends_where_the_total_of_b_begins(
    browser: webdriver.Chrome, tmp_path: Path, dark: bool
) -> None:
    in_dark_mode(browser, dark)
    opened(browser, tmp_path, made.mended())
    for chart in ("of-a-step", "of-the-run"):
        assert browser.execute_script(COLOURS_OF, chart) > 5
        bars = browser.execute_script("return stepscope.data[arguments[0]].bars", chart)
        assert (bars[0]["name"], bars[-1]["name"]) == ("A", "B")
        for before, after in pairwise(bars[:-1]):
            assert after["from"] == pytest.approx(before["to"])
        assert bars[-2]["to"] == pytest.approx(bars[-1]["to"])
    assert browser.execute_script(COLOURS_OF, "steps") > 5


def test_without_javascript_sentences_and_tables_are_there(browser: webdriver.Chrome, tmp_path: Path) -> None:
    with without_javascript(browser):
        page = tmp_path / "comparison.html"
        page.write_text(render_comparison(made.mended()), encoding="utf-8")
        open_page(browser, page)
        text = browser.find_element("tag name", "main").text
    for words in (
        "Waiting for data",
        "−268 ms",
        "went away",
        "Loader of train steps: workers",
        "This chart needs",
    ):
        assert words in text


def test_the_keyboard_reaches_every_table_and_fold(browser: webdriver.Chrome, tmp_path: Path) -> None:
    opened(browser, tmp_path, made.mended())
    assert reached_by_keyboard(browser, ".scroll, summary, main a, nav a") > 12


def test_the_page_prints_its_charts(browser: webdriver.Chrome, tmp_path: Path) -> None:
    opened(browser, tmp_path, made.mended())
    pdf = base64.b64decode(browser.execute_cdp_cmd("Page.printToPDF", {"printBackground": True})["data"])
    assert pdf.startswith(b"%PDF")
    assert console_errors(browser) == []


@pytest.mark.parametrize("make", [made.mended, made.no_steps], ids=lambda make: make.__name__)
def test_a_screen_reader_finds_no_obstacle(
    browser: webdriver.Chrome, tmp_path: Path, make: Callable[[], Comparison]
) -> None:
    opened(browser, tmp_path, make())
    assert inaccessible(browser) == []
