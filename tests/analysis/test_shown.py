"""Arrow tables in notebooks: short, escaped, and only where nobody else shows them."""

import sys
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
from stepscope.analysis.shown import MOST_ROWS, as_html, show_tables_in_notebooks


def test_a_table_has_its_first_rows_and_says_how_many_more_there_are() -> None:
    table = pa.table({"<n>": range(1200), "ratio": [1 / 3] * 1200, "name": [None] * 1200})
    shown = as_html(table)
    assert shown.count("<tr>") == 1 + MOST_ROWS
    assert "&lt;n&gt;" in shown
    assert ">0.3333<" in shown
    assert "None" not in shown
    assert shown.endswith("<p>and 1,180 more rows</p>")
    moment = pa.table({"start": [datetime(2026, 11, 27, 12, 0, 0, 123456, UTC)]})
    assert ">2026-11-27 12:00:00.123+00:00<" in as_html(moment)
    assert "more rows" not in as_html(moment)


class Formatter(dict[type, Any]):
    def for_type(self, kind: type, shows: Any) -> None:
        self[kind] = shows


def test_ipython_shows_tables_with_it_unless_it_was_told_otherwise(monkeypatch: pytest.MonkeyPatch) -> None:
    formatter = Formatter()
    shell = SimpleNamespace(display_formatter=SimpleNamespace(formatters={"text/html": formatter}))
    monkeypatch.setitem(sys.modules, "IPython", SimpleNamespace(get_ipython=lambda: shell))
    show_tables_in_notebooks()
    assert formatter[pa.Table] is as_html
    other = formatter[pa.Table] = object()
    show_tables_in_notebooks()
    assert formatter[pa.Table] is other
    monkeypatch.setitem(sys.modules, "IPython", SimpleNamespace(get_ipython=lambda: None))
    show_tables_in_notebooks()
