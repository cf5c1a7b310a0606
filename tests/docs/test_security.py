"""docs/security.md: every row of its threat model names tests that exist."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[2]
PAGE = REPOSITORY / "docs" / "security.md"

ROWS = re.findall(r"(?m)^\| (?!attempt )(.+?) \| .+? \| (.+?) \|$", PAGE.read_text())


@pytest.mark.parametrize(("attempt", "tests"), ROWS, ids=[row[0] for row in ROWS])
def test_each_attempt_names_the_tests_that_show_its_defence(attempt: str, tests: str) -> None:
    links = re.findall(r"\[`(test_\w+)`\]\(\.\./(tests/\S+?\.py)\)", tests)
    assert links, attempt
    for test, file in links:
        assert re.search(rf"(?m)^ *(async )?def {test}\(", (REPOSITORY / file).read_text()), (test, file)


def test_each_table_row_is_one_that_is_checked() -> None:
    lines = [line for line in PAGE.read_text().splitlines() if line.startswith("| ")]
    tables = len(re.findall(r"(?m)^\| attempt \| what stops it \| test \|$", PAGE.read_text()))
    assert len(lines) == len(ROWS) + tables
