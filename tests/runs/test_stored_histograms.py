"""However Prometheus 3 is told to scrape and store the exporter's histograms, a run has the same findings."""

import re
import shutil
import subprocess
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from stepscope.demo.scenarios import all_scenarios
from stepscope.evaluation.analysis import Analysis
from stepscope.evaluation.engine import evaluate
from stepscope.runs.open import open_source

from tests.support import demo
from tests.support.http_server import answering
from tests.support.prometheus import Prometheus, serving

MINUTES = 11
EVERY = 60  # simulated seconds between two scrapes
SCRAPES = MINUTES * 60 // EVERY
# How each job is scraped and stored; its label `cluster` is the key.
STORED = {
    "text": "scrape_protocols: [PrometheusText0.0.4]",
    "openmetrics": "scrape_protocols: [OpenMetricsText1.0.0]",
    "custom-buckets": "convert_classic_histograms_to_nhcb: true",
    "both": "{convert_classic_histograms_to_nhcb: true, always_scrape_classic_histograms: true}",
}
JOB = """\
  - job_name: {name}
    scrape_interval: 1s
    {stored}
    static_configs:
      - targets: ["{target}"]
        labels: {{cluster: {name}, instance: node-a}}
    metrics_path: /{name}
"""


def prometheus_3() -> bool:
    words = ("prometheus", "--version")
    found = shutil.which("prometheus") and subprocess.run(words, capture_output=True, text=True, check=True)
    return bool(found and re.search(r"version [3-9]\.", found.stdout + found.stderr))


pytestmark = pytest.mark.skipif(not prometheus_3(), reason="needs Prometheus 3 as `prometheus` on the PATH")


def timed(exposition: bytes, stamp: str) -> bytes:
    """The samples with a time, as nobody waits for a simulated run; without exemplars."""
    return re.sub(rb"(?m)^([^#\s]\S*(?:\{.*?\})? \S+)(?: # .*)?$", rf"\1 {stamp}".encode(), exposition)


def scrapes() -> list[dict[str, bytes]]:
    """What an exporter serves during a run that ends now, by format."""
    served = []
    with demo.simulated("few-dataloaders", duration=60 * MINUTES) as node:
        for number in range(SCRAPES):
            node.go(EVERY if number else 0.5)
            moment = demo.START + EVERY * number + 0.5
            served.append(
                {
                    "text": timed(node.exporter.scrape("text"), f"{1000 * moment:.0f}"),
                    "openmetrics": timed(node.exporter.scrape("openmetrics"), f"{moment:.3f}"),
                }
            )
    return served


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    folder = tmp_path_factory.mktemp("histograms")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(demo, "START", float(int(time.time()) - 60 * MINUTES))
        patch.setattr(all_scenarios()["few-dataloaders"], "ranks", 2)  # which are simulated sooner than eight
        served = scrapes()
    now = [served[0]]

    class Exporter(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            name = self.path.removeprefix("/")
            is_open = name == "openmetrics"
            kind = "application/openmetrics-text; version=1.0.0; charset=utf-8" if is_open else "text/plain"
            self.send_response(200)
            self.send_header("Content-Type", kind)
            self.end_headers()
            self.wfile.write(now[0]["openmetrics" if is_open else "text"])

        def log_message(self, format: str, *words: object) -> None:
            pass

    with answering(ThreadingHTTPServer(("127.0.0.1", 0), Exporter)) as port:
        target = f"127.0.0.1:{port}"
        jobs = []
        for name, stored in STORED.items():
            lines = "\n    ".join(stored.strip("{}").split(", ")) if stored.startswith("{") else stored
            jobs.append(JOB.format(name=name, stored=lines, target=target))
        (folder / "prometheus.yml").write_text("scrape_configs:\n" + "".join(jobs))
        with serving(
            folder / "prometheus.yml", folder / "data", "--enable-feature=native-histograms"
        ) as prometheus:
            for number, scrape in enumerate(served):
                now[0] = scrape  # served until every job has stored it
                stored = f"count_over_time(stepscope_samples_total[1h]) > {number}"
                prometheus.wait_for(f"count({stored}) == {len(STORED)}")
            yield prometheus.url


@pytest.fixture(scope="module")
def as_text(url: str) -> Analysis:
    return read(url, "text")


def read(url: str, stored: str) -> Analysis:
    return evaluate(open_source(f"prometheus+{url}?run=simulated&cluster={stored}"))


def test_the_classic_series_are_those_of_the_run(as_text: Analysis) -> None:
    assert {one.rule for one in as_text.rules if one.status == "found"} == {
        "CPUBottleneck",  # six of the eight GPUs have no rank
        "DataStarved",
        "Dataloader",
        "LoadBalancing",
        "LowGPUUtilization",
    }


@pytest.mark.parametrize("stored", ["openmetrics", "custom-buckets", "both"])
def test_a_run_has_the_same_findings(url: str, as_text: Analysis, stored: str) -> None:
    found = read(url, stored)
    assert found.samples_taken == as_text.samples_taken
    assert [(one.rule, one.status, one.finding) for one in found.rules] == [
        (one.rule, one.status, one.finding) for one in as_text.rules
    ]
    assert [(one.rank, one.phase, one.count, one.mean) for one in found.steps] == [
        (one.rank, one.phase, one.count, one.mean) for one in as_text.steps
    ]


def test_custom_buckets_are_what_was_converted(url: str) -> None:
    """Otherwise the other tests would compare classic series with themselves."""
    query = Prometheus(url).query
    assert not query('stepscope_step_duration_seconds_bucket{cluster="custom-buckets"}')
    assert query('stepscope_step_duration_seconds{cluster="custom-buckets"}')[0]["histogram"]
