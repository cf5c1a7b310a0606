"""Plays a case on a simulated node, and reads what Stepscope says of it: report.json, terminal, scrapes."""

import io
import json
import re
from collections.abc import Collection
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from stepscope.commands.cli import main as stepscope
from stepscope.commands.demo import Written, simulated_directory
from stepscope.demo.node import INTERVAL, SimulatedClock, make_exporter
from stepscope.demo.runs import SimulatedRun
from stepscope.exporter.sampling.sample import Sample
from stepscope.prometheus.crosscheck.server import Series
from stepscope.runs.recording.live import LiveRecording

from trials.fault_matrix.case import Case
from trials.fault_matrix.training import Training
from trials.shared_cluster.machine import Scrapes, use_this_thread
from trials.shared_cluster.plan import START
from trials.simulated_node import FailingNode, GroupedPlace

SCRAPE_SECONDS = 15
CATCH_UP_TICKS = 50


@dataclass(frozen=True)
class Finding:
    """A problem that report.json lists, in its order."""

    rules: list[str]  # the rule that explains it best, and others that saw it
    words: str
    seconds_lost: float | None
    printed: bool  # whether the terminal has its title and its words


@dataclass(frozen=True)
class Alert:
    """A firing alert, as Alertmanager gets it."""

    rule: str
    place: str  # "rank 2", "GPU 2" or empty
    begin: float  # seconds after the run's start


@dataclass
class Seen:
    """What was said about a run."""

    status: str  # of the verdict
    findings: list[Finding]
    not_enough_data: list[str]  # rules
    alerts: list[Alert] = field(default_factory=list)


def play(case: Case, instance: str, read: Collection[str]) -> tuple[Seen, list[Series]]:
    """Returns what the report says, and the series that a Prometheus scrapes from a node of this name."""
    with simulated_directory() as directory:
        recording = directory / "recording"
        series = list(_simulate(case, instance, directory, recording, read))
        return report(recording, directory / "report"), series


def _simulate(
    case: Case, instance: str, directory: Path, recording: Path, read: Collection[str]
) -> list[Series]:
    training = case.training()
    start = float(START + case.phase)
    written = Written(training, case.seed, instance, start, recording)
    clock = SimulatedClock(start)
    node = FailingNode(case.name, start, directory, training.nvml())
    run = SimulatedRun(
        training, case.seed, instance, directory, start, duration=training.length, place=_place(training)
    )
    node.add(run)
    exporter = make_exporter(node, clock, directory, LiveRecording(recording), name=instance)
    use_this_thread(exporter)
    scrapes = Scrapes({"cluster": "truth", "instance": instance})
    every = int(SCRAPE_SECONDS / INTERVAL)
    try:
        for tick in range(1 + int(training.length / INTERVAL)):
            if tick:
                clock.advance(INTERVAL)
            if training.is_silent(tick * INTERVAL):
                break
            training.strike(node, run, tick * INTERVAL)
            exporter.tick()
            if tick % every == 0:
                text = exporter.scrape("text").decode()
                scrapes.add(round(1000 * clock.time()), text, read)
            if tick % CATCH_UP_TICKS == 0:
                exporter.catch_up()
    finally:
        exporter.close()
    while run.alive:  # without the exporter
        node.collect(Sample(clock.time()))
        if round((clock.time() - start) / INTERVAL) % every == 0:
            scrapes.add(round(1000 * clock.time()), None, read)
        clock.advance(INTERVAL)
    written.end(start + training.length, run.ended_well)
    return list(scrapes.series())


def _place(training: Training) -> GroupedPlace:
    limit = training.cpu_limit
    return GroupedPlace(
        cores=range(training.core_count),
        gpus=range(training.ranks),
        cpu_limit=None if limit is None else limit * training.ranks,
        in_group=True,
    )


def report(recording: Path, out: Path) -> Seen:
    """Returns what `stepscope report` writes and prints about a recording."""
    terminal = io.StringIO()
    with redirect_stdout(terminal), redirect_stderr(terminal):
        status = stepscope(["report", str(recording), "--out", str(out)])
    if status:
        raise RuntimeError(f"{recording}: the report failed:\n{terminal.getvalue()}")
    return read_report(json.loads((out / "report.json").read_text()), terminal.getvalue())


def read_report(document: dict[str, Any], terminal: str) -> Seen:
    """Reads report.json and the text of the terminal."""
    printed = _one_line(terminal)
    verdict = document["verdict"]
    findings = [
        Finding(
            [found["rule"], *found["also"]],
            found["finding"],
            found["seconds_lost"],
            _is_printed(found["title"], _one_line(found["finding"]), printed),
        )
        for found in verdict["findings"]
    ]
    unknown = [rule["rule"] for rule in document["rules"] if rule["status"] == "not enough data"]
    return Seen(verdict["status"], findings, sorted(unknown))


def _is_printed(title: str, finding: str, printed: str) -> bool:
    """Returns whether the terminal has a block with the title and the begin of the finding.

    A finding of the account begins with its cost, which the terminal prints after the title.
    """
    cost, _, rest = finding.partition(". ")
    if f"{title}: {cost} why {rest[:60]}" in printed:
        return True
    return re.search(rf"{re.escape(title)}(: [^▲]*)? why {re.escape(finding[:60])}", printed) is not None


def _one_line(text: str) -> str:
    return re.sub(r"\s+", " ", text).strip()
