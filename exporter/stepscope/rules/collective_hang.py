"""CollectiveHang: ranks wait in a collective for a rank that does something else, or is gone.

Source: our own. PyTorch's watchdog ends a job whose NCCL operation exceeds its timeout (10 minutes), and its
flight recorder lists the operations of each rank. This rule fires earlier, and says what the missing rank
does instead. It sees waits on the host, in communication that was marked by hand or by hooks.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Annotated

import numpy as np

from stepscope.common.words import duration
from stepscope.measurements.hangs import (
    COMMUNICATION,
    DEAD,
    ENDED,
    STOPPED,
    CollectiveWaits,
    Hang,
    RankInHang,
    hangs,
    last_seen,
    longest_standstill,
)
from stepscope.measurements.measure import Measure, RunMeasurements
from stepscope.measurements.pauses import KNOWN_PLACES, NodePauses, by_rank
from stepscope.measurements.scraped import Moment, Scraped, column, grouped, run_of, without
from stepscope.rules.parts import dumped_hang
from stepscope.rules.parts.base import Rule, Verdict, status_of
from stepscope.rules.parts.expressions import Record
from stepscope.rules.parts.hang_in_words import PLACES, collective_of, in_words, world_size
from stepscope.rules.parts.judgement import Judgement, Tallies, judgement
from stepscope.rules.parts.parameters import Factor, Minutes, Parameters
from stepscope.rules.parts.promql import MINUTE, OF_RUN, Alert, PrometheusRules, Scraping, looked_up
from stepscope.rules.parts.registry import rule
from stepscope.rules.parts.topics import IDLE_GPUS
from stepscope.runs.model import RunFacts

AGE, STATE = "stepscope_rank_component_age_seconds", "stepscope_rank_process_state"
LAST_STEP, RUN_AGE = "stepscope_run_last_step_age_seconds", "stepscope_run_age_seconds"
START = "stepscope_run_start_time_seconds"
BETWEEN = "run_instance:stepscope_hang_between_steps:mean_seconds"
STANDSTILL = "run_instance:stepscope_standstill:seconds"
WAITED = "run_instance_rank:stepscope_collective_wait:seconds"
HANGS = "run_instance:stepscope_collective_hang:seconds"
MISSING = "run_instance:stepscope_ranks_missing:count"

IN_COLLECTIVE = f'component="{COMMUNICATION}"'
IS_STOPPED = f'state="{STOPPED}"'
KNOWN = f'component=~"{"|".join(KNOWN_PLACES)}"'
# Seconds, and usual times of a step, that a wait lasts when it is reported, long before it is a hang.
SAID_AFTER, SAID_STEPS = 15.0, 5.0
NOW = " Now: "  # before it, in the finding
STANDSTILLS_CAUSE = {"standstill": "cause"}  # silences TrainingStalled

WHO_IS_MISSING = (
    "Compare where the ranks wait: `stepscope stacks RUN` on each node, TORCH_DISTRIBUTED_DEBUG=DETAIL, or "
    "NCCL's flight recorder (TORCH_NCCL_TRACE_BUFFER_SIZE). Look for ranks on nodes that are not observed."
)


@dataclass(frozen=True)
class CollectiveHangParameters(Parameters):
    threshold: Annotated[
        Minutes, "ranks wait in a collective for longer than this, and no rank finishes a step"
    ] = 5
    factor: Annotated[Factor, "or for longer than this many times the usual time between steps"] = 20
    minimum: Annotated[Minutes, "and this: one rank may write a checkpoint that nobody knows of"] = 1.25


@rule
class CollectiveHang(Rule[CollectiveHangParameters, CollectiveWaits]):
    """Seconds lost: those of hangs."""

    subject = "A hang in a collective"
    question = "Do ranks wait in a collective for a rank that does not come?"
    description = (
        "Compares where all ranks of the run are while no rank finishes a step. Ranks in a collective wait: "
        "they are never named. A rank elsewhere is missing, and so is one that is stopped, dead or has ended."
    )
    recommendation = (
        "Look at the missing rank: `stepscope stacks RUN` on its node shows its Python stack. A rank that "
        "ended early had fewer batches than the others. Its log or dmesg says why a rank died."
    )
    view = "progress"
    only_pauses = True
    topic = "standstill"
    symptom = IDLE_GPUS

    @property
    def measure(self) -> Measure[NodePauses]:
        return Measure(NodePauses, 60 * min(self.parameters.threshold, self.parameters.minimum, 1.0))

    def judge(self, view: CollectiveWaits) -> Judgement:
        parameters = self.parameters
        in_steps = (view.seconds > 60 * parameters.minimum) & (view.seconds > parameters.factor * view.usual)
        is_hang = in_steps | (view.seconds > 60 * parameters.threshold)
        return judgement(
            ~np.isnan(view.seconds),
            (view.seconds, is_hang & (view.missing_here > 0)),
            (view.seconds, is_hang & ~(view.missing > 0)),
        )

    def prometheus_rules(self, scraping: Scraping) -> PrometheusRules:
        """Returns the rules. All nodes of the run count, because a rank may wait for one on another node."""
        hold, of_run = scraping.held, "by (cluster, run)"
        waited, since_step = f"max {of_run} ({WAITED})", f"min {of_run} ({STANDSTILL})"
        in_collective, stopped = hold(f"{AGE}{{{IN_COLLECTIVE}}}"), hold(f"{STATE}{{{IS_STOPPED}}}")
        parameters = self.parameters
        is_hang = (
            f"({HANGS} > {60 * parameters.threshold:.12g}\n  or {HANGS} > {60 * parameters.minimum:.12g}"
            f" and {HANGS} > {parameters.factor:.12g} * {BETWEEN})"
        )
        begin = (
            "Ranks of run {{ $labels.run }} have waited in a collective for {{ $value | humanizeDuration }}, "
            f"and no rank has finished a step (fires after {parameters.minimum:g} min and "
            f"{parameters.factor:g} times the usual time of a step, or after {parameters.threshold:g} min)."
        )
        waiting = looked_up(f"count({WAITED}{{}})", OF_RUN, " Ranks that wait: {{ .Value }}")
        all_ranks = looked_up("max(stepscope_run_world_size{})", OF_RUN, " of {{ .Value }}.")
        return PrometheusRules(
            targets=hold(START),
            every=MINUTE / 2,
            records=[
                Record(BETWEEN, scraping.between_steps()),
                Record(STANDSTILL, hold(LAST_STEP) | hold(RUN_AGE)),
                Record(WAITED, in_collective.max_without("component", "operation").unless(stopped)),
                Record(
                    HANGS,
                    f"""
                    {STANDSTILL} * 0
                      + on (cluster, run) group_left ()
                    (
                      ({waited} <= {since_step} or {since_step} < {waited})
                        unless
                      max {of_run} ({hold(f"{AGE}{{{KNOWN}}}")})
                    )
                    """,
                ),
                Record(
                    MISSING,
                    f"count without (rank) (max without (state) ({hold(STATE)}) unless {WAITED})",
                ),
            ],
            alerts=[
                Alert(
                    f"{is_hang} and {MISSING} > 0",
                    severity="critical",
                    summary="Run {{ $labels.run }} hangs: it waits for a rank on {{ $labels.instance }}",
                    description=begin + _missing_ranks() + waiting + all_ranks,
                    labels={"stage": "missing", **STANDSTILLS_CAUSE},
                    lost="clamp({}, 1, 1)",
                ),
                Alert(
                    f"{is_hang} unless on (cluster, run) {MISSING}",
                    severity="critical",
                    summary="Run {{ $labels.run }} hangs: all its ranks wait in a collective",
                    description=f"{begin} All ranks that are known wait, so it is not known who is missing."
                    + waiting
                    + all_ranks,
                    labels={"stage": "unknown", **STANDSTILLS_CAUSE},
                    lost="clamp({}, 1, 1)",
                ),
            ],
        )

    def scraped(self, now: Moment, scraping: Scraping) -> Scraped[CollectiveWaits]:
        hold = scraping.hold
        ranks = grouped(now.held(STATE, hold), "state")
        recorded = now.recorded(WAITED)
        missing = Counter(without(labels, "rank") for labels in ranks if labels not in recorded)
        missing_of_run = Counter(run_of(labels) for labels in now.recorded(MISSING))
        longest = Record(WAITED, "").over_run("max").value(now)
        shortest = Record(STANDSTILL, "").over_run("min").value(now)
        working = {run_of(labels) for labels in now.held(AGE, hold, KNOWN)}
        found = {
            labels: min(longest[of_run], shortest[of_run])
            for labels in now.recorded(STANDSTILL)
            if (of_run := run_of(labels)) in longest and of_run not in working
        }
        nodes = list(now.recorded(HANGS))
        here = now.recorded(MISSING)
        view = CollectiveWaits(
            column(now.recorded(HANGS), nodes),
            np.nan_to_num(column(here, nodes)),
            np.array([float(missing_of_run[run_of(labels)]) for labels in nodes]),
            column(now.recorded(BETWEEN), nodes),
        )
        counts = {labels: float(count) for labels, count in missing.items()}
        return Scraped(nodes, view, {HANGS: found, MISSING: counts})

    def conclude(self, run: RunMeasurements, tallies: Tallies) -> Verdict:
        if run.facts.dumps:
            return dumped_hang.verdict(run.facts.dumps)
        pauses = by_rank(run.of(self.measure))
        usual = max((measured.usual for measured in pauses.values()), default=np.nan)
        waits = list(hangs(run.facts, pauses, SAID_AFTER))
        found = [hang for hang in waits if self._fires(hang, usual)]
        now = [hang for hang in waits if hang.end is None and hang.seconds > SAID_STEPS * usual]
        now_said = f"{NOW}{in_words(now[-1], run.facts)}" if now and not found else ""
        threshold = 60 * self.parameters.threshold
        if usual == usual:
            in_steps = max(60 * self.parameters.minimum, self.parameters.factor * usual)
            threshold = min(threshold, in_steps)
        ranks = len({(process.node, process.rank) for process in run.facts.ranks})
        places_known = any(process.stays for process in run.facts.ranks)
        stood_still = longest_standstill(run.facts, pauses)
        unknown = stood_still > threshold and not places_known
        watched = any(process.last_alive is not None for process in run.facts.ranks)
        judged = ranks if ranks > 1 and watched and not unknown else 0
        if found:
            finding = in_words(max(found, key=lambda hang: hang.seconds), run.facts)
        elif judged:
            finding = f"No rank waited for more than {duration(threshold)} in a collective that did not end."
            finding += now_said
        elif ranks == 1 and (size := world_size(run.facts)) > 1:
            finding = f"Only one of the run's {size} ranks was recorded: where the others were is not known."
        elif ranks < 2:
            finding = "Only runs with several ranks wait in collectives."
        elif unknown:
            finding = f"No step finished for {duration(stood_still)}; where the ranks were was not recorded."
        else:
            finding = "It was not recorded where the ranks were."
        return Verdict(
            status_of(len(found), judged),
            finding,
            len(found),
            len(found),
            ranks,
            sum(hang.seconds for hang in found),
            WHO_IS_MISSING if found and not any(hang.missing for hang in found) else None,
            _details(found, run.facts),
        )

    def _fires(self, hang: Hang, usual: float) -> bool:
        missing = np.array([float(len(hang.missing))])
        view = CollectiveWaits(np.array([hang.seconds]), missing, missing, np.array([usual]))
        return bool(self.judge(view).fired.any())


def _missing_ranks() -> str:
    """Returns the template's sentences on the ranks that do not wait: five of each kind at most."""
    whose = "rank {{ .Labels.rank }} on {{ .Labels.instance }}"
    elsewhere = f"topk(5, {AGE}{{}} unless on (cluster, instance, run, rank) {WAITED}{{}})"
    gone = f'topk(5, {STATE}{{state=~"{STOPPED}|{DEAD}|{ENDED}",%[1]s}})'
    return looked_up(
        elsewhere,
        OF_RUN,
        f" In {{{{ .Labels.component }}}} for {{{{ .Value | humanizeDuration }}}}: {whose}.",
    ) + looked_up(gone, OF_RUN, f" Process {{{{ .Labels.state }}}}: {whose}.")


def _details(found: Sequence[Hang], facts: RunFacts) -> dict[str, object]:
    longest = max(found, key=lambda hang: hang.seconds, default=None)
    first = longest.missing[0] if longest and longest.missing else None
    return {
        "rank": first.rank if first else None,
        "node": first.node if first else None,
        "component": first.component or None if first else None,
        "ranks": [_row(rank) for rank in (longest.ranks if longest else last_seen(facts))],
        "stacks": [asdict(stack) for stack in facts.stacks],
        "hangs": [
            {
                "start": hang.start,
                "seconds": hang.seconds,
                "end": hang.end,
                "ranks": [_row(rank) for rank in hang.ranks],
            }
            for hang in found
        ],
    }


def _row(rank: RankInHang) -> dict[str, object]:
    """Returns a rank with its place in words."""
    place = PLACES.get(rank.component, "")
    if rank.component == COMMUNICATION:
        place = f"waits in {collective_of(rank)}"
    return {**rank._asdict(), "waits": rank.waits, "place": place}
