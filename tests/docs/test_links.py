"""Every link of the documentation leads to a file, and to a heading of it."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FOLDERS = (".", "docs", "trials", "benchmarks")
PAGES = sorted(page for folder in FOLDERS for page in (ROOT / folder).glob("*.md"))
CODE = re.compile(r"(?ms)^ *```.*?^ *```")


def anchors(page: Path) -> set[str]:
    """Returns the anchors that GitHub gives the headings of a page, and those that the page has itself."""
    text = CODE.sub("", page.read_text(encoding="utf-8"))
    headings = re.findall(r"(?m)^#{1,6} (.+)$", text)
    shown = (re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", heading).lower() for heading in headings)
    made = {re.sub(r"[^\w\- ]", "", heading).strip().replace(" ", "-") for heading in shown}
    return made | set(re.findall(r'<a id="([^"]+)">', text))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_to_files_and_headings(page: Path) -> None:
    links = re.findall(r"\]\(([^)\s]+)\)", CODE.sub("", page.read_text(encoding="utf-8")))
    for link in (link for link in links if "://" not in link and not link.startswith("mailto:")):
        path, _, anchor = link.partition("#")
        target = page.parent / path if path else page
        assert target.exists(), link
        if anchor and target.suffix == ".md":
            assert anchor in anchors(target), link
