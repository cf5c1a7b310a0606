"""Says which predicted savings of A came true in B: the outcomes that `stepscope score` counts.

A prediction has an outcome only if its fix was made, and if nothing else that is known explains the change.
docs/score.md has the conditions.
"""

from pathlib import Path

from stepscope.compare.comparison import Comparison
from stepscope.compare.figures import Figure
from stepscope.compare.predicted import savings_of
from stepscope.report.ended import failed
from stepscope.report.index_page import is_runs_folder
from stepscope.report.right_sizing import EVERY_CHANGE
from stepscope.report.track_record import Outcome, add_outcomes

BATCH = "Loader of train steps: batch size"
# Settings that must not differ, unless they are what the change is about.
SAME = frozenset({"Framework", "GPUs", "Cores", "Number of nodes", "World size", BATCH})
ABOUT = {
    "larger_batch": {BATCH},
    "more_cores": {"Cores"},
    "fewer_cores": {"Cores"},
    "fewer_gpus": {"GPUs", "World size", BATCH},
    "fewer_nodes": {"GPUs", "Cores", "Number of nodes", "World size", BATCH},
}


def outcomes(comparison: Comparison) -> list[Outcome]:
    """Returns the outcome of each prediction of A whose fix B has; [] if B shows none."""
    a, b = comparison.a.analysis, comparison.b.analysis
    time = _time(comparison)
    if time is None or time.change is None or time.interval is None:
        return []
    if a.date is None or b.date is None or a.date >= b.date:
        return []
    differing = {setting.name for setting in comparison.changed_settings} & SAME
    noise = max(time.interval.high - time.change, time.change - time.interval.low, 0.0)
    fixed = _fixed(comparison)
    return [
        Outcome(
            kind=saving.kind,
            a=_name(comparison.a.place, a.run),
            b=_name(comparison.b.place, b.run),
            a_start=a.date,
            b_start=b.date,
            predicted=saving.predicted,
            low=saving.low,
            high=saving.high,
            widened=saving.widened,
            achieved=-time.change,
            noise=noise,
        )
        for saving in savings_of(comparison.a)
        if saving.kind in fixed and differing <= ABOUT.get(saving.kind, set())
    ]


def record_outcomes(comparison: Comparison) -> tuple[Path, list[Outcome]] | None:
    """Records the outcomes in the folder of both runs. Returns it and the new ones; None if there is none.

    Raises UserError or OSError if the record cannot be read or written.
    """
    places = [Path(run.place).absolute() for run in (comparison.a, comparison.b)]
    folder = places[0].parent
    if places[0] == places[1] or not all(place.is_dir() and place.parent == folder for place in places):
        return None
    if not is_runs_folder(folder):
        return None
    a, b = (_name(run.place, run.analysis.run) for run in (comparison.a, comparison.b))
    return folder, add_outcomes(folder, a, b, outcomes(comparison))


def _time(comparison: Comparison) -> Figure | None:
    """Returns the mean time for the same work, a step or an item; None if either run says too little."""
    runs = comparison.a.analysis, comparison.b.analysis
    if any(failed(run) or not run.finished for run in runs):
        return None
    figure = comparison.figures.get(f"{comparison.work.unit}_mean")
    return None if figure is None or comparison.work.obstacle(figure.key) else figure


def _fixed(comparison: Comparison) -> set[str]:
    """Returns the kinds of prediction whose fix B has.

    A suggested change counts if B made it, as suggested, and no other one. A finding counts if it is the only
    one with a predicted saving that went away. Two at once do not show which saved how much.
    """
    made = {checked.prediction.change: checked.as_suggested for checked in comparison.predictions}
    changes = {change for change, as_suggested in made.items() if as_suggested and len(made) == 1}
    kinds = {saving.kind for saving in savings_of(comparison.a)} - set(EVERY_CHANGE)
    fates = {rule.rule: rule.fate for rule in comparison.rules if rule.rule in kinds}
    gone = [rule for rule, fate in fates.items() if fate in ("went away", "can no longer be judged")]
    only = len(gone) == 1 and fates[gone[0]] == "went away"
    return changes | set(gone if only else ())


def _name(place: str, run: str) -> str:
    return run or Path(place).name
