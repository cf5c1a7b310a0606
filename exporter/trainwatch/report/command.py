"""`trainwatch report`: writes the report of a recorded run, again or with other parameters."""

from __future__ import annotations

import os
import sys
import time
from argparse import ArgumentParser, Namespace
from pathlib import Path

from trainwatch.errors import UserError
from trainwatch.evaluation.engine import evaluate
from trainwatch.evaluation.settings import Settings
from trainwatch.node.duration import positive_duration
from trainwatch.recording.directory import RecordingDirectory
from trainwatch.recording.source import Source
from trainwatch.report.write import write_report

EXAMPLES = """\
examples:
  trainwatch report trainwatch-runs/resnet-1 --out trainwatch-runs/resnet-1
  trainwatch report runs/7 --out /tmp/stricter --set CPUBottleneck.cpu_threshold=80 --set StepOutlier.stddev=2

Writes DIR/report.html, which opens without a network, and DIR/profiler-reports/RULE.json for each rule.
"""
PROGRESS_EVERY = 0.2  # seconds


def add_arguments(parser: ArgumentParser) -> None:
    """The flags of `trainwatch report`."""
    parser.epilog = EXAMPLES
    parser.add_argument(
        "source", metavar="SOURCE", help="the recording: a directory that `trainwatch run` wrote"
    )
    parser.add_argument("--out", type=Path, required=True, metavar="DIR", help="where to write the report")
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="Rule.parameter=value",
        help="set a parameter of a rule, may be repeated",
    )
    parser.add_argument(
        "--scan-interval",
        type=positive_duration,
        default="60s",
        metavar="DURATION",
        help="time between two scans of the rules, in the run's time (default: %(default)s)",
    )


def run(arguments: Namespace) -> int:
    """Evaluates and writes. Raises UserError for a bad flag, recording or directory; writes nothing then."""
    settings = Settings.parse(arguments.set)
    source = open_source(arguments.source)
    _check_writable(arguments.out)
    progress = _Progress()
    try:
        analysis = evaluate(source, settings, arguments.scan_interval, progress.update)
    finally:
        progress.end()
    try:
        write_report(analysis, arguments.out)
    except OSError as error:
        raise _unwritable(arguments.out, error) from error
    print(arguments.out / "report.html")
    return 0


def open_source(word: str) -> Source:
    """The run that SOURCE names. Raises UserError where there is none, or where its kind cannot be read."""
    if "://" in word:
        raise UserError(
            f"{word}: only recordings can be read; give the directory that `trainwatch run` wrote"
        )
    return RecordingDirectory(Path(word))


def _check_writable(directory: Path) -> None:
    """Says what is wrong with --out before the minutes of an evaluation, and makes nothing yet."""
    if directory.exists() and not directory.is_dir():
        raise UserError(f"{directory}: is a file; give a directory with --out")
    existing = next(path for path in (directory, *directory.absolute().parents) if path.exists())
    if not (existing.is_dir() and os.access(existing, os.W_OK | os.X_OK)):
        raise UserError(f"{directory}: cannot be written; choose another directory with --out")


def _unwritable(directory: Path, error: OSError) -> UserError:
    return UserError(f"cannot write to {directory}: {error.strerror}; choose another directory with --out")


class _Progress:
    """One line on a terminal that counts what was read; nothing where stderr is no terminal."""

    def __init__(self) -> None:
        self._shown = sys.stderr.isatty()
        self._next = 0.0

    def update(self, rows: int) -> None:
        """`rows` are the snapshots and steps read so far."""
        now = time.monotonic()
        if self._shown and now >= self._next:
            self._next = now + PROGRESS_EVERY
            sys.stderr.write(f"\rread {rows:,} samples and steps")
            sys.stderr.flush()

    def end(self) -> None:
        if self._shown and self._next:
            sys.stderr.write("\r\033[K")
            sys.stderr.flush()
