"""docs/notebooks.md: its code runs over the runs of the demo, and prints what stands on the page."""

import re
from collections.abc import Callable
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path
from typing import Any

import pytest

from tests.support.scenarios import WrittenScenarios

PAGE = Path(__file__).parents[2] / "docs" / "notebooks.md"
CODE_AND_OUTPUT = re.compile(r"```python\n(?P<code>.*?)```\n(?:\n```text\n.*?```\n)?", re.DOTALL)


def with_outputs(page: str) -> str:
    """The page with what its code blocks print now, each block in the names of those before it."""
    names: dict[str, Any] = {}

    def run(block: re.Match[str]) -> str:
        code = block["code"]
        if "to_pandas" in code:
            return block[0]
        printed = StringIO()
        with redirect_stdout(printed):
            exec(compile(code, PAGE.name, "exec"), names)
        output = f"\n```text\n{printed.getvalue()}```\n" if printed.getvalue() else ""
        return f"```python\n{code}```\n{output}"

    return CODE_AND_OUTPUT.sub(run, page)


def test_the_page_prints_what_its_code_prints_as_golden_text(
    scenarios: WrittenScenarios,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    golden: Callable[[Path, str], None],
) -> None:
    for name, scenario in (("before", "few-dataloaders"), ("after", "healthy")):
        (tmp_path / name).symlink_to(scenarios.written(scenario).recording_directory)
    monkeypatch.chdir(tmp_path)
    golden(PAGE, with_outputs(PAGE.read_text(encoding="utf-8")))
