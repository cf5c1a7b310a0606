"""Metrics of the exporter's own web server."""

from __future__ import annotations

from collections.abc import Sequence

from stepscope.exporter.sampling.families import Family
from stepscope.web.messages import Request
from stepscope.web.serving import Serving

# Prometheus sends it, like everything that scrapes with its code; browsers and curl do not.
SCRAPER = "x-prometheus-scrape-timeout-seconds"


class WebMetrics:
    """Publishes what the server refused, and whether its configuration file could be reread."""

    def __init__(self, serving: Serving) -> None:
        self._serving = serving
        self._refused = Family(
            "stepscope_web_refused_total",
            "counter",
            "Connections and requests that the web server refused because of a limit.",
            ("reason",),
        )
        self._scrapes = Family(
            "stepscope_exporter_scrapes_total", "counter", "Scrapes by Prometheus and servers like it."
        )
        self._scraped = 0
        self._reloaded = Family(
            "stepscope_web_config_last_reload_successful",
            "gauge",
            "Whether the web configuration file could be used when it was last read (1) or not (0).",
        )

    def read(self, request: Request) -> Sequence[Family]:
        """Returns the families with current samples, for a request of /metrics."""
        self._scraped += SCRAPER in request.headers
        self._scrapes.publish({(): self._scraped})
        self._refused.publish({(reason,): count for reason, count in self._serving.refusals.counts.items()})
        self._reloaded.publish({(): int(self._serving.config.last_reload_successful)})
        return self._refused, self._scrapes, self._reloaded
