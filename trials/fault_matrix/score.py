"""Compares what was said about a run with the truth. Pure functions of stored results."""

import re
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from math import sqrt
from typing import Literal

from trials.fault_matrix.alerts import CPU_BY_HAND, GPU_BY_HAND
from trials.fault_matrix.case import Case
from trials.fault_matrix.play import Alert, Finding, Seen
from trials.fault_matrix.training import Truth

Outcome = Literal[
    "right", "not first", "wrong place", "wrong cause", "missed", "not printed", "silent", "accused"
]
TOLERANCE = 0.2  # of the seconds lost
BY_HAND = (GPU_BY_HAND, CPU_BY_HAND)
NOTHING_SAID = "nothing"


@dataclass(frozen=True)
class Result:
    """A run, its truth, and what was said about it."""

    case: Case
    truth: Truth
    seen: Seen

    @property
    def is_fault(self) -> bool:
        return self.case.severity > 0

    @property
    def own_alerts(self) -> list[Alert]:
        """Returns the alerts of Stepscope."""
        return [alert for alert in self.seen.alerts if alert.rule not in BY_HAND]

    @property
    def outcome(self) -> Outcome:
        """Returns whether report and terminal say the truth. *Not enough data* on a fault is "missed"."""
        findings = self.seen.findings
        if not self.is_fault:
            return "accused" if findings else "silent"
        if not findings:
            return "missed"
        named = [finding for finding in findings if names_cause(self.truth, finding)]
        if not named:
            return "wrong cause"
        if self.truth.place and place_in(named[0].words, self.truth) != self.truth.place:
            return "wrong place"
        if not named[0].printed:
            return "not printed"
        return "right" if named[0] is findings[0] else "not first"

    @property
    def first_named(self) -> str:
        """Returns the rule of the first finding."""
        return self.seen.findings[0].rules[0] if self.seen.findings else NOTHING_SAID

    @property
    def place_is_right(self) -> bool | None:
        """Returns whether the rank or GPU is right; None if there is none, or the cause is not named."""
        if not self.truth.place or self.outcome in ("wrong cause", "missed"):
            return None
        return self.outcome != "wrong place"

    @property
    def has_estimate_within(self) -> bool | None:
        """Returns whether the seconds lost are right; None if there are none, or the cause is not named."""
        named = [finding for finding in self.seen.findings if names_cause(self.truth, finding)]
        if self.truth.seconds_lost is None or not named:
            return None
        said = named[0].seconds_lost
        return said is not None and abs(said - self.truth.seconds_lost) <= TOLERANCE * self.truth.seconds_lost

    @property
    def alert(self) -> Alert | None:
        """Returns the first alert that names the cause and the place."""
        naming = set(self.truth.rules) - set(self.truth.not_alerts)
        right = (alert for alert in self.own_alerts if alert.rule in naming)
        return next((alert for alert in right if not accuses_another(self.truth, alert)), None)

    @property
    def false_alert(self) -> bool:
        """Returns whether an alert fired in a healthy run, or accuses a wrong rank or GPU."""
        if not self.is_fault:
            return bool(self.own_alerts)
        return any(accuses_another(self.truth, alert) for alert in self.own_alerts)

    @property
    def noticed_by_hand(self) -> bool:
        """Returns whether a threshold alert by hand fired."""
        return any(alert.rule in BY_HAND for alert in self.seen.alerts)


def names_cause(truth: Truth, finding: Finding) -> bool:
    """Returns whether a finding has a rule that names the cause, in the words that it needs."""
    return bool(set(truth.rules) & set(finding.rules)) and truth.says.lower() in finding.words.lower()


def place_in(words: str, truth: Truth) -> str:
    """Returns the first rank or GPU that words name, of the kind that has the fault; empty for none."""
    kind = truth.place.partition(" ")[0]
    found = re.search(rf"\b{kind} (\d+)\b", words, re.IGNORECASE)
    return f"{kind} {found[1]}" if found else ""


def accuses_another(truth: Truth, alert: Alert) -> bool:
    """Returns whether an alert with a right rule names a rank or GPU that has no fault."""
    return bool(
        truth.place and alert.rule in truth.rules and place_in(alert.place, truth) not in ("", truth.place)
    )


@dataclass(frozen=True)
class Share:
    """A share of runs, with its 95 % confidence interval by Wilson."""

    hits: int
    runs: int

    @property
    def interval(self) -> tuple[float, float]:
        """Returns the bounds of the interval; 0 and 1 without runs."""
        return wilson(self.hits, self.runs)

    def __str__(self) -> str:
        if not self.runs:
            return "-"
        low, high = (100 * bound for bound in self.interval)
        return f"{self.hits} of {self.runs} ({100 * self.hits / self.runs:.0f} %, {low:.0f} to {high:.0f} %)"


def wilson(hits: int, runs: int, z: float = 1.959964) -> tuple[float, float]:
    """Returns the score interval of Wilson (1927) for a share, at 95 % unless `z` says otherwise."""
    if not runs:
        return 0.0, 1.0
    share, squared = hits / runs, z * z / runs
    middle = share + squared / 2
    half = z * sqrt(share * (1 - share) / runs + squared / (4 * runs))
    return max(0.0, (middle - half) / (1 + squared)), min(1.0, (middle + half) / (1 + squared))


def share(results: Iterable[Result], is_hit: Callable[[Result], bool | None]) -> Share:
    """Returns the share of hits among the results for which there is an answer."""
    answers = [answer for answer in map(is_hit, results) if answer is not None]
    return Share(sum(answers), len(answers))


def confusion(results: Iterable[Result]) -> Counter[tuple[str, str]]:
    """Returns how often each kind of run was said to have each cause: the rule of the first finding."""
    return Counter((result.case.kind, result.first_named) for result in results)
