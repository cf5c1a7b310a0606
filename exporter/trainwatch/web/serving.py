"""The parts that all commands with a web server share: flags, log, and serving until a signal."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import socket
import sys
from argparse import ArgumentParser, _ArgumentGroup
from collections.abc import Sequence
from pathlib import Path

from trainwatch import __version__
from trainwatch.web.server import Handler, Limits, Server
from trainwatch.web.web_config import WebConfig

logger = logging.getLogger(__name__)

PARENT_CHECK_SECONDS = 0.5


def add_serving_flags(parser: ArgumentParser, default_address: str) -> _ArgumentGroup:
    """Adds `--web.listen-address` (`arguments.listen`) and `--web.config.file`. Returns their group."""
    web = parser.add_argument_group("serving")
    web.add_argument(
        "--web.listen-address",
        dest="listen",
        action="append",
        metavar="[HOST]:PORT",
        help=f"address to serve on, may be repeated (default: {default_address})",
    )
    web.add_argument(
        "--web.config.file",
        dest="web_config",
        type=Path,
        metavar="FILE",
        help="TLS and basic authentication, in the format of Prometheus's exporter-toolkit",
    )
    return web


async def serve_until_stopped(
    handler: Handler,
    web: WebConfig,
    sockets: Sequence[socket.socket],
    limits: Limits | None = None,
    parent: int | None = None,
) -> None:
    """Serves until SIGTERM or SIGINT, or until `parent` is no longer the parent of this process."""
    stopping = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopping.set)
    server = Server(handler, web.tls, limits)
    scheme = "https" if web.tls else "http"
    for listening in sockets:
        host, port = listening.getsockname()[:2]
        shown = f"[{host}]" if ":" in host else host
        logger.info("trainwatch %s listening on %s://%s:%d/", __version__, scheme, shown, port)
    server.start(sockets)
    watch = asyncio.create_task(_until_parent_is_gone(parent, stopping)) if parent else None
    await stopping.wait()
    if watch:
        watch.cancel()
    await server.close()
    if web.authentication:
        web.authentication.close()


async def _until_parent_is_gone(parent: int, stopping: asyncio.Event) -> None:
    while os.getppid() == parent:
        await asyncio.sleep(PARENT_CHECK_SECONDS)
    logger.info("the process that started this exporter is gone")
    stopping.set()


def add_log_level(parser: ArgumentParser) -> None:
    """Adds `--log-level`, for `log_to_stderr`."""
    parser.add_argument(
        "--log-level",
        choices=("debug", "info", "warning", "error"),
        default="info",
        help="default: %(default)s",
    )


def log_to_stderr(level: str) -> None:
    """Logs everything at this level (debug, info, warning, error) or above on stderr."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_OneLine("%(asctime)s %(levelname)s %(message)s"))
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)


class _OneLine(logging.Formatter):
    """One line per event, even if a message has several; only unexpected errors have a traceback."""

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 - logging's name
        return super().formatMessage(record).replace("\n", r"\n")
