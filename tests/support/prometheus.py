"""A real Prometheus that scrapes one target."""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import requests
from prometheus_client.parser import text_string_to_metric_families

from tests.support.servers import Programs
from tests.support.waiting import SECONDS, wait_until

needs_prometheus = pytest.mark.skipif(
    not (shutil.which("prometheus") and shutil.which("promtool")), reason="needs Debian's prometheus package"
)

# The scrape of docs/exporter.md, with a shorter interval: `instance` is the host without its port.
CONFIG = """\
global:
  scrape_interval: 200ms
scrape_configs:
  - job_name: stepscope
    static_configs:
      - targets: ["{target}"]
    relabel_configs:
      - source_labels: [__address__]
        regex: "(.*):\\\\d+"
        target_label: instance
"""


class Prometheus:
    def __init__(self, url: str) -> None:
        self.url = url

    def get(self, path: str, **parameters: str) -> Any:
        answer = requests.get(f"{self.url}/api/v1/{path}", params=parameters, timeout=SECONDS).json()
        assert answer["status"] == "success", answer
        return answer["data"]

    def query(self, expression: str) -> list[dict[str, Any]]:
        result: list[dict[str, Any]] = self.get("query", query=expression)["result"]
        return result

    def own(self, metric: str) -> float:
        """The sum of a metric that Prometheus has of itself; 0 where it has none."""
        text = requests.get(f"{self.url}/metrics", timeout=SECONDS).text
        samples = (one for family in text_string_to_metric_families(text) for one in family.samples)
        return sum(one.value for one in samples if one.name == metric)

    def wait_for(self, expression: str) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = []

        def answers() -> bool:
            found.extend(self.query(expression))
            return bool(found)

        wait_until(answers, expression)
        return found


@contextmanager
def scraping(target: str, folder: Path) -> Iterator[Prometheus]:
    """A Prometheus that scrapes the target."""
    (folder / "prometheus.yml").write_text(CONFIG.format(target=target))
    with serving(folder / "prometheus.yml", folder / "data", "--enable-feature=exemplar-storage") as server:
        yield server


@contextmanager
def serving(config: Path, storage: Path, *flags: str) -> Iterator[Prometheus]:
    """A Prometheus with this configuration."""
    with Programs().prometheus(config, storage, *flags) as url:
        yield Prometheus(url)
