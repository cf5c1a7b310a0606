"""The five runs whose reports the tests and the pictures of docs/report.md show.

`python -m tests.support.five_runs` draws the pictures again.
"""

from __future__ import annotations

import base64
import tempfile
from collections.abc import Callable
from pathlib import Path

from stepscope.evaluation.analysis import Analysis
from stepscope.report.html import render_html

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


def draw_pictures() -> None:
    """Writes the first screen of each report, as Chromium shows it."""
    with tempfile.TemporaryDirectory() as folder, chromium() as chrome:
        scenarios = WrittenScenarios()
        for name, run in FIVE_RUNS.items():
            page = Path(folder) / "report.html"
            page.write_text(render_html(run(scenarios), price=PRICE), encoding="utf-8")
            open_page(chrome, page, 1400, 900)
            shot = chrome.execute_cdp_cmd("Page.captureScreenshot", {"format": "png"})
            suffix = "" if name == "found" else f"-{name.replace(' ', '-')}"
            (PICTURES / f"report{suffix}.png").write_bytes(base64.b64decode(shot["data"]))


if __name__ == "__main__":
    draw_pictures()
