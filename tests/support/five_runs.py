"""The five runs whose reports the tests and the pictures of docs/report.md show, and the compared pair.

`python -m tests.support.five_runs` draws the pictures again.
"""

import base64
import tempfile
from collections.abc import Callable
from pathlib import Path

from selenium import webdriver
from stepscope.compare.compared_run import read_run
from stepscope.compare.comparison import compare
from stepscope.compare.html import render_comparison
from stepscope.evaluation.analysis import Analysis
from stepscope.report.html import render_html
from stepscope.runs.open import open_source

from tests.support import analysis as made
from tests.support.browser import chromium, open_page
from tests.support.scenarios import WrittenScenarios

RunOf = Callable[[WrittenScenarios], Analysis]

FIVE_RUNS: dict[str, RunOf] = {
    "found": lambda scenarios: scenarios.written("cpu-bottleneck").recording,
    "healthy": lambda scenarios: scenarios.written("healthy").recording,
    "not enough data": lambda _: made.no_steps(),
    "failed": lambda scenarios: scenarios.written("missing-rank").recording,
    "64 ranks": lambda _: made.sixty_four_ranks(),
}
PICTURES = Path(__file__).parents[2] / "docs" / "pictures"
PRICE = 55.04  # of a node of 8 GPUs for an hour


COMPARED = ("few-dataloaders", "healthy")


def draw_pictures() -> None:
    """Writes the first screen of each report and of a comparison, as Chromium shows it."""
    scenarios = WrittenScenarios()
    pages = {
        "report" if name == "found" else f"report-{name.replace(' ', '-')}": render_html(
            run(scenarios), price=PRICE
        )
        for name, run in FIVE_RUNS.items()
    }
    before, after = (
        read_run(name, open_source(scenarios.written(name).recording_directory), PRICE) for name in COMPARED
    )
    pages["compare"] = render_comparison(compare(before, after))
    with tempfile.TemporaryDirectory() as folder, chromium() as chrome:
        for name, text in pages.items():
            page = Path(folder) / f"{name}.html"
            page.write_text(text, encoding="utf-8")
            (PICTURES / f"{name}.png").write_bytes(_first_screen(chrome, page))


def _first_screen(chrome: webdriver.Chrome, page: Path) -> bytes:
    open_page(chrome, page, 1400, 900)
    return base64.b64decode(chrome.execute_cdp_cmd("Page.captureScreenshot", {"format": "png"})["data"])


if __name__ == "__main__":
    draw_pictures()
