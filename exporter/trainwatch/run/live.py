"""What is said while the run goes on: findings on the terminal, and the live report page."""

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

BUSY_SHARE = 0.05  # of a core that evaluation and page may take: where they take long, they come less often
SAY_AGAIN_AFTER = 300.0  # seconds of peace after a word about a rule, so that none flickers


class Findings:
    """Says each finding once when it appears, and once when it is over."""

    def __init__(self) -> None:
        self._fired: set[str] = set()
        self._said_at: dict[str, float] = {}

    def update(self, rules: Iterable[RuleResult], now: float) -> None:
        """Compares with what was said before. `now` is seconds of any clock that does not go back."""
        for rule in rules:
            fired = rule.status is Status.FOUND
            if fired == (rule.rule in self._fired) or self._just_said(rule.rule, now):
                continue
            self._said_at[rule.rule] = now
            if fired:
                self._fired.add(rule.rule)
                say(f"{rule.rule}: {rule.finding}", "warning")
                say(f"  {rule.recommendation}", "dim")
            else:
                self._fired.discard(rule.rule)
                say(f"{rule.rule}: no longer the case", "good")

    def _just_said(self, rule: str, now: float) -> bool:
        return now - self._said_at.get(rule, -SAY_AGAIN_AFTER) < SAY_AGAIN_AFTER


class LiveView:
    """A thread that evaluates the growing recording. A failure of it is said once and harms nothing else."""

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
        """Ends the thread; an evaluation that is under way is finished first."""
        self._stopping.set()
        if self._thread.ident is not None:
            self._thread.join()

    def final_analysis(self) -> Analysis:
        """The analysis of the whole recording, after `stop`. Raises what the evaluation raises."""
        evaluator = self._evaluator
        if evaluator is None or self._failure:  # a fresh start may work where a half-read chunk did not
            evaluator = self._new_evaluator()
        evaluator.advance()
        return evaluator.analysis()

    def _run(self) -> None:
        pause = self._every
        while not self._stopping.wait(pause):
            before = time.monotonic()
            try:
                self._update()
            except Exception as error:  # noqa: BLE001 - the command and its recording go on whatever happens here
                self._note_failure(error)
            pause = max(self._every, (time.monotonic() - before) / BUSY_SHARE)

    def _update(self) -> None:
        from trainwatch.report.html import render_html

        if self._failure or self._evaluator is None:
            self._evaluator = self._new_evaluator()
        self._evaluator.advance()
        analysis = self._evaluator.analysis()
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
                f"the live view stands still: {describe(error)}; the command and the recording go on",
                "warning",
            )
        self._failure = describe(error)
