"""One browser for all tests of the page."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from selenium import webdriver

from tests.support.browser import chromium, in_dark_mode


@pytest.fixture(scope="session")
def comparisons_browser() -> Iterator[webdriver.Chrome]:
    with chromium() as chrome:
        yield chrome


@pytest.fixture
def browser(comparisons_browser: webdriver.Chrome) -> webdriver.Chrome:
    in_dark_mode(comparisons_browser, False)
    return comparisons_browser
