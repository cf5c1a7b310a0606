"""A headless Chromium for tests that look at a page as a reader does."""

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from selenium import webdriver
from selenium.webdriver.common.action_chains import ActionChains
from selenium.webdriver.common.keys import Keys

from tests.support.waiting import SECONDS

SWITCHES = (
    "--headless=new",
    "--no-sandbox",
    "--disable-gpu",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-dev-shm-usage",
    "--hide-scrollbars",
)
DRAW_ALL = "document.querySelectorAll('[data-chart]').forEach(stepscope.draw)"
OVERFLOW = "return document.documentElement.scrollWidth - document.documentElement.clientWidth"
# How many colours the pixels of a chart have; 0 where it was not drawn.
COLOURS_OF = """
  const canvas = document.querySelector(`[data-chart="${arguments[0]}"] canvas`);
  if (!canvas) return 0;
  const pixels = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height).data;
  return new Set(new Uint32Array(pixels.buffer)).size;
"""
# Numbers the visible elements that a selector selects.
NUMBERED = """
  const seen = [...document.querySelectorAll(arguments[0])].filter((element) => element.checkVisibility());
  return seen.map((element, index) => (element.dataset.stop = index, String(index)));
"""
AXE = Path(__file__).parents[1] / "axe" / "node_modules" / "axe-core" / "axe.min.js"
# Calls back with "RULE: ELEMENT" for each element that breaks a rule of axe-core.
RUN_AXE = """
  const done = arguments[arguments.length - 1];
  const told = (found) => found.nodes.map((node) => `${found.id}: ${node.target} ${node.html.slice(0, 120)}`);
  axe.run().then((result) => done(result.violations.flatMap(told)), (error) => done([String(error)]));
"""


@contextmanager
def chromium() -> Iterator[webdriver.Chrome]:
    """A browser with a fresh profile; skips the test, saying why, where there is none."""
    browser, driver = shutil.which("chromium"), shutil.which("chromedriver")
    if not (browser and driver):
        pytest.skip("chromium and chromedriver are not installed")
    with tempfile.TemporaryDirectory(prefix="stepscope-browser-") as profile:
        options = webdriver.ChromeOptions()
        options.binary_location = browser
        for switch in (*SWITCHES, f"--user-data-dir={profile}"):
            options.add_argument(switch)
        options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
        chrome = webdriver.Chrome(options, webdriver.ChromeService(driver))
        chrome.set_script_timeout(SECONDS)  # axe-core takes more than the usual 30 s of a busy core
        try:
            yield chrome
        finally:
            chrome.quit()


def open_page(chrome: webdriver.Chrome, address: str | Path, width: int = 1440, height: int = 900) -> None:
    """Opens a file or an address at a window of exactly that many CSS pixels, with an empty console log."""
    chrome.execute_cdp_cmd(
        "Emulation.setDeviceMetricsOverride",
        {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False},
    )
    chrome.get("about:blank")  # a live page that is still open complains once its exporter has ended
    chrome.get_log("browser")  # type: ignore[no-untyped-call]
    chrome.get(address.as_uri() if isinstance(address, Path) else address)


def console_errors(chrome: webdriver.Chrome) -> list[str]:
    """What the page wrote to the console since the last call, from warnings up."""
    entries = chrome.get_log("browser")  # type: ignore[no-untyped-call]
    return [entry["message"] for entry in entries if entry["level"] in ("WARNING", "SEVERE")]


def in_dark_mode(chrome: webdriver.Chrome, dark: bool) -> None:
    scheme = "dark" if dark else "light"
    features = [{"name": "prefers-color-scheme", "value": scheme}]
    chrome.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})


def reached_by_keyboard(chrome: webdriver.Chrome, selector: str) -> int:
    """Returns how many visible elements the selector selects. Fails if Tab does not reach each of them."""
    wanted = set(chrome.execute_script(NUMBERED, selector))
    reached: set[str] = set()
    for _ in range(len(wanted) + 20):
        ActionChains(chrome).send_keys(Keys.TAB).perform()
        reached.add(chrome.execute_script("return document.activeElement.dataset.stop || ''"))
    assert wanted <= reached
    return len(wanted)


@contextmanager
def without_javascript(chrome: webdriver.Chrome) -> Iterator[None]:
    chrome.execute_cdp_cmd("Emulation.setScriptExecutionDisabled", {"value": True})
    try:
        yield
    finally:
        chrome.execute_cdp_cmd("Emulation.setScriptExecutionDisabled", {"value": False})


def inaccessible(chrome: webdriver.Chrome) -> list[str]:
    """What axe-core finds on the page; without axe-core, skips the test, and fails it in CI."""
    if not AXE.exists():
        missing = "axe-core is not installed: `make servers` installs it from npm"
        (pytest.fail if os.environ.get("CI") else pytest.skip)(missing)
    chrome.execute_script(AXE.read_text(encoding="utf-8"))
    found: list[str] = chrome.execute_async_script(RUN_AXE)
    return found
