"""The exporter's pages, by path."""

from collections.abc import Awaitable, Callable, Sequence
from html import escape
from http import HTTPStatus
from pathlib import Path

from stepscope import __version__
from stepscope.common import PUBLIC_DOCS
from stepscope.common.words import listing
from stepscope.exporter.exporter import Exporter
from stepscope.exporter.sampling.exposition import CONTENT_TYPES, Format
from stepscope.exporter.sampling.families import Family, FamilyTable
from stepscope.web.messages import CONTENT_SECURITY_POLICY, Request, RequestError, Response, accepted
from stepscope.web.report_page import PATHS, STYLE, STYLE_POLICY, ReportPage, html, text
from stepscope.web.serving import Serving

# Prometheus sends it, like everything that scrapes with its code; browsers and curl do not.
SCRAPER = "x-prometheus-scrape-timeout-seconds"
LANDING_PAGE = """\
<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width">
<title>Stepscope on {node}</title>
<style>{style}</style>
</head>
<body>
<h1>Stepscope on {node}</h1>
{notice}<p>This exporter publishes metrics of the node's processors, GPUs and training processes.</p>
<ul>
<li><a href="metrics">Metrics</a> for Prometheus</li>
{report}<li><a href="-/healthy">Healthy?</a> and <a href="-/ready">ready?</a></li>
<li><a href="{docs}">Documentation</a></li>
</ul>
<p>Runs: {runs}.</p>
<p>Collectors: {collectors}.</p>
<p>Version {version}</p>
</body>
</html>
"""
SIMULATED_NOTICE = "<p><strong>Simulated: nothing here was measured ({scenario}).</strong></p>\n"
MOST_RUNS = 20  # on that page
REPORT_LINK = '<li><a href="report">Report</a> of the run so far</li>\n'


class Pages:
    """The handler of the exporter's server."""

    def __init__(self, exporter: Exporter, serving: Serving, report_directory: Path | None = None) -> None:
        self._exporter = exporter
        self._report = ReportPage(report_directory / "report.html") if report_directory else None
        self._authentication = serving.config.authentication
        self._web_metrics = WebMetrics(serving)
        self._watchdog = serving.watchdog
        self._pages: dict[str, Callable[[Request], Response | Awaitable[Response]]] = {
            "/": self._landing_page,
            "/metrics": self._metrics,
            "/-/healthy": lambda _: text(HTTPStatus.OK, "Healthy"),
            "/-/ready": self._readiness,
            **dict.fromkeys(PATHS, self._report_page),
            "/report/watched": self._watched,
        }

    async def answer(self, request: Request) -> Response:
        """Returns the response to any request."""
        if request.path != "/metrics":
            return await self._answer(request)
        try:
            response = await self._answer(request)
        except RequestError:  # caused by the client
            raise
        except Exception as error:
            self._watchdog.failed("answering /metrics", error)
            raise
        if response.status == HTTPStatus.OK:
            self._watchdog.worked("answering /metrics")
        return response

    async def _answer(self, request: Request) -> Response:
        if not await self._authentication.allows(request):
            return text(HTTPStatus.UNAUTHORIZED, "Unauthorized", **{"WWW-Authenticate": "Basic"})
        page = self._pages.get(request.path)
        if page is None:
            return text(HTTPStatus.NOT_FOUND, "Not found: / lists all pages")
        if request.method not in ("GET", "HEAD"):
            return text(HTTPStatus.METHOD_NOT_ALLOWED, "Only GET and HEAD", Allow="GET, HEAD")
        response = page(request)
        return response if isinstance(response, Response) else await response

    def _metrics(self, request: Request) -> Response:
        wanted = negotiate(request.headers.get("accept", ""))
        metrics = self._exporter.scrape(wanted, self._web_metrics.read(request))
        return Response(HTTPStatus.OK, metrics, CONTENT_TYPES[wanted], {"Vary": "Accept"})

    def _readiness(self, _: Request) -> Response:
        if self._exporter.ready():
            return text(HTTPStatus.OK, "Ready")
        return text(HTTPStatus.SERVICE_UNAVAILABLE, "Not ready: no sample has been taken yet")

    def _landing_page(self, _: Request) -> Response:
        simulated = escape(self._exporter.simulated)
        page = LANDING_PAGE.format(
            style=STYLE,
            node=escape(self._exporter.node),
            notice=SIMULATED_NOTICE.format(scenario=simulated) if simulated else "",
            report=REPORT_LINK if self._report else "",
            docs=escape(PUBLIC_DOCS),
            runs=escape(self._runs()),
            collectors=escape(self._collectors()),
            version=__version__,
        )
        return html(page.encode(), f"{CONTENT_SECURITY_POLICY}; {STYLE_POLICY}")

    def _runs(self) -> str:
        """Returns the runs that are published now, each with its user."""
        seen = {(labels["run"], labels["user"]) for labels, _ in self._published("stepscope_run_info")}
        runs = [f"{run} of {user}" if user else run for run, user in sorted(seen)]
        more = [f"{len(runs) - MOST_RUNS} more"] if len(runs) > MOST_RUNS else []
        return listing([*runs[:MOST_RUNS], *more]) or "none now"

    def _collectors(self) -> str:
        """Returns the collectors that have a source here, and which of them fail."""
        read = self._published("stepscope_collector_success")
        said = [labels["collector"] + ("" if works else " (failing)") for labels, works in read]
        return listing(sorted(said)) or "none"

    def _published(self, name: str) -> list[tuple[dict[str, str], float]]:
        """Returns the labels and values of a family that is published now."""
        return [
            (dict(zip(family.labels, labels, strict=True)), value)
            for family in self._exporter.families()
            if family.name == name
            for labels, value in family.samples.items()
        ]

    def _watched(self, _: Request) -> Response:
        """Says to `stepscope run` whether somebody waits for the report."""
        return text(HTTPStatus.OK, "yes" if self._report and self._report.is_watched() else "no")

    async def _report_page(self, request: Request) -> Response:
        if self._report is None:
            return text(HTTPStatus.NOT_FOUND, "No report: this exporter was started without --report-dir")
        return await self._report.answer(request)


def negotiate(accept: str) -> Format:
    """Returns the format that an `Accept` header prefers, otherwise text.

    The most specific range that matches a format gives its q (RFC 9110, 12.5.1). Only clients that name
    OpenMetrics get it: `*/*`, which browsers and curl send, gets text.
    """
    text, openmetrics = (-1, 0.0), (-1, 0.0)  # (how specific, q)
    for media_range, parameters, quality in accepted(accept):
        version = parameters.get("version", "")
        specific = 2 + bool(version)
        if media_range == "application/openmetrics-text" and version in ("", "1.0.0"):
            openmetrics = max(openmetrics, (specific, quality))
        elif media_range == "text/plain" and version in ("", "0.0.4"):
            text = max(text, (specific, quality))
        elif media_range in ("text/*", "*/*"):
            text = max(text, (1 if media_range == "text/*" else 0, quality))
    return "openmetrics" if openmetrics[1] > 0 and openmetrics[1] >= text[1] else "text"


METRICS = """
counter stepscope_web_refused_total{reason}
    Connections and requests that the web server refused because of a limit.
counter stepscope_exporter_scrapes_total
    Scrapes by Prometheus and servers like it.
gauge stepscope_web_config_last_reload_successful
    Whether the web configuration file could be used when it was last read (1) or not (0).
"""


class WebMetrics:
    """Publishes what the server refused, and whether its configuration file could be reread."""

    def __init__(self, serving: Serving) -> None:
        self._serving = serving
        self._families = tuple(FamilyTable(METRICS).values())
        self._scraped = 0

    def read(self, request: Request) -> Sequence[Family]:
        """Returns the families with current samples, for a request of /metrics."""
        self._scraped += SCRAPER in request.headers
        refused, scrapes, reloaded = self._families
        refused.publish({(reason,): count for reason, count in self._serving.refusals.counts.items()})
        scrapes.publish({(): self._scraped})
        reloaded.publish({(): int(self._serving.config.last_reload_successful)})
        return self._families
