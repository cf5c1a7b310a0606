"""Settings of few rules: an analysis takes the time of all its rules, above all with small blocks of rows."""

from typing import Any

from stepscope.evaluation.analysis import Analysis, RuleResult
from stepscope.evaluation.engine import evaluate
from stepscope.evaluation.settings import Settings
from stepscope.rules.parts.base import Rule
from stepscope.runs.model import NodeSamples, RunFacts, Steps

from tests.support.source import MemorySource

READ = {"StepOutlier", "CPUBottleneck", "IOBottleneck"}  # their parameters are read by every analysis


def only(*names: str) -> type[Settings]:
    """Returns settings of these rules and of READ."""

    class Few(Settings):
        def rules(self) -> list[Rule[Any, Any]]:
            return [rule for rule in super().rules() if rule.name in READ.union(names)]

    return Few


def of_rule(rule: str, analysis: Analysis) -> RuleResult:
    """Returns what one rule found."""
    return next(found for found in analysis.rules if found.rule == rule)


def judged(
    rule: str,
    *chunks: NodeSamples | Steps,
    facts: RunFacts | None = None,
    scan: float = 60.0,
    **parameters: Any,
) -> RuleResult:
    """Returns what one rule finds in a run of these samples and steps, with these of its parameters."""
    settings = only(rule).parse([f"{rule}.{name}={value}" for name, value in parameters.items()])
    return of_rule(rule, evaluate(MemorySource(*chunks, facts=facts), settings, scan))
