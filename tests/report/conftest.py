"""Pages are rendered once a test."""

from collections.abc import Callable
from pathlib import Path

import pytest
from stepscope.evaluation.analysis import Analysis
from stepscope.report.html import render_html


@pytest.fixture
def page_of(tmp_path: Path) -> Callable[[Analysis], Path]:
    def write(analysis: Analysis) -> Path:
        page = tmp_path / "report.html"
        page.write_text(render_html(analysis), encoding="utf-8")
        return page

    return write
