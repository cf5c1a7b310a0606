"""The exporter's pages in a real browser: all of theirs works under the policy, and nothing else does."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from selenium import webdriver
from stepscope.common import PUBLIC_DOCS
from stepscope.report.html import render_html

from tests.support import analysis as made
from tests.support.browser import console_errors, open_page
from tests.support.exporter_process import ExporterProcess
from tests.support.waiting import wait_until

DRAW_ALL = "document.querySelectorAll('[data-chart]').forEach(stepscope.draw)"
DRAWN = "return [...document.querySelectorAll('[data-chart]')].every((one) => one.querySelector('canvas'))"


@pytest.fixture
def node(tmp_path: Path) -> Iterator[ExporterProcess]:
    with ExporterProcess("--ledger-dir", tmp_path / "l", "--report-dir", tmp_path) as process:
        yield process


def publish(folder: Path, run: str, injected: str = "") -> None:
    page = render_html(made.slow_loader(finished=False, run=run), refresh_seconds=1)
    whole = folder / "new.html"
    whole.write_text(page.replace("</footer>", f"</footer>{injected}"), encoding="utf-8")
    whole.rename(folder / "report.html")


def test_the_live_report_draws_and_refreshes_without_a_complaint(
    browser: webdriver.Chrome, node: ExporterProcess, tmp_path: Path
) -> None:
    publish(tmp_path, "resnet")
    open_page(browser, f"{node.url}/report")
    browser.execute_script(DRAW_ALL)
    assert browser.execute_script(DRAWN)
    publish(tmp_path, "renamed")
    wait_until(lambda: browser.title.startswith("renamed"))
    assert console_errors(browser) == []


def test_the_first_page_says_that_the_run_has_begun_and_becomes_the_live_report(
    browser: webdriver.Chrome, node: ExporterProcess, tmp_path: Path
) -> None:
    open_page(browser, f"{node.url}/report")
    assert browser.find_element("tag name", "h1").text == "… collecting"
    publish(tmp_path, "resnet")
    wait_until(lambda: browser.title.startswith("resnet"))
    assert [line for line in console_errors(browser) if "favicon" not in line] == []


def test_a_page_that_has_not_changed_is_not_sent_again(node: ExporterProcess, tmp_path: Path) -> None:
    publish(tmp_path, "resnet")
    tag = node.get("/report/content").headers["etag"]
    again = node.get("/report/content", headers={"If-None-Match": tag})
    assert (again.status_code, again.text) == (304, "")
    publish(tmp_path, "renamed")
    assert node.get("/report/content", headers={"If-None-Match": tag}).status_code == 200


def test_a_script_that_got_into_the_report_does_not_run(
    browser: webdriver.Chrome, node: ExporterProcess, tmp_path: Path
) -> None:
    publish(tmp_path, "resnet", "<script>window.hacked = 1</script><img src=x onerror='window.hacked = 1'>")
    open_page(browser, f"{node.url}/report")
    assert browser.execute_script("return window.hacked") is None
    assert sum("Content Security Policy" in line for line in console_errors(browser)) >= 2


def test_the_landing_page_has_its_style_and_no_complaint(
    browser: webdriver.Chrome, node: ExporterProcess
) -> None:
    open_page(browser, f"{node.url}/")
    assert browser.execute_script("return getComputedStyle(document.body).maxWidth") == "640px"
    assert console_errors(browser) == []
    shown = browser.find_element("tag name", "body").text
    assert "Runs: none now." in shown
    assert re.search(r"Collectors: .*\bcpu\b.*\btraining\b", shown)
    assert browser.find_element("link text", "Documentation").get_attribute("href") == PUBLIC_DOCS
    browser.find_element("link text", "Metrics").click()
    assert "stepscope_exporter_build_info" in browser.page_source


def test_no_other_page_can_frame_one(
    browser: webdriver.Chrome, node: ExporterProcess, tmp_path: Path
) -> None:
    publish(tmp_path, "resnet")
    other = tmp_path / "other.html"
    other.write_text(f'<iframe src="{node.url}/report"></iframe>')
    open_page(browser, other)
    assert any("frame-ancestors" in line for line in console_errors(browser))


def test_every_response_has_a_policy_and_says_to_whom_it_is_for(
    node: ExporterProcess, tmp_path: Path
) -> None:
    publish(tmp_path, "resnet")
    for path in ("/", "/report", "/report/content", "/metrics", "/-/healthy", "/nonsense"):
        headers = node.get(path).headers
        policy = headers["content-security-policy"]
        assert policy.startswith("default-src 'none'")
        assert "frame-ancestors 'none'" in policy
        assert "unsafe" not in policy
        assert headers["x-content-type-options"] == "nosniff"
        assert headers["referrer-policy"] == "no-referrer"
        assert headers["cross-origin-resource-policy"] == "same-origin"
    (tmp_path / "report.html").write_text("<script>anything()</script>")
    assert "script-src" not in node.get("/report").headers["content-security-policy"]
