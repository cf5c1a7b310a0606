"""Lists the savings that a report predicts, as shares of the time in training steps: `compare` checks them.

There are two kinds: the time that a finding costs, and the effect of a change that right-sizing suggests.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from stepscope.common.words import change, count
from stepscope.evaluation.analysis import Analysis
from stepscope.evaluation.problems import problems_of
from stepscope.report.figures import steps_seconds
from stepscope.report.right_sizing import factors
from stepscope.report.track_record import NO_RECORD, TrackRecord


@dataclass(frozen=True)
class PredictedSaving:
    """A predicted saving for the same work, as shares of the time in training steps."""

    kind: str  # as in Outcome
    predicted: float  # of a finding: if nothing of the lost time remains
    low: float
    high: float
    widened: float  # how much of `low` and `high` is due to earlier errors
    outcomes: int  # of earlier predictions of this kind
    held: int  # of these

    def __post_init__(self) -> None:
        if not self.low <= self.predicted <= self.high or not self.widened >= 0:
            raise ValueError(f"not in order: {self}")

    @property
    def in_words(self) -> str:
        """Returns how earlier predictions of this kind fared; "" if there were none."""
        if not self.outcomes:
            return ""
        said = f"{self.held} of {count(self.outcomes, 'earlier prediction')} of this kind held"
        if not self.widened:
            return f"{said}."
        span = f"{change(-self.high)} to {change(-self.low)}"
        return f"{said}, so its range is wider: {span} of the time for the same work."


def predicted_savings(analysis: Analysis, record: TrackRecord = NO_RECORD) -> list[PredictedSaving]:
    """Returns what the findings cost and what suggested changes save; [] if no step was seen."""
    found = (*_of_findings(analysis), *_of_changes(analysis))
    return [_widened(*values, record) for values in found]


def words_by_kind(analysis: Analysis, record: TrackRecord) -> dict[str, str]:
    """Returns how earlier predictions fared, by kind; only kinds that this report predicts, with outcomes."""
    return {one.kind: one.in_words for one in predicted_savings(analysis, record) if one.in_words}


def _of_findings(analysis: Analysis) -> Iterator[tuple[str, float, float, float]]:
    """Yields kind, predicted, low and high.

    At best nothing of the lost time remains and computing has the cores that the cause used, at worst nothing
    changes.
    """
    training = steps_seconds(analysis)
    for problem in problems_of(analysis):
        estimate, lost = problem.estimate, problem.seconds_lost
        in_steps = estimate.is_of_a_rule and not estimate.definition.outside_steps
        if training and 0 < lost <= training and in_steps:
            high = min((lost + problem.shared_seconds) / training, 1.0)
            yield estimate.rule, lost / training, 0.0, high


def _of_changes(analysis: Analysis) -> Iterator[tuple[str, float, float, float]]:
    if not steps_seconds(analysis):
        return
    for name, factor in factors(analysis):
        yield name, 1 - factor.expected, 1 - factor.high, 1 - factor.low


def _widened(kind: str, predicted: float, low: float, high: float, record: TrackRecord) -> PredictedSaving:
    score, more = record.scores.get(kind), record.widening.get(kind, 0.0)
    counts = (len(score.outcomes), score.held) if score else (0, 0)
    return PredictedSaving(kind, predicted, low - more, high + more, more, *counts)
