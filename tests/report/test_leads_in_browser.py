"""The copy button and the index of runs, as a reader has them."""

from pathlib import Path

import pytest
from selenium import webdriver
from stepscope.report.html import render_html
from stepscope.report.markdown import render_markdown

from tests.support import analysis as made
from tests.support.browser import (
    OVERFLOW,
    console_errors,
    in_dark_mode,
    inaccessible,
    open_page,
    without_javascript,
)
from tests.support.run_folder import recorded, reported
from tests.support.waiting import wait_until

# Stands for the system's clipboard, which a test must not overwrite.
CLIPBOARD = "navigator.clipboard.writeText = (text) => { window.copied = text; return Promise.resolve(); }"
NO_CLIPBOARD = """
  navigator.clipboard.writeText = () => Promise.reject(new Error("not allowed"));
  document.execCommand = () => { window.copied = document.activeElement.value; return arguments[0]; };
"""


def said(browser: webdriver.Chrome, words: str) -> bool:
    status = browser.find_element("css selector", ".actions [role=status]")
    wait_until(lambda: words in status.text, words)
    return True


@pytest.fixture
def report(browser: webdriver.Chrome, tmp_path: Path) -> webdriver.Chrome:
    page = tmp_path / "report.html"
    page.write_text(render_html(made.hostile()), encoding="utf-8")
    open_page(browser, page, 1400)
    return browser


def test_the_button_on_the_first_screen_copies_the_report_as_markdown(report: webdriver.Chrome) -> None:
    report.execute_script(CLIPBOARD)
    button = report.find_element("css selector", ".actions button")
    assert button.text == "Copy as Markdown"
    assert button.rect["y"] < 300
    button.click()
    assert said(report, "Copied.")
    assert (
        report.execute_script("return window.copied") == render_markdown(made.hostile()).rstrip("\n") + "\n"
    )
    assert console_errors(report) == []


def test_a_page_without_a_clipboard_copies_all_the_same_or_says_that_it_cannot(
    report: webdriver.Chrome,
) -> None:
    report.execute_script(NO_CLIPBOARD, True)
    report.find_element("css selector", ".actions button").click()
    assert said(report, "Copied.")
    assert str(report.execute_script("return window.copied")).startswith("## Training run")
    report.execute_script(NO_CLIPBOARD, False)
    report.find_element("css selector", ".actions button").click()
    assert said(report, "Select the text and copy it.")


def test_without_scripts_there_is_no_button_and_the_text_is_there(
    browser: webdriver.Chrome, tmp_path: Path
) -> None:
    page = tmp_path / "report.html"
    page.write_text(render_html(made.slow_loader()), encoding="utf-8")
    with without_javascript(browser):
        open_page(browser, page)
        buttons = browser.find_elements("css selector", "[data-copy]")
        assert buttons
        assert not any(button.is_displayed() for button in buttons)
    assert str(browser.find_element("id", "markdown").get_property("value")).startswith("## Training run")


def test_the_index_shows_every_run_and_nothing_overflows(
    browser: webdriver.Chrome, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    runs = tmp_path / "stepscope-runs"
    recorded(runs, "failed-" + 50 * "x", 0, exit_status=1)
    reported(runs, "train-1", 1000, price=14.4)
    reported(runs, "train-2 <i>", 2000, step=0.25)
    for width in (1400, 400):
        open_page(browser, runs / "index.html", width)
        assert browser.execute_script(OVERFLOW) == 0
        assert console_errors(browser) == []
    names = [heading.text for heading in browser.find_elements("css selector", ".runs h3")]
    assert names == ["▲ found train-2 <i>", "▲ found train-1", f"✕ failed failed-{50 * 'x'}"]
    newest = browser.find_element("css selector", ".runs li")
    assert "250 ms per training step, −50.0 %" in newest.text
    newest.find_element("tag name", "summary").click()
    assert "stepscope compare stepscope-runs/train-1 'stepscope-runs/train-2 <i>'" in newest.text
    assert browser.execute_script(OVERFLOW) == 0
    newest.find_element("tag name", "a").click()
    assert browser.find_element("tag name", "h1").text == "train-2 <i>"
    browser.find_element("link text", "All runs").click()
    assert browser.find_element("tag name", "h1").text == "stepscope-runs"


def test_a_screen_reader_finds_no_obstacle_in_the_index(browser: webdriver.Chrome, tmp_path: Path) -> None:
    runs = tmp_path / "stepscope-runs"
    recorded(runs, "train-1", 0, exit_status=1)
    recorded(runs, "train-2", 500, end=False)
    reported(runs, "train-3", 1000, price=14.4)
    (runs / "notes").mkdir()
    reported(runs, "train-4", 2000)
    for dark in (False, True):
        in_dark_mode(browser, dark)
        open_page(browser, runs / "index.html")
        assert inaccessible(browser) == []
