"""Findings that are accepted for the runs of this node, from --accepted.file."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from pathlib import Path

from trainwatch.accepted import AcceptedFile, of_run
from trainwatch.sampling.collector import Collector, collector
from trainwatch.sampling.families import Family
from trainwatch.sampling.sample import Sample

KEPT_SECONDS = 1800.0  # after a run was last seen: its alerts last as long as their windows


@collector
class AcceptedCollector(Collector):
    """Publishes the entries about the runs that train here or did so lately, until they end.

    No rule knows of them: Alertmanager inhibits the alerts of an accepted rule and run. If the file is wrong,
    the collector fails, and nothing is accepted.
    """

    name = "accepted"
    after = ("training",)

    def __init__(self, file: Path | None, run: str | None = None) -> None:
        self._file = AcceptedFile(file) if file else None
        self._always = {run: run} if run else {}  # the run that a flag names
        self._seen: dict[str, tuple[float, str]] = {}  # by run: when, and its name
        self._info = Family(
            "trainwatch_finding_accepted_info",
            "info",
            "A rule whose finding is accepted for a run: why, until when, and by whom.",
            ("run", "rule", "reason", "until", "by"),
        )
        self.families = [self._info]

    @classmethod
    def add_arguments(cls, parser: ArgumentParser) -> None:
        parser.add_argument(
            "--accepted.file",
            dest="accepted_file",
            type=Path,
            metavar="FILE",
            help="accepted findings, as `trainwatch accept --file FILE` writes them; read again when it "
            "changes (default: none)",
        )

    @classmethod
    def from_arguments(cls, arguments: Namespace) -> AcceptedCollector:
        return cls(arguments.accepted_file, arguments.run)

    def collect(self, sample: Sample) -> None:
        if self._file is None:
            return
        self._seen.update({run: (sample.time, its.name) for run, its in sample.runs.items()})
        self._seen = {run: seen for run, seen in self._seen.items() if sample.time - seen[0] < KEPT_SECONDS}
        runs = self._always | {run: name for run, (_, name) in self._seen.items()}
        entries = [entry for entry in self._file.entries() if sample.time < entry.end]
        self._info.publish(
            {
                (run, rule, entry.reason, entry.until, entry.by): 1
                for run, name in runs.items()
                for rule, entry in of_run(entries, {run, name}).items()
            }
        )
