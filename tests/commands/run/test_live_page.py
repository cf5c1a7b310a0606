"""The live page of `stepscope run` in a real browser: from its start to the report."""

import signal
from contextlib import suppress
from pathlib import Path

import pytest
import requests
from selenium import webdriver
from stepscope.commands.run.listener import LastPage, listen

from tests.support.browser import open_page
from tests.support.observing import Observed
from tests.support.waiting import SECONDS, wait_until

TRAIN = """
import os, sys, time, stepscope
while not os.path.exists(sys.argv[1] + "/end"):
    with stepscope.step("train"):
        with stepscope.component("data_wait"):
            time.sleep(0.06)
        time.sleep(0.03)
raise SystemExit(int(open(sys.argv[1] + "/end").read()))
"""
OVER = "The run has ended and nothing is measured any more: only /report is left\n"
FLAGS = (
    "--live-interval",
    "1s",
    "--scan-interval",
    "1s",
    "--set",
    "DataStarved.patience=10",
    "--steps",
    "100000",
)


def state_of(browser: webdriver.Chrome) -> str:
    text: str = browser.execute_script("return document.getElementById('state')?.innerText ?? ''")
    return text.strip()


def colour_of_state(browser: webdriver.Chrome) -> str:
    colour: str = browser.execute_script("return getComputedStyle(document.getElementById('state')).color")
    return colour


def scrape(address: str) -> requests.Response:
    """Asks as Prometheus does."""
    headers = {"X-Prometheus-Scrape-Timeout-Seconds": "10"}
    return requests.get(f"http://{address}/metrics", headers=headers, timeout=SECONDS)


@pytest.mark.parametrize(
    ("end", "state", "words"),
    [
        pytest.param("0", "finished", "waiting for data", marks=pytest.mark.trial),
        pytest.param("3", "✕ failed", "exit status 3", marks=pytest.mark.trial),
        ("Ctrl-C", "■ stopped", "Stopped by SIGINT from"),
    ],
)
def test_the_live_page_shows_pace_and_findings_and_becomes_the_report(
    browser: webdriver.Chrome, tmp_path: Path, end: str, state: str, words: str
) -> None:
    script = TRAIN.replace("sys.argv[1]", repr(str(tmp_path)))
    with Observed(tmp_path / "run", script, *FLAGS) as observed:
        open_page(browser, f"http://{observed.address}/report")
        wait_until(lambda: "steps/s, ETA " in state_of(browser), "the pace")
        assert " of 100 000, " in state_of(browser).replace("\u202f", " ")
        usual = colour_of_state(browser)
        wait_until(lambda: "waiting for data" in browser.page_source, "the finding")
        assert browser.find_element("css selector", "figure.strip").is_displayed()
        if end == "Ctrl-C":
            observed.send(signal.SIGINT)
        else:
            (tmp_path / "end").write_text(end)
        wait_until(lambda: state_of(browser) == state, "the report")
        assert words in browser.find_element("id", "verdict").text
        assert colour_of_state(browser) == usual, "no alarm"
        assert not browser.find_elements("css selector", "#state .dot"), "it is no longer live"
        observed.status()
    assert "waiting until the page in your browser shows the report" in observed.said
    assert state_of(browser) == state, "also when nobody serves it any more"


def test_metrics_end_with_the_measuring_after_the_end_of_the_run_was_read(
    browser: webdriver.Chrome, tmp_path: Path
) -> None:
    script = TRAIN.replace("sys.argv[1]", repr(str(tmp_path)))
    with Observed(tmp_path / "run", script, *FLAGS) as observed:
        open_page(browser, f"http://{observed.address}/report")
        scrapes = [scrape(observed.address)]
        wait_until(lambda: "live, updated" in state_of(browser), "the live page")
        (tmp_path / "end").write_text("0")

        def is_over() -> bool:
            with suppress(requests.exceptions.RequestException):  # it ended in the middle of an answer
                scrapes.append(scrape(observed.address))
            return not scrapes[-1].ok

        wait_until(is_over, "the end of the measuring")
        wait_until(lambda: state_of(browser) == "finished", "the report")
        observed.status()
    assert 'reason="finished"' in scrapes[-2].text
    assert scrapes[-1].status_code == 503
    assert scrapes[-1].text == OVER


def test_after_the_run_the_port_answers_every_request_and_only_the_report_is_there(tmp_path: Path) -> None:
    (tmp_path / "report.html").write_text("<html>the report</html>")
    listener = listen("127.0.0.1:0")
    page = LastPage(listener, tmp_path / "report.html", [])
    try:
        asked = [("/metrics", 503), ("/-/healthy", 404), ("/", 404), ("/nonsense", 404)]
        for path, status in asked:
            answer = requests.get(f"http://{listener.address}{path}", timeout=SECONDS)
            assert (answer.status_code, answer.text) == (status, OVER), path
        report = requests.get(f"http://{listener.address}/report/content", timeout=SECONDS)
        assert (report.status_code, "the report" in report.text) == (200, True)
    finally:
        page.stop()


def test_the_live_page_fits_a_phone_and_when_its_server_is_killed_it_names_the_file_without_an_alarm(
    browser: webdriver.Chrome, tmp_path: Path
) -> None:
    script = TRAIN.replace("sys.argv[1]", repr(str(tmp_path)))
    with Observed(tmp_path / "run", script, *FLAGS) as observed:
        open_page(browser, f"http://{observed.address}/report", width=400)
        wait_until(lambda: "steps/s, ETA " in state_of(browser), "the pace")
        assert browser.execute_script("return document.documentElement.scrollWidth") <= 400
        line = browser.find_element("id", "state").value_of_css_property("line-height")
        product = browser.find_element("css selector", ".product")
        assert product.size["height"] < 1.5 * float(line.removesuffix("px")), "not one letter per line"
        usual = colour_of_state(browser)
        observed.send(signal.SIGKILL)
        (tmp_path / "end").write_text("0")
        wait_until(lambda: "no answer since" in state_of(browser), "the page to notice")
    assert f"If the run has ended, its report is {tmp_path}/run/report.html" in state_of(browser)
    assert colour_of_state(browser) == usual
