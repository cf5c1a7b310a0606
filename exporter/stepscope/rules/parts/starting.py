"""Finds runs that have just started: what cores and GPUs do then says little about training."""

from __future__ import annotations

from stepscope.rules.parts.expressions import Expression
from stepscope.rules.parts.promql import MINUTE, Scraping

START = "stepscope_run_start_time_seconds"
FIRST_STEP = "stepscope_run_first_step_time_seconds"
AGE = "stepscope_run_age_seconds"  # on the exporter's own clock
PHASE_SECONDS = "stepscope_phase_seconds_total"
SLOW = 20 * MINUTE  # a longer start is a finding of MaxInitializationTime, and rules may say why
MOST = 3  # times the start: of a window over all of the run, a third is the start


def is_starting(scraping: Scraping, seconds: float) -> Expression:
    """Returns the runs, by node, whose first step is not over yet, or was in the last `seconds`."""
    start, first, age = map(scraping.held, (START, FIRST_STEP, AGE))
    return (age < SLOW).unless(first) | (age - (first - start) < seconds)


def is_short_evaluation(scraping: Scraping) -> Expression:
    """Returns the runs, by node, that have only evaluated or predicted so far, for less than an hour."""
    evaluates, predicts, trains = (
        scraping.held(f'{PHASE_SECONDS}{{phase="{phase}"}}').max_without("phase", "rank") > 0
        for phase in ("eval", "predict", "train")
    )
    age = scraping.held(AGE)
    return ((age < 60 * MINUTE) & (evaluates | predicts)).unless(trains)


def is_mostly_start(scraping: Scraping, window: float) -> Expression:
    """Returns the runs, by node, of whose last `window` seconds the start may be more than a third."""
    start, first, age = map(scraping.held, (START, FIRST_STEP, AGE))
    return is_starting(scraping, window).unless(age - (first - start) * MOST >= 0)
