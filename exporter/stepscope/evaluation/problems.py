"""Groups findings by problem and orders them: the one order of terminal, report, JSON and comparison."""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import zip_longest
from math import fsum, inf

from stepscope.common.status import Status
from stepscope.common.words import duration, listing, share
from stepscope.evaluation.account import Key, lines_of
from stepscope.evaluation.analysis import Analysis, RuleResult
from stepscope.evaluation.places import LEAST_PLACE, Place, places
from stepscope.evaluation.restarts import restarted
from stepscope.evaluation.shared_cores import CHEAPER, shared_seconds
from stepscope.evaluation.slow_settings import slow_settings
from stepscope.evaluation.slower_steps import slower_steps
from stepscope.evaluation.tools_left_on import tools_left_on
from stepscope.evaluation.traced_devices import traced_devices
from stepscope.evaluation.unexplained import unexplained
from stepscope.measurements.hangs import STOPPED
from stepscope.rules.data_starved import CONCLUDED, DataStarved
from stepscope.rules.noisy_neighbour import NoisyNeighbour
from stepscope.rules.parts.topics import ANY_TOPIC, Effect
from stepscope.rules.step_outlier import LEAST_LOST
from stepscope.runs.model import LineTime

SMALL = 0.03  # of the run: a problem that costs less is listed, but makes no run unhealthy
SMALL_WITHOUT_CAUSE = 0.1  # the same, if it is not known what took the time
MOST_PLACES = 2  # that are named
# Functions that read a table of contents, or connect, before they read anything.
OPENS = re.compile(
    r"(zipfile|tarfile|gzip|bz2|lzma|shelve|h5py|netCDF4|zarr|sqlite3|fsspec)\.(\w+\.)*(__init__|open|connect)"
)
KEEP_OPEN = (
    "{} opens a file or a connection again and again. Open it once per process (in a loader's worker, at its "
    "first item), and keep it."
)
ASLEEP = 0.5  # loader workers that compute for less of the time of their fetches mostly sleep


@dataclass(frozen=True)
class Problem:
    """One problem: the rule that explains it best, and the other rules that saw it."""

    title: str
    rule: RuleResult
    also: list[RuleResult]
    places: Sequence[Place] = ()  # of the user's code, in which most of the time was lost; () if not known
    shared_seconds: float = 0.0  # the most that computing can also gain without the cause

    @property
    def estimate(self) -> RuleResult:
        """Returns the rule that estimates the time lost: the first one, or otherwise the highest estimate."""
        return self.rule if self.rule.seconds_lost > 0 else max((self.rule, *self.also), key=_seconds)

    @property
    def seconds_lost(self) -> float:
        """Returns an estimate; 0 if no time was lost, or if an amount makes no sense."""
        return self.estimate.seconds_lost

    @property
    def evidence(self) -> list[str]:
        """Returns the words of the rule, and what computing may gain, too."""
        gained = f"Without this, computing may take up to {duration(self.shared_seconds)} less, too."
        return [self.rule.finding, *([gained] if self.shared_seconds else [])]

    @property
    def lines(self) -> str:
        """Returns "92 % in load, data.py:14 (json.loads)"; "" if no line is known."""
        return listing([f"{share(place.share, 1.0)} in {place.words}" for place in self.places])

    @property
    def code(self) -> str:
        """Returns the text of the first line; "" if it is not known."""
        return self.places[0].line.text if self.places else ""

    @property
    def is_risk(self) -> bool:
        """Returns whether the problem endangers the run instead of slowing it down."""
        return self.rule.about.effect is Effect.RISK


def problems(results: Iterable[RuleResult]) -> list[Problem]:
    """Returns the problems, by the time that they explain; symptoms after causes."""
    groups: dict[str, list[RuleResult]] = {}
    every = [result for result in results if result.status is Status.FOUND]
    every = [_beyond_others(result, every) for result in every]
    apart = {NoisyNeighbour.__name__} if any(map(_is_late_alone, every)) else set()
    for result in every:
        if result.rule in apart:
            groups[result.rule] = [_outside_fetches(result)]
        else:
            groups.setdefault(result.about.topic or result.rule, []).append(result)
    for group in groups.values():
        group.sort(key=lambda result: (result.about.distance, -result.seconds_lost, result.rule))
    joined = [Problem(first.about.subject, first, also) for first, *also in _joined(groups.values())]
    found = sorted(joined, key=lambda problem: _place(problem, joined))
    causes = [problem for problem in found if problem.rule.about.topic != ANY_TOPIC]
    effects = [problem for problem in found if problem.rule.about.topic == ANY_TOPIC]
    explains = next((cause for cause in causes if any(_explains(cause, effect) for effect in effects)), None)
    if explains is None:
        return found
    explains.also.extend(effect.rule for effect in effects)
    return causes


def problems_of(analysis: Analysis) -> list[Problem]:
    """Returns the problems of a run, the most expensive one first; `small_problems` are left out."""
    return [problem for problem in _of_run(analysis) if not _is_small(problem, analysis)]


def small_problems(analysis: Analysis) -> list[Problem]:
    """Returns what was found, but cost less than `SMALL` of the run, or `SMALL_WITHOUT_CAUSE`."""
    return [problem for problem in _of_run(analysis) if _is_small(problem, analysis)]


def _of_run(analysis: Analysis) -> list[Problem]:
    found = list(analysis.rules)
    if not _is_short(analysis):
        found += _of_account(analysis)
        found += slower_steps(analysis, found)
    return [_located(problem, analysis) for problem in problems(found)]


def unproven(analysis: Analysis) -> list[RuleResult]:
    """Returns what would be found without a rule if the run had been longer."""
    return _of_account(analysis) if _is_short(analysis) else []


def _is_short(analysis: Analysis) -> bool:
    return not analysis.is_trace and (analysis.run_seconds or 0.0) < analysis.shortest


def _of_account(analysis: Analysis) -> list[RuleResult]:
    return [
        *unexplained(analysis),
        *restarted(analysis),
        *slow_settings(analysis),
        *tools_left_on(analysis),
        *traced_devices(analysis),
    ]


def _located(problem: Problem, analysis: Analysis) -> Problem:
    found = _places(problem, analysis)
    shared = shared_seconds(problem.rule, found, analysis)
    if shared < SMALL * (analysis.run_seconds or 0.0):
        shared = 0.0
    advice = [problem.rule.recommendation]
    if shared > problem.seconds_lost / 2 and problem.rule.about.topic == DataStarved.topic:
        advice.append(CHEAPER)
    if opener := next((place for place in found if OPENS.fullmatch(place.line.library)), None):
        advice.insert(0, KEEP_OPEN.format("This line" if opener is found[0] else opener.words))
    rule = replace(problem.rule, recommendation=" ".join(advice))
    return replace(problem, rule=rule, places=found, shared_seconds=shared)


def _places(problem: Problem, analysis: Analysis) -> list[Place]:
    """Returns the largest places of what the problem is about, of its rank if it names one.

    What only the machine's owner can change has none: the script's lines wait for it.
    """
    if analysis.account is None:
        return []
    for result in (problem.rule, *(problem.also if problem.rule.definition.audience == "owner" else ())):
        lines = _lines(result, analysis, analysis.account.main_phase)
        if lines is None:
            continue
        chosen = result.details.get("places")
        found = [place for place in places(lines) if not chosen or place.line.place in chosen][:MOST_PLACES]
        return [place for place in found if place.share >= LEAST_PLACE and place.is_known]
    return []


def part_of(result: RuleResult, main_phase: str) -> Key | None:
    """Returns the part of the account that a finding is about; None: it is about none, or about several."""
    component = _component(result)
    return None if component is None else Key(result.details.get("part", main_phase), component)


def _lines(result: RuleResult, analysis: Analysis, main_phase: str) -> list[LineTime] | None:
    """Returns the lines of what a finding is about; None: it is about no part.

    A finding about long steps, or about one that does not end, has the lines of these, if some were sampled.
    """
    component = _component(result)
    key = Key(result.details.get("part", main_phase), component or "")
    rank = result.details.get("rank", result.details.get("waited_for"))
    if result.definition.only_pauses:
        of_ranks = _ranks(result) if rank is None else {rank}
        slow = [thread for thread in analysis.threads if thread.rank in of_ranks]
        if long := [line for line in lines_of(key, slow) if line.step]:
            return long
    if component is None:
        return None
    threads = [thread for thread in analysis.threads if rank in (None, thread.rank)]
    lines = list(lines_of(key, threads))
    if component == "compile" and not lines:  # JAX and TensorFlow say only afterwards that a call compiled
        lines = list(lines_of(Key(key.part, "forward"), threads))
    return lines


def _is_small(problem: Problem, analysis: Analysis) -> bool:
    if problem.is_risk or analysis.run_seconds is None:
        return False
    if not problem.seconds_lost:
        return _data_is_in_time(analysis) and problem.rule.about.topic == DataStarved.topic
    limit = SMALL if problem.rule.cause_known else SMALL_WITHOUT_CAUSE
    return problem.seconds_lost < limit * analysis.run_seconds


def _data_is_in_time(analysis: Analysis) -> bool:
    """Returns whether it was measured that steps wait little for data, and that workers take no cores for it.

    They take none if main threads hardly wait for a core, or if workers mostly sleep in their fetches, in
    reads for example. Then no number of loader workers is known to be wrong.
    """
    account = analysis.account
    main = analysis.main_threads
    if account is None or not account.useful_share or not main:
        return False
    waited = max(thread.core_wait_seconds / thread.seconds for thread in main)
    late = account.share(account.main_phase, "data_wait") >= SMALL_WITHOUT_CAUSE
    return not late and (waited < SMALL or _workers_sleep(analysis))


def _workers_sleep(analysis: Analysis) -> bool:
    fetching = fsum(loader["fetch_seconds"] for loader in analysis.loaders)
    return fsum(loader["fetch_cpu_seconds"] for loader in analysis.loaders) < ASLEEP * fetching


def in_order(results: Iterable[RuleResult]) -> list[RuleResult]:
    """Returns the findings in the order of their problems, then other rules by state."""
    every = list(results)
    found = [rule for problem in problems(every) for rule in (problem.rule, *problem.also)]
    rest = [result for result in every if result.status is not Status.FOUND]
    states = list(Status)
    rest.sort(key=lambda result: (states.index(result.status), result.about.is_symptom, result.rule))
    return found + rest


def _seconds(result: RuleResult) -> float:
    return result.seconds_lost


def _place(problem: Problem, found: list[Problem]) -> tuple[bool, float, bool, int, str]:
    """Returns the sort key. A symptom explains no more time than any cause of it that was found.

    What slows all else is first.
    """
    rule, seconds = problem.rule, problem.seconds_lost
    if rule.about.is_symptom:
        causes = (
            other.seconds_lost
            for other in found
            if not other.rule.about.is_symptom and rule.about.symptom == other.rule.about.symptom != ""
        )
        seconds = min((seconds, *causes))
    return not rule.details.get("slows_all"), -seconds, rule.about.is_symptom, -rule.triggered, rule.rule


def _is_late_alone(result: RuleResult) -> bool:
    """Returns whether data was measured to come late for a reason other than neighbours on the cores."""
    cause = result.details.get("cause") if result.rule == DataStarved.__name__ else None
    return cause not in (None, "neighbours", *CONCLUDED)


def _outside_fetches(neighbours: RuleResult) -> RuleResult:
    """Returns what neighbours cost without the rank's own fetches: these seconds are of late data."""
    nodes = neighbours.details.get("nodes", {}).values()
    known = [node["lost_outside_fetches_seconds"] for node in nodes if node["triggered"]]
    least = max(*known, LEAST_LOST) if known else inf
    return replace(neighbours, seconds_lost=min(neighbours.seconds_lost, least))


def _beyond_others(long: RuleResult, found: Sequence[RuleResult]) -> RuleResult:
    """Returns a finding on long steps of several components without what others explain of these."""
    excess: dict[str, float] = long.details.get("excess_by_component", {})
    known = dict.fromkeys(excess, 0.0)
    for other in found:
        if other is not long and (component := _explained(other)) in known:
            known[component] = max(known[component], min(other.seconds_lost, excess[component]))
    explained = fsum(known.values())
    if not explained:
        return long
    said = f"{long.finding} Other findings explain {duration(explained)} of that."
    return replace(long, finding=said, seconds_lost=max(long.seconds_lost - explained, LEAST_LOST))


def _explains(cause: Problem, effect: Problem) -> bool:
    """Returns whether a problem explains what anything that costs time may cause, such as idle GPUs."""
    return cause.seconds_lost > 0 or cause.rule.about.symptom == effect.rule.about.symptom != ""


def _joined(groups: Iterable[list[RuleResult]]) -> list[list[RuleResult]]:
    """Joins groups that explain the same seconds: no second is a finding twice.

    A slow rank leads what only that rank does longer, and a cause leads the long steps that it makes. What
    explains twice as many seconds as the leader leads instead.
    """
    joined: list[list[RuleResult]] = []
    for group in sorted(groups, key=lambda group: _precedence(group[0])):
        explained = next((other for other in joined if _is_same(group[0], other[0])), None)
        if explained is None:
            joined.append(group)
        elif group[0].seconds_lost >= 2 * explained[0].seconds_lost:
            explained[:0] = group
        else:
            explained.extend(group)
    return joined


def _precedence(result: RuleResult) -> tuple[bool, bool, bool, int, float, str]:
    of_some_steps = result.definition.only_pauses
    return (
        "rank" not in result.details,
        result.about.is_symptom,
        of_some_steps,
        result.about.distance,
        -result.seconds_lost,
        result.rule,
    )


def _is_same(result: RuleResult, leader: RuleResult) -> bool:
    """Returns whether a finding is about the component of steps that the leader is about, of its ranks."""
    if result.about.effect_of:
        return result.about.effect_of == leader.about.topic
    if result.rule == "TrainingStalled" and leader.rule == "StepOutlier":
        return _are_long_steps(result, leader)
    if "culprit" in result.details and _component(leader) == STOPPED:
        return bool(result.details["culprit"]["rank"] == leader.details["rank"])
    component = _explained(result)
    if component is not None and component in leader.details.get("brings", ()):
        return True
    if component is None or component != _explained(leader):
        return False
    ranks, of_leader = _ranks(result), _ranks(leader)
    if ranks and of_leader:
        return ranks <= of_leader
    most = leader.seconds_lost * (2 if result.about.is_symptom else 1)  # a symptom says not why
    return result.definition.only_pauses or result.seconds_lost <= most


def _explained(result: RuleResult) -> str | None:
    """Returns the component of steps whose time a finding explains."""
    component: str | None = result.details.get("explains") or _component(result)
    return component


def _component(result: RuleResult) -> str | None:
    """Returns the only component of steps that a finding is about."""
    judged = result.about.judges
    component: str | None = result.details.get("component", judged[0] if len(judged) == 1 else None)
    return component


def _ranks(result: RuleResult) -> set[int]:
    """Returns the rank of each row of a finding that fired."""
    details = result.details
    rows = details.get("ranks") or details.get("devices") or details.get("step_details", {}).values()
    return {row["rank"] for row in rows if row.get("triggered")}


def _are_long_steps(stalled: RuleResult, long: RuleResult) -> bool:
    """Returns whether known work in long steps is what stalls training."""
    series = [each for each in long.details.get("step_details", {}).values() if each["triggered"]]
    components = {each["component"] for each in series}
    if not components or None in components:
        return False
    steps: dict[int, list[float]] = {}
    for each in series:
        steps.setdefault(each["rank"], []).extend(step["seconds"] for step in each["longest"])
    stalls: dict[int, list[float]] = {}
    for stall in stalled.details["stalls"]:
        lasts = stall["end"] is None  # no step that ended is as long
        stalls.setdefault(stall["rank"], []).append(inf if lasts else stall["seconds"])
    return all(_are_in(stalls[rank], steps.get(rank, [])) for rank in stalls)


def _are_in(stalls: Sequence[float], steps: Sequence[float]) -> bool:
    """Returns whether each stall has a long step that is most of it."""
    pairs = zip_longest(sorted(stalls, reverse=True), sorted(steps, reverse=True)[: len(stalls)], fillvalue=0)
    return all(step > stall / 2 for stall, step in pairs)
