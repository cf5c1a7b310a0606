"""The dashboards drawn by a plain page, and the pictures in docs/dashboards.md."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from selenium import webdriver
from selenium.webdriver.common.by import By
from stepscope.commands.dashboards import dashboards
from stepscope.grafana.page import panel_id

from tests.grafana.conftest import Look
from tests.support.browser import chromium, console_errors, open_page
from tests.support.dashboard_page import height, opened, write_page
from tests.support.pictures import PICTURES, SHOWN

PAGE = Path(__file__).parents[2] / "docs" / "dashboards.md"
DRAWN = """
return [...document.querySelectorAll('section')].map(
  (section) => section.querySelectorAll('canvas, td, div div').length)
"""


@pytest.fixture(scope="module")
def chrome() -> Iterator[webdriver.Chrome]:
    with chromium() as browser:
        yield browser


@pytest.mark.parametrize(
    "uid", ["stepscope-run", "stepscope-system", "stepscope-histograms", "stepscope-steps"]
)
def test_every_panel_is_drawn(look: Look, chrome: webdriver.Chrome, uid: str, tmp_path: Path) -> None:
    reader = look(uid, "straggler", minutes=10)
    page = tmp_path / "page.html"
    write_page(reader, page)
    open_page(chrome, page, 1500, height(reader))
    assert console_errors(chrome) == []
    sections = len(chrome.find_elements(By.TAG_NAME, "section"))
    assert sections == len(opened(reader.dashboard))
    headings = sum(panel["type"] == "row" for panel in reader.dashboard["panels"])
    empty = headings + (uid == "stepscope-steps")  # Operators: no simulated run takes a profile window
    assert sum(count == 0 for count in chrome.execute_script(DRAWN)) <= empty


def test_the_pictures_of_the_docs_are_those_that_a_real_grafana_gives() -> None:
    shown = set(re.findall(r"pictures/dashboards/([\w-]+)[.]png", PAGE.read_text()))
    assert shown == set(SHOWN)
    assert {path.stem for path in PICTURES.iterdir()} == shown
    for uid, board in dashboards().items():
        for wanted in SHOWN.values():
            if wanted.panel and uid == f"stepscope-{wanted.board}":
                assert panel_id(board, wanted.panel)
