"""What a comparison says in sentences; the verdict first."""

from __future__ import annotations

from trainwatch.compare.comparison import Comparison
from trainwatch.compare.figures import Figure, saved
from trainwatch.compare.parts import COUNT, Difference
from trainwatch.compare.predicted import SAME_WORK, CheckedPrediction
from trainwatch.compare.rules import Fate
from trainwatch.words import (
    amount,
    capitalised,
    change,
    count,
    duration,
    exact_percent,
    listing,
    money,
    number,
    share,
)

TIMES = 1.1  # from here on a ratio is said as "1.8 times", below as percent
NO_DIFFERENCE = "no difference seen"
PREDICTED = {
    "step_seconds_mean": ("a step takes", "s"),
    "run_seconds": ("the run takes", "s"),
    "cost": ("the run costs", "$"),
}


def verdict(comparison: Comparison) -> list[str]:
    """Speed and money in one sentence; then what explains it, and what a reader must know besides."""
    said = [part for part in (_speed(comparison), _money(comparison)) if part]
    if not said:
        said = ["Neither steps nor durations are known in both runs, so speed and cost cannot be compared"]
    first = capitalised("; ".join(said)) + "."
    return [first, *_explanation(comparison), *_rules_in_short(comparison), *caveats(comparison)]


def pace(comparison: Comparison) -> Figure | None:
    """The figure that says which run is faster: time per item where batches differ, else time per step."""
    item, step = comparison.figures.get("item_mean"), comparison.figures.get("step_mean")
    if item is not None and step is not None and item.change != step.change:
        return _known(item)
    return _known(step)


def same_work(comparison: Comparison) -> bool | None:
    """Whether both runs made about as many steps; None where that is not known."""
    steps = comparison.figures.get("steps")
    return None if steps is None or steps.change is None else abs(steps.change) <= SAME_WORK


def _known(figure: Figure | None) -> Figure | None:
    return figure if figure is not None and figure.change is not None else None


def _speed(comparison: Comparison) -> str:
    figure = pace(comparison)
    if figure is None:
        return _durations(comparison)
    assert figure.a is not None
    assert figure.b is not None
    work = "item" if figure.key == "item_mean" else "step"
    interval = figure.interval
    if interval is not None and not interval.seen:
        between = f"{change(interval.low)} to {change(interval.high)}"
        return f"{NO_DIFFERENCE} in the time per {work} ({between})"
    if figure.a == figure.b:
        return f"B takes as long per {work}"
    said = _faster_or_slower(figure.a, figure.b, work)
    return said if interval is not None else f"{said} (of too few steps to be sure)"


def _faster_or_slower(a: float, b: float, work: str) -> str:
    ratio = a / b if b < a else b / a
    if ratio >= TIMES:
        as_what = "as fast" if b < a else "as long"
        verb = "is" if b < a else "takes"
        return f"B {verb} {number(round(ratio, 2))} times {as_what} per {work}"
    return f"B takes {share(abs(b - a), a)} {'less' if b < a else 'more'} time per {work}"


def _durations(comparison: Comparison) -> str:
    figure = _known(comparison.figures.get("duration"))
    if figure is None:
        return ""
    if duration(figure.a) == duration(figure.b):
        return f"B took {duration(figure.b)}, as A did"
    return f"B took {duration(figure.b)} instead of {duration(figure.a)}"


def _money(comparison: Comparison) -> str:
    total = _known(comparison.figures.get("cost"))
    each = _known(comparison.figures.get("cost_per_1000_steps"))
    figure = each if each is not None and same_work(comparison) is False else total
    if figure is None or not figure.a or figure.b is None:
        return ""
    if money(figure.a) == money(figure.b):
        return f"{'1000 steps cost' if figure is each else 'it costs'} the same, {money(figure.b)}"
    less = _written_difference(figure.a, figure.b)
    percent = exact_percent(100 * abs(saved(figure.a, figure.b)))
    if figure is each:
        more = "less" if less > 0 else "more"
        return f"1000 steps cost {money(figure.b)} instead of {money(figure.a)}, {percent} {more}"
    return f"it saves {money(less)}, {percent}" if less > 0 else f"it costs {money(-less)} more, {percent}"


def _written_difference(a: float, b: float) -> float:
    """Of amounts to the cent, as they are written beside it; of amounts below a dollar as it is."""
    return round(a, 2) - round(b, 2) if min(a, b) >= 0.995 else a - b


def _explanation(comparison: Comparison) -> list[str]:
    figure = comparison.figures.get("step_mean")
    if comparison.step is None or figure is None or not figure.seen_change:
        return []
    return [f"{where_it_lies(comparison.step, ' a step')}."]


def where_it_lies(difference: Difference, of_what: str = "") -> str:
    """The part that explains most, and how much: "Waiting for data takes 268 ms less a step" """
    part = difference.largest
    if part is None:
        return "The parts even out"
    less = "less" if part.difference < 0 else "more"
    amount = duration(abs(part.difference))
    if part.key == COUNT:
        return f"{part.name} make {amount} {less}"
    moved, total = abs(part.difference), abs(difference.total)
    alone = len(difference.parts) == 1 or moved > 1.005 * total  # or other parts take some of it back
    how_much = "all" if moved > 0.995 * total else share(moved, total)
    explains = "" if alone else f" ({how_much} of the difference)"
    return f"{part.name} takes {amount} {less}{of_what}{explains}"


def _rules_in_short(comparison: Comparison) -> list[str]:
    by_fate: dict[Fate, list[str]] = {}
    for one in comparison.rules:
        by_fate.setdefault(one.fate, []).append(one.rule)
    said = [
        f"{listing(by_fate[fate])} {fate}" for fate in ("went away", "appeared", "stayed") if fate in by_fate
    ]
    return [f"{capitalised('; '.join(said))}."] if said else []


def caveats(comparison: Comparison) -> list[str]:
    """What makes the comparison less than it seems."""
    said = []
    steps = comparison.figures.get("steps")
    if steps is not None and same_work(comparison) is False and steps.a and steps.b:
        said.append(
            f"B made {number(round(steps.b))} steps of a rank and A {number(round(steps.a))}: "
            "what the whole runs took and cost is no measure of their speed."
        )
    for name, run in (("A", comparison.a), ("B", comparison.b)):
        if not run.analysis.finished:
            said.append(f"{name} has not finished, or its end was not recorded: this is up to where it got.")
        if run.analysis.exit_status:
            said.append(f"{name} ended with exit status {run.analysis.exit_status}: this is up to there.")
    return said


def unknowns(comparison: Comparison) -> list[str]:
    """What could not be read of either run, and why."""
    runs = (("A", comparison.a), ("B", comparison.b))
    return [f"{name}: {sentence}" for name, run in runs for sentence in run.analysis.unknowns]


def figures(comparison: Comparison) -> str:
    seconds = _known(comparison.figures.get("duration"))
    if seconds is None:
        return "The duration of a run is not known."
    return f"{_durations(comparison)}."


def parts_of_the_run(comparison: Comparison) -> str:
    difference = comparison.run
    if difference is None:
        return "The duration of a run is not known, or no step of it was recorded: it cannot be split."
    if duration(difference.a) == duration(difference.b):
        moved = any(abs(part.difference) > 0.01 * difference.a for part in difference.parts)
        same = "Both runs took the same time."
        return f"{same} What some parts save, others take up." if moved else same
    less = "less" if difference.total < 0 else "more"
    return f"B took {duration(abs(difference.total))} {less}. {where_it_lies(difference)}."


def parts_of_a_step(comparison: Comparison) -> str:
    difference, figure = comparison.step, comparison.figures.get("step_mean")
    if difference is None or figure is None:
        return "Not both runs recorded steps of the same phase."
    if figure.interval is not None and not figure.interval.seen:
        return "No difference seen between the steps; the parts below sum to what may be chance."
    less = "less" if difference.total < 0 else "more"
    took = f"A {comparison.phase} step of B takes {duration(abs(difference.total))} {less}"
    return f"{took}. {where_it_lies(difference)}."


def steps(comparison: Comparison) -> str:
    """Median and 95th percentile of both, and whether they differ."""
    said = []
    for key, name in (("step_p50", "half of the steps took"), ("step_p95", "19 of 20")):
        figure = _known(comparison.figures.get(key))
        if figure is not None:
            change = f"{amount(figure.b, 's')} or less in B and {amount(figure.a, 's')} in A"
            unseen = figure.interval is not None and not figure.interval.seen
            said.append(f"{name} {change}{f' ({NO_DIFFERENCE})' if unseen else ''}")
    return f"{capitalised('; '.join(said))}."


def rules(comparison: Comparison) -> str:
    if not comparison.rules:
        return "No rule fired in either run."
    return _rules_in_short(comparison)[0] if _rules_in_short(comparison) else "No rule fired in B."


def configuration(comparison: Comparison) -> str:
    changed = comparison.changed_settings
    if not changed:
        return "Both runs were set up alike, as far as is known."
    return f"{capitalised(count(len(changed), 'setting'))} {'differs' if len(changed) == 1 else 'differ'}."


def prediction(one: CheckedPrediction) -> str:
    """What was predicted, with its range, and what was measured, or why the two cannot be compared."""
    its = one.prediction
    figure, unit = PREDICTED[its.metric]
    said = (
        f"Predicted for {its.suggested:g} instead of {its.current:g} {its.resource}: {figure} "
        f"{amount(its.expected, unit)} ({amount(its.low, unit)} to {amount(its.high, unit)})."
    )
    if one.in_range is None:
        return f"{said} Not comparable: {one.why_not}."
    with_what = "" if one.as_suggested else f" with {one.made:g}"
    place = "within" if one.in_range else "outside"
    return f"{said} Measured{with_what}: {amount(one.measured, unit)}, {place} the predicted range."


def predictions(comparison: Comparison) -> str:
    checked = [one for one in comparison.predictions if one.in_range is not None]
    if not comparison.predictions:
        return "No change that the report of A had predicted was made in B."
    held = sum(bool(one.in_range) for one in checked)
    if not checked:
        return "What was predicted cannot be compared with what was measured."
    lies = "lies" if held == 1 else "lie"
    return f"{held} of {count(len(checked), 'predicted figure')} {lies} in the predicted range."
