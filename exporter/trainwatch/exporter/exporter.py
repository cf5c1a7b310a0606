"""The exporter without its server: collectors, sampler, sample counters, recording, and their scrape."""

from __future__ import annotations

import logging
import socket
from collections.abc import Callable, Sequence
from pathlib import Path

from trainwatch.collectors.training import TrainingCollector
from trainwatch.exporter.process import ProcessMetrics
from trainwatch.sampling.collector import Collector
from trainwatch.sampling.exposition import Exposition, Format
from trainwatch.sampling.families import Family
from trainwatch.sampling.registry import PATIENCE_SECONDS, Registry
from trainwatch.sampling.sample import Sample
from trainwatch.sampling.sample_counters import SampleCounters
from trainwatch.sampling.sampler import Clock, Sampler

logger = logging.getLogger(__name__)


class Exporter:
    """Samples one node. `tick` or, after `start`, a thread takes a sample; `scrape` publishes the metrics.

    `run` is always active, with or without ledgers. The sample counters are kept in `state_directory`
    (None: they do not survive a restart), and published for `run_retention` seconds after a run's end.
    `recording` is a directory that gets every sample and step.

    The last four are for simulations: the clock, more sinks of samples, the scenario's name, and the seconds
    that a collector may take, which must suffice on a busy machine.
    """

    def __init__(
        self,
        collectors: Sequence[Collector],
        interval: float = 0.5,
        node: str | None = None,
        run: str | None = None,
        state_directory: Path | None = None,
        run_retention: float = 300.0,
        recording: Path | None = None,
        clock: Clock | None = None,
        sinks: Sequence[Callable[[Sample], None]] = (),
        simulated: str = "",
        patience: float = PATIENCE_SECONDS,
    ) -> None:
        clock = clock or Clock()
        self.simulated = simulated
        self.node = node or socket.gethostname().partition(".")[0]
        training = next((each for each in collectors if isinstance(each, TrainingCollector)), None)
        self._registry = Registry(collectors, patience)
        self._recording = (
            _Recording(recording, self.node, interval, run, training, clock) if recording else None
        )
        self._counters = SampleCounters(
            state_directory,
            lambda: training.active_runs if training else (),
            run=run,
            retention=run_retention,
            now=clock.time(),
        )
        every_sink = [self._counters.count, *sinks, *([self._recording.keep] if self._recording else [])]
        self._sampler = Sampler(self._registry, interval, every_sink, clock)
        self._process = ProcessMetrics(simulated)
        self._exposition = Exposition()

    def start(self) -> None:
        """Starts to sample."""
        self._sampler.start()

    def tick(self) -> None:
        """Takes one sample now, instead of `start`: for tests, benchmarks and simulations."""
        self._sampler.tick()

    def ready(self) -> bool:
        """Returns whether there is a first sample."""
        return self._sampler.ready

    def scrape(self, format: Format) -> bytes:
        """Returns all current metrics; while the sampler hangs, only those of the exporter itself."""
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
        """Ends the sampling, then records the steps that finished since the last tick."""
        if not self._sampler.stop():
            logger.warning("the sampler hangs in a reading; exiting without it")
            return
        if self._recording:
            self._recording.close()
        self._counters.close()
        self._registry.close()


class _Recording:
    """Passes samples, steps and ranks to the recording."""

    def __init__(
        self,
        directory: Path,
        node: str,
        interval: float,
        run: str | None,
        training: TrainingCollector | None,
        clock: Clock,
    ) -> None:
        from trainwatch.runs.recording.writer import RecordingWriter  # numpy and pyarrow, only for recordings

        self._writer = RecordingWriter(directory, node, interval, run or directory.absolute().name)
        self._training = training
        self._clock = clock
        self.catch_up = self._writer.catch_up
        if training:
            training.keep_steps = True

    def keep(self, sample: Sample) -> None:
        self._writer.sample(sample)
        self._keep_ledgers()

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
