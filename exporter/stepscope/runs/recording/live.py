"""The recording that a running exporter writes: its samples, steps, ranks and lines."""

import os
from collections import deque
from collections.abc import Collection, Set
from pathlib import Path

from stepscope.exporter.collectors.training import TrainingCollector
from stepscope.exporter.sampling.sample import Sample


class LiveRecording:
    """Writes what an exporter samples to `directory`, with `lines` also the line samples of its processes.

    `begin` raises UserError if the directory cannot be written.
    """

    def __init__(self, directory: Path, lines: bool = False) -> None:
        self._directory = directory
        self._record_lines = lines

    def begin(self, node: str, interval: float, run: str | None, training: TrainingCollector | None) -> None:
        # numpy and pyarrow, only for recordings
        from stepscope.runs.recording.lines import continued
        from stepscope.runs.recording.writer import RecordingWriter, folder_of

        self._told = run  # None: all runs of this node
        self._writer = RecordingWriter(
            self._directory, node, interval, run or self._directory.absolute().name
        )
        self._lines = (
            continued(training.folder.path, folder_of(self._directory, node))
            if training and self._record_lines
            else None
        )
        self._lines_written: deque[Set[str]] = deque()  # files whose samples are recorded
        self._training = training
        self._paused: dict[tuple[str, int], dict[str, float]] = {}  # by run and rank
        self._refusals = 0  # that the writer knows
        if training:
            training.keep_steps = True

    def keep(self, sample: Sample) -> None:
        observed = self._training.observed_run if self._training else None
        if observed and observed != self._told:
            self._told = observed
            self._writer.rename(observed)
        self._writer.sample(sample)
        for label, run in sample.runs.items():
            for process in run.processes:
                if process.paused_seconds:
                    self._paused[label, process.rank] = process.paused_seconds
        self._keep_ledgers()
        self._keep_lines()

    def catch_up(self) -> None:
        self._writer.catch_up()

    def close(self) -> None:
        self._keep_ledgers()
        self._keep_lines(all=True)
        self._writer.close()

    def _keep_lines(self, all: bool = False) -> None:
        """Reads some files of line samples; records them once all have been read."""
        lines = self._lines
        if lines is None or self._training is None:
            return
        while self._lines_written:
            lines.remove(self._lines_written.popleft())
        runs: Collection[tuple[str, int]] = self._training.folder.labels
        if self._told is not None:
            runs = {(self._told, self._training.owners.get(self._told, os.geteuid()))}
        if lines.read_all(runs) if all else lines.look(runs):
            self._writer.lines(
                lines.counts(), dict(lines.retired), set(lines.removed), self._lines_written.append
            )

    def _keep_ledgers(self) -> None:
        if self._training is None:
            return
        for header, records in self._training.take_steps():
            self._writer.steps(header, records)
        training = self._training
        self._writer.ranks(training.ranks, training.looked, training.presences, dict(self._paused))
        if len(training.folder.refusals) > self._refusals:
            self._refusals = len(training.folder.refusals)
            refusals = training.folder.refusals.items()
            self._writer.refused({(run, rank): what for (_, run, rank), what in refusals})
