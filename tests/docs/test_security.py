"""docs/security.md: every attempt of its threat model names tests that exist."""

import re
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[2]
PAGE = REPOSITORY / "docs" / "security.md"

# A section of attempts has an item for each: "- **ATTEMPT**: what stops it. [`test_...`](FILE), ..."
SECTIONS = PAGE.read_text().split("\n## ")
ITEM = re.compile(r"(?ms)^- \*\*(.+?)\*\*:? (.+?)(?=^- |^$|\Z)")
ATTEMPTS = [item for section in SECTIONS if "](../tests/" in section for item in ITEM.findall(section)]


@pytest.mark.parametrize(("attempt", "tests"), ATTEMPTS, ids=[attempt for attempt, _ in ATTEMPTS])
def test_each_attempt_names_the_tests_that_show_its_defence(attempt: str, tests: str) -> None:
    links = re.findall(r"\[`(test_\w+)`\]\(\.\./(tests/\S+?\.py)\)", tests)
    assert links, attempt
    for test, file in links:
        assert re.search(rf"(?m)^ *(async )?def {test}\(", (REPOSITORY / file).read_text()), (test, file)


def test_each_item_is_one_that_is_checked() -> None:
    sections = [section for section in SECTIONS if "](../tests/" in section]
    assert len(sections) == 6
    assert sum(section.count("\n- ") for section in sections) == len(ATTEMPTS)
