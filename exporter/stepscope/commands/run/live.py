"""Evaluates the run while it trains: prints findings on the terminal and writes the live report page."""

from __future__ import annotations

import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING

from stepscope.commands.run.terminal import say
from stepscope.common.errors import describe
from stepscope.common.status import Status
from stepscope.common.whole_file import write_whole
from stepscope.runs.recording.directory import RecordingDirectory

if TYPE_CHECKING:
    from stepscope.commands.run.on_findings import FindingWindows, HangStacks
    from stepscope.evaluation.analysis import Analysis
    from stepscope.evaluation.engine import Evaluator
    from stepscope.evaluation.settings import Settings

BUSY_SHARE = 0.05  # of a core for evaluations and pages: slow evaluations are less frequent
FIRST_AFTER = 1.0  # seconds; later evaluations come after 2, 4, ... seconds, up to the usual time
NAMED = 2  # findings in the status line
PRINT_AGAIN_AFTER = 300.0  # seconds between two lines about a rule, so that an unstable finding stays quiet


class Findings:
    """Prints each finding once when it appears, and once when it is over."""

    def __init__(self) -> None:
        self._fired: set[str] = set()
        self._printed_at: dict[str, float] = {}
        self._waits = False  # whether ranks wait for one that does not come

    def update(self, analysis: Analysis, now: float) -> None:
        """Prints what is found at present. `now` is in seconds of any clock that does not go back."""
        self._say_who_is_missing(analysis)
        from stepscope.evaluation.problems import small_problems
        from stepscope.report.held import held, holds_now

        small = {rule.rule for problem in small_problems(analysis) for rule in (problem.rule, *problem.also)}
        for rule in analysis.rules:
            fired, when = holds_now(rule) and rule.rule not in small, held(analysis, rule)
            just_printed = now - self._printed_at.get(rule.rule, -PRINT_AGAIN_AFTER) < PRINT_AGAIN_AFTER
            if fired == (rule.rule in self._fired) or just_printed:
                continue
            self._printed_at[rule.rule] = now
            if fired:
                self._fired.add(rule.rule)
                found = rule.finding if rule.status is Status.FOUND else when
                say(f"{Status.FOUND.icon} {rule.rule}: {found}", "warning")
            else:
                self._fired.discard(rule.rule)
                say(f"{Status.HEALTHY.icon} {rule.rule}: {when or 'no longer the case'}", "good")

    def _say_who_is_missing(self, analysis: Analysis) -> None:
        """Prints once that ranks wait, long before it is a hang."""
        from stepscope.rules.collective_hang import NOW, CollectiveHang

        hang = analysis.result_of(CollectiveHang)
        waits = hang.finding.partition(NOW)[2] if hang is not None else ""
        if waits and not self._waits:
            say(f"{Status.COLLECTING.icon} {waits}", "warning")
        self._waits = bool(waits)

    @property
    def present(self) -> list[str]:
        """Returns the rules that hold now."""
        return sorted(self._fired)


class LiveView:
    """A thread that evaluates the growing recording. It prints a failure once; the command continues."""

    def __init__(
        self,
        directory: Path,
        settings: Settings,
        scan_interval: float,
        every: float,
        price: float | None = None,
        stacks: HangStacks | None = None,
        windows: FindingWindows | None = None,
        steps: int | None = None,
    ) -> None:
        self._steps = steps
        self._stacks = stacks
        self._windows = windows
        self._price = price
        self._directory = directory
        self._settings = settings
        self._scan_interval = scan_interval
        self._every = every
        self._findings = Findings()
        self._evaluator: Evaluator | None = None
        self._stopping = threading.Event()
        self._failure = ""
        self.status = Status.COLLECTING  # of the run, at the last evaluation
        self._thread = threading.Thread(target=self._run, name="live view", daemon=True)

    @property
    def found(self) -> str:
        """Returns the findings of now in a few words, otherwise the state."""
        present = self._findings.present
        if len(present) > NAMED:
            return f"{len(present)} findings: {', '.join(present[:NAMED])}, ..."
        return ", ".join(present) or str(self.status)

    def start(self) -> None:
        try:
            self._thread.start()
        except RuntimeError as error:  # the system has no thread left
            self._note_failure(error)

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
        # Imported before the first evaluation, whose CPU time then says how long the next ones take.
        import stepscope.evaluation.engine
        import stepscope.report.html  # noqa: F401

        usual = pause = min(FIRST_AFTER, self._every)
        while not self._stopping.wait(pause):
            before = time.thread_time()  # on a crowded machine it is less than the time that passes
            try:
                self._update()
            except Exception as error:  # noqa: BLE001 - the command and its recording always continue
                self._note_failure(error)
            usual = min(2 * usual, self._every)
            pause = max(usual, (time.thread_time() - before) / BUSY_SHARE)

    def _update(self) -> None:
        from stepscope.report.html import render_html
        from stepscope.report.verdict import status_of_run

        if self._failure or self._evaluator is None:
            self._evaluator = self._new_evaluator()
        self._evaluator.advance()
        analysis = self._evaluator.analysis(live=True)
        if self._stacks is not None and self._stacks.update(analysis):
            analysis = self._evaluator.analysis(live=True)  # with the stacks
        if self._windows is not None:
            self._windows.update(analysis)
        self._failure = ""
        self._findings.update(analysis, time.monotonic())
        self.status = Status.FOUND if self._findings.present else status_of_run(analysis)
        path = self._directory / "report.html"
        every = round(self._every) or 1
        page = render_html(analysis, every, self._price, path=path, total_steps=self._steps)
        write_whole(path, page)

    def _new_evaluator(self) -> Evaluator:
        from stepscope.evaluation.engine import Evaluator

        return Evaluator(RecordingDirectory(self._directory), self._settings, self._scan_interval)

    def _note_failure(self, error: Exception) -> None:
        if not self._failure:
            say(
                f"the live report is stale: {describe(error)}; the command and the recording continue",
                "warning",
            )
        self._failure = describe(error)
