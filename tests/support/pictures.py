"""Takes the pictures of docs/dashboards.md from a real Grafana: python -m tests.support.pictures GRAFANA_URL.

Its Prometheus must know the simulated runs of docs/stack.md, or those of `--from` and `--to` (milliseconds).
"""

import argparse
import time
from pathlib import Path
from typing import NamedTuple
from urllib.parse import urlencode

from selenium import webdriver
from selenium.webdriver.common.by import By
from selenium.webdriver.support.ui import WebDriverWait
from stepscope.commands.dashboards import dashboards
from stepscope.grafana.page import panel_id

from tests.support.browser import chromium

PICTURES = Path(__file__).parents[2] / "docs" / "pictures" / "dashboards"


class Shown(NamedTuple):
    """A panel, or the first screen of a dashboard if there is no `panel`; sizes in pixels."""

    board: str
    scenario: str
    panel: str
    width: int
    height: int


HEATMAP = "GPUs and cores of $instance"
SHOWN = {
    "run": Shown("run", "cpu-bottleneck", "", 1400, 1000),
    "run-healthy": Shown("run", "healthy", "", 1400, 650),
    "cluster": Shown("cluster", "", "", 1400, 1100),
    "what-is-wrong": Shown("run", "cpu-bottleneck", "What is wrong", 1400, 130),
    "heatmap": Shown("system", "cpu-bottleneck", HEATMAP, 1100, 700),
    "heatmap-imbalance": Shown("system", "imbalance", HEATMAP, 1100, 700),
    "steps": Shown("steps", "step-outliers", "Duration of training steps", 1100, 340),
    "ranks": Shown("steps", "straggler", "Own time of each rank", 1100, 340),
    "balance": Shown(
        "histograms", "imbalance", "Cumulative distribution of each GPU of $instance", 1100, 340
    ),
}
SETTLED = 3  # seconds without a spinner
SECONDS = 60
SPINNERS = "[aria-label='Panel loading bar'], .panel-loading, [data-testid='Spinner']"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("url")
    parser.add_argument("--from", dest="start", default="now-15m")
    parser.add_argument("--to", dest="end", default="now")
    arguments = parser.parse_args()
    PICTURES.mkdir(parents=True, exist_ok=True)
    with chromium() as chrome:
        for name, shown in SHOWN.items():
            _take(chrome, address(arguments.url, shown, arguments.start, arguments.end), shown)
            chrome.save_screenshot(str(PICTURES / f"{name}.png"))
            print(PICTURES / f"{name}.png")


def address(url: str, shown: Shown, start: str, end: str) -> str:
    """Returns the address of a dashboard without menus, or of one of its panels."""
    uid = f"stepscope-{shown.board}"
    query = {"orgId": "1", "theme": "dark", "from": start, "to": end}
    if shown.scenario:
        query["var-run"] = f"simulated-{shown.scenario}"
    if shown.panel:
        panel = panel_id(dashboards()[uid], shown.panel)
        return f"{url}/d-solo/{uid}/x?{urlencode({**query, 'panelId': panel})}"
    return f"{url}/d/{uid}/x?{urlencode(query)}&kiosk"


def _take(chrome: webdriver.Chrome, url: str, shown: Shown) -> None:
    size = {"width": shown.width, "height": shown.height, "deviceScaleFactor": 1, "mobile": False}
    chrome.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    chrome.get(url)
    wait = WebDriverWait(chrome, SECONDS)
    wait.until(lambda page: page.find_elements(By.CSS_SELECTOR, "[data-panelid], .panel-solo, section"))
    time.sleep(SETTLED)
    wait.until(lambda page: not page.find_elements(By.CSS_SELECTOR, SPINNERS))
    time.sleep(SETTLED)


if __name__ == "__main__":
    main()
