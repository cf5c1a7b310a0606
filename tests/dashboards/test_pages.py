"""The dashboards drawn by a plain page, which the pictures in docs/dashboards.md are of."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from selenium import webdriver
from selenium.webdriver.common.by import By

from tests.dashboards.conftest import Look
from tests.support.browser import chromium, console_errors, open_page
from tests.support.dashboard_page import height, write_page

PICTURES = Path(__file__).parents[2] / "docs" / "pictures" / "dashboards"
# What docs/dashboards.md shows: dashboard, run, how many minutes it has lasted, panels, theme.
SHOWN = {
    "what-is-wrong": ("trainwatch-run", "cpu-bottleneck", 11.9, (1,), "dark"),
    "heatmap": ("trainwatch-system", "cpu-bottleneck", 10, (1,), "dark"),
    "heatmap-imbalance": ("trainwatch-system", "imbalance", 10, (1,), "light"),
    "steps": ("trainwatch-steps", "step-outliers", 10, (1,), "dark"),
    "ranks": ("trainwatch-steps", "straggler", 10, (41, 42), "light"),
    "balance": ("trainwatch-histograms", "imbalance", 10, (11,), "light"),
}
DRAWN = """
return [...document.querySelectorAll('section')].map(
  (section) => section.querySelectorAll('canvas, td, div div').length)
"""

pytestmark = pytest.mark.browser


@pytest.fixture(scope="module")
def chrome() -> Iterator[webdriver.Chrome]:
    with chromium() as browser:
        yield browser


@pytest.mark.parametrize(
    "uid", ["trainwatch-run", "trainwatch-system", "trainwatch-histograms", "trainwatch-steps"]
)
def test_every_panel_is_drawn(look: Look, chrome: webdriver.Chrome, uid: str, tmp_path: Path) -> None:
    reader = look(uid, "straggler", minutes=10)
    page = tmp_path / "page.html"
    write_page(reader, page)
    open_page(chrome, page, 1500, height(reader))
    assert console_errors(chrome) == []
    sections = len(chrome.find_elements(By.TAG_NAME, "section"))
    assert sections == len(reader.dashboard["panels"])
    headings = sum(panel["type"] == "row" for panel in reader.dashboard["panels"])
    assert sum(count == 0 for count in chrome.execute_script(DRAWN)) <= headings


@pytest.mark.parametrize("name", SHOWN)
def test_the_pictures_of_the_docs_can_be_drawn_anew(
    look: Look, chrome: webdriver.Chrome, name: str, tmp_path: Path
) -> None:
    """With RENEW_PICTURES=1 in the environment they are."""
    uid, scenario, minutes, panels, theme = SHOWN[name]
    reader = look(uid, scenario, minutes=minutes)
    page = tmp_path / "page.html"
    write_page(reader, page, theme, panels)
    rows = sum(one["gridPos"]["h"] for one in reader.dashboard["panels"] if one["id"] in panels)
    open_page(chrome, page, 1100, 34 * rows + 16)
    assert console_errors(chrome) == []
    picture = chrome.get_screenshot_as_png()
    if os.environ.get("RENEW_PICTURES"):
        PICTURES.mkdir(parents=True, exist_ok=True)
        (PICTURES / f"{name}.png").write_bytes(picture)
    assert (PICTURES / f"{name}.png").exists(), "draw it with RENEW_PICTURES=1"
    assert len(picture) > 5000
