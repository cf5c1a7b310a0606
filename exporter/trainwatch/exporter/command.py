"""`trainwatch exporter`: samples this node and serves its metrics until SIGTERM or SIGINT."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
from argparse import ArgumentParser, Namespace
from contextlib import ExitStack, suppress
from pathlib import Path

from trainwatch.collectors import add_flags, discover, enabled, summary
from trainwatch.durations import parse_duration, positive_duration
from trainwatch.exporter.exporter import Exporter
from trainwatch.exporter.pages import Pages
from trainwatch.training.ledger_files import open_directory
from trainwatch.web.server import bind, parse_address
from trainwatch.web.serving import add_log_level, add_serving_flags, log_to_stderr, serve_until_stopped
from trainwatch.web.web_config import read_web_config

logger = logging.getLogger(__name__)

DEFAULT_ADDRESS = ":9870"

EXAMPLES = """\
examples:
  trainwatch exporter                                        serve on port 9870 of every address
  trainwatch exporter --web.listen-address 127.0.0.1:9870    only this machine may scrape
  trainwatch exporter --run resnet --no-collector.network    count samples for a run without ledgers
  trainwatch exporter --web.config.file web.yml              TLS and passwords, as in node_exporter

what the collectors read:
"""


def add_arguments(parser: ArgumentParser) -> None:
    """Adds every flag of `trainwatch exporter`, with the collectors' flags."""
    collectors = discover()
    width = max(len(collector.name) for collector in collectors)
    table = "\n".join(f"  {collector.name:{width}}  {summary(collector)}" for collector in collectors)
    parser.epilog = EXAMPLES + table

    web = add_serving_flags(parser, DEFAULT_ADDRESS)
    web.add_argument(
        "--report-dir", type=Path, metavar="DIR", help="serve DIR/report.html at /report (trainwatch run)"
    )

    sampling = parser.add_argument_group("sampling")
    sampling.add_argument(
        "--sample-interval",
        type=positive_duration,
        default="500ms",
        metavar="DURATION",
        help="time between two samples (default: %(default)s)",
    )
    sampling.add_argument(
        "--run", metavar="NAME", help="always count samples for this run, with or without ledgers"
    )
    sampling.add_argument(
        "--state-dir",
        type=Path,
        metavar="DIR",
        help="directory that keeps the sample counters over a restart (default: the ledger directory)",
    )
    sampling.add_argument(
        "--run-retention",
        type=parse_duration,
        default="5m",
        metavar="DURATION",
        help="how long the sample counters of a run are published after its end (default: %(default)s)",
    )
    sampling.add_argument(
        "--recording.dir",
        dest="recording",
        type=Path,
        metavar="DIR",
        help="also record every sample and step",
    )
    sampling.add_argument(
        "--node", metavar="NAME", help="name of this node in recordings (default: the host name)"
    )

    sources = parser.add_argument_group("sources")
    for name, root in (("procfs", "/proc"), ("sysfs", "/sys")):
        sources.add_argument(
            f"--path.{name}",
            dest=f"path_{name}",
            type=Path,
            default=Path(root),
            metavar="DIR",
            help="default: %(default)s",
        )
    add_flags(parser, collectors)
    add_log_level(parser)
    parser.add_argument(
        "--exit-with-parent", action="store_true", help="exit when the process that started the exporter ends"
    )
    parser.set_defaults(collectors=collectors)


def run(arguments: Namespace) -> int:
    """Serves until SIGTERM or SIGINT, then returns 0. Raises UserError before anything is started."""
    log_to_stderr(arguments.log_level)
    if arguments.exit_with_parent:  # `trainwatch run` blocks signals, and its children inherit that
        signal.pthread_sigmask(signal.SIG_SETMASK, ())
    parent = os.getppid() if arguments.exit_with_parent else None
    web = read_web_config(arguments.web_config)
    listen = arguments.listen or [DEFAULT_ADDRESS]
    with ExitStack() as stack:
        # The ports come first: if one is taken, nothing has been written yet.
        sockets = [stack.enter_context(bind(parse_address(text))) for text in listen]
        exporter = Exporter(
            enabled(arguments, arguments.collectors),
            interval=arguments.sample_interval,
            node=arguments.node,
            run=arguments.run,
            state_directory=arguments.state_dir or _shared_directory(arguments.ledger_dir),
            run_retention=arguments.run_retention,
            recording=arguments.recording,
        )
        stack.callback(exporter.close)
        exporter.start()
        pages = Pages(exporter, arguments.report_dir, web.authentication)
        asyncio.run(serve_until_stopped(pages.answer, web, sockets, parent=parent))
    logger.info("stopped")
    return 0


def _shared_directory(ledgers: Path) -> Path:
    """Returns the ledger directory, made as a training process makes it: every user can write to it."""
    with suppress(OSError):  # reported when the directory is used
        os.close(open_directory(str(ledgers)))
    return ledgers
