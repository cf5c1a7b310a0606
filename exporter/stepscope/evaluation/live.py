"""Judges one rule's live windows on one node: the bands of the report, and verdicts before `patience`."""

from typing import Any

from stepscope.evaluation.analysis import Band
from stepscope.measurements.measure import Subject
from stepscope.measurements.state import State
from stepscope.measurements.window import LiveWindow
from stepscope.rules.parts.bands import Bands, HeldSoFar
from stepscope.rules.parts.base import Rule
from stepscope.rules.parts.judgement import Judgement, Tally
from stepscope.runs.model import RunFacts, Times, gpu_labels


class LiveJudgement(State):
    """The last window of each subject, and when the rule held."""

    def __init__(self, rule: Rule[Any, Any], named: Bands, interval: float) -> None:
        self.rule, self.named, self.interval = rule, named, interval
        self.seconds = 60 * getattr(rule.parameters, "live_window", named.minutes)
        self.windows: dict[Subject, LiveWindow[Any]] = {}
        self.held: dict[Subject, HeldSoFar] = {}

    def add(self, subject: Subject, view: Any, judged: Judgement, times: Times) -> None:
        """Judges the window that ends with each scan; `judged` is the decision on the view itself."""
        if subject not in self.held:
            self.held[subject], self.windows[subject] = HeldSoFar(self.seconds), LiveWindow(self.seconds)
        if hasattr(view, "moments"):
            judged = self.rule.judge_live(self.windows[subject].views(view, times), self.interval)
        elif hasattr(view, "judged_scans"):  # a window of last readings
            judged = self.rule.judge_live(view, self.interval)
            times = times[view.judged_scans]
        self.held[subject].add(judged, times, self.named.worst)

    @property
    def tallies(self) -> dict[Subject, Tally]:
        """Returns the decisions at the last scan, as if it were the only one."""
        return {subject: held.as_tally() for subject, held in self.held.items()}

    def bands(self, node: str, facts: RunFacts, now: float) -> list[Band]:
        """Returns when the rule held; `now` is the time of the node's last scan."""
        labels = gpu_labels(facts, node, len(self.held) if self.named.of == "GPU" else 0)
        return [
            Band(
                node=node,
                subject=labels[subject] if isinstance(subject, int) and labels else _name(subject),
                start=interval.start,
                end=interval.end,
                lasts=interval is held.lasting and now - held.last_scan <= self.seconds,
                worst=interval.worst,
                words=self.named.worst[interval.condition].say(interval.worst),
            )
            for subject, held in self.held.items()
            for interval in held.intervals
        ]


def _name(subject: Subject) -> str:
    """Names a rank, or a rank in a phase, or the node itself."""
    if isinstance(subject, tuple):
        return ", ".join([f"rank {subject[0]}", *map(str, subject[1:])])
    return f"rank {subject}" if isinstance(subject, int) else str(subject)
