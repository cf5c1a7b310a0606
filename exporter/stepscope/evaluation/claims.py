"""Keeps the ledger of the account: which finding explains which of its seconds, each of them once."""

from itertools import zip_longest
from math import fsum, inf

from stepscope.evaluation.account import Account, Key
from stepscope.evaluation.analysis import RuleResult
from stepscope.measurements.hangs import STOPPED
from stepscope.rules.data_starved import DataStarved
from stepscope.rules.parts.shares import summed
from stepscope.rules.step_outlier import StepOutlier
from stepscope.rules.training_stalled import TrainingStalled
from stepscope.runs.model import PHASES

OUTSIDE_FETCHES = "lost_outside_fetches_seconds"  # in NoisyNeighbour's details of a node
ANYWHERE = Key("")  # the part of seconds that cut across the account
ROUNDING = 1 + 1e-9


class Claim:
    """The seconds that a finding explains, by part, without those that other findings explain before it."""

    def __init__(self, result: RuleResult, account: Account | None) -> None:
        details, main_phase = result.details, account.main_phase if account else "train"
        # A rule names the phase of its steps. What is found in a part of the account costs the main phase.
        phase = details.get("part", main_phase) if result.is_of_a_rule else main_phase
        explains = details.get("explains")
        self.result, self.ranks = result, ranks_of(result)
        self.key = Key(phase, explains) if explains else part_of(result, main_phase)
        parts = details.get("brings") or details.get("excess_by_component") or _in_fetches(result)
        most = min(1.0, result.seconds_lost / (fsum(parts.values()) or 1.0))
        known = {Key(phase, component): most * seconds for component, seconds in parts.items()}
        rest = max(result.seconds_lost - fsum(known.values()), 0.0)
        of_rest = {self.key or ANYWHERE: 1.0}
        if account and self.key and result.about.judges:  # the component in steps of all phases
            phases = [Key(each, self.key.component) for each in PHASES]
            of_rest = {each: share for each in phases if (share := account.share(*each))} or of_rest
        whole = fsum(of_rest.values())
        self.seconds = summed((known, {part: rest * share / whole for part, share in of_rest.items()}))

    @property
    def precedence(self) -> tuple[float, bool, bool, bool, bool, bool, int, float, str]:
        """Returns the sort key.

        What slows all else is first, a rank before all, one part before several, and causes before symptoms.
        """
        result = self.result
        return (
            -result.details.get("may_cost", 0.0),
            "rank" not in result.details,
            self.key is None,
            result.about.is_symptom,
            result.definition.only_pauses,
            not result.cause_known,
            result.about.distance,
            -result.seconds_lost,
            result.rule,
        )

    @property
    def left(self) -> float:
        return fsum(self.seconds.values())

    def take(self, other: "Claim") -> float:
        """Takes from another finding what this one explains before it, and returns the seconds."""
        about, before = other.result.about, other.left
        if about.effect_of:
            of_topic = about.effect_of == self.result.about.topic
            taken = min(before, self.result.seconds_lost) if of_topic else 0.0
        elif (is_part := _is_part(other.result, self.result)) is not None:
            taken = before if is_part else 0.0
        elif self.ranks and not other.ranks <= self.ranks:
            taken = 0.0
        else:
            for key, seconds in other.seconds.items():
                mine = fsum(held for part, held in self.seconds.items() if _explains(part, key))
                other.seconds[key] = max(seconds - mine, 0.0)
            return before - other.left
        if taken:
            other.seconds = {key: seconds * (1 - taken / before) for key, seconds in other.seconds.items()}
        return taken


class Ledger:
    """The claims so far, and what they leave of the account of each rank, in each part of it."""

    def __init__(self, account: Account | None) -> None:
        self.claims: list[Claim] = []
        self.whole: dict[int | None, dict[Key, float]] = {}
        for leaf in account.leaves if account else ():
            for rank, seconds in leaf.by_rank.items():
                whole = self.whole.setdefault(rank, {})
                for part in _within(leaf.key):
                    whole[part] = whole.get(part, 0.0) + seconds * ROUNDING
        self.free = {rank: dict(parts) for rank, parts in self.whole.items()}

    def enter(self, claim: Claim) -> list[float]:
        """Takes from a new claim what each claim so far explains, and returns these seconds."""
        taken = [held.take(claim) for held in self.claims]
        self.claims.append(claim)
        return taken

    def book(self, claim: Claim) -> float:
        """Takes from a claim what others left of none of its ranks, and returns these seconds.

        Seconds that a part does not have are of another measure, such as the sum of all GPUs. Symptoms take
        none: they are what devices show of seconds that causes explain.
        """
        if claim.result.about.is_symptom:
            return 0.0
        before = claim.left
        for key, seconds in claim.seconds.items():
            scopes = [
                (self.free[rank], part)
                for rank, whole in self.whole.items()
                if not claim.ranks or rank in claim.ranks
                for part in _within(key)
                if part in whole and seconds <= whole[part]
            ]
            claim.seconds[key] = left = min((seconds, *(free[part] for free, part in scopes)))
            for free, part in scopes:
                free[part] -= left
        return before - claim.left


def _within(key: Key) -> set[Key]:
    """Returns the part, the phase that it is in, and the run."""
    return {key, Key(key.part), ANYWHERE}


def _explains(held: Key, key: Key) -> bool:
    """Returns whether seconds of one part that are explained may be those of another.

    A component is explained by itself or its phase, and a phase by all that passes in it.
    """
    return held in (key, Key(key.part)) if key.component else key != ANYWHERE and held.part in ("", key.part)


def part_of(result: RuleResult, main_phase: str) -> Key | None:
    """Returns the part of the account that a finding is about; None: it is about none, or about several."""
    judged = result.about.judges
    component = result.details.get("component", judged[0] if len(judged) == 1 else None)
    return None if component is None else Key(result.details.get("part", main_phase), component)


def ranks_of(result: RuleResult) -> set[int]:
    """Returns the rank of each row of a finding that fired; empty: it is about all, or has no rows."""
    details = result.details
    rows = details.get("ranks") or details.get("devices") or details.get("step_details", {}).values()
    alone = {details["rank"]} if "rank" in details and not (rows or "explains" in details) else set()
    return alone | {row["rank"] for row in rows if row.get("triggered")}


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
