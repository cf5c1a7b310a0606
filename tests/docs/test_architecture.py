"""docs/architecture.md: its picture of the layers is the contract that imports are checked against."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

REPOSITORY = Path(__file__).parents[2]
PACKAGE = REPOSITORY / "exporter" / "stepscope"
PAGE = REPOSITORY / "docs" / "architecture.md"
CAPTIONS = 82  # the column of the captions in the picture


def picture() -> list[list[str]]:
    """Returns the layers of the picture, from the top."""
    return [line[1:CAPTIONS].split() for line in PAGE.read_text().splitlines() if line.startswith("│")]


def packages() -> set[str]:
    """Returns the packages and modules of stepscope."""
    modules = {path.stem for path in PACKAGE.glob("*.py")} - {"__init__", "__main__"}
    return modules | {path.parent.name for path in PACKAGE.glob("*/__init__.py")}


def test_the_picture_has_the_layers_that_imports_are_checked_against() -> None:
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())
    contract = next(one for one in project["tool"]["importlinter"]["contracts"] if one["type"] == "layers")
    assert picture() == [re.findall(r"\w+", layer) for layer in contract["layers"]]


def test_every_package_is_in_the_picture_once_and_in_the_table() -> None:
    shown = [package for layer in picture() for package in layer]
    table = PAGE.read_text().partition("## What is in each package?")[2].partition("\n## ")[0]
    first_cells = re.findall(r"(?m)^\| (`.+?) \|", table)
    assert sorted(shown) == sorted(packages())
    assert sorted(re.findall(r"`(\w+)`", " ".join(first_cells))) == sorted(packages())


def test_every_link_leads_to_a_file_or_a_folder() -> None:
    links = [link for link in re.findall(r"\]\(([^)]+)\)", PAGE.read_text()) if "://" not in link]
    assert links
    assert [link for link in links if not (PAGE.parent / link).exists()] == []
