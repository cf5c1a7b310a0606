"""The exporter's pages, by path."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from html import escape
from http import HTTPStatus
from pathlib import Path

from trainwatch import __version__
from trainwatch.exporter.exporter import Exporter
from trainwatch.sampling.exposition import CONTENT_TYPES, Format
from trainwatch.web.server import Request, Response, accepted
from trainwatch.web.web_config import BasicAuthentication

LANDING_PAGE = """\
<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width">
<title>Trainwatch on {node}</title>
<style>
:root {{ color-scheme: light dark; font: 16px/1.5 system-ui, sans-serif }}
body {{ max-width: 40rem; margin: 3rem auto; padding: 0 1rem }}
</style>
</head>
<body>
<h1>Trainwatch on {node}</h1>
{notice}<p>This exporter publishes metrics of the node's processors, GPUs and training processes.</p>
<ul>
<li><a href="/metrics">Metrics</a> for Prometheus</li>
{report}<li><a href="/-/healthy">Healthy?</a> and <a href="/-/ready">ready?</a></li>
</ul>
<p>Version {version}</p>
</body>
</html>
"""
SIMULATED_NOTICE = "<p><strong>Simulated: nothing here was measured ({scenario}).</strong></p>\n"
REPORT_LINK = '<li><a href="/report">Report</a> of the run so far</li>\n'


class Pages:
    """The handler of the exporter's server."""

    def __init__(
        self,
        exporter: Exporter,
        report_directory: Path | None = None,
        authentication: BasicAuthentication | None = None,
    ) -> None:
        self._exporter = exporter
        self._report = report_directory / "report.html" if report_directory else None
        self._authentication = authentication
        self._pages: dict[str, Callable[[Request], Response]] = {
            "/": self._landing_page,
            "/metrics": self._metrics,
            "/-/healthy": lambda _: _text(HTTPStatus.OK, "Healthy"),
            "/-/ready": self._readiness,
            "/report": self._report_page,
            "/report/content": self._report_content,
        }

    async def answer(self, request: Request) -> Response:
        """Returns the response to any request."""
        if self._authentication and not await self._authentication.allows(
            request.headers.get("authorization", "")
        ):
            return _text(HTTPStatus.UNAUTHORIZED, "Unauthorized", **{"WWW-Authenticate": "Basic"})
        page = self._pages.get(request.path)
        if page is None:
            return _text(HTTPStatus.NOT_FOUND, "Not found: / lists all pages")
        if request.method not in ("GET", "HEAD"):
            return _text(HTTPStatus.METHOD_NOT_ALLOWED, "Only GET and HEAD", Allow="GET, HEAD")
        return page(request)

    def _metrics(self, request: Request) -> Response:
        wanted = negotiate(request.headers.get("accept", ""))
        metrics = self._exporter.scrape(wanted)
        return Response(HTTPStatus.OK, metrics, CONTENT_TYPES[wanted], {"Vary": "Accept"})

    def _readiness(self, _: Request) -> Response:
        if self._exporter.ready():
            return _text(HTTPStatus.OK, "Ready")
        return _text(HTTPStatus.SERVICE_UNAVAILABLE, "Not ready: no sample has been taken yet")

    def _landing_page(self, _: Request) -> Response:
        simulated = escape(self._exporter.simulated)
        page = LANDING_PAGE.format(
            node=escape(self._exporter.node),
            notice=SIMULATED_NOTICE.format(scenario=simulated) if simulated else "",
            report=REPORT_LINK if self._report else "",
            version=__version__,
        )
        return _html(page.encode())

    def _report_page(self, _: Request) -> Response:
        if self._report is None:
            return _text(HTTPStatus.NOT_FOUND, "No report: this exporter was started without --report-dir")
        try:
            return _html(self._report.read_bytes())
        except FileNotFoundError:
            return _text(HTTPStatus.NOT_FOUND, "No report yet: the first evaluation writes it")

    def _report_content(self, request: Request) -> Response:
        """Returns the page without its scripts, which an open page already runs: a tenth of its size."""
        whole = self._report_page(request)
        return replace(whole, body=whole.body.partition(b"<script>")[0])


def _text(status: HTTPStatus, words: str, **headers: str) -> Response:
    return Response(status, f"{words}\n".encode(), headers=headers)


def _html(page: bytes) -> Response:
    return Response(HTTPStatus.OK, page, "text/html; charset=utf-8", {"Cache-Control": "no-cache"})


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
