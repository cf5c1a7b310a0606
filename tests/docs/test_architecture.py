"""docs/architecture.md: its table has the layers that imports are checked against."""

import re
import tomllib
from pathlib import Path

REPOSITORY = Path(__file__).parents[2]
PACKAGE = REPOSITORY / "exporter" / "stepscope"
PAGE = REPOSITORY / "docs" / "architecture.md"


def test_the_table_has_the_layers_that_imports_are_checked_against() -> None:
    # import-linter, in turn, refuses a package that is in no layer.
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())
    contract = next(one for one in project["tool"]["importlinter"]["contracts"] if one["type"] == "layers")
    rows = re.findall(r"(?m)^\| (\d+) \| `(\w+)` \| .+ \|$", PAGE.read_text())
    layers = enumerate(contract["layers"], start=1)
    assert rows == [(str(layer), package) for layer, names in layers for package in names.split(" | ")]


def test_the_product_has_16_rooms_and_the_names_of_debugger() -> None:
    rooms = {init.parent.name for init in PACKAGE.glob("*/__init__.py")}
    assert len(rooms - {"compat"}) <= 16


def test_a_namespace_of_flags_stays_in_the_commands() -> None:
    for path in PACKAGE.rglob("*.py"):
        if "commands" not in path.relative_to(PACKAGE).parts:
            assert not re.search(r"argparse( import.*|\.)\bNamespace\b", path.read_text()), path


def test_every_link_leads_to_a_file_or_a_folder() -> None:
    links = [link for link in re.findall(r"\]\(([^)]+)\)", PAGE.read_text()) if "://" not in link]
    assert links
    assert [link for link in links if not (PAGE.parent / link).exists()] == []
