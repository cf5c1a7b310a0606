"""One browser for all tests of the page; pages are rendered once a test."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from selenium import webdriver
from trainwatch.evaluation.analysis import Analysis
from trainwatch.report.html import render_html

from tests.support.browser import chromium, in_dark_mode


@pytest.fixture(scope="session")
def started_browser() -> Iterator[webdriver.Chrome]:
    with chromium() as chrome:
        yield chrome


@pytest.fixture
def browser(started_browser: webdriver.Chrome) -> webdriver.Chrome:
    in_dark_mode(started_browser, False)
    return started_browser


@pytest.fixture
def page_of(tmp_path: Path) -> Callable[[Analysis], Path]:
    def write(analysis: Analysis) -> Path:
        page = tmp_path / "report.html"
        page.write_text(render_html(analysis), encoding="utf-8")
        return page

    return write
