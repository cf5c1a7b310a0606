"""Compares the first finding of a report with the truth."""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from stepscope.evaluation.account import AFTER, BEFORE, Key, name_of

from trials.everyday.truths import FIRST, Situation

FOLDER = Path(__file__).with_name("situations")
MARK = "# the cause"  # at the end of each line that may be named
TOLERANCE = 0.2  # of the seconds that the script clocked
ENOUGH = 0.9  # of the first findings, and of the lines
ENOUGH_ADVICE = 0.8
MORE = 0.05  # of the time per step, or outside the loop: what a twin may save more than was said
OUTSIDE = {name_of(Key(part)) for part in (BEFORE, AFTER)}
HEAD = ("situation", "cause", "said first", "finding", "line", "seconds", "advice", "twin silent")


@dataclass(frozen=True)
class Seen:
    """What the report of one run says."""

    name: str
    good: bool
    status: int  # of the command
    verdict: dict[str, Any]  # as in report.json; empty without a report
    clocked: float | None  # seconds of the script's own clock
    seconds: float  # that the run took
    terminal: str = ""
    loop: float = 0.0  # seconds from the first step to the last, per rank; 0 without steps,
    steps: int = 0  # and the training steps of a rank in them

    @property
    def first(self) -> dict[str, Any]:
        """Returns the first finding; empty if nothing was found."""
        findings = self.verdict.get("findings") or [{}]
        found: dict[str, Any] = findings[0]
        return found

    @property
    def headline(self) -> dict[str, Any]:
        """Returns the first finding, or otherwise the first sentence."""
        sentences = self.verdict.get("sentences") or [""]
        return self.first or {"title": "", "rule": "", "finding": sentences[0]}

    @property
    def words(self) -> str:
        """Returns what it says first, in one line."""
        if not self.verdict or self.status:
            return f"failed with status {self.status}: {' '.join(self.terminal.split())[-200:]}"
        first = self.headline
        return f"{first['title'] or self.verdict['status']}: {first['finding']}"

    def as_json(self) -> str:
        """Returns it as a line."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, line: str) -> Seen:
        """Reads such a line."""
        return cls(**json.loads(line))


@dataclass(frozen=True)
class Score:
    """What is right; None: this cannot be right or wrong here."""

    finding: bool
    line: bool | None
    seconds: bool | None


def saved(bad: Seen, good: Seen) -> tuple[float, float] | None:
    """Returns what the first finding said may be saved, and what the twin saves, 0..1.

    Both are shares of the time per step, or of the time outside the loop if the finding is about that. The
    twin is the script as the advice would have it. None: there are no steps, or they took no time.
    """
    lost = bad.first.get("seconds_lost")
    if not (lost and bad.loop and bad.steps and good.loop and good.steps):
        return None
    most = lost + (bad.first.get("shared_seconds") or 0.0)
    if bad.first["title"] in OUTSIDE:
        before, after = bad.seconds - bad.loop, good.seconds - good.loop
    else:
        before, after = bad.loop, good.loop / good.steps * bad.steps
    return min(most / before, 1.0), 1 - after / before


def helps(bad: Seen, good: Seen) -> bool | None:
    """Returns whether the twin is faster, and saves no more than was said."""
    shares = saved(bad, good)
    if shares is None:
        return None
    said, found = shares
    return 0 < found <= said * (1 + TOLERANCE) + MORE


def script(name: str) -> Path:
    """Returns the file of a situation."""
    return FOLDER / f"{name}.py"


def marked_lines(name: str) -> set[int]:
    """Returns the numbers of the lines that may be named: all lines of the marked statements."""
    text = script(name).read_text()
    marked = {number for number, line in enumerate(text.splitlines(), 1) if line.endswith(MARK)}
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.stmt) and not hasattr(node, "body") and node.end_lineno:
            lines = range(node.lineno, node.end_lineno + 1)
            if marked.intersection(lines):
                marked.update(lines)
    return marked


def judge(situation: Situation, seen: Seen) -> Score:
    """Scores a run with its cause. A run that failed has nothing right."""
    first = {} if seen.status else seen.first if situation.steps else seen.headline
    lines = marked_lines(situation.name)
    return Score(
        finding=bool(first) and _is_right(situation, first, seen.verdict),
        line=bool(first) and first_line(situation.name, first, seen.verdict) in lines if lines else None,
        seconds=None
        if seen.clocked is None or not situation.steps
        else _is_near(first.get("seconds_lost"), seen.clocked),
    )


def _is_right(situation: Situation, first: Mapping[str, Any], verdict: Mapping[str, Any]) -> bool:
    text = "\n".join(_texts(first, verdict))
    titles = {name_of(Key(*leaf.split("."))) for leaf in situation.leaves}
    is_there = first["title"] in titles or first["rule"] in situation.rules or not (titles or situation.rules)
    says = re.search(situation.says, text, re.IGNORECASE) is not None
    denies = situation.never and re.search(situation.never, text, re.IGNORECASE)
    return is_there and says and not denies


def first_line(name: str, first: Mapping[str, Any], verdict: Mapping[str, Any]) -> int | None:
    """Returns the line of the script that the first finding names first."""
    for text in _texts(first, verdict):
        found = re.search(rf"\b{re.escape(name)}\.py:(\d+)", text)
        if found:
            return int(found[1])
    return None


def _texts(first: Mapping[str, Any], verdict: Mapping[str, Any]) -> Iterator[str]:
    """Yields all strings of the first finding, and the sentences about it."""
    yield from _strings(first)
    for name in ("sentences", "evidence"):
        yield from (verdict.get(name) or [])[:1]


def _strings(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for each in value.values():
            yield from _strings(each)
    elif isinstance(value, Sequence):
        for each in value:
            yield from _strings(each)


def _is_near(said: float | None, true: float) -> bool:
    return said is not None and abs(said - true) <= TOLERANCE * true


def is_silent(seen: Seen) -> bool:
    """Returns whether a healthy run ended well, and nothing was found."""
    return seen.status == 0 and bool(seen.verdict) and not seen.first


Results = Mapping[tuple[str, bool], Seen]  # by name, and whether it is the healthy twin


def rows(situations: Sequence[Situation], results: Results) -> list[tuple[str, ...]]:
    """Returns a row per situation, and the totals of both sets."""
    made = []
    for each in situations:
        bad, good = results.get((each.name, False)), results.get((each.name, True))
        score = judge(each, bad) if bad else None
        twin = is_silent(good) if good else None
        made.append(
            (
                f"`{each.name}`",
                each.cause,
                _short(bad.words) if bad else "",
                *(_word(getattr(score, name, None)) for name in ("finding", "line")),
                _word(score.seconds) + _compared(bad) if bad and score and score.seconds is not None else "",
                _advice(bad, good) if bad and good and score and score.finding else "",
                _word(twin) if twin is not False or good is None else f"no: {_short(good.words)}",
            )
        )
    for title, chosen in (("first set", True), ("second set", False)):
        of_set = [each for each in situations if (each in FIRST) is chosen]
        if of_set:
            made.append((f"**{title}**", "", "", *totals(of_set, results)))
    return made


def totals(situations: Sequence[Situation], results: Results) -> tuple[str, str, str, str, str]:
    """Returns "36 of 40" for findings, lines, seconds, advice and healthy twins."""
    scores = [judge(each, results[each.name, False]) for each in situations if (each.name, False) in results]
    silent = [is_silent(results[each.name, True]) for each in situations if (each.name, True) in results]
    finding, line, seconds = (
        _count([getattr(score, name) for score in scores]) for name in ("finding", "line", "seconds")
    )
    return finding, line, seconds, _count(_advised(situations, results)), _count(silent)


def _advised(situations: Sequence[Situation], results: Results) -> list[bool]:
    """Returns whether the advice helps, of the situations whose cause was found and that make steps."""
    both = [(each, results.get((each.name, False)), results.get((each.name, True))) for each in situations]
    found = [helps(bad, good) for each, bad, good in both if bad and good and judge(each, bad).finding]
    return [helped for helped in found if helped is not None]


def holds(situations: Sequence[Situation], results: Results) -> bool:
    """Returns whether enough findings and lines are right, and no healthy twin was accused."""
    scores = [judge(each, results[each.name, False]) for each in situations if (each.name, False) in results]
    lines = [score.line for score in scores if score.line is not None]
    return (
        len(results) == 2 * len(situations)
        and sum(score.finding for score in scores) >= ENOUGH * len(scores)
        and sum(lines) >= ENOUGH * len(lines)
        and sum(advised := _advised(situations, results)) >= ENOUGH_ADVICE * len(advised)
        and all(is_silent(seen) for (_, good), seen in results.items() if good)
    )


def _count(values: Sequence[bool | None]) -> str:
    known = [value for value in values if value is not None]
    return f"{sum(known)} of {len(known)}"


def _word(value: bool | None) -> str:
    return "" if value is None else "yes" if value else "no"


def _advice(bad: Seen, good: Seen) -> str:
    shares = saved(bad, good)
    if shares is None:
        return ""
    said, found = shares
    return f"{_word(helps(bad, good))}: {100 * found:.0f} % of up to {100 * said:.0f} %"


def _compared(seen: Seen) -> str:
    if seen.clocked is None:
        return ""
    said = seen.first.get("seconds_lost")
    return f": {'nothing' if said is None else f'{said:.1f} s'} for {seen.clocked:.1f} s"


def _short(text: str, most: int = 110) -> str:
    return text if len(text) <= most else f"{text[: most - 3]}..."
