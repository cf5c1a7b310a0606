"""The real exporter in a process of its own, listening on a port that the kernel chose."""

import queue
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping
from types import TracebackType

import requests
from prometheus_client.openmetrics.parser import text_string_to_metric_families

from tests.support.commands import stepscope
from tests.support.waiting import SECONDS, wait_until

Labels = Mapping[str, str]
OPENMETRICS = {"Accept": "application/openmetrics-text; version=1.0.0"}
ANY_PORT = "127.0.0.1:0"  # the kernel chooses one


class ExporterProcess:
    """`stepscope exporter FLAGS`; entering the context waits until it is ready."""

    def __init__(
        self,
        *flags: object,
        environment: Mapping[str, str] | None = None,
        listen: str = ANY_PORT,
    ) -> None:
        words = [f"--web.listen-address={listen}", *map(str, flags)]
        self.command = [sys.executable, "-m", "stepscope", "exporter", *words]
        self.environment = environment
        self.log: list[str] = []
        self.url = ""

    def __enter__(self) -> "ExporterProcess":
        self.process = subprocess.Popen(
            self.command, stderr=subprocess.PIPE, text=True, env=self.environment, encoding="utf-8"
        )
        lines: queue.Queue[str | None] = queue.Queue()
        self._reader = threading.Thread(target=self._read_log, args=(lines,))
        self._reader.start()
        deadline = time.monotonic() + SECONDS
        while not self.url:
            line = lines.get(timeout=max(0.0, deadline - time.monotonic()))
            assert line is not None, f"the exporter ended: {self.log}"
            if match := re.search(r"listening on (\S+)/$", line):
                self.url = match[1]
        if self.url.startswith("http:"):
            self.wait_for(
                lambda: requests.get(f"{self.url}/-/ready", timeout=SECONDS).status_code in (200, 401)
            )
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.process.poll() is None:
            self.stop()
        self._reader.join()
        assert self.process.stderr is not None
        self.process.stderr.close()

    def stop(self, number: signal.Signals = signal.SIGTERM) -> int:
        """Sends a signal and returns the exit status."""
        self.process.send_signal(number)
        return self.process.wait(SECONDS)

    def get(self, path: str, **options: object) -> requests.Response:
        return requests.get(f"{self.url}{path}", timeout=SECONDS, **options)  # type: ignore[arg-type]

    def scrape(self) -> "Scrape":
        response = self.get("/metrics", headers=OPENMETRICS)
        assert response.status_code == 200
        return Scrape(response.text)

    def wait_for(self, condition: Callable[[], bool]) -> None:
        """Waits until it holds; fails with the log when it never does, or when the exporter has ended."""

        def holds() -> bool:
            assert self.process.poll() is None, self.log
            return condition()

        wait_until(holds, self.log)

    def _read_log(self, lines: queue.Queue[str | None]) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self.log.append(line.rstrip("\n"))
            lines.put(line.rstrip("\n"))
        lines.put(None)


class Scrape:
    """The samples of one scrape, as Prometheus's OpenMetrics parser reads them."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.families = list(text_string_to_metric_families(text))  # type: ignore[no-untyped-call]
        self.samples: dict[tuple[str, frozenset[tuple[str, str]]], float] = {
            (sample.name, frozenset(sample.labels.items())): sample.value
            for family in self.families
            for sample in family.samples
        }

    def value(self, name: str, **labels: str) -> float:
        return self.samples[name, frozenset(labels.items())]

    def all(self, name: str) -> dict[frozenset[tuple[str, str]], float]:
        return {labels: value for (each, labels), value in self.samples.items() if each == name}

    def __contains__(self, name: str) -> bool:
        return bool(self.all(name))


def exporter(*words: str) -> subprocess.CompletedProcess[str]:
    """Runs an exporter that is expected to end by itself, in the process of the test."""
    return stepscope("exporter", *words)
