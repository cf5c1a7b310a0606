"""Shows Arrow tables in notebooks: they have no form of their own there but the text of all their columns."""

import sys
from collections.abc import Sequence
from datetime import datetime
from html import escape
from typing import Any

import pyarrow as pa

MOST_ROWS = 20


def show_tables_in_notebooks() -> None:
    """Lets IPython, if it runs, show a `pyarrow.Table` as HTML, unless somebody else has said how."""
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython is not None else None
    formatter = getattr(shell, "display_formatter", None)
    if formatter is not None and pa.Table not in formatter.formatters["text/html"]:
        formatter.formatters["text/html"].for_type(pa.Table, as_html)


def as_html(table: pa.Table) -> str:
    """Returns the first rows of a table, and how many more there are."""
    rows = [row.values() for row in table.slice(0, MOST_ROWS).to_pylist()]
    more = len(table) - len(rows)
    after = f"<p>and {more:,} more rows</p>" if more else ""
    body = "".join(f"<tr>{_cells('td', [_word(value) for value in row])}</tr>" for row in rows)
    return f"<table><tr>{_cells('th', table.column_names)}</tr>{body}</table>{after}"


def _cells(tag: str, words: Sequence[str]) -> str:
    return "".join(f'<{tag} style="text-align: left">{escape(word)}</{tag}>' for word in words)


def _word(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, float):
        return f"{value:.4g}"
    return value.isoformat(" ", "milliseconds") if isinstance(value, datetime) else str(value)
