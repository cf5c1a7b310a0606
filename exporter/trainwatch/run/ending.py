"""The end of `trainwatch run`: completes the recording, and prints the verdict and the findings."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

from trainwatch.evaluation.analysis import Analysis
from trainwatch.report.sentences import counts
from trainwatch.run.terminal import say
from trainwatch.runs.recording.files import RunFile
from trainwatch.runs.recording.writer import RecordingWriter
from trainwatch.status import Status
from trainwatch.training.reader import LedgerError, LedgerReader, open_ledgers
from trainwatch.words import count

FINDINGS = 3  # on the terminal; the report has all


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


def say_summary(analysis: Analysis, report: Path) -> None:
    """Prints a few lines, the most costly finding first."""
    found = [rule for rule in analysis.rules if rule.status is Status.FOUND]
    states = counts(analysis)
    if found:
        say(f"verdict: found {', '.join(rule.rule for rule in found)}", "warning")
    elif Status.HEALTHY in states:
        say(f"verdict: healthy, nothing found by {count(states[Status.HEALTHY], 'rule')}", "good")
    else:
        say("verdict: not enough data, the run was too short to judge")
    for rule in found[:FINDINGS]:
        say(f"  {rule.finding}")
        say(f"    {rule.recommendation}")
    if len(found) > FINDINGS:
        say(f"  and {len(found) - FINDINGS} more in the report")
    if not analysis.steps:
        say("no steps were recorded, so only the machine was judged. To record steps, change the loop:")
        say('  import trainwatch; for batch in trainwatch.watch(loader): with trainwatch.step("train"): ...')
    say(f"report: {shown(report)}")


def shown(path: Path) -> str:
    """Returns the path, relative to the current directory if it is inside."""
    try:
        return str(path.relative_to(Path.cwd()))
    except (ValueError, OSError):
        return str(path)
