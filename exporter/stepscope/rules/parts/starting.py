"""Finds runs that have just started, or pause: what cores and GPUs do then is not training.

Starts are found twice: in Prometheus, and for the live page and terminal of `stepscope run`.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from math import inf
from typing import NamedTuple

import numpy as np

from stepscope.exporter.ledgers.presence import PROMPT
from stepscope.measurements.hangs import STOPPED
from stepscope.measurements.pauses import HOST, KNOWN_PLACES, TIMES_LONGER
from stepscope.measurements.scraped import Labels, Moment, Vector, highest, without
from stepscope.rules.parts.expressions import Expression, LastValues, time_span
from stepscope.rules.parts.judgement import Booleans
from stepscope.rules.parts.promql import MINUTE, OF_NODE, Scraping
from stepscope.runs.model import RankFacts

START = "stepscope_run_start_time_seconds"
FIRST_STEP = "stepscope_run_first_step_time_seconds"
STAYS = "stepscope_rank_component_age_seconds"
OF_WORK = f'component=~"{"|".join((*KNOWN_PLACES, HOST))}"'
STOPPED_RANKS = f'stepscope_rank_process_state{{state="{STOPPED}"}}'  # no series while none is stopped
AT_PROMPT = f'stepscope_rank_process_state{{state="{PROMPT}"}}'
AGE = "stepscope_run_age_seconds"  # on the exporter's own clock
PHASE_SECONDS = "stepscope_phase_seconds_total"
SLOW = 20 * MINUTE  # a longer start is a finding of MaxInitializationTime, and rules may say why
SHORT_EVALUATION = 60 * MINUTE
MOST = 3  # times the start: of a window over all of the run, a third is the start
# A stay that began this long ago at most is compared with those of the hours before then, not with itself.
# Short ones are compared with more recent stays, too.
BEGAN, EARLIER = (30 * MINUTE, 60 * MINUTE, 120 * MINUTE), 360 * MINUTE


def is_starting(scraping: Scraping, seconds: float, slow: float = SLOW) -> Expression:
    """Returns the runs, by node, whose first step is not over yet, or was in the last `seconds`.

    After `slow` seconds without a step, a run counts as started.
    """
    start, first, age = map(scraping.held, (START, FIRST_STEP, AGE))
    waits = (age if slow == inf else age < slow).unless(first)
    return waits | (age - (first - start) < seconds) if seconds else waits


def is_short_evaluation(scraping: Scraping) -> Expression:
    """Returns the runs, by node, that have only evaluated or predicted so far, for less than an hour."""
    evaluates, predicts, trains = (
        scraping.held(f'{PHASE_SECONDS}{{phase="{phase}"}}').max_without("phase", "rank") > 0
        for phase in ("eval", "predict", "train")
    )
    age = scraping.held(AGE)
    return ((age < SHORT_EVALUATION) & (evaluates | predicts)).unless(trains)


def is_mostly_start(scraping: Scraping, window: float) -> Expression:
    """Returns the runs, by node, of whose last `window` seconds the start may be more than a third."""
    start, first, age = map(scraping.held, (START, FIRST_STEP, AGE))
    return is_starting(scraping, window).unless(age - (first - start) * MOST >= 0)


def as_before(stay: str, scraping: Scraping) -> str:
    """Returns the recorded stays that last no more than TIMES_LONGER than the longest earlier one.

    Those that began more than two hours ago are not among them.
    """
    reach = time_span(scraping.reach(EARLIER))
    return "\n  or\n".join(
        f"{stay} <= {TIMES_LONGER:g} * max_over_time({stay}[{reach}] offset {time_span(ago)})"
        f" and {stay} <= {ago:.12g}"
        for ago in BEGAN
    )


def recorded_as_before(now: Moment, stay: str, scraping: Scraping) -> Vector:
    """Returns what `as_before` finds."""
    stays = now.recorded(stay)
    reach = scraping.reach(EARLIER)
    found: Vector = {}
    for ago in BEGAN:
        longest = highest(now.recorded_over(stay, reach, ago))
        found |= {
            labels: lasted
            for labels, lasted in stays.items()
            if lasted <= min(TIMES_LONGER * longest.get(labels, 0.0), ago)
        }
    return found


@dataclass(frozen=True)
class Pausing:
    """The runs, by node, that saved a checkpoint, compiled, or ran code of the script between steps.

    They did so for more than `share` of the last `window` seconds, or a rank was stopped in it, such as by
    Slurm's `scontrol suspend`. TrainingStalled says if it takes too long.
    """

    scraping: Scraping
    window: float
    share: float

    def __str__(self) -> str:
        return f"unless on ({', '.join(OF_NODE)}) ({self._expression})"

    def spares(self, now: Moment, labels: Iterable[Labels]) -> Booleans:
        """Returns which of the labels are not of such a run."""
        pausing = self._expression.value(now)
        return np.array([without(each, "gpu") not in pausing for each in labels], bool)

    @property
    def _expression(self) -> Expression:
        # The last age of a stay is its length so far: nearly a scrape less than it becomes.
        least, reach = self.share * self.window - self.scraping.interval, self.scraping.reach(self.window)
        stays = LastValues(f"{STAYS}{{{OF_WORK}}}", reach, 0.0).max_without("rank", "component", "operation")
        return (stays > least) | LastValues(STOPPED_RANKS, reach, 0.0).max_without("rank", "state")


class Beginning(NamedTuple):
    """The progress of a run whose processes report their steps; seconds."""

    age: float  # since its start
    first_step: float | None  # from its start to its first step; None: there is none yet
    phases: frozenset[str]  # in which it has been

    def is_starting(self, seconds: float, slow: float = SLOW) -> bool:
        """Returns what the function `is_starting` finds."""
        if self.first_step is None:
            return self.age < slow
        return self.age - self.first_step < seconds

    def is_short_evaluation(self) -> bool:
        """Returns what the function `is_short_evaluation` finds."""
        return self.age < SHORT_EVALUATION and bool(self.phases) and "train" not in self.phases

    def is_mostly_start(self, window: float) -> bool:
        """Returns what the function `is_mostly_start` finds."""
        over = self.first_step is not None and self.age >= MOST * self.first_step
        return self.is_starting(window) and not over


def beginning_of(ranks: Iterable[RankFacts], now: float) -> Beginning | None:
    """Returns the progress of a run at `now`, seconds since the epoch; None: no rank reports its steps."""
    ranks = list(ranks)
    if not ranks:
        return None
    start = min(rank.start for rank in ranks)
    first = min((rank.first_step_start for rank in ranks if rank.first_step_start is not None), default=None)
    phases = {
        phase
        for rank in ranks
        for phase in ("train", "eval", "predict")
        if rank.phase_seconds.get(phase, 0.0) > 0
    }
    return Beginning(now - start, None if first is None else first - start, frozenset(phases))
