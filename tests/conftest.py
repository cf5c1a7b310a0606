"""Fixtures of the whole project."""

import compileall
import gc
import signal
import sys
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis.internal.conjecture import providers
from hypothesis.internal.constants_ast import Constants
from selenium import webdriver
from stepscope.report.page import templates

from tests.support.browser import chromium, in_dark_mode
from tests.support.scenarios import WrittenScenarios
from tests.support.servers import prepare_servers
from tests.support.world import ROOT

prepare_servers()  # before any test looks for servers on the PATH
sys.dont_write_bytecode = False  # of the tests, which each worker and call imports
# Shells start what runs in the background with SIGINT ignored. Processes of tests would inherit that.
signal.signal(signal.SIGINT, signal.default_int_handler)

# How long an example takes is the machine's business: no test asserts it. `make test` tries the same examples
# each time, so that what passes always passes; `make trials` tries others, and more of them.
ANY_MACHINE: dict[str, Any] = {"deadline": None, "suppress_health_check": [HealthCheck.too_slow]}
settings.register_profile("same", max_examples=20, derandomize=True, **ANY_MACHINE)
settings.register_profile("other", max_examples=150, **ANY_MACHINE)
# Hypothesis would also try constants of all local modules: examples would depend on which are imported, and
# each worker would parse the whole tree.
providers._get_local_constants = Constants


def pytest_configure(config: pytest.Config) -> None:
    if not hasattr(config, "workerinput"):
        # Thousands of processes import the package: none compiles it, nor writes half of that to a full disk.
        compileall.compile_dir(ROOT / "exporter", quiet=1)
        pages = templates("stepscope.compare")
        for name in pages.list_templates():
            pages.get_template(name)
    settings.load_profile("other" if "hypothesis" in config.getoption("-m") else "same")


def pytest_make_parametrize_id(val: object, argname: str) -> str | None:
    """Names bytes by their parameter: those of a compressed file may have the time, and differ by worker."""
    return argname if isinstance(val, bytes) else None


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Puts files with their own timeout first, then larger ones: what is left at the end is short.

    At the end, one worker waits for the other.
    """
    patient = {item.path for item in items if item.get_closest_marker("timeout")}
    items.sort(key=lambda item: (item.path in patient, item.path.stat().st_size), reverse=True)


def pytest_collection_finish() -> None:
    """Lets Python's collector of garbage look no more at thousands of tests, which stay to the end."""
    gc.collect()
    gc.freeze()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--renew-golden", action="store_true", help="write golden files anew instead of comparing with them"
    )


@pytest.fixture
def ledgers() -> Iterator[Path]:
    """A folder for ledgers, in shared memory if there is such a thing (as it is by default)."""
    shared = Path("/dev/shm")
    with TemporaryDirectory(prefix="stepscope-test-", dir=shared if shared.is_dir() else None) as folder:
        yield Path(folder) / "ledgers"


@pytest.fixture
def open_path() -> Iterator[Path]:
    """A folder that other users can reach. pytest makes that of `tmp_path` private when a session begins."""
    with TemporaryDirectory(prefix="stepscope-test-") as folder:
        Path(folder).chmod(0o711)
        yield Path(folder)


_NUMBERS = count()


@pytest.fixture(autouse=True)
def state_of_its_own(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """Exporters of one test share their state with its other ones, never with this machine's."""
    state = tmp_path_factory.getbasetemp() / "state" / str(next(_NUMBERS))
    monkeypatch.setenv("STATE_DIRECTORY", str(state))


@pytest.fixture(scope="session")
def scenarios() -> WrittenScenarios:
    return WrittenScenarios()


@pytest.fixture(scope="session")
def started_browser() -> Iterator[webdriver.Chrome]:
    with chromium() as chrome:
        yield chrome


@pytest.fixture
def browser(started_browser: webdriver.Chrome) -> Iterator[webdriver.Chrome]:
    """One browser for the tests of all pages, in light mode."""
    in_dark_mode(started_browser, False)
    yield started_browser
    started_browser.get("about:blank")  # a live page would ask on while other tests run


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
