"""Measures how often a run was scraped, and for how long rules may have missed a scrape."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from stepscope.prometheus.crosscheck.readings import matcher
from stepscope.prometheus.crosscheck.server import Milliseconds, Server

SAMPLES = "stepscope_samples_total"
WHOLE = 100  # milliseconds: scrape intervals are multiples of it
# Storing a scrape takes up to STORED milliseconds, and on a busy machine up to BUSY times the scrape itself.
STORED = 500
BUSY = 3


@dataclass(frozen=True)
class ScrapeTimes:
    """The usual time between scrapes; `unseen`: the longest time until one was stored."""

    mostly: Milliseconds
    unseen: Milliseconds

    @property
    def delays(self) -> tuple[Milliseconds, ...]:
        """Returns the delays to try: close enough that none skips a scrape."""
        times = range(self.mostly // 2, self.unseen, self.mostly // 2)
        return (*times, self.unseen) if self.unseen else ()


def scrape_times(server: Server, run: str, start: Milliseconds, end: Milliseconds) -> ScrapeTimes:
    """Returns the scrape times of the run's nodes. Raises UserError if Prometheus fails."""
    unseen = round(1000 * BUSY * server.longest_scrape(start, end)) + STORED
    points = server.points(f"{SAMPLES}{{{matcher('run', run)}}}", start, end)
    gaps = [np.diff(times) for times, _ in points.values()]
    every = np.concatenate(gaps) if gaps else np.empty(0)
    if not len(every):  # scraped once
        return ScrapeTimes(2 * unseen, unseen)
    mostly = max(WHOLE, WHOLE * round(float(np.median(every)) / WHOLE))
    return ScrapeTimes(mostly, unseen)
