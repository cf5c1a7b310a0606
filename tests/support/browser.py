"""A headless Chromium for tests that look at a page as a reader does."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from selenium import webdriver

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


@contextmanager
def chromium() -> Iterator[webdriver.Chrome]:
    """A browser with a fresh profile; skips the test, saying why, where there is none."""
    browser, driver = shutil.which("chromium"), shutil.which("chromedriver")
    if not (browser and driver):
        pytest.skip("chromium and chromedriver are not installed")
    with tempfile.TemporaryDirectory(prefix="trainwatch-browser-") as profile:
        options = webdriver.ChromeOptions()
        options.binary_location = browser
        for switch in (*SWITCHES, f"--user-data-dir={profile}"):
            options.add_argument(switch)
        options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
        chrome = webdriver.Chrome(options, webdriver.ChromeService(driver))
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
