"""Lists what differs between the two runs: their settings, and the rules that fired."""

from dataclasses import dataclass
from typing import Any, Literal, get_args

from stepscope.common.status import Status
from stepscope.common.words import UNKNOWN
from stepscope.compare.compared_run import ComparedRun
from stepscope.evaluation.analysis import RuleResult
from stepscope.report.sentences import is_overview
from stepscope.report.summary import facts

# The facts of the report that are settings, not results.
SET_UP = ("Command", "Framework", "GPUs", "Cores")
LOADER_SETTINGS = {
    "workers": "workers",
    "batch_size": "batch size",
    "pin_memory": "pinned memory",
    "prefetch_factor": "prefetch factor",
}
Fate = Literal["appeared", "found, but not judged in A", "stayed", "can no longer be judged", "went away"]
FATES: tuple[Fate, ...] = get_args(Fate)


@dataclass(frozen=True)
class Setting:
    name: str
    a: str
    b: str

    @property
    def differs(self) -> bool:
        """Returns whether both values are known and different."""
        return self.a != self.b and UNKNOWN not in (self.a, self.b)


def settings(a: ComparedRun, b: ComparedRun) -> list[Setting]:
    """Returns every known setting of either run, also those that are equal."""
    both = _of(a), _of(b)
    names = dict.fromkeys(name for values in both for name in values)
    return [Setting(name, *(values.get(name, UNKNOWN) for values in both)) for name in names]


def _of(run: ComparedRun) -> dict[str, str]:
    analysis = run.analysis
    known = dict(facts(analysis))
    values = {name: known[name] for name in SET_UP}
    values["Number of nodes"] = str(len(analysis.nodes))
    values["World size"] = str(analysis.world_size or analysis.ranks)
    for phase in dict.fromkeys(loader["phase"] for loader in analysis.loaders):
        loaders = [loader for loader in analysis.loaders if loader["phase"] == phase]
        for key, name in LOADER_SETTINGS.items():
            # The value that all ranks share, or the different values.
            different = dict.fromkeys(_written(loader.get(key)) for loader in loaders)
            values[f"Loader of {phase} steps: {name}"] = ", ".join(different)
    values["Price of a node"] = UNKNOWN if run.price is None else f"${run.price:g}/h"
    for name, version in analysis.versions.items():
        values[f"Version of {name}"] = version
    values["Time between samples"] = f"{analysis.interval:g} s"
    return values


def _written(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return UNKNOWN if value is None else str(value)


@dataclass(frozen=True)
class ChangedRule:
    """A rule that fired in A, in B, or in both."""

    rule: str
    fate: Fate
    a: RuleResult
    b: RuleResult

    @property
    def finding(self) -> str:
        """Returns the finding in B; that in A if the rule went away."""
        return (self.a if self.fate == "went away" else self.b).finding


def changed_rules(a: ComparedRun, b: ComparedRun) -> list[ChangedRule]:
    """Returns rules that appeared first and those that went away last, each in the order of findings."""
    before = {result.rule: result for result in a.analysis.rules}
    changed = [
        ChangedRule(result.rule, _fate(before[result.rule], result), before[result.rule], result)
        for result in b.analysis.rules
        if result.rule in before
        and not is_overview(result)
        and Status.FOUND in (result.status, before[result.rule].status)
    ]
    # Rules found in B are in B's order, the others in A's.
    place = {rule: index for index, rule in enumerate(before)}
    return sorted(
        changed,
        key=lambda rule: (FATES.index(rule.fate), rule.b.status is not Status.FOUND and place[rule.rule]),
    )


def _fate(a: RuleResult, b: RuleResult) -> Fate:
    if b.status is Status.FOUND:
        judged: Fate = "stayed" if a.status is Status.FOUND else "appeared"
        return judged if a.status.judged else "found, but not judged in A"
    return "went away" if b.status is Status.HEALTHY else "can no longer be judged"
