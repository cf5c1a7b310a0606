"""The comparison for a terminal, and in Markdown for a pull request or a chat."""

from collections.abc import Iterator

from stepscope.common.words import UNKNOWN, count, in_columns
from stepscope.compare import sentences
from stepscope.compare.compared_run import ComparedRun
from stepscope.compare.comparison import Comparison
from stepscope.compare.tables import Table, sections
from stepscope.report.markdown_text import code, one_line, sentence, table
from stepscope.report.verdict import status_of_run


def as_text(comparison: Comparison) -> str:
    """Returns plain text: the verdict in the first lines, then one table per section."""
    lines = [f"A  {_named(comparison.a)}", f"B  {_named(comparison.b)}", "", *sentences.verdict(comparison)]
    for section in sections(comparison):
        lines += ["", section.title.upper(), *section.sentences]
        for rows in section.tables:
            total = [rows.total] if rows.total else []
            lines += ["", *in_columns([rows.headings, *rows.rows, *total], rows.words)]
    return "\n".join(one_line(line) for line in lines) + "\n"


def as_markdown(comparison: Comparison) -> str:
    """Returns GitHub's Markdown, short enough for a comment: only figures and conditions are unfolded."""
    return "\n\n".join(_blocks(comparison)) + "\n"


def _blocks(comparison: Comparison) -> Iterator[str]:
    first, *more = sentences.verdict(comparison)
    yield f"## {sentence(first)}"
    if more:
        yield " ".join(map(sentence, more))
    yield f"A: {_named_in_markdown(comparison.a)}  \nB: {_named_in_markdown(comparison.b)}"
    for section in sections(comparison):
        folded = section.key not in ("figures", "gate")
        yield f"<details><summary>{section.title}</summary>" if folded else f"### {section.title}"
        if section.sentences:
            yield " ".join(map(sentence, section.sentences))
        yield from map(_table, section.tables)
        if folded:
            yield "</details>"


def _table(words: Table) -> str:
    rows = [[sentence(cell) for cell in row] for row in words.rows]
    if words.total:
        rows.append([f"**{sentence(cell)}**" for cell in words.total])
    return table(words.headings, rows, right=range(words.words, len(words.headings)))


def _named_in_markdown(run: ComparedRun) -> str:
    status = status_of_run(run.analysis)
    return (
        f"{code(run.analysis.run) or 'a run without a name'} from {code(run.place)} ({status.icon} {status})"
    )


def _named(run: ComparedRun) -> str:
    analysis, status = run.analysis, status_of_run(run.analysis)
    known = [f"{status.icon} {status}", run.place, count(len(analysis.nodes), "node"), analysis.framework]
    return f"{analysis.run or UNKNOWN} ({', '.join(filter(None, known))})"
