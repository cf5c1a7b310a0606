"""Scrapes an exporter that is killed all the time, and checks that no counter of a run ever falls."""

import http.client
import re
import socket
import time

from trials.commands import SECONDS

# What a run uses of the host and the pauses of its ranks are published only while their processes are seen,
# and each attempt of the launcher has others.
_COUNTER = re.compile(
    r'(?!stepscope_run_|stepscope_rank_paused_)\w+_(total|count|sum|bucket)\{(.*,)?run="trial-'
)


class Counters:
    """The counters of the run `trial`, as a Prometheus would see them over restarts of the exporter.

    A counter that falls breaks the promise, and so does one that is missing in more than a few scrapes.
    """

    def __init__(self) -> None:
        self.port = _free_port()
        self.scrapes = 0
        self.gaps = 0  # scrapes without some of the counters: a busy machine may delay a collector too long
        self._latest: dict[str, float] = {}

    def scrape(self) -> dict[str, float]:
        """Returns every sample by its series; empty while the exporter does not answer."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=SECONDS)
        try:
            connection.request("GET", "/metrics")
            response = connection.getresponse()
            text = response.read().decode() if response.status == 200 else ""
        except (OSError, http.client.HTTPException):  # it starts, or was killed
            return {}
        finally:
            connection.close()
        pairs = (line.rpartition(" ") for line in text.splitlines() if not line.startswith("#"))
        samples = {series: float(value) for series, _, value in pairs}
        self._check(samples)
        return samples

    def scrape_until(self, deadline: float) -> dict[str, float]:
        """Scrapes repeatedly until a moment of `time.monotonic()`. Returns the last answer."""
        latest: dict[str, float] = {}
        while time.monotonic() < deadline:
            latest = self.scrape() or latest
            time.sleep(0.005)
        return latest

    def wait_for(self, series: str, value: float | None = None) -> dict[str, float]:
        """Scrapes until the series exists, with the value if one is given. Returns that scrape."""
        deadline = time.monotonic() + SECONDS
        while series not in (samples := self.scrape()) or value not in (None, samples[series]):
            assert time.monotonic() < deadline, f"{series} is {samples.get(series)}, not {value}"
            time.sleep(0.005)
        return samples

    def _check(self, samples: dict[str, float]) -> None:
        counters = {series: value for series, value in samples.items() if _COUNTER.match(series)}
        if not counters:  # before the first sample of this exporter
            return
        self.scrapes += 1
        vanished = [series for series in self._latest if series not in counters]
        self.gaps += bool(vanished)
        assert self.gaps <= 2 + self.scrapes / 20, f"{self.gaps} of {self.scrapes} scrapes lack {vanished[0]}"
        for series, value in counters.items():
            before = self._latest.get(series, 0.0)
            assert value >= before, f"{series} fell from {before:g} to {value:g}"
        self._latest.update(counters)


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])
