"""How often a run was scraped, and how long a scrape may have gone unseen by rules."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from trainwatch.crosscheck.readings import matcher
from trainwatch.crosscheck.server import Milliseconds, Server

SAMPLES = "trainwatch_samples_total"
WHOLE = 100  # milliseconds: scrapes are whole multiples of it apart
# Storing a scrape comes on top of the scrape: up to this, and on a busy machine as much longer as the scrape.
STORED = 500
BUSY = 3


@dataclass(frozen=True)
class ScrapeTimes:
    """`mostly` and at the `longest` from one scrape to the next; `unseen`: until one was stored, at most."""

    mostly: Milliseconds
    longest: Milliseconds
    unseen: Milliseconds

    @property
    def delays(self) -> tuple[Milliseconds, ...]:
        """How old what an evaluation saw may have been: so that no scrape lies between two of them."""
        times = range(self.mostly // 2, self.unseen, self.mostly // 2)
        return (*times, self.unseen) if self.unseen else ()


def scrape_times(server: Server, run: str, start: Milliseconds, end: Milliseconds) -> ScrapeTimes:
    """Of the run's nodes, between two moments. Raises UserError where the server fails."""
    unseen = round(1000 * BUSY * server.longest_scrape(start, end)) + STORED
    points = server.points(f"{SAMPLES}{{{matcher('run', run)}}}", start, end)
    gaps = [np.diff(times) for times, _ in points.values()]
    every = np.concatenate(gaps) if gaps else np.empty(0)
    if not len(every):  # scraped once: there is nothing between two scrapes
        return ScrapeTimes(2 * unseen, 2 * unseen, unseen)
    mostly = max(WHOLE, WHOLE * round(float(np.median(every)) / WHOLE))
    return ScrapeTimes(mostly, max(mostly, int(every.max())), unseen)
