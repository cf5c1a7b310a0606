"""The tables of a comparison as text: the same on the terminal, in Markdown and on the page."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from trainwatch.compare import sentences
from trainwatch.compare.comparison import Comparison
from trainwatch.compare.configuration import Setting
from trainwatch.compare.figures import KINDS, RESOURCES, Figure, change_of
from trainwatch.compare.parts import Difference
from trainwatch.words import NO_NUMBER, amount, capitalised, count, duration, share

SHOWN_UTILISATION = ("p50", "p95")
UNSEEN = 1e-6  # of a total: tables omit smaller parts
WORTH_SHARING = 1e-3  # of a total: a smaller difference is not split in percent


@dataclass(frozen=True)
class Table:
    """Rows of cells; all but the first `words` columns hold numbers. `total`: the row of sums, at the end."""

    headings: tuple[str, ...]
    rows: Sequence[tuple[str, ...]]
    total: tuple[str, ...] = ()
    words: int = 1


@dataclass(frozen=True)
class Section:
    """A part of the comparison: `sentences`, followed by the tables that they summarise."""

    key: str
    title: str
    sentences: list[str]
    tables: list[Table] = field(default_factory=list)


def sections(comparison: Comparison) -> list[Section]:
    """Returns the sections in reading order, without empty ones."""
    found = [
        Section("figures", "Side by side", [sentences.figures(comparison)], [figures(comparison)]),
        Section(
            "parts",
            "What makes the difference",
            [sentences.parts_of_a_step(comparison), sentences.parts_of_the_run(comparison)],
            [
                parts(difference, name)
                for difference, name in ((comparison.step, "Step"), (comparison.run, "Whole run"))
                if difference is not None
            ],
        ),
        Section("usage", "Utilisation", [], [utilisation(comparison)]),
        Section("rules", "Rules", [sentences.rules(comparison)], _rules(comparison)),
        Section(
            "configuration",
            "Configuration",
            [sentences.configuration(comparison)],
            [settings(changed)] if (changed := comparison.changed_settings) else [],
        ),
        Section(
            "predicted",
            "Predicted against measured",
            [sentences.predictions(comparison), *map(sentences.prediction, comparison.predictions)],
        ),
    ]
    if comparison.outcomes:
        found.append(gate(comparison))
    unknowns = sentences.unknowns(comparison)
    if unknowns:
        found.append(Section("unknowns", "What could not be read", unknowns))
    return found


def figures(comparison: Comparison) -> Table:
    """Returns all figures except the utilisation, which has its own table."""
    rows = [_figure_row(figure) for key, figure in comparison.figures.items() if key in KINDS]
    return Table(("", "A", "B", "Change"), rows)


def utilisation(comparison: Comparison) -> Table:
    """Returns percentiles over the samples of all nodes together."""
    rows = [
        (name, statistic, *_figure_row(figure)[1:])
        for key, name in RESOURCES.items()
        for statistic in SHOWN_UTILISATION
        if (figure := comparison.figures.get(f"{key}_{statistic}")) is not None
    ]
    return Table(("Resource", "", "A", "B", "Change"), rows, words=2)


def parts(difference: Difference, name: str) -> Table:
    """Returns times; the last row sums all parts, also those that are too small to be listed."""
    whole = max(difference.a, difference.b)
    shared = difference.total if abs(difference.total) > WORTH_SHARING * whole else 0.0

    def row(title: str, a: float | None, b: float | None, change: float) -> tuple[str, ...]:
        change = change if abs(change) > UNSEEN * whole else 0.0
        amounts = [NO_NUMBER if seconds is None else duration(seconds) for seconds in (a, b)]
        return title, *amounts, signed_duration(change), _signed_share(change, shared)

    rows = [
        row(part.name, part.a, part.b, part.difference)
        for part in difference.parts
        if max(abs(part.a or 0.0), abs(part.b or 0.0), abs(part.difference)) > UNSEEN * whole
    ]
    total = row("Total", difference.a, difference.b, difference.total)
    return Table((name, "A", "B", "Difference", "Share"), rows, total)


def gate(comparison: Comparison) -> Section:
    failed = len(comparison.failed)
    conditions = count(len(comparison.outcomes), "condition")
    said = f"{failed} of {conditions} failed." if failed else f"{capitalised(conditions)} given, none failed."
    rows = [(outcome.condition.text, outcome.state, outcome.reason) for outcome in comparison.outcomes]
    return Section("gate", "Conditions", [said], [Table(("--fail-if", "", "Why"), rows, words=3)])


def settings(chosen: Sequence[Setting]) -> Table:
    return Table(("Setting", "A", "B"), [(setting.name, setting.a, setting.b) for setting in chosen], words=3)


def signed_duration(seconds: float) -> str:
    return f"+{duration(seconds)}" if seconds > 0 else duration(seconds)


def _signed_share(part: float, whole: float) -> str:
    """Writes the share of the difference; negative if the part goes in the opposite direction."""
    if not part or not whole:
        return NO_NUMBER
    said = share(abs(part), abs(whole))
    return f"−{said}" if part * whole < 0 and said[0] != "<" else said


def _figure_row(figure: Figure) -> tuple[str, ...]:
    return figure.name, amount(figure.a, figure.unit), amount(figure.b, figure.unit), change_of(figure)


def _rules(comparison: Comparison) -> list[Table]:
    if not comparison.rules:
        return []
    rows = [
        (rule.rule, rule.fate, (rule.b if rule.fate != "went away" else rule.a).finding)
        for rule in comparison.rules
    ]
    return [Table(("Rule", "", "Finding in B, or in A if the rule went away"), rows, words=3)]
