"""The comparison for a terminal, and in Markdown for a pull request or a chat."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from trainwatch.compare import sentences
from trainwatch.compare.compared_run import ComparedRun
from trainwatch.compare.comparison import Comparison
from trainwatch.compare.tables import Table, sections
from trainwatch.report.wording import UNKNOWN, count


def as_text(comparison: Comparison) -> str:
    """Plain text: the verdict in the first lines, then a table a section."""
    lines = [f"A  {_named(comparison.a)}", f"B  {_named(comparison.b)}", "", *sentences.verdict(comparison)]
    for section in sections(comparison):
        lines += ["", section.title.upper(), *section.sentences]
        for table in section.tables:
            lines += ["", *_aligned(table)]
    return "\n".join(_one_line(line) for line in lines) + "\n"


def as_markdown(comparison: Comparison) -> str:
    """GitHub's Markdown; details are folded, so that a comment stays short."""
    first, *more = (_escaped(sentence) for sentence in sentences.verdict(comparison))
    lines = [f"### {first}", "", *(f"{sentence}  " for sentence in more), ""]
    lines += [f"A: {_escaped(_named(comparison.a))}  ", f"B: {_escaped(_named(comparison.b))}", ""]
    for section in sections(comparison):
        folded = section.key not in ("figures", "gate")
        lines += (
            [f"<details><summary>{section.title}</summary>", ""] if folded else [f"#### {section.title}", ""]
        )
        lines += [f"{_escaped(sentence)}  " for sentence in section.sentences]
        for table in section.tables:
            lines += ["", *_piped(table)]
        lines += ["", "</details>", ""] if folded else [""]
    return "\n".join(lines)


def _named(run: ComparedRun) -> str:
    analysis = run.analysis
    what = [count(len(analysis.nodes), "node"), analysis.framework or None]
    return f"{analysis.run or UNKNOWN} ({', '.join([run.place, *filter(None, what)])})"


def _aligned(table: Table) -> Iterator[str]:
    rows = [table.headings, *table.rows, *([table.total] if table.total else [])]
    widths = [max(len(row[column]) for row in rows) for column in range(len(table.headings))]
    for row in rows:
        cells = [
            cell.ljust(width) if column < table.words else cell.rjust(width)
            for column, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        yield "  ".join(cells).rstrip()


def _piped(table: Table) -> Iterator[str]:
    yield _row(table.headings)
    yield _row(["---" if column < table.words else "--:" for column in range(len(table.headings))])
    for row in table.rows:
        yield _row([_escaped(cell) for cell in row])
    if table.total:
        yield _row([f"**{_escaped(cell)}**" for cell in table.total])


def _row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _escaped(text: str) -> str:
    """What Markdown and HTML would take for markup stays text, on one line."""
    for character in "\\`*_[]|":
        text = text.replace(character, f"\\{character}")
    return _one_line(text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;"))


def _one_line(text: str) -> str:
    """Names may hold anything: control characters must not reach a terminal."""
    return "".join(character if character.isprintable() else " " for character in text)
