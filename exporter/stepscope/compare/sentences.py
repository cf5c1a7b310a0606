"""Writes a comparison in sentences; the verdict first."""

from math import isnan

from stepscope.common.words import (
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
    signed_duration,
    uncapitalised,
)
from stepscope.compare.changes import FATES, Fate
from stepscope.compare.compared_run import ComparedRun
from stepscope.compare.comparison import Comparison
from stepscope.compare.figures import Figure, saved
from stepscope.compare.parts import Difference
from stepscope.compare.predicted import CheckedPrediction
from stepscope.measurements.training_gauges import last_level
from stepscope.report.ended import failed, failure
from stepscope.report.sentences import gaps

PLURALS = ("The", "Training", "Evaluation", "Prediction")  # steps
TIMES = 1.1  # ratios from here on are written as "1.8 times", smaller ones in percent
NO_DIFFERENCE = "no difference seen"
ASK = "To compare the whole runs, give the items that each processed: `--workload-a N --workload-b N`"
PREDICTED = {
    "step_seconds_mean": ("a step takes", "s"),
    "run_seconds": ("the run takes", "s"),
    "cost": ("the run costs", "$"),
}


def verdict(comparison: Comparison) -> list[str]:
    """Returns which run failed, speed and cost, whether the work was the same, and the explanation."""
    said = [part for part in (_speed(comparison), _money(comparison)) if part]
    if not said:
        said = ["Neither steps nor durations are known in both runs, so speed and cost cannot be compared"]
    first = capitalised("; ".join(said)) + "."
    why = [*_explanation(comparison), *_rules_in_short(comparison)]
    return [*failures(comparison), first, *_loss(comparison), *work(comparison), *why, *caveats(comparison)]


def _loss(comparison: Comparison) -> list[str]:
    """Says whether B still learns as well as A, by the levels of their losses at the end."""
    a, b = (last_level(run.analysis.gauge_histories) for run in (comparison.a, comparison.b))
    if a is None or b is None:
        return []
    said = f"Loss at the end: {number(a.level)} in A, {number(b.level)} in B"
    error = a.error + b.error
    if isnan(error):
        return [f"{said}."]
    difference = b.level - a.level
    judged = "as good" if abs(difference) <= error else "lower" if difference < 0 else "higher"
    return [f"{said}: {judged}."]


def failures(comparison: Comparison) -> list[str]:
    """Says which run failed, and how: what was measured until then says little about its work."""
    return [
        f"{name} failed: {uncapitalised(failure(run.analysis))}"
        for name, run in (("A", comparison.a), ("B", comparison.b))
        if failed(run.analysis)
    ]


def pace(comparison: Comparison) -> Figure | None:
    """Returns the figure that decides which run is faster: the time per item or per step."""
    return _known(comparison.figures.get(f"{comparison.work.unit}_mean"))


def work(comparison: Comparison) -> list[str]:
    """Says that the runs did different work, or that this is not known, and asks for the workload."""
    known = comparison.work
    ask = [] if failures(comparison) else [f"{ASK}."]
    if known.same is False and known.a and known.b:
        of_a, of_b = number(round(known.a)), number(round(known.b))
        per_step = known.unit == "step"
        of_b = f"made {of_b} steps per rank" if per_step else f"processed {of_b} items"
        said = f"B {of_b} and A {of_a}: different work, so compare them per {known.unit}, not as a whole."
        return [said, *(ask if known.items_per_step is None else [])]
    if known.same is None and not known.same_steps:
        ranks = f"B has {_ranks(comparison.b)} and A {_ranks(comparison.a)}"
        return [f"{ranks}, with unknown batch sizes: a step of B may be different work.", *ask]
    if known.same is None and _known(comparison.figures.get("duration")) is not None:
        return ["Without steps it is not known whether both did the same work.", *ask]
    return []


def _ranks(run: ComparedRun) -> str:
    return count(max(run.analysis.world_size, 1), "rank")


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
        return f"{NO_DIFFERENCE} in the time per {work} ({between}){_but_half(comparison)}"
    if figure.change == 0:
        return f"B takes as long per {work}"
    said = _faster_or_slower(figure.a, figure.b, work)
    return f"{said} (too few steps to be sure)" if too_few_steps(comparison) else said


def _but_half(comparison: Comparison) -> str:
    """Says what half of the steps took, if that differs where the mean does not: a few steps compile."""
    median = comparison.figures.get("step_p50")
    if comparison.work.unit != "step" or median is None or not (median.interval and median.interval.seen):
        return ""
    return f", but half of the steps took {_at_most(median)}"


def within_noise(comparison: Comparison, figure: Figure) -> bool:
    """Returns whether the noise of the steps may be all that changed a duration or a cost."""
    deciding = pace(comparison)
    if deciding is None or deciding.interval is None or deciding.interval.seen or figure.change is None:
        return False
    from_steps = figure.key == "duration" or figure.key.startswith("cost")
    return from_steps and abs(figure.change) <= max(-deciding.interval.low, deciding.interval.high)


def too_few_steps(comparison: Comparison) -> bool:
    """Returns whether the runs have steps, but too few to say whether a difference is chance."""
    figure = pace(comparison)
    return comparison.phase is not None and figure is not None and figure.interval is None


def _faster_or_slower(a: float, b: float, work: str) -> str:
    ratio = max(a, b) / min(a, b) if a and b else 1.0
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
    each = _known(comparison.figures.get(f"cost_per_1000_{comparison.work.unit}s"))
    figure = each if comparison.work.same is False else total
    if figure is None or not figure.a or figure.b is None:
        return ""
    unit = comparison.work.unit
    if money(figure.a) == money(figure.b):
        return f"{f'1000 {unit}s cost' if figure is each else 'it costs'} the same, {money(figure.b)}"
    if within_noise(comparison, figure):
        return ""
    # In cents as the amounts are printed; exactly if an amount is below a dollar.
    printed = min(figure.a, figure.b) >= 0.995
    less = round(figure.a, 2) - round(figure.b, 2) if printed else figure.a - figure.b
    percent = exact_percent(100 * abs(saved(figure.a, figure.b)))
    if figure is each:
        more = "less" if less > 0 else "more"
        return f"1000 {unit}s cost {money(figure.b)} instead of {money(figure.a)}, {percent} {more}"
    return f"it saves {money(less)}, {percent}" if less > 0 else f"it costs {money(-less)} more, {percent}"


def _explanation(comparison: Comparison) -> list[str]:
    """Names what changed most in a step; in the whole run, if its bill changed although its steps did not."""
    figure, took = pace(comparison), _known(comparison.figures.get("duration"))
    if comparison.step is None or figure is None:
        return []
    if figure.seen_change:
        return [f"{largest_part(comparison.step, f' per {comparison.work.unit}')}."]
    if comparison.run is None or took is None or comparison.work.same is False or not _money(comparison):
        return []
    same = duration(took.a) == duration(took.b) or within_noise(comparison, took)
    return [] if same else [f"{largest_part(comparison.run)}."]


def largest_part(difference: Difference, of_what: str = "") -> str:
    """Names the part that explains most, and its amount: "Waiting for data takes 268 ms less per step"."""
    part = difference.largest
    if part is None:
        return "The parts cancel out"
    less = "less" if part.difference < 0 else "more"
    amount = duration(abs(part.difference))
    moved, total = abs(part.difference), abs(difference.total)
    alone = len(difference.parts) == 1 or moved > 1.005 * total  # or other parts take some of it back
    how_much = "all" if moved > 0.995 * total else share(moved, total)
    explains = "" if alone else f" ({how_much} of the difference)"
    takes = "take" if part.name.endswith(" steps") and part.name.split()[0] in PLURALS else "takes"
    return f"{part.name} {takes} {amount} {less}{of_what}{explains}"


def _rules_in_short(comparison: Comparison) -> list[str]:
    by_fate: dict[Fate, list[str]] = {}
    for rule in comparison.rules:
        by_fate.setdefault(rule.fate, []).append(rule.rule)
    in_order = (FATES[-1], FATES[-2], *FATES[:-2])
    said = [f"{listing(by_fate[fate])} {fate}" for fate in in_order if fate in by_fate]
    return [f"{capitalised('; '.join(said))}."] if said else []


def caveats(comparison: Comparison) -> list[str]:
    """Returns reasons why the comparison may mislead."""
    said = []
    for name, run in (("A", comparison.a), ("B", comparison.b)):
        if run.analysis.gaps:
            said.append(f"{name} is incomplete: its figures exclude what is missing, which is listed below.")
        if not run.analysis.finished:
            said.append(
                f"{name} has not finished, or its end was not recorded: figures cover the recorded part."
            )
    return said


def unknowns(comparison: Comparison) -> list[str]:
    """Returns the data of either run that are missing or could not be read, and why."""
    runs = (("A", comparison.a.analysis), ("B", comparison.b.analysis))
    return [f"{name}: {sentence}" for name, run in runs for sentence in (*gaps(run.gaps)[1:], *run.unknowns)]


def figures(comparison: Comparison) -> str:
    seconds = _known(comparison.figures.get("duration"))
    if seconds is None:
        return "The duration of a run is not known."
    return f"{_durations(comparison)}{', for different work' * (comparison.work.same is False)}."


def parts_of_the_run(comparison: Comparison) -> str:
    difference = comparison.run
    if difference is None:
        return "The duration of a run is not known, or no step of it was recorded: it cannot be split."
    if difference.a != difference.measured_a:
        return _for_the_work_of_b(difference)
    if duration(difference.a) == duration(difference.b):
        moved = any(abs(part.difference) > 0.01 * difference.a for part in difference.parts)
        same = "Both runs took the same time."
        return f"{same} Parts that became faster and slower cancel out." if moved else same
    less = "less" if difference.total < 0 else "more"
    return f"B took {duration(abs(difference.total))} {less}. {largest_part(difference)}."


def _for_the_work_of_b(difference: Difference) -> str:
    """Says how long A would need for the work of B, at its own pace."""
    own, scaled = duration(difference.measured_a), duration(difference.a)
    took = f"A took {own}, and would need {scaled} for the work of B"
    if duration(difference.a) == duration(difference.b):
        return f"{took}, as B did."
    less = "less" if difference.total < 0 else "more"
    than = f"B took {duration(difference.b)}, {duration(abs(difference.total))} {less}"
    return f"{took}. {than}. {largest_part(difference)}."


def parts_of_a_step(comparison: Comparison) -> str:
    difference, figure = comparison.step, pace(comparison)
    if difference is None or figure is None:
        return "Not both runs recorded steps of the same phase."
    if figure.interval is not None and not figure.interval.seen:
        return "No difference seen between the steps; the parts below may be noise."
    less = "less" if difference.total < 0 else "more"
    unit = f"A {comparison.phase} step" if comparison.work.unit == "step" else "An item"
    took = f"{unit} of B takes {duration(abs(difference.total))} {less}"
    return f"{took}. {largest_part(difference)}."


def steps(comparison: Comparison) -> str:
    """Compares the median and the 95th percentile of both."""
    said = []
    for key, name in (("step_p50", "half of the steps took"), ("step_p95", "19 of 20")):
        figure = _known(comparison.figures.get(key))
        if figure is not None:
            unseen = figure.interval is not None and not figure.interval.seen
            said.append(f"{name} {_at_most(figure)}{f' ({NO_DIFFERENCE})' if unseen else ''}")
    return f"{capitalised('; '.join(said))}."


def _at_most(percentile: Figure) -> str:
    return f"{amount(percentile.b, 's')} or less in B and {amount(percentile.a, 's')} in A"


def rules(comparison: Comparison) -> str:
    return next(iter(_rules_in_short(comparison)), "No rule fired in either run.")


def configuration(comparison: Comparison) -> str:
    changed = comparison.changed_settings
    if not changed:
        return "No known setting differs."
    return f"{capitalised(count(len(changed), 'setting'))} {'differs' if len(changed) == 1 else 'differ'}."


def prediction(checked: CheckedPrediction) -> str:
    """Writes the prediction, its range and the measured figure, or why the two cannot be compared."""
    row = checked.prediction
    figure, unit = PREDICTED[row.metric]
    said = (
        f"Predicted for {row.suggested:g} instead of {row.current:g} {row.resource}: {figure} "
        f"{amount(row.expected, unit)} ({amount(row.low, unit)} to {amount(row.high, unit)})."
    )
    if checked.in_range is None:
        return f"{said} Not comparable: {checked.why_not}."
    setting = "" if checked.as_suggested else f" with {checked.made:g}"
    place = "within" if checked.in_range else "outside"
    return f"{said} Measured{setting}: {amount(checked.measured, unit)}, {place} the predicted range."


def predictions(comparison: Comparison) -> str:
    checked = [row.in_range for row in comparison.predictions if row.in_range is not None]
    if not comparison.predictions:
        return "B made none of the changes that the report of A suggested."
    if not checked:
        return "The predictions cannot be compared with the measured figures."
    verb = "is" if sum(checked) == 1 else "are"
    return f"{sum(checked)} of {count(len(checked), 'predicted figure')} {verb} within the predicted range."


def lines(comparison: Comparison) -> str:
    """Says which line changed most."""
    line = max(comparison.lines, key=lambda line: abs(line.b - line.a))
    return f"{line.name}: {share(line.a, 1)} of the time of the main threads in A, {share(line.b, 1)} in B."


def operators(comparison: Comparison) -> str:
    """Says which operator of the profile windows changed most."""
    each = comparison.operators[0]
    change = f"{signed_duration(each.difference)} per step"
    both = f"{duration(each.a)} in A and {duration(each.b)} in B"
    place = f", called from {each.place}" if each.place else ""
    return f"{each.operator}{place}: {change} of self time in profile windows, {both}."
