"""Sorts what could be saved: the time lost to findings, and the cost of too large machines."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from stepscope.common.words import (
    count,
    duration,
    money,
    number,
    rough_duration,
    rough_energy,
    rough_money,
    share,
)
from stepscope.evaluation.analysis import Analysis
from stepscope.report.findings import Finding
from stepscope.report.right_sizing import Prediction
from stepscope.rules.batch_size import BatchSize

# The predicted changes that would end a problem, by its topic, or its rule where it has none.
CHANGES = {"data loading": ("more_workers", "more_cores"), BatchSize.__name__: ("larger_batch",)}
ROUNDED = 0.95  # of what was lost: a prediction above it, in two digits, might exceed the whole


@dataclass(frozen=True)
class Amounts:
    """Saved seconds, dollars and joules of the GPUs; None if that is not known."""

    share: float | None  # of the run's time, or of its cost if only that shrinks, 0..1
    seconds: float | None
    dollars: float | None
    joules: float | None
    predicted: bool = False  # then two digits are known

    @property
    def time(self) -> str:
        """Returns the seconds in words; "" if they are not known."""
        if self.seconds is None:
            return ""
        return rough_duration(self.seconds) if self.predicted else duration(self.seconds)

    @property
    def in_words(self) -> str:
        bill = rough_money if self.predicted else money
        written = (
            self.time,
            None if self.dollars is None else bill(self.dollars),
            None if self.joules is None else rough_energy(self.joules),
        )
        return ", ".join(text for text in written if text)


@dataclass(frozen=True)
class Saving:
    """One bar. `best`: nothing of what was lost remains; `expected`: as predicted, None if it is not."""

    title: str
    link: str
    expected: Amounts | None
    best: Amounts

    @property
    def gain(self) -> str:
        """Returns "28 s expected, up to 42.7 s (52 %)": the time."""
        expected = f"{self.expected.time} expected, " if self.expected and self.expected.time else ""
        of = "" if self.best.share is None else f" ({share(self.best.share, 1.0)})"
        return f"{expected}up to {duration(self.best.seconds)}{of}"


def savings(
    analysis: Analysis,
    findings: Sequence[Finding],
    predicted: Sequence[Prediction],
) -> list[Saving]:
    """Returns the time that each problem cost, longest first, then what a smaller machine would save."""
    found = [
        _of_finding(analysis, finding, predicted, f"#problem-{place}")
        for place, finding in enumerate(findings, 1)
        if finding.seconds > 0
    ]
    found.sort(key=lambda saving: -(saving.best.seconds or 0.0))
    return found + sorted(_smaller_machines(predicted), key=lambda saving: -(saving.best.dollars or 0.0))


def gains(analysis: Analysis, findings: Sequence[Finding], predicted: Sequence[Prediction]) -> list[str]:
    """Returns what each finding's remedy may gain; "" if no time was lost, or if that is not known."""
    every = enumerate(findings, 1)
    found = [_of_finding(analysis, finding, predicted, f"#problem-{place}") for place, finding in every]
    return [saving.gain if saving.best.seconds else "" for saving in found]


def _of_finding(analysis: Analysis, finding: Finding, predicted: Sequence[Prediction], link: str) -> Saving:
    problem, lost, whole = finding.problem, finding.seconds, analysis.run_seconds
    if finding.of_run is None or not whole:  # of all ranks and GPUs together: no time of the run
        return Saving(problem.title, link, None, Amounts(None, lost, finding.dollars, None))
    joules = analysis.energy.joules if analysis.energy is not None else None

    def amounts(seconds: float, dollars: float | None, predicted: bool = False) -> Amounts:
        saved = None if joules is None else joules * seconds / whole
        return Amounts(seconds / whole, seconds, dollars, saved, predicted)

    about = problem.rule.about.topic or problem.rule.rule
    change = [one for one in predicted if one.change in CHANGES.get(about, ())]
    gains = {one.metric: one.measured - one.expected for one in change}
    expected = None
    if (gained := gains.get("run_seconds", 0.0)) > 0:  # but never more than was lost
        part, dollars = min(1.0, lost / gained), gains.get("cost")
        dollars = None if dollars is None else part * dollars
        expected = amounts(part * gained, dollars, predicted=part * gained <= ROUNDED * lost)
    return Saving(problem.title, link, expected, amounts(lost, finding.dollars))


def _smaller_machines(predicted: Sequence[Prediction]) -> Iterator[Saving]:
    for one in predicted:
        if one.metric == "cost" and one.change.startswith("fewer") and one.expected < one.measured:
            title = f"{count(int(one.suggested), *_names(one))} instead of {number(one.current)}"
            expected, best = (
                Amounts((one.measured - cost) / one.measured, None, one.measured - cost, None, True)
                for cost in (one.expected, one.low)
            )
            yield Saving(title, "#right-sizing", expected, best)


def _names(prediction: Prediction) -> tuple[str, str]:
    """Returns the resource in the singular and the plural: "GPU per node", "GPUs per node"."""
    plural = prediction.resource.replace(" of a ", " per ")
    things, *of = plural.split(" per ")
    return " per ".join([things.removesuffix("s"), *of]), plural
