"""Completes a recording: the last steps of the ledgers, and the command's exit status."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

from trainwatch.run.terminal import say
from trainwatch.runs.recording.files import RunFile
from trainwatch.runs.recording.writer import RecordingWriter
from trainwatch.training.reader import LedgerError, LedgerReader, open_ledgers


def finish_recording(
    directory: Path, node: str, run: RunFile, ledgers: Path, end: float, exit_status: int
) -> None:
    """Completes the recording after the exporter has ended, normally or not.

    Journals become parts. Steps that the exporter has not read are read from the ledgers. Raises OSError or
    UserError; the recording can still be read.
    """
    replace(run, end=end, exit_status=exit_status).write(directory)
    writer = RecordingWriter(directory, node, run.interval, run.name)
    try:
        _record_ledgers(writer, ledgers)
    finally:
        writer.close()


def _record_ledgers(writer: RecordingWriter, ledgers: Path) -> None:
    with ExitStack() as opened:
        ranks = []
        for path in open_ledgers(ledgers):
            try:
                reader = opened.enter_context(LedgerReader(path))
                steps, _ = reader.new_steps()
                totals = reader.totals()
            except (LedgerError, OSError) as error:
                say(f"a ledger could not be read to its end: {error}", "warning")
                continue
            writer.steps(reader.header, steps)
            ranks.append((reader.header, totals, reader.alive()))
        writer.ranks(ranks)
