"""Holds what each finding claims of the account: its seconds by part, and the ranks that it is about."""

from itertools import zip_longest
from math import fsum, inf

from stepscope.evaluation.account import Key
from stepscope.evaluation.analysis import RuleResult
from stepscope.measurements.hangs import STOPPED
from stepscope.rules.data_starved import DataStarved
from stepscope.rules.step_outlier import StepOutlier
from stepscope.rules.training_stalled import TrainingStalled

OUTSIDE_FETCHES = "lost_outside_fetches_seconds"  # in NoisyNeighbour's details of a node


class Claim:
    """The seconds that a finding explains, without those that other findings explain before it."""

    def __init__(self, result: RuleResult, main_phase: str) -> None:
        details = result.details
        explains = details.get("explains")
        self.result, self.ranks = result, ranks_of(result)
        self.key = Key(main_phase, explains) if explains else part_of(result, main_phase)
        parts = details.get("brings") or details.get("excess_by_component") or _in_fetches(result)
        self.seconds = {Key(main_phase, component): seconds for component, seconds in parts.items()}
        if self.key is not None:
            self.seconds[self.key] = result.seconds_lost - fsum(self.seconds.values())

    @property
    def precedence(self) -> tuple[bool, bool, bool, bool, int, float, str]:
        """Returns the sort key: a rank before all, one part before several, and causes before symptoms."""
        result = self.result
        return (
            "rank" not in result.details,
            self.key is None,
            result.about.is_symptom,
            result.definition.only_pauses,
            result.about.distance,
            -result.seconds_lost,
            result.rule,
        )

    def take(self, other: "Claim") -> float:
        """Takes from another finding what this one explains before it, and returns the seconds."""
        about, lost = other.result.about, other.result.seconds_lost
        if about.effect_of:
            return min(lost, self.result.seconds_lost) if about.effect_of == self.result.about.topic else 0.0
        if (is_part := _is_part(other.result, self.result)) is not None:
            return lost if is_part else 0.0
        if self.ranks and not other.ranks <= self.ranks:
            return 0.0
        before = fsum(other.seconds.values())
        for key, left in other.seconds.items():
            mine = fsum(self.seconds.get(each, 0.0) for each in {key, Key(key.part)})
            other.seconds[key] = max(left - mine, 0.0)
        return before - fsum(other.seconds.values())


def part_of(result: RuleResult, main_phase: str) -> Key | None:
    """Returns the part of the account that a finding is about; None: it is about none, or about several."""
    judged = result.about.judges
    component = result.details.get("component", judged[0] if len(judged) == 1 else None)
    return None if component is None else Key(result.details.get("part", main_phase), component)


def ranks_of(result: RuleResult) -> set[int]:
    """Returns the rank of each row of a finding that fired; empty: it is about all, or has no rows."""
    details = result.details
    rows = details.get("ranks") or details.get("devices") or details.get("step_details", {}).values()
    return {row["rank"] for row in rows if row.get("triggered")}


def _in_fetches(neighbours: RuleResult) -> dict[str, float]:
    """Returns what neighbours cost in the rank's own fetches: these seconds are of late data."""
    nodes = [node for node in neighbours.details.get("nodes", {}).values() if OUTSIDE_FETCHES in node]
    outside = max((node[OUTSIDE_FETCHES] for node in nodes if node["triggered"]), default=inf)
    return {DataStarved.component: max(neighbours.seconds_lost - outside, 0.0)} if nodes else {}


def _is_part(result: RuleResult, leader: RuleResult) -> bool | None:
    """Returns whether a finding is all about what the leader is about; None: their seconds say that."""
    if result.rule == TrainingStalled.__name__ and leader.rule == StepOutlier.__name__:
        return _are_long_steps(result, leader)
    if "culprit" in result.details and leader.details.get("component") == STOPPED:
        return bool(result.details["culprit"]["rank"] == leader.details["rank"])
    return None


def _are_long_steps(stalled: RuleResult, long: RuleResult) -> bool:
    """Returns whether known work in long steps stalls training: each stall has one that is most of it."""
    series = [each for each in long.details.get("step_details", {}).values() if each["triggered"]]
    if not series or not all(each["component"] for each in series):
        return False
    stalls = [
        (stall["rank"], inf if stall["end"] is None else stall["seconds"])  # no step that ended is as long
        for stall in stalled.details["stalls"]
    ]
    steps = [(each["rank"], step["seconds"]) for each in series for step in each["longest"]]
    of_ranks = [
        [sorted((each for at, each in some if at == rank), reverse=True) for some in (stalls, steps)]
        for rank, _ in stalls
    ]
    pairs = (pair for longest in of_ranks for pair in zip_longest(*longest, fillvalue=0.0))
    return all(step > stall / 2 for stall, step in pairs)
