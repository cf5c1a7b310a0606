"""Settings of few rules: an analysis takes the time of all its rules, above all with small blocks of rows."""

from typing import Any

from stepscope.evaluation.settings import Settings
from stepscope.rules.parts.base import Rule

READ = {"StepOutlier", "CPUBottleneck", "IOBottleneck"}  # their parameters are read by every analysis


def only(*names: str) -> type[Settings]:
    """Returns settings of these rules and of READ."""

    class Few(Settings):
        def rules(self) -> list[Rule[Any, Any]]:
            return [rule for rule in super().rules() if rule.name in READ.union(names)]

    return Few
