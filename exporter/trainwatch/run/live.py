"""Evaluates the run while it trains: prints findings on the terminal and writes the live report page."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from trainwatch.errors import describe
from trainwatch.run.terminal import say
from trainwatch.runs.recording.directory import RecordingDirectory
from trainwatch.status import Status
from trainwatch.whole_file import write_whole

if TYPE_CHECKING:
    from trainwatch.evaluation.analysis import Analysis, RuleResult
    from trainwatch.evaluation.engine import Evaluator
    from trainwatch.evaluation.settings import Settings

BUSY_SHARE = 0.05  # of a core for evaluations and pages: slow evaluations are less frequent
PRINT_AGAIN_AFTER = 300.0  # seconds between two lines about a rule, so that an unstable finding stays quiet


class Findings:
    """Prints each finding once when it appears, and once when it is over."""

    def __init__(self) -> None:
        self._fired: set[str] = set()
        self._printed_at: dict[str, float] = {}

    def update(self, rules: Iterable[RuleResult], now: float) -> None:
        """Prints the changes. `now` is in seconds of any clock that does not go back."""
        for rule in rules:
            fired = rule.status is Status.FOUND
            if fired == (rule.rule in self._fired) or self._just_printed(rule.rule, now):
                continue
            self._printed_at[rule.rule] = now
            if fired:
                self._fired.add(rule.rule)
                say(f"{rule.rule}: {rule.finding}", "warning")
                say(f"  {rule.recommendation}", "dim")
            else:
                self._fired.discard(rule.rule)
                say(f"{rule.rule}: no longer the case", "good")

    def _just_printed(self, rule: str, now: float) -> bool:
        return now - self._printed_at.get(rule, -PRINT_AGAIN_AFTER) < PRINT_AGAIN_AFTER


class LiveView:
    """A thread that evaluates the growing recording. It prints a failure once; the command continues."""

    def __init__(
        self,
        directory: Path,
        settings: Settings,
        scan_interval: float,
        every: float,
        price: float | None = None,
    ) -> None:
        self._price = price
        self._directory = directory
        self._settings = settings
        self._scan_interval = scan_interval
        self._every = every
        self._findings = Findings()
        self._evaluator: Evaluator | None = None
        self._stopping = threading.Event()
        self._failure = ""
        self._thread = threading.Thread(target=self._run, name="live view", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Ends the thread after the evaluation in progress."""
        self._stopping.set()
        if self._thread.ident is not None:
            self._thread.join()

    def final_analysis(self) -> Analysis:
        """Returns the analysis of the whole recording, after `stop`. Raises what the evaluation raises."""
        evaluator = self._evaluator
        if evaluator is None or self._failure:  # a new evaluator may work after a half-read chunk
            evaluator = self._new_evaluator()
        evaluator.advance()
        return evaluator.analysis()

    def _run(self) -> None:
        pause = self._every
        while not self._stopping.wait(pause):
            before = time.monotonic()
            try:
                self._update()
            except Exception as error:  # noqa: BLE001 - the command and its recording always continue
                self._note_failure(error)
            pause = max(self._every, (time.monotonic() - before) / BUSY_SHARE)

    def _update(self) -> None:
        from trainwatch.report.html import render_html

        if self._failure or self._evaluator is None:
            self._evaluator = self._new_evaluator()
        self._evaluator.advance()
        analysis = self._evaluator.analysis(live=True)
        self._failure = ""
        self._findings.update(analysis.rules, time.monotonic())
        page = render_html(analysis, refresh_seconds=round(self._every) or 1, price=self._price)
        write_whole(self._directory / "report.html", page)

    def _new_evaluator(self) -> Evaluator:
        from trainwatch.evaluation.engine import Evaluator

        return Evaluator(RecordingDirectory(self._directory), self._settings, self._scan_interval)

    def _note_failure(self, error: Exception) -> None:
        if not self._failure:
            say(
                f"the live report is stale: {describe(error)}; the command and the recording continue",
                "warning",
            )
        self._failure = describe(error)
