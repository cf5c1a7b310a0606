"""The page at /report: the report of a run, which changes while it lasts."""

import asyncio
import re
from base64 import b64encode
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from hashlib import sha256
from html import unescape
from http import HTTPStatus
from pathlib import Path
from threading import Thread
from time import monotonic
from typing import TypeVar

from stepscope.common.status import Status
from stepscope.web.messages import CONTENT_SECURITY_POLICY, Request, Response, in_gzip
from stepscope.web.web_config import stamp_of

PATHS = ("/report", "/report/content")
WATCHED_SECONDS = 6.0  # an open page asks every 2 s (live.js)
READING_SECONDS = 10.0  # for the file

STYLE = """
:root { color-scheme: light dark; font: 16px/1.5 system-ui, sans-serif }
body { max-width: 40rem; margin: 3rem auto; padding: 0 1rem }
"""
STYLE_POLICY = f"style-src 'sha256-{b64encode(sha256(STYLE.encode()).digest()).decode()}'"
FIRST_PAGE = f"""\
<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="refresh" content="1">
<meta name="viewport" content="width=device-width">
<title>Stepscope: {Status.COLLECTING}</title>
<style>{STYLE}</style>
</head>
<body>
<h1>{Status.COLLECTING.icon} {Status.COLLECTING}</h1>
<p>The run has begun. Its first figures come within seconds, and this page shows them by itself.</p>
</body>
</html>
"""

# A page that `report/page.py` writes has its own policy, which allows what is in that file, by hash.
META_POLICY = re.compile(rb'<meta http-equiv="Content-Security-Policy" content="([ -~]+?)">')
META_WITHIN = 1024  # bytes from the start of the page; names of runs come later
NOT_FRAMED = "frame-ancestors 'none'"  # counts in a header only
LIVE = re.compile(rb"<body[^>]* data-refresh-seconds=")
Result = TypeVar("Result")


class ReportPage:
    """A report on the disk. What is read and compressed is kept until the file changes.

    A thread reads it, because a disk that hangs must cost nobody the metrics.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._stamp: object = None
        self._responses: tuple[Response, Response]
        self._reading: asyncio.Future[tuple[Response, Response]] | None = None
        self._finished = False  # whether the report that was read last is of a run that has ended
        self._asked = -WATCHED_SECONDS
        self.handed_over = False  # whether such a report was an answer

    async def answer(self, request: Request) -> Response:
        """Returns the page; for /report/content without its scripts, which an open page already runs."""
        content = request.path == "/report/content"
        self._asked = monotonic()
        try:
            response = (await self._read_in_thread())[content]
        except FileNotFoundError:
            if content:
                return text(HTTPStatus.NOT_FOUND, "No report yet: the first evaluation writes it")
            return html(FIRST_PAGE.encode(), f"{CONTENT_SECURITY_POLICY}; {STYLE_POLICY}")
        except OSError as error:
            return text(HTTPStatus.SERVICE_UNAVAILABLE, f"The report cannot be read: {error.strerror}")
        except TimeoutError:
            return text(HTTPStatus.SERVICE_UNAVAILABLE, "The report is on a disk that does not answer")
        self.handed_over = self.handed_over or self._finished
        if request.headers.get("if-none-match") == response.headers["ETag"]:
            return Response(HTTPStatus.NOT_MODIFIED, b"", response.content_type, response.headers)
        return response

    def is_watched(self) -> bool:
        """Returns whether a browser shows the page."""
        return monotonic() - self._asked < WATCHED_SECONDS

    async def _read_in_thread(self) -> tuple[Response, Response]:
        """Returns the page, and the page without its scripts: a tenth of its size.

        Raises OSError, or TimeoutError if the disk hangs.
        """
        if self._reading is None or self._reading.done():
            self._reading = _in_thread(self._read)
        return await asyncio.wait_for(asyncio.shield(self._reading), READING_SECONDS)

    def _read(self) -> tuple[Response, Response]:
        stamp = stamp_of(self._path)
        if stamp != self._stamp:
            page = self._path.read_bytes()
            policy = META_POLICY.search(page, 0, META_WITHIN)
            allowed = f"{unescape(policy[1].decode())}; {NOT_FRAMED}" if policy else CONTENT_SECURITY_POLICY
            self._responses = html(page, allowed), html(page.partition(b"<script>")[0], allowed)
            self._finished = LIVE.search(page) is None
            self._stamp = stamp
        return self._responses


def _in_thread(act: Callable[[], Result]) -> asyncio.Future[Result]:
    """Starts a thread, and returns its result to come. If it hangs, the process can still exit."""
    loop = asyncio.get_running_loop()
    future: asyncio.Future[Result] = loop.create_future()
    future.add_done_callback(lambda done: done.cancelled() or done.exception())  # perhaps nobody waits for it

    def work() -> None:
        outcome: Callable[[], None]
        try:
            outcome = partial(future.set_result, act())
        except Exception as error:  # noqa: BLE001 - raised where the result is awaited
            outcome = partial(future.set_exception, error)
        with suppress(RuntimeError):  # the server has ended meanwhile
            loop.call_soon_threadsafe(outcome)

    Thread(target=work, name="report", daemon=True).start()
    return future


def text(status: HTTPStatus, words: str, **headers: str) -> Response:
    return Response(status, f"{words}\n".encode(), headers=headers)


def html(page: bytes, policy: str) -> Response:
    tag = f'W/"{sha256(page).hexdigest()[:32]}"'
    headers = {"Cache-Control": "no-cache", "Content-Security-Policy": policy, "ETag": tag}
    return Response(HTTPStatus.OK, page, "text/html; charset=utf-8", headers, in_gzip(page))
