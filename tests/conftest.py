"""Fixtures of the whole project."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import settings
from selenium import webdriver

from tests.support.browser import chromium, in_dark_mode
from tests.support.scenarios import WrittenScenarios

# How long an example takes is the machine's business: no test asserts it.
settings.register_profile("trainwatch", deadline=None)
settings.load_profile("trainwatch")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--renew-golden", action="store_true", help="write golden files anew instead of comparing with them"
    )


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Prints why tests failed that then passed: `make test` runs what fails once more."""
    for report in terminalreporter.getreports("rerun"):
        terminalreporter.section(f"failed, and run once more: {report.nodeid}")
        terminalreporter.line(report.longreprtext)


@pytest.fixture
def ledgers() -> Iterator[Path]:
    """A folder for ledgers, in shared memory if there is such a thing (as it is by default)."""
    shared = Path("/dev/shm")
    with TemporaryDirectory(prefix="trainwatch-test-", dir=shared if shared.is_dir() else None) as folder:
        yield Path(folder) / "ledgers"


_NUMBERS = count()


@pytest.fixture(autouse=True)
def state_of_its_own(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """Exporters of one test share their state with its other ones, never with this machine's."""
    state = tmp_path_factory.getbasetemp() / "state" / str(next(_NUMBERS))
    monkeypatch.setenv("STATE_DIRECTORY", str(state))


@pytest.fixture(scope="session")
def scenarios(tmp_path_factory: pytest.TempPathFactory) -> WrittenScenarios:
    return WrittenScenarios(tmp_path_factory.mktemp("scenarios"))


@pytest.fixture(scope="session")
def started_browser() -> Iterator[webdriver.Chrome]:
    with chromium() as chrome:
        yield chrome


@pytest.fixture
def browser(started_browser: webdriver.Chrome) -> webdriver.Chrome:
    """One browser for the tests of all pages, in light mode."""
    in_dark_mode(started_browser, False)
    return started_browser


@pytest.fixture
def golden(request: pytest.FixtureRequest) -> Callable[[Path, str], None]:
    """Compares a text with a golden file, or writes the file anew where `--renew-golden` was given."""

    def compare(file: Path, text: str) -> None:
        if request.config.getoption("--renew-golden"):
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text, encoding="utf-8")
        known = file.read_text(encoding="utf-8")
        assert text == known, f"{file.name} is not as it was: `make golden` renews it"

    return compare
