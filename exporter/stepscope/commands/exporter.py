"""`stepscope exporter`: samples this node and serves its metrics until SIGTERM or SIGINT."""

import asyncio
import logging
import os
import socket
from argparse import ArgumentParser, Namespace
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from stepscope.common.durations import parse_duration, positive_duration
from stepscope.common.errors import UserError
from stepscope.exporter.collectors import add_flags, discover, enabled, summary
from stepscope.exporter.exporter import Exporter
from stepscope.exporter.ledgers.run_processes import Command
from stepscope.exporter.sampling.limits import Limits, add_limit_flags
from stepscope.exporter.sampling.profiles import PROFILES
from stepscope.exporter.sampling.state_directory import state_directory
from stepscope.runs.recording.live import LiveRecording
from stepscope.training.ledger_files import open_directory
from stepscope.web.log import add_log_level, log_to_stderr
from stepscope.web.pages import Pages
from stepscope.web.serving import Serving, add_serving_flags

logger = logging.getLogger(__name__)

DEFAULT_ADDRESS = ":9870"

EXAMPLES = """\
examples:
  stepscope exporter                                        serve on port 9870 of every address
  stepscope exporter --web.listen-address 127.0.0.1:9870    only this machine may scrape
  stepscope exporter --run resnet --no-collector.network    count samples for a run without ledgers
  stepscope exporter --web.config.file web.yml              TLS and passwords, as in node_exporter

what the collectors read:
"""


def add_arguments(parser: ArgumentParser) -> None:
    """Adds every flag of `stepscope exporter`, with the collectors' flags."""
    collectors = discover()
    width = max(len(collector.name) for collector in collectors)
    table = "\n".join(f"  {collector.name:{width}}  {summary(collector)}" for collector in collectors)
    parser.epilog = EXAMPLES + table

    web = add_serving_flags(parser, DEFAULT_ADDRESS)
    web.add_argument(
        "--web.listen-fd",
        dest="listen_fd",
        type=int,
        metavar="N",
        help="serve on the listening socket inherited as descriptor N (stepscope run)",
    )
    web.add_argument(
        "--report-dir", type=Path, metavar="DIR", help="serve DIR/report.html at /report (stepscope run)"
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
        help="directory that keeps the sample counters over a restart; no other user may have write access"
        " (default: systemd's STATE_DIRECTORY, or stepscope/NODE-PORT in XDG_STATE_HOME, or in /var/lib)",
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
        "--recording.lines",
        dest="record_lines",
        action="store_true",
        help="also record the lines that processes under STEPSCOPE_LINES=1 sample",
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
    parser.add_argument(
        "--metrics.profile",
        dest="profile",
        choices=PROFILES,
        default="default",
        help="which metrics a scrape has: those of fewer rules for large clusters, those that rules, "
        "dashboards and reports read, or all (default: %(default)s)",
    )
    add_limit_flags(parser)
    add_log_level(parser)
    parser.add_argument(
        "--exit-with-parent",
        nargs="?",
        type=int,
        const=os.getppid(),
        metavar="PID",
        help="exit when the process that started the exporter ends; PID: which one, if it may be gone by now",
    )
    parser.set_defaults(collectors=collectors)


def run(arguments: Namespace) -> int:
    """Serves until SIGTERM or SIGINT, then returns 0; or 1 if it could not serve any more.

    Raises UserError before anything is started.
    """
    log_to_stderr(arguments.log_level)
    parent: int | None = arguments.exit_with_parent
    serving = Serving.of(vars(arguments), DEFAULT_ADDRESS)
    with ExitStack() as stack:
        # The ports come first: if one is taken, nothing has been written yet.
        sockets = _sockets(serving, arguments.listen_fd, stack)
        state = stack.enter_context(state_directory(arguments.state_dir, serving.addresses[0].port))
        _make_ledger_directory(arguments.ledger_dir)
        exporter = Exporter(
            enabled(_settings(arguments), arguments.collectors),
            interval=arguments.sample_interval,
            node=arguments.node,
            run=arguments.run,
            state_directory=state,
            run_retention=arguments.run_retention,
            recording=(
                LiveRecording(arguments.recording, arguments.record_lines) if arguments.recording else None
            ),
            limits=Limits.from_flags(vars(arguments)),
            profile=arguments.profile,
            watchdog=serving.watchdog,
        )
        stack.callback(exporter.close)
        exporter.start()
        pages = Pages(exporter, serving, arguments.report_dir)
        status = asyncio.run(serving.until_stopped(pages.answer, sockets, parent))
    logger.info("stopped")
    return status


def _settings(arguments: Namespace) -> dict[str, Any]:
    """Returns the flags, and what collectors need of several of them."""
    of_run = arguments.exit_with_parent and arguments.run  # by `stepscope run`, next to its command
    return {
        **vars(arguments),
        "path_cgroups": arguments.path_sysfs / "fs" / "cgroup",
        "command": Command(arguments.run, os.getppid()) if of_run else None,
    }


def _make_ledger_directory(path: Path) -> None:
    """Makes the ledger directory if no training process has, as that would: for all users."""
    try:
        os.close(open_directory(str(path)))
    except OSError as error:
        if not path.is_dir():  # otherwise the collector reads it, or logs why not
            logger.warning("%s: the ledger directory cannot be made: %s", path, error.strerror)


def _sockets(serving: Serving, inherited: int | None, stack: ExitStack) -> list[socket.socket]:
    if inherited is None:
        return serving.bind(stack)
    try:
        return [stack.enter_context(socket.socket(fileno=inherited))]
    except (OSError, OverflowError, ValueError):
        raise UserError(f"--web.listen-fd {inherited}: is not an inherited socket") from None
