"""The verdict as text for a terminal or a log: the end of `stepscope run`, and `stepscope report`."""

from collections.abc import Iterator
from pathlib import Path

from stepscope.common.console import BOLD, COLOURS, Console
from stepscope.common.status import Status
from stepscope.common.words import count, duration, share
from stepscope.evaluation.analysis import Analysis
from stepscope.evaluation.problems import Problem
from stepscope.report.ended import status_in_words
from stepscope.report.hot_lines import parts, process_verdict
from stepscope.report.profile import sentences as operators
from stepscope.report.right_sizing import predictions
from stepscope.report.savings import gains
from stepscope.report.verdict import RunVerdict, verdict

FINDINGS = 3  # with their evidence and advice; the report has all
LABEL, ROW = 13, 6  # columns of the names of facts, and of the parts of a finding
WHERE = 90  # characters of a place with its code: a line of a terminal with 100 columns


def print_summary(console: Console, analysis: Analysis, report: Path, price: float | None = None) -> None:
    """Prints the end of a run as a block: verdict, evidence, advice, duration, exit status and paths."""
    said = verdict(analysis, price)
    colour = COLOURS[said.status]
    lasted = duration(analysis.run_seconds)
    status = "" if analysis.exit_status is None else f", exit status {analysis.exit_status}"
    facts = {
        "duration": lasted,
        "exit status": status and status_in_words(analysis),
        "report": console.link(report),
        "recording": console.link(report.parent),
    }
    console.write(
        console.heading(f"stepscope: {analysis.run or analysis.name}"),
        *_lines(console, analysis, said, price),
        "",
        *(f"{name:{LABEL}}{value}" for name, value in facts.items() if value),
        console.heading(f"{said.status.icon} {said.status} in {lasted}{status}", colour),
    )


def print_verdict(console: Console, analysis: Analysis, price: float | None = None) -> None:
    """Prints verdict, evidence and advice."""
    console.write(*_lines(console, analysis, verdict(analysis, price), price))


def _lines(console: Console, analysis: Analysis, said: RunVerdict, price: float | None) -> Iterator[str]:
    word = f"{said.status}: " if said.status is Status.FOUND else ""
    first, *rest = console.wrapped(word + said.sentence, first=2, rest=2)
    yield console.state(said.status, first)
    yield from rest
    found = said.findings
    named = bool(process_verdict(analysis)) or any(finding.problem.places for finding in found)
    hot = [] if named else [part.words for part in parts(analysis)[:FINDINGS]]
    for detail in (*said.details, *hot, *operators(analysis)):
        yield from console.wrapped(f"  {detail}", rest=2)
    gained = gains(analysis, found[:FINDINGS], predictions(analysis, price))
    for finding, gain in zip(found, gained, strict=False):
        yield ""
        problem, cost = finding.problem, finding.cost
        yield console.styled(f"  {Status.FOUND.icon} {problem.title}{cost and ': '}{cost}", BOLD)
        rows = {
            "why": finding.why,
            **dict(zip(("line", "and"), _where(problem), strict=False)),
            "do": problem.rule.recommendation,
            "gain": gain,
        }
        for name, text in rows.items():
            if text:
                yield from console.wrapped(f"    {name:{ROW}}{text}", rest=4 + ROW)
    if len(found) > FINDINGS:
        yield f"  and {count(len(found) - FINDINGS, 'more finding')} in the report"
    if said.unjudged:
        yield ""
        yield from console.wrapped(f"  {said.unjudged}", rest=2)


def _where(problem: Problem) -> Iterator[str]:
    """Yields each place with its share, and as much code of the first one as fits on its line."""
    for code, place in zip((problem.code, *[""] * len(problem.places)), problem.places, strict=False):
        text = f"{share(place.share, 1.0)} in {place.words}"
        room = WHERE - len(text) - len(": ")
        if code and room > 1:
            text += f": {code if len(code) <= room else f'{code[: room - 1]}…'}"
        yield text
