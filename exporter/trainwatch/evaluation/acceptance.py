"""Marks accepted findings in an analysis. Measuring and judging know nothing of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from trainwatch.accepted import NAME, Acceptance, AcceptedFile, of_run, read_accepted
from trainwatch.evaluation.analysis import Analysis
from trainwatch.evaluation.problems import in_order
from trainwatch.rules import all_rules
from trainwatch.rules.topics import Effect
from trainwatch.runs.recording.files import RUNS


def marked(analysis: Analysis, entries: Sequence[Acceptance], now: float) -> Analysis:
    """Returns the analysis with the entries about its run. `now`: seconds since the epoch."""
    ours = of_run(entries, {analysis.run, analysis.name} - {""})
    if not ours:
        return analysis
    results = [
        replace(
            rule,
            accepted=entry if now < entry.end else None,
            acceptance_ended=entry if now >= entry.end else None,
        )
        if (entry := ours.get(rule.rule))
        else rule
        for rule in analysis.rules
    ]
    return replace(analysis, rules=in_order(results))


def rules_that_fire() -> list[str]:
    """Returns the names of the rules whose findings can be accepted."""
    return [name for name, rule in all_rules().items() if rule.effect is not Effect.OVERVIEW]


def accepted_file(flag: Path | None) -> AcceptedFile:
    """Returns the file of `--accepted`, otherwise the one in the folder of runs, which may not exist.

    Raises UserError as `read_accepted` does.
    """
    path = flag or RUNS / NAME
    if flag is not None:
        read_accepted(flag)  # a file that was named exists
    file = AcceptedFile(path.absolute(), rules_that_fire())
    file.entries()
    return file
