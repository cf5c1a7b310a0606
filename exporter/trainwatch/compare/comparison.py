"""The comparison of two runs, which the text, the page and the JSON document show."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from trainwatch.compare.compared_run import ComparedRun
from trainwatch.compare.configuration import Setting, settings
from trainwatch.compare.figures import Figure, figures
from trainwatch.compare.gate import Condition, Outcome, judge
from trainwatch.compare.parts import (
    Difference,
    difference_of_a_step,
    difference_of_the_run,
    main_phase,
)
from trainwatch.compare.predicted import CheckedPrediction, checked_predictions
from trainwatch.compare.rules import ChangedRule, changed_rules


@dataclass(frozen=True)
class Comparison:
    a: ComparedRun
    b: ComparedRun
    phase: str | None  # whose steps are compared; None if no phase has recorded steps in both runs
    figures: dict[str, Figure]
    step: Difference | None
    run: Difference | None
    rules: list[ChangedRule]
    settings: list[Setting]
    predictions: list[CheckedPrediction]
    outcomes: list[Outcome]

    @property
    def failed(self) -> list[Outcome]:
        return [outcome for outcome in self.outcomes if not outcome.holds]

    @property
    def changed_settings(self) -> list[Setting]:
        return [setting for setting in self.settings if setting.differs]


def compare(a: ComparedRun, b: ComparedRun, conditions: Sequence[Condition] = ()) -> Comparison:
    phase = main_phase(a, b)
    side_by_side = figures(a, b, phase)
    rules = changed_rules(a, b)
    return Comparison(
        a=a,
        b=b,
        phase=phase,
        figures=side_by_side,
        step=None if phase is None else difference_of_a_step(a, b, phase),
        run=difference_of_the_run(a, b, phase),
        rules=rules,
        settings=settings(a, b),
        predictions=checked_predictions(a, b, phase),
        outcomes=judge(conditions, side_by_side, rules),
    )
