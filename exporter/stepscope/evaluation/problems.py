"""Groups findings by problem and orders them: the one order of terminal, report, JSON and comparison."""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from math import fsum

from stepscope.common.status import Status
from stepscope.common.words import duration, listing, share
from stepscope.evaluation.account import INTERPRETER_LOCK, Account, Key, lines_of
from stepscope.evaluation.analysis import Analysis, RuleResult
from stepscope.evaluation.claims import Claim, Ledger, part_of, ranks_of
from stepscope.evaluation.places import Place, places, worth_a_name
from stepscope.evaluation.restarts import restarted
from stepscope.evaluation.slow_settings import slow_settings
from stepscope.evaluation.slower_steps import slower_steps
from stepscope.evaluation.tools_left_on import tools_left_on
from stepscope.evaluation.traced_devices import traced_devices
from stepscope.evaluation.unexplained import unexplained
from stepscope.rules.data_starved import CONCLUDED, DataStarved
from stepscope.rules.noisy_neighbour import NoisyNeighbour
from stepscope.rules.parts.topics import ANY_TOPIC, Effect
from stepscope.runs.model import LineTime
from stepscope.training.layout import PIPELINE_PYTHON, THREADS

SMALL = 0.03  # of the run: a problem that costs less is listed, but makes no run unhealthy
SMALL_WITHOUT_CAUSE = 0.1  # the same, if it is not known what took the time
HARDLY = 0.1  # of a finding: with less left, other problems explain it
MOST_PLACES = 2  # that are named
# Functions of libraries that cost more than they have to, and what to do about a line ("{}") that calls them.
OF_LIBRARIES = {
    # They read a table of contents, or connect, before they read anything.
    r"(zipfile|tarfile|gzip|bz2|lzma|shelve|h5py|netCDF4|zarr|sqlite3|fsspec)\."
    r"(\w+\.)*(__init__|open|connect)": (
        "{} opens a file or a connection again and again. Open it once per process (in a loader's worker, at "
        "its first item), and keep it."
    ),
    r"(h5py|zarr|tables)\.(\w+\.)*__getitem__": (
        "{} may unpack whole chunks for what it reads of them. Read a batch at once (a `__getitems__` of the "
        "dataset), shuffle chunks instead of items, or store smaller ones."
    ),
}
# In three scripts of trials/everyday, with one worker on two full cores, a second worker saved 2 to 19 % of
# the time per step, and cheaper fetches 62 to 87 %.
CHEAPER = "Cheaper fetches also free cores that computing uses; more workers or parallel calls do not."
SKIP_FIRST = (
    "If each worker reads or parses all items, let it skip those of the others first (`get_worker_info`)."
)
ASLEEP = 0.5  # loader workers that compute for less of the time of their fetches mostly sleep


@dataclass(frozen=True)
class Problem:
    """One problem: the rule that explains it best, and the other rules that saw it."""

    title: str
    rule: RuleResult
    estimate: RuleResult  # that estimates the time lost: the rule, or otherwise the highest of its topic
    also: list[RuleResult]
    places: Sequence[Place] = ()  # of the user's code, in which most of the time was lost; () if not known
    shared_seconds: float = 0.0  # the most that computing can also gain without the cause
    explained: float = 0.0  # seconds of its rule that other problems explain

    @property
    def seconds_lost(self) -> float:
        """Returns an estimate; 0 if no time was lost, or if an amount makes no sense."""
        return self.estimate.seconds_lost - self.explained

    @property
    def finding(self) -> str:
        """Returns the words of the rule, and how much of that other problems explain."""
        others = f" Other findings explain {duration(self.explained)} of that." if self.explained else ""
        return f"{self.rule.finding}{others}"

    @property
    def evidence(self) -> list[str]:
        """Returns these words, and what computing may gain, too."""
        gained = f"Without this, computing may take up to {duration(self.shared_seconds)} less, too."
        return [self.finding, *([gained] if self.shared_seconds else [])]

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


def problems(results: Iterable[RuleResult], account: Account | None = None) -> list[Problem]:
    """Returns the problems, by the time that they explain; symptoms after causes.

    Each finding gets what is left of the seconds that it claims. What another one mostly explains is a part
    of that problem. A cause that cuts across parts stays a problem, even if these leave it no second.
    """
    found: list[Problem] = []
    ledger, holders = Ledger(account), list[Problem]()
    groups = [[Claim(result, account) for result in group] for group in _by_topic(results)]
    for group in sorted(groups, key=lambda group: min(claim.precedence for claim in group)):
        rules = [claim.result for claim in group]
        leading = group[0] if rules[0].seconds_lost else max(group, key=lambda each: each.result.seconds_lost)
        seconds = leading.result.seconds_lost
        taken, *_ = [ledger.enter(leading), *(ledger.enter(each) for each in group if each is not leading)]
        most, explained = max(taken, default=0.0), fsum([*taken, ledger.book(leading)])
        if most > seconds / 2 or fsum(taken) > (1 - HARDLY) * seconds:
            problem = holders[taken.index(most)]
            problem.also.extend(rules)
        else:
            rule, *also = rules
            problem = Problem(rule.about.subject, rule, leading.result, also, explained=explained)
            found.append(problem)
        holders += [problem] * len(group)
    found = sorted(found, key=lambda problem: _place(problem, found))
    causes = [problem for problem in found if problem.rule.about.topic != ANY_TOPIC]
    effects = [problem for problem in found if problem.rule.about.topic == ANY_TOPIC]
    for cause in causes:
        if any(_explains(cause, effect) for effect in effects):
            cause.also.extend(effect.rule for effect in effects)
            return causes
    return found


def _by_topic(results: Iterable[RuleResult]) -> list[list[RuleResult]]:
    """Groups findings of one topic, the closest to the cause first.

    Neighbours are not why data is late if that was measured to have another reason.
    """
    found = [result for result in results if result.status is Status.FOUND]
    causes = {result.details.get("cause") for result in found if result.rule == DataStarved.__name__}
    apart = {NoisyNeighbour.__name__} if causes - {None, "neighbours", *CONCLUDED} else set()
    groups: dict[str, list[RuleResult]] = {}
    for result in sorted(found, key=lambda each: (each.about.distance, -each.seconds_lost, each.rule)):
        topic = "" if result.rule in apart else result.about.topic
        groups.setdefault(topic or result.rule, []).append(result)
    return list(groups.values())


def problems_of(analysis: Analysis) -> list[Problem]:
    """Returns the problems of a run, the most expensive one first; `small_problems` are left out."""
    return [problem for problem in _of_run(analysis) if not _is_small(problem, analysis)]


def results_of(analysis: Analysis) -> list[RuleResult]:
    """Returns all rules; of a trace first what its devices show, which no rule judges."""
    found = (problem.rule for problem in problems_of(analysis) if analysis.is_trace)
    return [*(result for result in found if not result.is_of_a_rule), *analysis.rules]


def small_problems(analysis: Analysis) -> list[Problem]:
    """Returns what is no problem, or cost less than `SMALL` of the run, or `SMALL_WITHOUT_CAUSE`."""
    return [problem for problem in _of_run(analysis) if _is_small(problem, analysis)]


def _of_run(analysis: Analysis) -> list[Problem]:
    found = list(analysis.rules)
    if not _is_short(analysis):
        found += _of_account(analysis)
    return [_located(problem, analysis) for problem in problems(found, analysis.account)]


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
        *slower_steps(analysis),
    ]


def _located(problem: Problem, analysis: Analysis) -> Problem:
    found = _places(problem, analysis)
    loads = problem.rule.about.topic == DataStarved.topic
    shared = _shared_seconds(problem.rule, found, analysis)
    if shared < SMALL * (analysis.run_seconds or 0.0):
        shared = 0.0
    advice = [problem.rule.recommendation]
    if shared > problem.seconds_lost / 2 and loads:
        advice.append(CHEAPER)
    iterates = any("__iter__" in (place.line.function, place.line.caller) for place in found[:1])
    if loads and iterates and any((loader["workers"] or 0) > 1 for loader in analysis.loaders):
        advice.append(SKIP_FIRST)
    for pattern, words in OF_LIBRARIES.items():
        if caller := next((place for place in found if re.fullmatch(pattern, place.line.library)), None):
            advice.insert(0, words.format("This line" if caller is found[0] else caller.words))
            break
    rule = replace(problem.rule, recommendation=" ".join(advice))
    return replace(problem, rule=rule, places=found, shared_seconds=shared)


def _shared_seconds(result: RuleResult, found: list[Place], analysis: Analysis) -> float:
    """Returns the most that computing can gain from the cores that the cause of a finding used, in seconds.

    That is their CPU seconds divided by the run's cores. It is 0 if there are cores for all, if GPUs compute,
    or if that is not known.
    """
    if "shared_seconds" in result.details:
        return float(result.details["shared_seconds"])
    account = analysis.account
    allowed = sum(cores.allowed for cores in analysis.run_cores)
    of_tensorflow = allowed if PIPELINE_PYTHON in analysis.gauges else 0.0  # as many as it may use
    threads = analysis.gauges.get(THREADS, of_tensorflow) * max(analysis.ranks, 1)
    used = _used_seconds(result, found, analysis)
    if account is None or not (allowed and threads and used) or analysis.uses_gpus:
        return 0.0
    if threads + used / account.seconds * account.ranks <= allowed:
        return 0.0
    return min(used / allowed, account.useful_share * account.seconds / account.ranks)


def _used_seconds(result: RuleResult, found: list[Place], analysis: Analysis) -> float:
    """Returns the CPU seconds of what loads data, or of other Python threads that are waited for."""
    if result.about.topic == DataStarved.topic:
        loaders = (loader for loader in analysis.loaders if loader["phase"] == "train" and loader["workers"])
        of_pipelines = analysis.gauges.get(PIPELINE_PYTHON, 0.0) * max(analysis.ranks, 1)
        return float(sum(loader["fetch_cpu_seconds"] for loader in loaders)) + of_pipelines
    states = found[0].line.seconds if found and not result.is_of_a_rule else {}
    waits_for_threads = max(states, key=lambda state: states[state], default="") == "lock"
    if not waits_for_threads and result.details.get("component") != INTERPRETER_LOCK:
        return 0.0
    return sum(line.total for line in lines_of(Key("", INTERPRETER_LOCK), analysis.threads))


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
        found = [place for place in places(lines) if not chosen or place.line.place in chosen]
        return worth_a_name(found[:MOST_PLACES])
    return []


def _lines(result: RuleResult, analysis: Analysis, main_phase: str) -> list[LineTime] | None:
    """Returns the lines of what a finding is about; None: it is about no part.

    A finding about long steps, or about one that does not end, has the lines of these, if some were sampled.
    """
    key = part_of(result, main_phase)
    rank = result.details.get("rank", result.details.get("waited_for"))
    if result.definition.only_pauses:
        of_ranks = ranks_of(result) if rank is None else {rank}
        slow = [thread for thread in analysis.threads if thread.rank in of_ranks]
        of_steps = key or Key(result.details.get("part", main_phase))
        if long := [line for line in lines_of(of_steps, slow) if line.step]:
            return long
    if key is None:
        return None
    key = Key(key.part, result.details.get("lines_of", key.component))
    threads = [thread for thread in analysis.threads if rank in (None, thread.rank)]
    lines = lines_of(key, threads)
    if key.component == "compile" and not lines:  # JAX and TensorFlow say only later that a call compiled
        lines = lines_of(Key(key.part, "forward"), threads)
    return lines


def _is_small(problem: Problem, analysis: Analysis) -> bool:
    if problem.rule.about.effect is Effect.OVERVIEW:
        return True
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
    times = ("fetch_cpu_seconds", "fetch_seconds")
    ran, fetched = (fsum(loader[name] for loader in analysis.loaders) for name in times)
    return not late and (waited < SMALL or ran < ASLEEP * fetched)


def in_order(results: Iterable[RuleResult]) -> list[RuleResult]:
    """Returns the findings in the order of their problems, then other rules by state."""
    every = list(results)
    found = [rule for problem in problems(every) for rule in (problem.rule, *problem.also)]
    rest = [result for result in every if result.status is not Status.FOUND]
    states = list(Status)
    rest.sort(key=lambda result: (states.index(result.status), result.about.is_symptom, result.rule))
    return found + rest


def _place(problem: Problem, found: list[Problem]) -> tuple[float, bool, int, str]:
    """Returns the sort key. A symptom explains no more time than any cause of it that was found.

    What may slow all else is first.
    """
    rule, seconds = problem.rule, problem.seconds_lost
    if rule.about.is_symptom:
        causes = (
            other.seconds_lost
            for other in found
            if not other.rule.about.is_symptom and rule.about.symptom == other.rule.about.symptom != ""
        )
        seconds = min((seconds, *causes))
    seconds = max(seconds, rule.details.get("may_cost", 0.0))
    return -seconds, rule.about.is_symptom, -rule.triggered, rule.rule


def _explains(cause: Problem, effect: Problem) -> bool:
    """Returns whether a problem explains what anything that costs time may cause, such as idle GPUs."""
    return cause.seconds_lost > 0 or cause.rule.about.symptom == effect.rule.about.symptom != ""
