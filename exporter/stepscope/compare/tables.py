"""The tables of a comparison as text: the same on the terminal, in Markdown and on the page."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from stepscope.common.words import (
    NO_NUMBER,
    amount,
    capitalised,
    change,
    count,
    duration,
    listing,
    share,
    signed_duration,
)
from stepscope.compare import sentences
from stepscope.compare.changes import Setting
from stepscope.compare.comparison import Comparison
from stepscope.compare.figures import KINDS, RESOURCES, Figure, change_of
from stepscope.compare.gate import STATUSES
from stepscope.compare.lines import ComparedLine
from stepscope.compare.parts import Difference
from stepscope.report.sentences import device_name

SHOWN_UTILISATION = ("p50", "p95")
UNSEEN = 1e-6  # of a total: tables omit smaller parts


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


def sections(comparison: Comparison) -> Iterator[Section]:
    """Yields the sections in reading order, without empty ones."""
    yield Section("figures", "Side by side", [sentences.figures(comparison)], [figures(comparison)])
    differences = ((comparison.step, comparison.work.unit.capitalize()), (comparison.run, "Whole run"))
    yield Section(
        "parts",
        "What makes the difference",
        [sentences.parts_of_a_step(comparison), sentences.parts_of_the_run(comparison)],
        [parts(difference, name) for difference, name in differences if difference is not None],
    )
    yield Section("usage", "Utilisation", [], [utilisation(comparison)])
    if comparison.lines:
        yield Section("lines", "Lines of code", [sentences.lines(comparison)], [lines(comparison.lines)])
    if comparison.operators:
        yield Section("operators", "Operators", [sentences.operators(comparison)], [operators(comparison)])
    yield Section("rules", "Rules", [sentences.rules(comparison)], _rules(comparison))
    changed = comparison.changed_settings
    tables = [settings(changed)] if changed else []
    yield Section("configuration", "Configuration", [sentences.configuration(comparison)], tables)
    said = [sentences.predictions(comparison), *map(sentences.prediction, comparison.predictions)]
    yield Section("predicted", "Predicted against measured", said)
    if comparison.outcomes:
        yield gate(comparison)
    if unknowns := sentences.unknowns(comparison):
        yield Section("unknowns", "What could not be read", unknowns)


def figures(comparison: Comparison) -> Table:
    """Returns all figures except the utilisation, which has its own table."""
    rows = [
        _figure_row(figure, comparison.work.obstacle(key) if comparison.work.same is not None else "")
        for key, figure in comparison.figures.items()
        if key in KINDS
    ]
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

    def row(title: str, a: float, b: float) -> tuple[str, ...]:
        moved = b - a if abs(b - a) > UNSEEN * whole else 0.0
        of_a = change(moved / difference.a) if difference.a else NO_NUMBER
        return title, duration(a), duration(b), signed_duration(moved), of_a

    rows = [
        row(part.name, part.a, part.b)
        for part in difference.parts
        if max(abs(part.a), abs(part.b)) > UNSEEN * whole
    ]
    total = row("Total", difference.a, difference.b)
    return Table((name, name_of_a(difference), "B", "Difference", "Relative to A"), rows, total)


def name_of_a(difference: Difference) -> str:
    return "A" if difference.a == difference.measured_a else "A, for B's work"


def lines(compared: Sequence[ComparedLine]) -> Table:
    """Returns shares of the sampled time of the main threads."""
    rows = [
        (line.name, line.component.replace("_", " ") or NO_NUMBER, share(line.a, 1), share(line.b, 1))
        for line in compared
    ]
    return Table(("Line", "Component", "A", "B"), rows, words=2)


def operators(comparison: Comparison) -> Table:
    """Returns self times per step of the profile windows."""
    rows = [
        (
            each.operator,
            device_name(each.device),
            each.place,
            duration(each.a),
            duration(each.b),
            signed_duration(each.difference),
        )
        for each in comparison.operators
    ]
    head = "Operator or function", "Device", "Called from", "A", "B", "Difference"
    return Table(head, rows, words=3)


def gate(comparison: Comparison) -> Section:
    states = [outcome.state for outcome in comparison.outcomes]
    parts = [f"{states.count(state)} {state}" for state in STATUSES if state in states]
    conditions = count(len(states), "condition")
    said = f"{listing(parts)} of {conditions}." if parts else f"{capitalised(conditions)} given, all passed."
    rows = [(outcome.condition.text, outcome.state, outcome.reason) for outcome in comparison.outcomes]
    return Section("gate", "Conditions", [said], [Table(("--fail-if", "", "Why"), rows, words=3)])


def settings(chosen: Sequence[Setting]) -> Table:
    return Table(("Setting", "A", "B"), [(setting.name, setting.a, setting.b) for setting in chosen], words=3)


def _figure_row(figure: Figure, obstacle: str = "") -> tuple[str, ...]:
    values = amount(figure.a, figure.unit), amount(figure.b, figure.unit)
    return figure.name, *values, obstacle or change_of(figure)


def _rules(comparison: Comparison) -> list[Table]:
    if not comparison.rules:
        return []
    rows = [(rule.rule, rule.fate, rule.finding) for rule in comparison.rules]
    return [Table(("Rule", "", "Finding in B, or in A if the rule went away"), rows, words=3)]
