"""TrainingStalled: no step finishes for many times the usual duration, although the process is alive.

Source: our own. NVIDIA's nvidia-resiliency-ext also treats a rank as hung if its heartbeat is missing for a
multiple (5, the safety factor) of the longest interval. A multiple of the usual interval needs no earlier
run, and the minimum avoids false alarms for short steps. Work that the run is known to do between steps is no
stall as long as it lasts as before.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import compress
from typing import Annotated, NamedTuple

import numpy as np

from stepscope.common.words import all_of, capitalised, count, duration, too_few
from stepscope.measurements.hangs import STOPPED, Hang, hangs
from stepscope.measurements.measure import Measure, RunMeasurements
from stepscope.measurements.pauses import (
    HOST,
    NodePauses,
    Pause,
    Standstills,
    by_rank,
    explained,
    lasting_in_script,
    stays_as_before,
    unobserved,
)
from stepscope.measurements.scraped import STEPS, Labels, Moment, Scraped, column, run_of
from stepscope.measurements.steps import STEP_DURATIONS
from stepscope.rules.parts.bands import Band
from stepscope.rules.parts.base import Rule, Verdict, status_of
from stepscope.rules.parts.expressions import Expression, Record
from stepscope.rules.parts.hang_in_words import collective_of, in_words
from stepscope.rules.parts.judgement import Booleans, Judgement, Tallies, judgement
from stepscope.rules.parts.parameters import Factor, Minutes, Parameters, StepCount
from stepscope.rules.parts.promql import MINUTE, OF_RUN, Alert, PrometheusRules, Scraping, looked_up
from stepscope.rules.parts.registry import rule
from stepscope.rules.parts.remedies import no_steps
from stepscope.rules.parts.starting import AT_PROMPT, OF_WORK, as_before, recorded_as_before
from stepscope.rules.parts.topics import IDLE_GPUS
from stepscope.runs.model import Stay, ranks_of

MOST = "run_instance:stepscope_steps:max"
USUAL = "run_instance:stepscope_time_between_steps:mean_seconds"
AGE = "stepscope_run_last_step_age_seconds"  # on the exporter's own clock
START = "stepscope_run_start_time_seconds"
PLACE = "stepscope_rank_component_age_seconds"
STAY = "run_instance_component:stepscope_longest_stay:seconds"
SHORTEST_STAY = 10.0  # seconds: exporters publish no shorter one
STATE, WORLD = "stepscope_rank_process_state", "stepscope_run_world_size"
IS_STOPPED = f'state="{STOPPED}"'
# Instead of a component: every rank is stopped, as by Slurm's `scontrol suspend`.
SUSPENSION = "suspension"
AS_BEFORE = "run_instance_component:stepscope_usual_stay:seconds"


@dataclass(frozen=True)
class TrainingStalledParameters(Parameters):
    factor: Annotated[Factor, "a stall lasts longer than this many times the usual time between steps"] = 20
    minimum: Annotated[Minutes, "a stall lasts longer than this, however short the steps are"] = 1
    patience: Annotated[StepCount, "decisions begin after this many steps of a rank"] = 20
    known: Annotated[
        Minutes, "a checkpoint or a compilation is no stall for this time, code of the script is information"
    ] = 10


@rule
class TrainingStalled(Rule[TrainingStalledParameters, Standstills]):
    """Seconds lost: the time of stalls beyond the usual time between steps, on the rank that lost most."""

    subject = "A stall"
    question = "Has training stalled although its processes are alive?"
    description = (
        "Compares the time from the end of a step to the end of the next one, or to now, with the rank's "
        "usual time. A process that hangs in a collective or on a dead file system looks like this. "
        "Checkpoints, compilations and pauses like earlier ones do not count."
    )
    recommendation = (
        "Find out where the processes wait (py-spy dump --pid PID, NCCL's flight recorder), first on the "
        "rank that stopped first. Mark checkpoints and evaluations between steps as phases."
    )
    view = "progress"
    only_pauses = True
    topic = "standstill"
    distance = 1
    symptom = IDLE_GPUS

    @property
    def measure(self) -> Measure[NodePauses]:
        return Measure(NodePauses, 60 * self.parameters.minimum)

    details_of = (STEP_DURATIONS,)

    def judge(self, view: Standstills) -> Judgement:
        return self._judged(view, view.steps > self.parameters.patience)

    def judge_whole(self, view: Standstills) -> Judgement:
        return self._judged(view, view.steps > 1)

    def _judged(self, view: Standstills, enough: Booleans) -> Judgement:
        parameters = self.parameters
        is_long = (view.seconds > parameters.factor * view.usual) & (view.seconds > 60 * parameters.minimum)
        is_stall = is_long & ~view.explained
        return judgement(
            enough,
            (view.seconds, is_stall & ~view.in_script & ~view.long_in_script),
            (view.seconds, is_stall & view.in_script),
            (view.seconds, is_stall & view.long_in_script),
        )

    def prometheus_rules(self, scraping: Scraping) -> PrometheusRules:
        """Returns the rules for a node's last step of any rank; the usual time is a mean, not a median."""
        factor, minimum, patience = self.parameters.factor, self.parameters.minimum, self.parameters.patience
        steps = scraping.held(f"{STEPS}_count")
        ended = scraping.held("stepscope_run_end_time_seconds")
        known = f"{60 * self.parameters.known:.12g}"
        least = max(60 * minimum, _until_all_are_seen(scraping))
        is_stall = (
            f"{scraping.held(AGE)} > clamp_min({factor:.12g} * {USUAL}, {least:.12g})\n"
            f"  and {MOST} > {patience}\n"
            f"  unless {ended}\n"
            f"  unless on (cluster, run) {AS_BEFORE}"
        )
        in_script = f'{STAY}{{component=~"{HOST}|{SUSPENSION}"}}'
        stopped = f"count by (cluster, run) ({scraping.held(f'{STATE}{{{IS_STOPPED}}}')})"
        suspended = (
            f"{scraping.held(AGE)}\n    and on (cluster, run) "
            f"({stopped} >= max by (cluster, run) ({scraping.held(WORLD)}))"
        )
        stalled = partial(
            Alert,
            summary="Run {{ $labels.run }} has stalled on {{ $labels.instance }}",
            description="Run {{ $labels.run }} on {{ $labels.instance }} has not finished a step "
            "for {{ $value | humanizeDuration }}, although its processes are alive (fires after "
            f"{factor:g} times the usual time between steps, and {minimum:g} min)."
            + looked_up(
                f"topk(1, {STAY}{{}})",
                OF_RUN,
                " A rank has been in {{ .Labels.component }} for {{ .Value | humanizeDuration }}.",
            ),
            lost="clamp({}, 1, 1)",
        )
        return PrometheusRules(
            targets=scraping.held(START),
            every=MINUTE,
            records=[
                Record(MOST, steps.sum_without("phase").max_without("rank")),
                Record(USUAL, scraping.between_steps()),
                Record(
                    STAY,
                    f"{_stays(scraping)}\n  or\n"
                    f'label_replace(\n  {suspended}, "component", "{SUSPENSION}", "", ""\n)',
                ),
                Record(
                    AS_BEFORE,
                    f'{STAY}{{component!~"{HOST}|{SUSPENSION}"}} <= {known}\n'
                    f"  or\n{as_before(STAY, scraping)}\n"
                    # Its user thinks, or is away: if a GPU is idle meanwhile, IdleGPU says so.
                    f'  or\n{STAY}{{component="{HOST}"}} and on (cluster, run) {scraping.held(AT_PROMPT)}',
                ),
            ],
            alerts=[
                stalled(
                    f"{is_stall}\n  unless on (cluster, run) {in_script}",
                    severity="critical",
                    labels={"standstill": "symptom", "place": "other"},
                ),
                # Text generation or an evaluation without a loader looks like this the first time.
                stalled(
                    f"{is_stall}\n  and on (cluster, run) ({in_script} <= {known})",
                    severity="info",
                    labels={"standstill": "symptom", "place": "script"},
                ),
                # Or a job that waits for its next data: money is lost, and nobody knows that it hangs.
                stalled(
                    f"{is_stall}\n  and on (cluster, run) ({in_script} > {known})",
                    labels={"standstill": "symptom", "place": "long script"},
                ),
            ],
        )

    def scraped(self, now: Moment, scraping: Scraping) -> Scraped[Standstills]:
        ended = now.held("stepscope_run_end_time_seconds", scraping.hold)
        since_step = now.held(AGE, scraping.hold)
        ages = {labels: age for labels, age in since_step.items() if labels not in ended}
        nodes = list(ages)
        usual, most = (column(now.recorded(record), nodes) for record in (USUAL, MOST))
        stays = now.recorded(STAY)
        known = 60 * self.parameters.known
        short = {labels for labels, stay in stays.items() if stay <= known}
        in_script = {labels for labels in stays if dict(labels)["component"] in (HOST, SUSPENSION)}
        usual_stays = {labels: stays[labels] for labels in short - in_script}
        usual_stays |= recorded_as_before(now, STAY, scraping)
        prompts = set(map(run_of, scraping.held(AT_PROMPT).value(now)))
        usual_stays |= {
            labels: stay
            for labels, stay in stays.items()
            if dict(labels)["component"] == HOST and run_of(labels) in prompts
        }
        suspended = _suspended(now, scraping)
        seen = _stays(scraping).value(now) | {
            labels | {("component", SUSPENSION)}: age
            for labels, age in since_step.items()
            if run_of(labels) in suspended
        }
        seconds = column(ages, nodes)
        return Scraped(
            nodes,
            Standstills(
                *(seconds, usual, most),
                _of_runs(nodes, usual_stays) | (seconds <= _until_all_are_seen(scraping)),
                _of_runs(nodes, in_script & short),
                _of_runs(nodes, in_script - short),
            ),
            {STAY: seen, AS_BEFORE: usual_stays},
        )

    def conclude(self, run: RunMeasurements, tallies: Tallies) -> Verdict:
        ranks = self._ranks(run)
        judged = [rank for rank in ranks if rank.judged]
        stalls = [(rank, stall) for rank in judged for stall in rank.stalls]
        return Verdict(
            status_of(len(stalls), len(judged)),
            self._finding(run, ranks, stalls),
            len(stalls),
            len(stalls),
            sum(rank.steps for rank in ranks),
            max((rank.lost for rank in judged), default=0.0),
            held=[self._held(*stall) for stall in stalls],
            details={
                "waited_for": self._waited_for(run, ranks, stalls),
                "stalls": [
                    {
                        "node": rank.node,
                        "rank": rank.rank,
                        "start": stall.start,
                        "seconds": stall.seconds,
                        "end": stall.end,
                        "usual_seconds": rank.usual,
                    }
                    for rank, stall in stalls
                ],
            },
        )

    def _held(self, rank: Rank, stall: Pause) -> Band:
        """Returns when a stall was longer than the rule allows; known work in it counts as done first."""
        allowed = max(self.parameters.factor * rank.usual, 60 * self.parameters.minimum)
        lasts = stall.end is None
        end = stall.start + stall.seconds if stall.end is None else stall.end
        words = f"no step for {duration(stall.seconds)}"
        return Band(
            rank.node, f"rank {rank.rank}", end - stall.seconds + allowed, end, lasts, stall.seconds, words
        )

    def _ranks(self, run: RunMeasurements) -> list[Rank]:
        found = []
        stays = [*stays_as_before(run.facts.ranks, 60 * self.parameters.known), *self._in_script(run)]
        for name, node in run.of(self.measure).items():
            processes = ranks_of(run.facts, name)
            for rank, measured in sorted(node.ranks.items()):
                captures = [each for each in run.facts.captures if (each.node, each.rank) == (name, rank)]
                pauses = [
                    pause._replace(
                        seconds=max(
                            pause.seconds - explained(pause, stays) - unobserved(pause, captures), 0.0
                        )
                    )
                    for pause in measured.pauses(processes.get(rank, []), bool(run.facts.exit_status))
                ]
                steps, usual = run.nodes[name][STEP_DURATIONS].count(rank), measured.usual
                seconds = np.array([pause.seconds for pause in pauses], np.float64)
                no = np.zeros(len(pauses), bool)
                view = Standstills(
                    seconds, np.full_like(seconds, usual), np.full_like(seconds, steps), no, no, no
                )
                judged = self.judge_whole(view) if run.whole else self.judge(view)
                stalls = list(compress(pauses, judged.fired))
                found.append(Rank(name, rank, steps, usual, bool(judged.enough.any()), stalls))
        return found

    def _in_script(self, run: RunMeasurements) -> list[Stay]:
        """Returns open stays in code of the script, which are no stall yet while the run lasts."""
        return lasting_in_script(run.facts.ranks, 60 * self.parameters.known) if run.live else []

    def _finding(
        self, run: RunMeasurements, ranks: Sequence[Rank], stalls: Sequence[tuple[Rank, Pause]]
    ) -> str:
        if not any(rank.judged for rank in ranks):
            most = max((rank.steps for rank in ranks), default=0)
            if not most:
                return no_steps(run.facts)
            return too_few("steps of a rank", most, self.parameters.patience)
        if not stalls:
            longest = max((stay.end - stay.start for stay in self._in_script(run)), default=0.0)
            if longest > 60 * self.parameters.minimum:
                return (
                    f"Code of the script has run for {duration(longest)} since the last step, such as an "
                    f"evaluation or text generation; after {self.parameters.known:g} min, that is a stall."
                )
            no = "No rank" if len(ranks) > 1 else "Training never"
            return f"{no} paused for more than {self.parameters.minimum:g} min between two steps."
        lasting = [item for item in stalls if item[1].end is None]
        who, others = "", ""
        if lasting:
            rank, first = min(lasting, key=lambda item: item[1].start)
            stalled = len({(rank.node, rank.rank) for rank, _ in lasting})
            verb = "has finished no step for"
            if stalled == len(ranks) > 1:
                who, verb = capitalised(all_of(stalled, "rank")), "have finished no step for"
                starts = sorted(pause.start for _, pause in lasting)
                if (lead := starts[1] - starts[0]) > rank.usual:
                    others = f"; rank {rank.rank} stopped first, {duration(lead)} before the next"
            elif stalled < len(ranks) and self._missing(run, first):  # those that are there only wait
                who = f"{stalled} of {len(ranks)} ranks"
                verb = f"{'has' if stalled == 1 else 'have'} finished no step for"
            elif stalled > 1:
                others = f", and {count(stalled - 1, 'more rank')} after it"
        else:
            rank, first = max(stalls, key=lambda item: item[1].seconds)
            others = f", the longest of {len(stalls)} stalls" if len(stalls) > 1 else ""
            verb = "finished no step for"
        who = who or (f"Rank {rank.rank}" if len(ranks) > 1 else "The training process")
        stalled_for = f"{duration(first.seconds)} (usually one every {duration(rank.usual)}){others}"
        return f"{who} {verb} {stalled_for}.{self._missing(run, first)}"

    def _waited_for(
        self, run: RunMeasurements, ranks: Sequence[Rank], stalls: Sequence[tuple[Rank, Pause]]
    ) -> int | None:
        """Returns the rank that is missing in the longest stall, or that is alone; None if not known."""
        if not stalls or len(ranks) == 1:
            return ranks[0].rank if stalls else None
        hang = self._hang(run, max((stall for _, stall in stalls), key=lambda stall: stall.seconds))
        return hang.missing[0].rank if hang and hang.missing else None

    def _missing(self, run: RunMeasurements, stall: Pause) -> str:
        """Returns a sentence on whom, or what, ranks wait for during a stall, if that is known."""
        hang = self._hang(run, stall)
        return f" {in_words(hang, run.facts)}" if hang else ""

    def _hang(self, run: RunMeasurements, stall: Pause) -> Hang | None:
        found = [
            hang
            for hang in hangs(run.facts, by_rank(run.of(self.measure)), 60 * self.parameters.minimum)
            if (hang.missing or len(set(map(collective_of, hang.waiting))) > 1)
            and hang.start < stall.start + stall.seconds
            and stall.start < hang.start + hang.seconds
        ]
        return max(found, key=lambda hang: hang.seconds, default=None)


class Rank(NamedTuple):
    """The judged pauses of one rank."""

    node: str
    rank: int
    steps: int
    usual: float  # seconds from step to step
    judged: bool
    stalls: list[Pause]

    @property
    def lost(self) -> float:
        """Returns the seconds of stalls beyond the usual time between steps."""
        return sum((stall.seconds - self.usual for stall in self.stalls), 0.0)


def _until_all_are_seen(scraping: Scraping) -> float:
    """Returns the seconds after which every node was scraped in a pause, and has said where its ranks are."""
    return scraping.interval + SHORTEST_STAY


def _stays(scraping: Scraping) -> Expression:
    """Returns for how long a rank of each node has been in a component."""
    return scraping.held(f"{PLACE}{{{OF_WORK}}}").max_without("rank", "operation")


def _suspended(now: Moment, scraping: Scraping) -> set[Labels]:
    """Returns the runs of which every rank is stopped."""
    stopped = Counter(map(run_of, now.held(STATE, scraping.hold, IS_STOPPED)))
    sizes = scraping.held(WORLD).over_run("max").value(now)
    return {run for run, size in sizes.items() if 0 < size <= stopped[run]}


def _of_runs(nodes: Sequence[Labels], found: Collection[Labels]) -> Booleans:
    """Returns (nodes,) whether there is a series of the node's run, whichever the node."""
    runs = {run_of(labels) for labels in found}
    return np.array([run_of(labels) in runs for labels in nodes], bool)
