"""What was wrong, each thing once: rules that look at the same thing from different sides belong together."""

from __future__ import annotations

from dataclasses import dataclass

from trainwatch.evaluation.analysis import Analysis, RuleResult

# What each rule is about, as the subject of a sentence: "Waiting for data cost this run ...".
TITLES = {
    "DataStarved": "Waiting for data",
    "CPUBottleneck": "Waiting for busy CPU cores",
    "IOBottleneck": "Waiting for storage",
    "Dataloader": "An unsuitable number of loader workers",
    "BatchSize": "Small batches",
    "LowGPUUtilization": "Idle GPUs",
    "LoadBalancing": "Unequal work on the GPUs",
    "Straggler": "Waiting for a slow rank",
    "CommunicationBound": "Communication between ranks",
    "StepOutlier": "Single long steps",
    "MaxInitializationTime": "A slow start",
    "TrainingStalled": "A standstill",
    "ThermalThrottling": "Heat",
    "GPUError": "GPU errors",
    "GPUMemoryLeak": "Steadily growing GPU memory",
    "GPUMemoryNearlyFull": "Nearly full GPU memory",
    "GPUMemoryIncrease": "A sudden rise of GPU memory",
}
# Rules of one line tell of one thing; the first of them that fired is nearest to the cause, and speaks.
SAME = (
    ("DataStarved", "CPUBottleneck", "IOBottleneck", "Dataloader"),
    ("GPUMemoryLeak", "GPUMemoryNearlyFull", "GPUMemoryIncrease"),
    ("Straggler", "CommunicationBound"),
)
# An idle GPU is what everything else that costs time looks like from the GPU's side.
CONSEQUENCES = {"LowGPUUtilization"}
RISKS = {"GPUError", "GPUMemoryLeak", "GPUMemoryNearlyFull", "GPUMemoryIncrease"}  # end runs, cost no time


@dataclass(frozen=True)
class Problem:
    """One thing, told by the rule that says most about it, and by others that saw it too."""

    title: str
    rule: RuleResult
    also: list[RuleResult]

    @property
    def seconds_lost(self) -> float:
        """An estimate; 0 where no time was lost, or it makes no sense to say how much."""
        return self.rule.seconds_lost

    @property
    def is_risk(self) -> bool:
        """Whether it endangers the run rather than slows it."""
        return self.rule.rule in RISKS


def problems(analysis: Analysis) -> list[Problem]:
    """What costs most first."""
    fired = {rule.rule: rule for rule in analysis.rules if rule.status == "fired"}
    groups: dict[tuple[str, ...], list[RuleResult]] = {}
    for name in fired:
        group = next((rules for rules in SAME if name in rules), (name,))
        groups[group] = [fired[rule] for rule in group if rule in fired]
    found = [Problem(title_of(first), first, also) for first, *also in groups.values()]
    found.sort(key=lambda problem: -problem.seconds_lost)
    causes = [problem for problem in found if problem.rule.rule not in CONSEQUENCES]
    if causes and causes[0].seconds_lost > 0:
        causes[0].also.extend(problem.rule for problem in found if problem not in causes)
        return causes
    return found


def title_of(rule: RuleResult) -> str:
    return TITLES.get(rule.rule, rule.rule)
