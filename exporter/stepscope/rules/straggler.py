"""Straggler: one rank takes longer by itself than the others, which wait for it at each step.

Source: our own. Ranks that wait for each other have the same step time, so the rule compares own time: steps
without communication, which contains the waiting. Means of that are compared as in Welch's test. The rank
that waits longest is the victim, so a straggler must also wait less than the others. Graphs of TensorFlow in
which ranks wait for each other count as waiting: what they compute by themselves is not known.
"""

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, NamedTuple

import numpy as np

from stepscope.common.words import count, duration, listing
from stepscope.measurements.arrivals import arrivals
from stepscope.measurements.measure import RunMeasurements
from stepscope.measurements.own_times import (
    HOST,
    OWN_TIMES,
    SHORTEST,
    Aligned,
    OwnTimes,
    Peers,
    Windows,
    median,
)
from stepscope.measurements.process_groups import are_stages
from stepscope.measurements.scraped import STEPS, Moment, Scraped, Window, column, run_of
from stepscope.rules.parts.bands import Band
from stepscope.rules.parts.base import Rule, Verdict, status_of
from stepscope.rules.parts.expressions import Expression, Gain, Record, Shared, time_span
from stepscope.rules.parts.judgement import Booleans, Judgement, Tallies, judgement
from stepscope.rules.parts.last_rank import LastRank
from stepscope.rules.parts.last_rank_in_words import verdict
from stepscope.rules.parts.parameters import (
    Milliseconds,
    Parameters,
    Percent,
    StandardErrors,
    StepCount,
    fraction,
)
from stepscope.rules.parts.promql import MINUTE, OF_RANK, Alert, PrometheusRules, Scraping, looked_up
from stepscope.rules.parts.registry import rule
from stepscope.rules.parts.remedies import PAUSED_RANK, SLOW_RANK, SLOW_STAGE, UNTIMED_RANK
from stepscope.rules.parts.shares import summed
from stepscope.rules.parts.topics import LONG_COMMUNICATION
from stepscope.runs.model import USEFUL, RunFacts, Times
from stepscope.training.layout import GRAPHS_WAIT, THREADS

LENGTHS = (30, 100, 1000)  # of windows, in steps: short ones find short times, long ones find rare pauses
NEARLY_ALL = 0.9  # of the lost seconds: the shortest windows with so many are reported
INTERPRETER = "interpreter_lock"
PAUSES = {
    "stopped": "stopped by a signal",
    "no_core": "ready to run but without a core",
    "throttled": "throttled by its CPU limit",
    INTERPRETER: "waiting for Python's interpreter lock, which other threads of its process held,",
}
# All ranks wait for crowded cores, each at other times. A rank that waits this many times as
# long as the others has a core problem of its own. One that is slow in nearly all windows is slow by itself.
ALONE = 3
STEADY, STEADY_WINDOWS = 0.8, 3  # the share of the windows, and how many at least; Prometheus: the last ones
# Or in so many windows, while no other rank is slow in more than an eighth of them:
# chance would choose each rank equally often.
BY_CHANCE = 8
OWN_WORK = 0.25  # of the excess: with less left, pauses explain all of it
LONGER = 1.0  # of the others' work: equal work took up to 0.6 more where cores were crowded
APART = 8  # times as long as on the others, of a component: chance makes all components longer, by less

OWN_SECONDS, OWN_SQUARES = "stepscope_step_own_seconds_total", "stepscope_step_own_squared_seconds_total"
COMPONENT_SECONDS = "stepscope_step_component_seconds_total"
PAUSED_SECONDS, BY_CORES = "stepscope_rank_paused_seconds_total", 'reason="no_core"'
COMPARED = "run_instance_rank:stepscope_step_own:steps"
OWN = "run_instance_rank:stepscope_step_own:mean_seconds"
WAITED = "run_instance_rank:stepscope_step_waited:mean_seconds"
VARIANCE = "run_instance_rank:stepscope_step_own:mean_variance"  # of the mean: its standard error squared
EXCESS = "run_instance_rank:stepscope_step_own:excess_seconds"
ERROR = "run_instance_rank:stepscope_step_own:excess_error_seconds"
WAITS_LESS = "run_instance_rank:stepscope_step_waited:less_seconds"
SLOW = "run_instance_rank:stepscope_step_own:straggler_excess_seconds"  # only of a rank that may be accused
NO_CORE = "run_instance_rank:stepscope_step_no_core:mean_seconds"  # only of its run
EVERY = 4 * MINUTE
MINUTES_COMPARED = 5  # by Prometheus, which does not know the numbers of steps


@dataclass(frozen=True)
class StragglerParameters(Parameters):
    threshold: Annotated[Percent, "the excess over the others' median is above this share of the step"] = 5
    minimum: Annotated[Milliseconds, "and above this time per step"] = 2
    deviations: Annotated[StandardErrors, "and above this many standard errors"] = 3
    waiting: Annotated[Percent, "and the rank waits less than the others by this share of the excess"] = 50
    steps: Annotated[StepCount, "ranks are compared over at least this many steps"] = 30


@rule
class Straggler(Rule[StragglerParameters, Peers]):
    """Seconds lost: the straggler's own time beyond the median of the others.

    All windows count in which others certainly waited for it, also those below the thresholds.
    """

    subject = "Waiting for a slow rank"
    question = "Does one rank take longer by itself than the others, so that they wait for it?"
    description = (
        "Compares the own time of ranks: the step without communication, because fast ranks wait for slow "
        "ones there. All ranks of the run are compared, on the same node or not."
    )
    recommendation = (
        "Look at that rank's machine: a hot or slow GPU, a core that others use, a slow disk. If the slow "
        "rank changes, look at the data instead: batches of uneven size."
    )
    topic = "slow ranks"
    view = "ranks"
    symptom = LONG_COMMUNICATION

    measure = OWN_TIMES

    def judge(self, view: Peers) -> Judgement:
        enough = (view.steps >= self.parameters.steps) & ~np.isnan(view.excess)
        crowded = _only_waits(view.excess, view.no_core, view.others_no_core) & ~view.steady
        return judgement(enough, (view.excess, self._slow(view) & ~crowded))

    def _slow(self, view: Peers) -> Booleans:
        """Returns which ranks the others wait for, whatever the reason, for longer than the thresholds."""
        return np.asarray(
            self._certain(view)
            & (view.excess > fraction(self.parameters.threshold) * view.step)
            & (view.excess > self.parameters.minimum / 1000)
        )

    def _certain(self, view: Peers) -> Booleans:
        """Returns which ranks the others wait for, however short."""
        parameters = self.parameters
        # The more windows are compared, the more of them are far from the others by chance: this many
        # standard errors keep the odds for all windows together.
        deviations = np.sqrt(parameters.deviations**2 + 2 * np.log(view.comparisons))
        return np.asarray(
            view.slow
            & (view.excess > deviations * view.error)
            & (view.waits_less > fraction(parameters.waiting) * view.excess)
        )

    def prometheus_rules(self, scraping: Scraping) -> PrometheusRules:
        """Returns the rules: over minutes instead of steps."""
        parameters, window = self.parameters, self._window(scraping)
        steps = Gain(f'{STEPS}_count{{phase="train"}}', window)
        took, spent, squares, paused = (
            Gain(counter, window, joined=True)
            for counter in (
                f'{STEPS}_sum{{phase="train"}}',
                OWN_SECONDS,
                OWN_SQUARES,
                f"{PAUSED_SECONDS}{{{BY_CORES}}}",
            )
        )
        compared = Record(COMPARED, (steps >= parameters.steps).sum_without("phase"))
        own = Record(OWN, (spent / compared).on_one_line())
        waited = Record(WAITED, (took.sum_without("phase") / compared - own).on_one_line())
        variance = Record(VARIANCE, (squares / compared - own**2).function("clamp_min", 0) / compared)
        excess = Record(EXCESS, own - _of_others(own))
        error = Record(ERROR, (variance + _of_others(variance)).function("sqrt"))
        less = Record(WAITS_LESS, (waited - _of_others(waited)) * -1)
        slow = Record(
            SLOW,
            (excess > parameters.minimum / 1000)
            & (excess > (own + waited) * fraction(parameters.threshold))
            & (excess > error * parameters.deviations)
            & (less > excess * fraction(parameters.waiting))
            & (own >= own.over_run("max")),
        )
        no_core = Record(NO_CORE, paused / compared & Shared(slow))
        crowded = (no_core > excess * 0.5) & (no_core / ALONE < _of_others(no_core))
        steady = " and ".join(f"{SLOW} offset {time_span(ago)}" for ago in self._earlier(scraping))
        return PrometheusRules(
            every=EVERY,
            targets=scraping.held(OWN_SQUARES),  # of ranks whose own time is counted
            records=[compared, own, waited, variance, excess, error, less, slow, no_core],
            alerts=[
                Alert(
                    f"{SLOW} unless (\n{crowded}\n  unless ({steady})\n)",
                    summary="Rank {{ $labels.rank }} of run {{ $labels.run }} is slow, others wait for it",
                    description="Rank {{ $labels.rank }} of run {{ $labels.run }} on {{ $labels.instance }} "
                    "is slow by itself, and the other ranks wait for it: its own time per step is "
                    "{{ $value | humanizeDuration }} longer than their median"
                    + looked_up(f"{OWN}{{}}", OF_RANK, " ({{ .Value | humanizeDuration }}")
                    + looked_up(f"{OWN}{{}} - {EXCESS}{{}}", OF_RANK, " and {{ .Value | humanizeDuration }})")
                    + looked_up(
                        f"{WAITS_LESS}{{}}", OF_RANK, ", and it waits {{ .Value | humanizeDuration }} less"
                    )
                    + f" (fires above {parameters.threshold:g} % of the step)."
                    + _cause()
                    + _paused(),
                    keep_firing=300,
                    lost=f"{{}} / ignoring (rule) ({OWN} + {WAITED})",
                )
            ],
        )

    def _window(self, scraping: Scraping) -> Window:
        """Returns the window over which Prometheus compares ranks."""
        return scraping.last(MINUTES_COMPARED * MINUTE)

    def _earlier(self, scraping: Scraping) -> list[float]:
        """Returns how long ago, in seconds, the evaluations were at which a rank must have been slow, too."""
        return [number * max(EVERY, scraping.interval) for number in range(1, STEADY_WINDOWS)]

    def scraped(self, now: Moment, scraping: Scraping) -> Scraped[Peers]:
        """Returns the comparison of all ranks; ranks of one run are peers, on any node."""
        steps, own, waited, excess, error, less, no_core = (
            now.recorded(name) for name in (COMPARED, OWN, WAITED, EXCESS, ERROR, WAITS_LESS, NO_CORE)
        )
        ranks = list(excess)
        recorded = Record(OWN, "")
        slowest = (recorded >= recorded.over_run("max")).value(now)
        others_no_core = _of_others(Record(NO_CORE, "")).value(now)
        earlier = [now.recorded(SLOW, ago) for ago in self._earlier(scraping)]
        view = Peers(
            steps=column(steps, ranks),
            step=column(own, ranks) + column(waited, ranks),
            excess=column(excess, ranks),
            error=column(error, ranks),
            waits_less=column(less, ranks),
            slow=np.array([rank in slowest for rank in ranks], bool),
            no_core=column(no_core, ranks),
            others_no_core=column(others_no_core, [run_of(rank) for rank in ranks]),
            steady=np.array([all(rank in slow for slow in earlier) for rank in ranks], bool),
        )
        return Scraped(ranks, view)

    def conclude(self, run: RunMeasurements, tallies: Tallies) -> Verdict:
        """Returns the conclusion: from each rank's arrivals if there are traces, otherwise from own times."""
        found = arrivals(run.facts.traces)
        if found is not None:
            return verdict(LastRank(found, self.parameters))
        in_graphs = _wait_in_graphs(run.facts)
        ranks = [
            Rank(name, rank, times.outside_graphs() if in_graphs else times)
            for name, node in run.of(self.measure).items()
            for rank, times in sorted(node.ranks.items())
        ]
        aligned = Aligned([rank.times for rank in ranks])
        windows = aligned.windows(LENGTHS)
        compared = max(1, sum(found.steps.shape[1] for found in windows))
        views = [found.compared(compared) for found in windows]
        judged = [self.judge(view) for view in views]
        fired = [found.fired for found in judged]
        enough = sum(int(found.enough.any(axis=0).sum()) for found in judged)
        triggered = sum(int(found.sum()) for found in fired)
        lost = [_excess(view, slow) for view, slow in zip(views, fired, strict=True)]
        by_rank = self._lost(views, fired)
        accused, held = None, []
        if triggered:
            most = max(float(seconds.max()) for seconds in lost)
            place = min(i for i, seconds in enumerate(lost) if seconds.max() >= NEARLY_ALL * most)
            row = int(lost[place].argmax())
            accused = _accused(run.facts, aligned, windows[place], ranks, row, judged[place])
            held = _held(ranks, aligned.ends(windows[place]), judged[place], views[place].excess)
        crowded = accused is not None and accused.crowded
        if crowded:
            triggered, by_rank, held = 0, np.zeros(len(ranks)), []
        return Verdict(
            status_of(triggered, enough),
            _finding(ranks, enough, accused, fired, self.parameters.steps, in_graphs),
            triggered,
            triggered,
            sum(rank.times.steps for rank in ranks),
            float(by_rank.max(initial=0.0)),
            accused.remedy if accused and not crowded else None,
            {
                **(accused.details() if accused and not crowded else {}),
                "windows": enough,
                "ranks": [
                    {
                        "node": rank.node,
                        "rank": rank.rank,
                        "own_seconds": rank.times.own / rank.times.steps,
                        "waited_seconds": rank.times.communicated / rank.times.steps,
                        "triggered": sum(int(found[row].sum()) for found in fired),
                        "seconds_lost": float(by_rank[row]),
                    }
                    for row, rank in enumerate(ranks)
                ],
            },
            held=held,
        )

    def _lost(self, views: Sequence[Peers], fired: Sequence[Booleans]) -> Times:
        """Returns the seconds that each rank cost, 0 unless it fired; by the lengths that find most of it."""
        slow = np.any([found.any(axis=1) for found in fired], axis=0)
        lost = [_excess(view, self._certain(view)) for view in views]
        return np.where(slow, np.max(lost, axis=0, initial=0.0), 0.0)


def _excess(view: Peers, counted: Booleans) -> Times:
    """Returns (ranks,) the seconds beyond the others' in the windows that count."""
    return np.asarray(np.where(counted, view.excess * view.steps, 0).sum(axis=1))


class Rank(NamedTuple):
    """The training steps of one rank."""

    node: str
    rank: int
    times: OwnTimes


class Accused(NamedTuple):
    """The rank with most seconds lost: times are means per step over the windows that fired."""

    rank: Rank
    together: list[Rank]  # those that are slow in at least half of these windows, too
    length: int
    fired: int
    fired_others: int  # windows of the other rank, not slow in the same ones, that fired most often
    windows: int
    steps: int
    own: float
    others: float  # the median of the ranks that are faster
    waits_less: float
    pauses: dict[str, tuple[float, float]]  # seconds of the run by reason: its own, the others' median
    worked: float  # seconds of the excess that are known to be its own work, see `_worked`
    alone: bool  # whether it spends the time of `component` itself, and no process of its own
    no_core: float  # seconds of the excess for which it may have waited for a core; infinite: not known
    timed: bool  # whether any component but communication was, on any rank
    is_stage: bool  # whether ranks are stages of a pipeline, of which this one computes longest
    component: str  # with the largest excess
    component_seconds: float
    component_others: float

    def words(self) -> str:
        rank, took, others = self.rank, duration(self.component_seconds), duration(self.component_others)
        does = "saves checkpoints" if self.component == "checkpoint" else "is slow by itself"
        if self.is_stage:
            does = "has the longest stage of a pipeline"
        told = (
            f"Rank {rank.rank} on {rank.node} {does}, and the other ranks wait for it: its own time is "
            f"{duration(self.own)} per step, theirs {duration(self.others)} (median). "
            f"It waits {duration(self.waits_less)} less, in {self.fired} of "
            f"{count(self.windows, 'window')} of {self.length} steps. "
        )
        if not self.timed:
            return f"{told}What it does in this time was not timed{self._pauses_in_words()}"
        most = "host time outside all components" if self.component == HOST else self.component
        return (
            f"{told}Most of the excess is {most}: {took} per step, {others} on the other ranks"
            f"{self._pauses_in_words()}"
        )

    @property
    def _paused_longer(self) -> dict[str, float]:
        """Returns the seconds of pauses beyond the other ranks', by reason."""
        longer = {reason: mine - theirs for reason, (mine, theirs) in self.pauses.items()}
        if "no_core" in longer:
            left = max(self.excess - self.worked, 0.0)
            longer["no_core"] = min(longer["no_core"], left, max(self.no_core, 0.0))
        return longer

    @property
    def long_pauses(self) -> list[str]:
        """Returns the reasons of pauses, the longest first, if they explain most of the excess.

        Other threads that hold the interpreter lock use a core, too: they are before waits for one.
        """
        more = self._paused_longer
        if sum(more.values()) <= self.excess / 2:
            return []
        most_first = sorted(more, key=lambda reason: (reason != INTERPRETER, -more[reason]))
        return [reason for reason in most_first if more[reason] > self.excess / 10]

    @property
    def works_longer(self) -> bool:
        """Returns whether much of the excess remains without the pauses."""
        return sum(self._paused_longer.values()) < (1 - OWN_WORK) * self.excess

    @property
    def excess(self) -> float:
        """Returns the seconds in all windows that fired."""
        return (self.own - self.others) * self.steps

    @property
    def crowded(self) -> bool:
        """Returns whether waiting for a core may be all of its excess, as for any rank on crowded cores."""
        mine, theirs = self.pauses.get("no_core", (0.0, 0.0))
        steady = self.fired >= max(STEADY_WINDOWS, STEADY * self.windows)
        by_chance = self.fired < BY_CHANCE or self.fired_others > self.fired / BY_CHANCE
        longer = self._paused_longer
        known = self.worked + sum(longer[reason] for reason in longer if reason != "no_core")
        only_waits = _only_waits(self.excess, mine, theirs) and known < self.excess / 2 < self.no_core
        # Or most of the excess is in a component on which the others hardly spend time.
        took, others = self.component_seconds, self.component_others
        does_more = self.alone and took - others > (self.own - self.others) / 2 and took > APART * others
        return bool(only_waits) and by_chance and not steady and not does_more

    @property
    def remedy(self) -> str | None:
        own = SLOW_RANK.get(self.component, SLOW_STAGE if self.is_stage else None)
        own = own if self.timed else UNTIMED_RANK
        pauses = self.long_pauses
        if not pauses:
            return own
        return f"{PAUSED_RANK[pauses[0]]} {own}" if own and self.works_longer else PAUSED_RANK[pauses[0]]

    def _pauses_in_words(self) -> str:
        parts = [
            f"{PAUSES[reason]} for {duration(self.pauses[reason][0])} of the run "
            f"(the other ranks: {duration(self.pauses[reason][1])})"
            for reason in self.long_pauses
        ]
        if not parts:
            return ""
        this = "Most of this" if self.works_longer else "This"
        return f". {this} is not its own work: it was {' and '.join(parts)}"

    def details(self) -> dict[str, Any]:
        waited = self._paused_longer.get(INTERPRETER, 0.0)
        return {
            "node": self.rank.node,
            "rank": self.rank.rank,
            "slow_ranks": [self.rank.rank, *(rank.rank for rank in self.together)],
            "component": self.component,
            **({"lines_of": INTERPRETER} if self.long_pauses[:1] == [INTERPRETER] else {}),
            "excess_seconds": self.own - self.others,
            "waits_less_seconds": self.waits_less,
            "steps": self.steps,
            "paused_seconds": {reason: mine for reason, (mine, _) in self.pauses.items()},
            "paused_others_seconds": {reason: theirs for reason, (_, theirs) in self.pauses.items()},
            "component_seconds": self.component_seconds,
            "component_others_seconds": self.component_others,
            "window": self.length,
            **({"brings": {INTERPRETER: min(waited, self.excess)}} if waited > 0 else {}),
        }


def _wait_in_graphs(facts: RunFacts) -> bool:
    return any(rank.gauges.get(GRAPHS_WAIT) for rank in facts.ranks)


def _only_waits(excess: Times | float, no_core: Times | float, others: Times | float) -> Booleans:
    """Returns where waiting for a core may be all of the excess; all arguments in seconds."""
    return np.asarray((excess / 2 < no_core) & (no_core / ALONE < others))


def _held(ranks: Sequence[Rank], ends: Times, judged: Judgement, excess: Times) -> list[Band]:
    """Returns when ranks were slow: from the end of the first window that fired to that of the next other.

    All arrays are of (ranks, windows). Windows that are not judged, such as a short last one, end nothing.
    """
    held = []
    for row, rank in enumerate(ranks):
        known = judged.enough[row]
        times, slow, longer = ends[row][known], judged.fired[row][known], excess[row][known]
        changes = np.flatnonzero(np.diff(slow, prepend=False, append=False))
        for first, after in changes.reshape(-1, 2).tolist():
            worst = float(longer[first:after].max())
            words = f"{duration(worst)} more own time per step"
            lasts = after == len(times)
            end = float(times[after - lasts])
            held.append(Band(rank.node, f"rank {rank.rank}", float(times[first]), end, lasts, worst, words))
    return held


def _pauses(facts: RunFacts, accused: int, slow: Collection[int]) -> dict[str, tuple[float, float]]:
    """Returns for how long a rank could not run, and the median of the fast ones, if that was measured."""
    known: dict[int | None, dict[str, float]] = {}
    for rank in facts.ranks:  # a rank's later process continues its counts
        paused = known.setdefault(rank.rank, {})
        paused |= {name: max(long, paused.get(name, 0.0)) for name, long in rank.paused_seconds.items()}
    for thread in facts.threads:
        if thread.role == "training" and thread.rank in known and thread.interpreter_wait_seconds:
            known[thread.rank][INTERPRETER] = thread.interpreter_wait_seconds
    others = [paused for rank, paused in known.items() if rank not in slow]
    return {
        reason: (seconds, float(np.median([paused.get(reason, 0.0) for paused in others])))
        for reason, seconds in known.get(accused, {}).items()
        if others
    }


def _with_workers(facts: RunFacts) -> set[int]:
    """Returns the ranks whose data comes from worker processes, which may have had no core."""
    return {rank.rank for rank in facts.ranks if any(loader.workers for loader in rank.loaders)}


def _worked(facts: RunFacts, accused: int, slow: Collection[int]) -> float:
    """Returns the seconds by which a rank's own work in training steps is longer than that of the fast ones.

    Longer work counts if it is twice as long: otherwise it is chance on crowded cores. It also waits longer
    for these, and so this part of its waits counts, too. Sleep counts as work if it is for no other rank, and
    for no process or thread that may lack a core.
    """
    times: dict[int, Times] = {}  # with a core, without one, in communication and in all, and asleep
    loading = _with_workers(facts)
    for thread in facts.threads:
        if thread.role == "training" and thread.rank is not None:
            for_others = {"communication", *(("data_wait",) if thread.rank in loading else ())}
            lines = [line for line in thread.lines if line.phase == "train"]
            own = summed(line.seconds for line in lines if line.component not in for_others)
            asleep = own.get("disk", 0.0) + own.get("other", 0.0)
            spins = sum(line.running for line in lines if line.component == "communication")
            running = sum(line.running for line in lines)
            spent = (thread.train_ran_seconds, thread.train_core_wait_seconds, spins, running, asleep)
            times[thread.rank] = times.get(thread.rank, 0) + np.array(spent)
    others = [spent for rank, spent in times.items() if rank not in slow]
    if accused not in times or not others:
        return 0.0
    # Samples count a wait for a core as running. So the others computed at least so long in communication.
    usual = float(np.median([ran - max(spins - waited, 0.0) for ran, waited, spins, _, _ in others]))
    ran, waited, spins, running_seconds, asleep_seconds = times[accused].tolist()
    own = ran * (1 - spins / running_seconds) if running_seconds else ran
    longer = (own - usual) * (1 + waited / ran) if own > (1 + LONGER) * usual else 0.0
    return float(asleep_seconds - np.median([each[-1] for each in others]) + longer)


def _without_core(facts: RunFacts, accused: int, slow: Collection[int], outside: float) -> float:
    """Returns for how many seconds of its excess a rank may have waited for a core; infinite if not known.

    The fast ones waited, too, in the same steps: at least for what does not fit into the seconds `outside` of
    these. Only waits of main threads count: one with other threads for the same work also waits for theirs.
    """
    alone = {rank.gauges[THREADS] for rank in facts.ranks if THREADS in rank.gauges} == {1}  # of some ranks
    ran = (thread for thread in facts.threads if thread.train_ran_seconds)
    waited = summed({thread.rank: thread.train_core_wait_seconds} for thread in ran)
    others = [seconds for rank, seconds in waited.items() if rank not in slow]
    if not (alone and others and accused in waited):
        return math.inf
    return waited[accused] - max(float(np.median(others)) - outside, 0.0)


def _accused(
    facts: RunFacts,
    aligned: Aligned,
    windows: Windows,
    ranks: Sequence[Rank],
    row: int,
    judged: Judgement,
) -> Accused:
    """Returns the comparison of a rank with the fast ones, over the windows in which it fired."""
    fired = judged.fired[row]
    together = (judged.fired & fired).sum(axis=1) * 2 >= fired.sum()
    steps: Times = np.nansum(windows.steps[:, fired], axis=1)
    steps[steps == 0] = np.nan

    def per_step(sums: Times) -> Times:
        return np.asarray(sums[:, fired].sum(axis=1) / steps)

    own, step = per_step(windows.own), per_step(windows.seconds)
    faster = (own < own[row]) & ~together
    slow = {rank.rank for rank, alike in zip(ranks, together, strict=True) if alike}

    def compared(values: Times) -> tuple[float, float]:
        return float(values[row]), float(median(values[faster, None])[0])

    components = {name: per_step(sums) for name, sums in aligned.own_components(windows).items()}
    timed = _wait_in_graphs(facts) or any(each.any() for name, each in components.items() if name != HOST)
    evidence = {name: compared(seconds) for name, seconds in components.items()}
    component = max(evidence, key=lambda name: evidence[name][0] - evidence[name][1])
    waited, others_waited = compared(step - own)
    outside = ranks[row].times.seconds - float(windows.seconds[row, fired].sum())
    return Accused(
        ranks[row],
        [rank for rank, alike in zip(ranks, together, strict=True) if alike and rank is not ranks[row]],
        windows.length,
        int(fired.sum()),
        int(judged.fired[~together].sum(axis=1).max(initial=0)),
        int(judged.enough.any(axis=0).sum()),
        int(steps[row]),
        *compared(own),
        others_waited - waited,
        _pauses(facts, ranks[row].rank, slow),
        _worked(facts, ranks[row].rank, slow),
        timed and not (component == "data_wait" and ranks[row].rank in _with_workers(facts)),
        _without_core(facts, ranks[row].rank, slow, outside),
        timed,
        component in USEFUL and are_stages(facts.threads),
        component,
        *evidence[component],
    )


def _finding(
    ranks: Sequence[Rank],
    enough: int,
    accused: Accused | None,
    fired: Sequence[Booleans],
    needed: int,
    in_graphs: bool,
) -> str:
    if not enough:
        return _why_not(ranks, needed)
    if accused is None:
        finding = "No rank takes so much longer by itself that the others wait for it"
        if in_graphs:
            finding += "; what they compute in graphs is not known, because they also wait there"
        elif not any(rank.times.communicated for rank in ranks):
            finding += "; communication was not timed, so waiting ranks count as computing"
        return f"{finding}."
    if accused.crowded:
        mine, theirs = map(duration, accused.pauses["no_core"])
        return (
            f"No rank can be accused: in {accused.fired} of {count(accused.windows, 'window')} of "
            f"{accused.length} steps, rank {accused.rank.rank} on {accused.rank.node} took "
            f"{duration(accused.own)} per step by itself, and the others {duration(accused.others)}; but it "
            f"waited {mine} for a core in this run, the others {theirs}, which may explain all of it."
        )
    finding = accused.words()
    others = int(np.any([found.any(axis=1) for found in fired], axis=0).sum()) - 1 - len(accused.together)
    if accused.together:
        alike = "rank {} is" if len(accused.together) == 1 else "ranks {} are"
        named = alike.format(listing([str(rank.rank) for rank in accused.together]))
        finding += f"; {named} slow in the same steps"
    if others > 0:
        was = "was" if others == 1 else "were"
        finding += f"; {count(others, 'more rank')} {was} slow at other times"
    return f"{finding}."


def _why_not(ranks: Sequence[Rank], needed: int) -> str:
    if not ranks:
        return "A straggler needs peers: no rank's training steps were recorded."
    if len(ranks) == 1:
        return "A straggler needs peers: only one rank's training steps were recorded."
    most = min(rank.times.steps for rank in ranks)
    if most < needed:
        return f"Too few training steps that ranks have in common: {most}, of {needed} needed."
    return f"The training steps that ranks have in common took less than {duration(SHORTEST)}."


def _of_others(series: Expression) -> Shared:
    """Returns the median of the ranks of a run with less own time than the slowest."""
    own = Record(OWN, "")  # its recorded values
    return (series & (own < own.over_run("max"))).over_run("median")


def own_parts(ranks: str, over: str) -> str:
    """Returns PromQL for what selected ranks spend per step on each component and on the rest of the step.

    `over` is the time over which the rates are taken.
    """
    same_rank = ", ".join(OF_RANK)
    spent = f'rate({COMPONENT_SECONDS}{{{ranks},component!="communication"}}[{over}])'
    steps = f'(rate({STEPS}_count{{{ranks},phase="train"}}[{over}]) > 0)'
    components = f"{spent} / on ({same_rank}) group_left () {steps}"
    rest = f"{OWN}{{{ranks}}} - on ({same_rank}) sum by ({same_rank}) ({components})"
    return f'({components} or label_replace({rest}, "component", "{HOST}", "", ""))'


def _cause() -> str:
    """Returns a template's sentence on the component with the largest excess over the other ranks' median."""
    mine, theirs = (own_parts(f"%[{number}]s", f"{MINUTES_COMPARED}m") for number in (1, 2))
    excess = f"topk(1, max by (component) ({mine}) - quantile by (component) (0.5, {theirs}))"
    labels = " ".join(f"$labels.{label}" for label in OF_RANK)
    rank = f"(printf `{','.join(f'{label}=%q' for label in OF_RANK)}` {labels})"
    others = "(printf `cluster=%q,run=%q,rank!=%q` $labels.cluster $labels.run $labels.rank)"
    return (
        f"{{{{ range printf `{excess}` {rank} {others} | query }}}} Most of it is "
        "{{ .Labels.component }}: {{ .Value | humanizeDuration }}.{{ end }}"
    )


def _paused() -> str:
    """Returns a template's sentence on the pauses of the rank, if they explain most of the excess."""
    paused = f"increase({PAUSED_SECONDS}{{}}[{MINUTES_COMPARED}m])"
    same_rank = ", ".join(OF_RANK)
    long = f"{paused} > on ({same_rank}) group_left () 0.5 * {EXCESS}{{}} * {COMPARED}{{}}"
    words = " Not its own work: {{ .Labels.reason }} for {{ .Value | humanizeDuration }}."
    return looked_up(f"topk(1, {long})", OF_RANK, words)
