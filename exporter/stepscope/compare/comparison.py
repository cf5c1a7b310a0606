"""The comparison of two runs, which the text, the page and the JSON document show."""

from collections.abc import Sequence
from dataclasses import dataclass

from stepscope.compare.changes import ChangedRule, Setting, changed_rules, settings
from stepscope.compare.compared_run import ComparedRun
from stepscope.compare.figures import Figure, figures
from stepscope.compare.gate import Condition, Outcome, judge
from stepscope.compare.lines import ComparedLine, compared_lines
from stepscope.compare.parts import (
    Difference,
    difference_of_a_step,
    difference_of_the_run,
    main_phase,
)
from stepscope.compare.predicted import CheckedPrediction, checked_predictions
from stepscope.compare.work import Work, work_of
from stepscope.evaluation.analysis import OperatorChange
from stepscope.evaluation.profile import operator_changes


@dataclass(frozen=True)
class Comparison:
    a: ComparedRun
    b: ComparedRun
    phase: str | None  # whose steps are compared; None if no phase has recorded steps in both runs
    figures: dict[str, Figure]
    work: Work
    step: Difference | None  # per item if a step of B has other items than one of A
    run: Difference | None
    rules: list[ChangedRule]
    settings: list[Setting]
    predictions: list[CheckedPrediction]
    outcomes: list[Outcome]
    lines: list[ComparedLine]  # [] unless lines of both runs were sampled
    operators: list[OperatorChange]  # [] unless both runs have profile windows

    @property
    def not_passed(self) -> list[Outcome]:
        """Returns the conditions that failed, then those that are inconclusive."""
        return [
            outcome
            for state in ("failed", "inconclusive")
            for outcome in self.outcomes
            if outcome.state == state
        ]

    @property
    def changed_settings(self) -> list[Setting]:
        return [setting for setting in self.settings if setting.differs]


def compare(a: ComparedRun, b: ComparedRun, conditions: Sequence[Condition] = ()) -> Comparison:
    phase = main_phase(a, b)
    work = work_of(a, b, phase)
    side_by_side = figures(a, b, phase, work)
    items = work.items_per_step if work.unit == "item" and work.items_per_step else (1.0, 1.0)
    before, after = a.analysis.profile, b.analysis.profile
    operators = []
    if before is not None and after is not None:  # what changed most; lines are those of B
        places = before.places() | after.places()
        operators = operator_changes(before.per_step, after.per_step, places)
    return Comparison(
        a=a,
        b=b,
        phase=phase,
        figures=side_by_side,
        work=work,
        step=None if phase is None else difference_of_a_step(a, b, phase, items),
        run=difference_of_the_run(a, b, phase, work.ratio),
        rules=changed_rules(a, b),
        settings=settings(a, b),
        predictions=checked_predictions(a, b, work),
        outcomes=judge(conditions, side_by_side, work, a.analysis, b.analysis),
        lines=compared_lines(a.analysis, b.analysis),
        operators=operators,
    )
