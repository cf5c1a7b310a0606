"""The parts that all commands with a web server share: flags, log, and serving until a signal."""

import asyncio
import logging
import os
import socket
from argparse import ArgumentParser, _ArgumentGroup
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from stepscope import __version__
from stepscope.common.signals import SERVED, unblocked
from stepscope.common.watchdog import Watchdog
from stepscope.web.hosts import EXTERNAL_URLS, Hosts
from stepscope.web.limits import Limits, Refusals, add_limit_flags, limits_of
from stepscope.web.messages import Handler
from stepscope.web.server import Server, bind, parse_address
from stepscope.web.web_config import WebConfig

logger = logging.getLogger(__name__)

PARENT_CHECK_SECONDS = 0.5


def add_serving_flags(
    parser: ArgumentParser, default_address: str, limits: Limits | None = None
) -> _ArgumentGroup:
    """Adds the `--web.` flags, for `Serving.of`, with these default limits. Returns their group."""
    web = parser.add_argument_group("serving")
    web.add_argument(
        "--web.listen-address",
        dest="listen",
        action="append",
        metavar="[HOST]:PORT",
        help=f"address to serve on, may be repeated (default: {default_address})",
    )
    web.add_argument(
        "--web.external-url",
        help="URL at which browsers open this server, may be repeated; IP addresses, localhost and the host "
        "name are always allowed, other names only for /metrics",
        **EXTERNAL_URLS,
    )
    web.add_argument(
        "--web.config.file",
        dest="web_config",
        type=Path,
        metavar="FILE",
        help="TLS, client certificates and passwords, in the format of Prometheus's exporter-toolkit; "
        "reread when it changes",
    )
    add_limit_flags(web, limits or Limits())
    return web


class Serving:
    """How a command serves: where, for whom, within which limits, and what it has refused."""

    def __init__(
        self,
        listen: Sequence[str],
        external_urls: Sequence[str] = (),
        config: Path | None = None,
        limits: Limits | None = None,
    ) -> None:
        """Raises UserError for a wrong address or configuration file."""
        self.addresses = [parse_address(text) for text in listen]
        self._hosts = Hosts([address.host for address in self.addresses], external_urls)
        self._limits = limits
        self.config = WebConfig(config)
        self.refusals = Refusals()
        self.watchdog = Watchdog()

    @staticmethod
    def of(flags: Mapping[str, Any], default_address: str) -> "Serving":
        """Returns what the flags say. Raises UserError."""
        listen = flags["listen"] or [default_address]
        return Serving(listen, flags["external_urls"], flags["web_config"], limits_of(flags))

    def bind(self, stack: ExitStack) -> list[socket.socket]:
        """Returns the listening sockets, which the stack closes. Raises UserError."""
        return [stack.enter_context(bind(address)) for address in self.addresses]

    async def until_stopped(
        self, handler: Handler, sockets: Sequence[socket.socket], parent: int | None = None
    ) -> int:
        """Serves until SIGTERM or SIGINT, or until `parent` is no longer the parent of this process.

        Signals that arrived while they were blocked end it at once. Afterwards they are blocked again, so a
        second one does not interrupt what the command still has to write. Returns the exit status: 1 if the
        watchdog gave up, otherwise 0.
        """
        stopping = asyncio.Event()
        loop = asyncio.get_running_loop()
        for number in SERVED:
            loop.add_signal_handler(number, stopping.set)
        server = Server(handler, self.config, self._limits, self._hosts, self.refusals, self.watchdog)
        scheme = "https" if self.config.tls else "http"
        for listening in sockets:
            host, port = listening.getsockname()[:2]
            shown = f"[{host}]" if ":" in host else host
            logger.info("stepscope %s listening on %s://%s:%d/", __version__, scheme, shown, port)
        server.start(sockets)
        self.config.watch()
        watch = asyncio.create_task(_until_parent_is_gone(parent, stopping)) if parent else None
        with unblocked(SERVED):
            await stopping.wait()
        if watch:
            watch.cancel()
        await server.close()
        self.config.close()
        return int(self.watchdog.gave_up)


async def _until_parent_is_gone(parent: int, stopping: asyncio.Event) -> None:
    while os.getppid() == parent:
        await asyncio.sleep(PARENT_CHECK_SECONDS)
    logger.info("the process that started this exporter is gone")
    stopping.set()
