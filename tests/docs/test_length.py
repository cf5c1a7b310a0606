"""The documentation is short: words are counted as `wc -w` does."""

from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
MOST_IN_README = 900
MOST_IN_DOCS = 40_000
MOST_IN_CHANGELOG = 700  # a page, until the first release


def words(*pages: Path) -> int:
    return sum(len(page.read_text(encoding="utf-8").split()) for page in pages)


def test_the_readme_is_read_in_five_minutes() -> None:
    assert words(ROOT / "README.md") <= MOST_IN_README


def test_the_documentation_does_not_grow() -> None:
    assert words(*(ROOT / "docs").glob("*.md")) <= MOST_IN_DOCS


def test_the_changelog_is_a_page() -> None:
    assert words(ROOT / "CHANGELOG.md") <= MOST_IN_CHANGELOG


@pytest.mark.parametrize("page", ["troubleshooting", "without-pytorch", "glossary"])
def test_a_page_for_a_first_question_is_short(page: str) -> None:
    assert words(ROOT / "docs" / f"{page}.md") < 500
