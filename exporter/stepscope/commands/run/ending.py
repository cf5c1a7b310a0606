"""The end of `stepscope run`: completes the recording."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

from stepscope.commands.run.source_lines import source_lines
from stepscope.commands.run.terminal import say
from stepscope.exporter.ledgers.reader import LedgerError, LedgerReader, open_ledgers
from stepscope.runs.recording.files import RunFile
from stepscope.runs.recording.lines import continued
from stepscope.runs.recording.writer import RecordingWriter, folder_of


def finish_recording(
    directory: Path,
    node: str,
    run: RunFile,
    ledgers: Path,
    why_no_steps: Callable[[], str],
    command: Sequence[str],
) -> None:
    """Completes the recording after the exporter has ended, normally or not.

    Journals become parts. Steps that the exporter has not read are read from the ledgers, and the text of
    lines from the files of the command. Raises OSError or UserError; the recording can still be read.
    """
    run.write(directory)
    writer = RecordingWriter(directory, node, run.interval, run.run)
    try:
        steps = _record_ledgers(writer, ledgers)
        _record_lines(writer, ledgers, folder_of(directory, node), run, command)
    finally:
        writer.close()
    if not steps:
        replace(run, no_steps=why_no_steps()).write(directory)


def _record_ledgers(writer: RecordingWriter, ledgers: Path) -> int:
    """Records what the exporter has not read. Returns the number of all steps of the run."""
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
        return sum(totals.steps_recorded for _, totals, _ in ranks)


def _record_lines(
    writer: RecordingWriter, ledgers: Path, folder: Path, run: RunFile, command: Sequence[str]
) -> None:
    lines = continued(ledgers, folder)
    lines.read_all({(run.run, os.geteuid())})
    if counts := lines.counts():
        places = [line.place for of_thread in counts.values() for line in of_thread.lines if line.place]
        sources = source_lines(places, command, run.start) if run.start is not None else {}
        writer.lines(counts, lines.retired, set(lines.removed), lines.remove, sources)
