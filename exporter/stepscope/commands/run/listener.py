"""The port of the live pages: bound once by `stepscope run` and inherited by every exporter it starts.

A port that is only found free here, and bound later by the exporter, may be taken by another run meanwhile.
After the exporter has ended, this process serves the page there until it has become the report.
"""

from __future__ import annotations

import asyncio
import socket
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from http import HTTPStatus
from pathlib import Path

from stepscope.commands.run.terminal import say
from stepscope.common.errors import UserError
from stepscope.web.hosts import Hosts
from stepscope.web.messages import Request, Response
from stepscope.web.report_page import PATHS, ReportPage, text
from stepscope.web.server import Server, bind, parse_address

DEFAULT_ADDRESS = "127.0.0.1:9870"
FIRST_SECONDS = 10.0  # for a page to ask: browsers ask less often for pages in the background
MORE_SECONDS = 2.5  # for the other pages, which ask every 2 s, too
METRICS = "/metrics"
AFTER_THE_RUN = "The run has ended and nothing is measured any more: only /report is left"


@dataclass(frozen=True)
class Listener:
    """A listening socket, and its address with the port that it really has."""

    socket: socket.socket
    address: str  # [HOST]:PORT
    note: str = ""  # if it is not the usual one

    @property
    def reachable(self) -> str:
        """Returns the HOST:PORT at which this machine reaches the pages."""
        host, _, port = self.address.rpartition(":")
        return f"127.0.0.1:{port}" if host in ("", "0.0.0.0") else self.address.replace("[::]", "[::1]")


def listen(given: str | None) -> Listener:
    """Listens on the given address, otherwise on the default one, or on a free port if that is taken.

    Raises UserError if the given address is taken or wrong.
    """
    if given is not None:
        try:
            return _listen(given)
        except UserError as error:
            raise UserError(str(error).replace("--web.listen-address", "--listen")) from None
    try:
        return _listen(DEFAULT_ADDRESS)
    except UserError:
        host, _, port = DEFAULT_ADDRESS.rpartition(":")
        listener = _listen(f"{host}:0")
        return replace(listener, note=f"port {port} is taken; serving on {listener.address} instead")


def _listen(address: str) -> Listener:
    listening = bind(parse_address(address))
    return Listener(listening, f"{address.rpartition(':')[0]}:{listening.getsockname()[1]}")


@contextmanager
def last_page(
    listener: Listener, watched: bool, report: Path, external_urls: Sequence[str]
) -> Iterator[Callable[[bool], None]]:
    """Yields a function that waits until open pages show the report, if it was written.

    If no page is open, clients are refused from now on, so that none waits in vain.
    """
    page = None
    if watched:
        with suppress(RuntimeError):  # the system has no thread left
            page = LastPage(listener, report, external_urls)
    if page is None:
        listener.socket.close()
        yield lambda _: None
        return

    def hand_over(written: bool) -> None:
        if written:
            say("waiting until the page in your browser shows the report (Ctrl-C skips this)", "dim")
            page.hand_over()

    try:
        yield hand_over
    finally:
        page.stop()


class LastPage:
    """A thread that serves `/report` on the port that the exporter has left.

    `/metrics` is answered with 503: nothing measures any more, and old values would look like new ones.
    Prometheus has read how the run ended (`ExporterProcess.publish`).
    """

    def __init__(self, listener: Listener, report: Path, external_urls: Sequence[str]) -> None:
        self._listener = listener
        self._hosts = Hosts([parse_address(listener.address).host], external_urls)
        self._page = ReportPage(report)
        self._stopping = threading.Event()
        self._thread = threading.Thread(
            target=lambda: asyncio.run(self._serve()), name="last page", daemon=True
        )
        self._thread.start()

    def hand_over(self) -> None:
        """Waits until an open page has got the report of the finished run, and the others could."""
        deadline = time.monotonic() + FIRST_SECONDS
        while not self._page.handed_over and time.monotonic() < deadline:
            time.sleep(0.05)
        if self._page.handed_over:
            time.sleep(MORE_SECONDS)

    def stop(self) -> None:
        self._stopping.set()
        self._thread.join()

    async def _serve(self) -> None:
        server = Server(self._answer, hosts=self._hosts)
        server.start([self._listener.socket])
        while not self._stopping.is_set():
            await asyncio.sleep(0.05)
        await server.close()

    async def _answer(self, request: Request) -> Response:
        if request.path in PATHS and request.method in ("GET", "HEAD"):
            return await self._page.answer(request)
        measured = request.path == METRICS
        return text(HTTPStatus.SERVICE_UNAVAILABLE if measured else HTTPStatus.NOT_FOUND, AFTER_THE_RUN)
