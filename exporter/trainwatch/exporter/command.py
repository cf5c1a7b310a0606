"""`trainwatch exporter`: samples this node and serves its metrics until it is told to stop."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import socket
from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from trainwatch.collectors import add_flags, discover, enabled, summary
from trainwatch.collectors.training import TrainingCollector
from trainwatch.durations import parse_duration, positive_duration
from trainwatch.exporter.pages import Pages
from trainwatch.exporter.process import ProcessMetrics
from trainwatch.sampling.clock import Clock
from trainwatch.sampling.collector import Collector
from trainwatch.sampling.exposition import Exposition, Format
from trainwatch.sampling.families import Family
from trainwatch.sampling.registry import PATIENCE_SECONDS, Registry
from trainwatch.sampling.sample import Sample
from trainwatch.sampling.sample_counters import SampleCounters
from trainwatch.sampling.sampler import Sampler
from trainwatch.training.directory import open_directory
from trainwatch.web.logs import add_log_level
from trainwatch.web.logs import log_to_stderr as log_to_stderr
from trainwatch.web.server import bind, parse_address
from trainwatch.web.serving import add_serving_flags, serve_until_told
from trainwatch.web.web_config import WebConfig, read_web_config

if TYPE_CHECKING:
    from trainwatch.runs.recording.writer import RecordingWriter

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
    """Every flag of `trainwatch exporter`, those of the collectors included."""
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
        "--run", metavar="NAME", help="count samples for this run all the time, with ledgers or without"
    )
    sampling.add_argument(
        "--state-dir",
        type=Path,
        metavar="DIR",
        help="where the sample counters are kept over a restart (default: the ledger directory)",
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
    sources.add_argument(
        "--path.procfs",
        dest="path_procfs",
        type=Path,
        default=Path("/proc"),
        metavar="DIR",
        help="default: /proc",
    )
    sources.add_argument(
        "--path.sysfs",
        dest="path_sysfs",
        type=Path,
        default=Path("/sys"),
        metavar="DIR",
        help="default: /sys",
    )
    add_flags(parser, collectors)
    add_log_level(parser)
    parser.add_argument(
        "--exit-with-parent", action="store_true", help="exit when the process that started this one is gone"
    )
    parser.set_defaults(collectors=collectors)


def run(arguments: Namespace) -> int:
    """Serves until SIGTERM or SIGINT; returns 0. Raises UserError before anything has been started."""
    log_to_stderr(arguments.log_level)
    if arguments.exit_with_parent:  # `trainwatch run` blocks signals, and its children inherit that
        signal.pthread_sigmask(signal.SIG_SETMASK, ())
    parent = os.getppid()
    web = read_web_config(arguments.web_config) if arguments.web_config else WebConfig(None, None)
    addresses = [parse_address(text) for text in arguments.listen or [DEFAULT_ADDRESS]]
    with ExitStack() as stack:
        # The ports come first: where one is taken, nothing has been written yet.
        sockets = [stack.enter_context(bind(address)) for address in addresses]
        exporter = Exporter(arguments)
        stack.callback(exporter.close)
        exporter.start()
        watched = parent if arguments.exit_with_parent else None
        asyncio.run(serve(exporter, arguments.report_dir, web, sockets, watched))
    logger.info("stopped")
    return 0


class Exporter:
    """Everything but the serving: collectors, sampler, counters, recording, and the scrape of them all.

    A simulation gives its own collectors, its clock, sinks that want its samples as well, its name, and
    more patience with its collectors (seconds), so that a busy machine takes nothing from it.
    """

    def __init__(
        self,
        arguments: Namespace,
        collectors: Sequence[Collector] | None = None,
        clock: Clock | None = None,
        sinks: Sequence[Callable[[Sample], None]] = (),
        simulated: str = "",
        patience: float = PATIENCE_SECONDS,
    ) -> None:
        if collectors is None:
            collectors = enabled(arguments, arguments.collectors)
        clock = clock or Clock()
        self.simulated = simulated
        self.node: str = arguments.node or socket.gethostname().partition(".")[0]
        self._training = _training_of(collectors)
        self._recording = (
            _Recording.open(arguments, self.node, self._training, clock) if arguments.recording else None
        )
        self._registry = Registry(collectors, patience)
        self._counters = SampleCounters(
            arguments.state_dir or _shared_directory(arguments.ledger_dir),
            lambda: self._training.active_runs if self._training else (),
            told=arguments.run,
            retention=arguments.run_retention,
            now=clock.time(),
        )
        every_sink = [self._counters.count, *sinks]
        if self._recording:
            every_sink.append(self._recording.keep)
        self._sampler = Sampler(self._registry, arguments.sample_interval, every_sink, clock)
        self._process = ProcessMetrics(simulated)
        self._exposition = Exposition()

    def start(self) -> None:
        """Begins to sample."""
        self._sampler.start()

    def tick(self) -> None:
        """Takes one sample now; for who does not `start` the sampler, tests and benchmarks."""
        self._sampler.tick()

    def ready(self) -> bool:
        """Whether there is a first sample."""
        return self._sampler.ready

    def scrape(self, format: Format) -> bytes:
        """What the node and its runs are like now; while the sampler is stuck, only how the exporter is."""
        self._process.read()
        families: list[Family] = []
        if self._sampler.fresh():
            self._counters.publish()
            families += [*self._registry.families(), *self._counters.families]
        else:
            families += self._registry.own_families()
        return self._exposition.write([*families, *self._sampler.families, *self._process.families], format)

    def catch_up(self) -> None:
        """Waits until every sample so far is recorded; a simulation may be faster than the disk."""
        if self._recording:
            self._recording.catch_up()

    def close(self) -> None:
        """Ends the sampling, then takes the steps that finished since the last tick."""
        if not self._sampler.stop():
            logger.warning("the sampler hangs in a reading; leaving it behind")
            return
        if self._recording:
            self._recording.close()
        self._counters.close()
        self._registry.close()


class _Recording:
    """Hands what was sampled to the recording."""

    def __init__(self, writer: RecordingWriter, training: TrainingCollector | None, clock: Clock) -> None:
        self._writer = writer
        self._training = training
        self._clock = clock

    @classmethod
    def open(
        cls, arguments: Namespace, node: str, training: TrainingCollector | None, clock: Clock
    ) -> _Recording:
        from trainwatch.runs.recording.writer import (
            RecordingWriter,  # numpy and pyarrow: only who records pays
        )

        directory: Path = arguments.recording
        if training:
            training.keep_steps = True
        run = arguments.run or directory.absolute().name
        return cls(RecordingWriter(directory, node, arguments.sample_interval, run), training, clock)

    def keep(self, sample: Sample) -> None:
        self._writer.sample(sample)
        self._keep_ledgers()

    def catch_up(self) -> None:
        self._writer.catch_up()

    def close(self) -> None:
        if self._training:
            self._training.collect(Sample(time=self._clock.time()))
            self._keep_ledgers()
        self._writer.close()

    def _keep_ledgers(self) -> None:
        if self._training is None:
            return
        for header, records in self._training.take_steps():
            self._writer.steps(header, records)
        seen = [(ledger.header, ledger.totals, ledger.alive) for ledger in self._training.ledgers]
        self._writer.ranks(seen, self._clock.time())


async def serve(
    exporter: Exporter,
    report_directory: Path | None,
    web: WebConfig,
    sockets: Sequence[socket.socket],
    parent: int | None = None,
) -> None:
    """Serves until SIGTERM or SIGINT, or until the process `parent` is no longer this one's parent."""
    notice = f"Simulated: nothing here was measured ({exporter.simulated})." if exporter.simulated else ""
    pages = Pages(
        exporter.node, exporter.scrape, exporter.ready, report_directory, web.authentication, notice
    )
    await serve_until_told(pages.answer, web, sockets, parent=parent)


def _shared_directory(ledgers: Path) -> Path:
    """The ledger directory, made as a training process makes it: so that every user can train in it."""
    with suppress(OSError):  # said by who needs it
        os.close(open_directory(str(ledgers)))
    return ledgers


def _training_of(collectors: Iterable[Collector]) -> TrainingCollector | None:
    return next((collector for collector in collectors if isinstance(collector, TrainingCollector)), None)
