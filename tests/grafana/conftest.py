"""All dashboards, and a Prometheus that has scraped a run of every scenario of the demo."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from stepscope.commands.dashboards import dashboards

from tests.support.backfill import RETENTION_SECONDS, SCRAPE_SECONDS, every_scenario, run_of, seconds_of
from tests.support.demo import START
from tests.support.grafana import Reader
from tests.support.prometheus import Prometheus, needs_prometheus

Look = Callable[..., Reader]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """What asks the server needs it."""
    for item in items:
        if "server" in getattr(item, "fixturenames", ()):
            item.add_marker(needs_prometheus)


@pytest.fixture(scope="session")
def all_dashboards() -> dict[str, dict[str, Any]]:
    return dashboards()


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Prometheus]:
    with every_scenario(tmp_path_factory.mktemp("every-scenario")).serving() as running:
        yield running


@pytest.fixture(scope="session")
def look(server: Prometheus, all_dashboards: dict[str, dict[str, Any]]) -> Look:
    """Opens a dashboard `minutes` after the start of a run, by default some minutes after its end."""

    def reader(uid: str, scenario: str, minutes: float | None = None, **chosen: Any) -> Reader:
        whole = seconds_of(scenario) + RETENTION_SECONDS - SCRAPE_SECONDS
        length = 60 * minutes if minutes is not None else whole
        run = {"run": run_of(scenario), "runs": run_of(scenario), "price": "2", **chosen}
        return Reader(server, all_dashboards[uid], START - 60, START + length, run)

    return reader
