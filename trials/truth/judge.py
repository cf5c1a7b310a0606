"""Compares what reports say with what was planted."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from trials.truth.observed import Seen
from trials.truth.plan import Case

Outcome = Literal["right", "wrong cause", "wrong rank", "not found", "accused", "failed"]
HEAD = ("script", "planted", "runs", "right", "wrong cause", "wrong rank", "not found", "accused", "failed")
ENOUGH = 0.95  # of the faults with the right rank and cause


def judge(case: Case, seen: Seen) -> Outcome:
    """Returns whether the report says what it should. A run that could not be judged has failed."""
    if seen.status == "failed" or not seen.steps:
        return "failed"
    if case.expected is None:
        if seen.accused:
            return "accused"
        is_told = case.kind != "slow network" or seen.communication_bound
        return "right" if seen.status == "healthy" and is_told else "failed"
    if seen.accused is None:
        return "not found"
    if seen.accused[0] != case.rank:
        return "wrong rank"
    return "right" if seen.accused == case.expected else "wrong cause"


@dataclass
class Row:
    """The outcomes of similar cases."""

    script: str
    planted: str
    outcomes: list[Outcome]

    @property
    def cells(self) -> tuple[str, ...]:
        """Returns the cells of the table."""
        counts = [str(self.outcomes.count(outcome)) for outcome in HEAD[3:]]  # type: ignore[arg-type]
        return (self.script, self.planted, str(len(self.outcomes)), *counts)


def table(results: Iterable[tuple[Case, Outcome]]) -> list[Row]:
    """Returns a row per script and fault, then those in which nobody may be accused, and sums of both."""
    rows: dict[tuple[bool, str, str], Row] = {}
    for case, outcome in results:
        planted = f"{case.place_in_words}, {1000 * case.seconds:.0f} ms" if case.place else case.kind
        if case.kind == "hidden":
            planted += ", hidden by prefetching"
        planted += ", with alerts" if case.alerts else ""
        script = f"{case.script}, {case.variant}" if case.variant else case.script
        key = (case.expected is None, script, planted)
        rows.setdefault(key, Row(script, planted, [])).outcomes.append(outcome)
    ordered = [rows[key] for key in sorted(rows)]
    sums = []
    for harmless, name in ((False, "**all faults**"), (True, "**all without a fault**")):
        outcomes = [outcome for key, row in rows.items() if key[0] is harmless for outcome in row.outcomes]
        if outcomes:
            sums.append(Row("", name, outcomes))
    return [*ordered, *sums]


def holds(results: Sequence[tuple[Case, Outcome]]) -> bool:
    """Returns whether enough faults were named rightly, and nobody was accused without one."""
    faults = [outcome for case, outcome in results if case.expected]
    others = [outcome for case, outcome in results if case.expected is None]
    return faults.count("right") >= ENOUGH * len(faults) and others.count("right") == len(others)
