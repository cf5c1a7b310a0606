"""Lists what differs between the two runs: their settings, and the rules that fired."""

from dataclasses import dataclass, replace
from typing import Any, Literal, get_args

from stepscope.common.status import Status
from stepscope.common.words import UNKNOWN
from stepscope.compare.compared_run import ComparedRun
from stepscope.evaluation.analysis import Analysis, RuleResult
from stepscope.evaluation.problems import results_of
from stepscope.report.sentences import is_overview
from stepscope.report.summary import facts
from stepscope.report.verdict import status_of_run

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
JUDGED = (Status.FOUND, Status.HEALTHY)  # of a run of which enough is known


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
    """A rule that fired in A, in B, or in both, or what was found without one."""

    rule: str  # or the title of the finding
    fate: Fate
    a: RuleResult
    b: RuleResult

    @property
    def finding(self) -> str:
        """Returns the finding in B; that in A if the rule went away."""
        return (self.a if self.fate == "went away" else self.b).finding


def decided(a: Analysis, b: Analysis) -> tuple[dict[str, RuleResult], dict[str, RuleResult]]:
    """Returns what both runs found by name, and what their rules decided.

    What no rule looks for is no finding of the run that does not have it, if enough is known of that run.
    """
    of_a, of_b = ({each.name: each for each in results_of(run) if not is_overview(each)} for run in (a, b))
    for run, own, other in ((a, of_a, of_b), (b, of_b, of_a)):
        known = Status.HEALTHY if status_of_run(run) in JUDGED else Status.NOT_ENOUGH_DATA
        for name, result in other.items():
            if name not in own and not result.is_of_a_rule:
                own[name] = replace(result, status=known, finding="")
    return of_a, of_b


def changed_rules(a: ComparedRun, b: ComparedRun) -> list[ChangedRule]:
    """Returns rules that appeared first and those that went away last, each in the order of findings."""
    before, after = decided(a.analysis, b.analysis)
    changed = [
        ChangedRule(name, _fate(before[name], result), before[name], result)
        for name, result in after.items()
        if name in before and Status.FOUND in (result.status, before[name].status)
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
