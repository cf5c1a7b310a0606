"""What newcomers read first is true: links lead somewhere, rules and make targets exist."""

import re
import tomllib
from pathlib import Path

import pytest
from stepscope.rules import all_rules

from examples.images.slow import WAYS

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text()
PAGES = ("README.md", "CONTRIBUTING.md", "docs/README.md")


@pytest.mark.parametrize("page", PAGES)
def test_every_link_to_a_file_leads_somewhere(page: str) -> None:
    links = re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", (ROOT / page).read_text())
    assert links
    assert [link for link in links if not (ROOT / page).parent.joinpath(link).exists()] == []


@pytest.mark.parametrize(
    "page", [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))], ids=lambda page: page.name
)
def test_links_to_other_projects_lead_to_their_own_sites(page: Path) -> None:
    """Not to package registries, whose pages show what was uploaded last."""
    assert re.findall(r"\]\((https://(?:pypi\.org|www\.npmjs\.com)/[^)]*)\)", page.read_text()) == []


def test_the_readme_counts_the_rules_that_can_fire() -> None:
    can_fire = [name for name in all_rules() if not name.startswith("Overall")]
    assert f"\n{len(can_fire)} rules judge " in README


def test_every_page_of_the_documentation_is_in_its_index() -> None:
    pages = {path.name for path in (ROOT / "docs").glob("*.md")} - {"README.md"}
    index = (ROOT / "docs" / "README.md").read_text()
    assert pages <= {Path(link).name for link in re.findall(r"\]\(([^)#]+)", index)}
    assert "](docs/README.md)" in README


def test_the_makefile_has_each_target_that_is_named() -> None:
    targets = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    for page in PAGES:
        assert set(re.findall(r"`make ([a-z]+)", (ROOT / page).read_text())) <= targets


def test_each_slow_way_is_named_where_newcomers_look() -> None:
    help_of_run = next(
        line for line in (ROOT / "Makefile").read_text().splitlines() if line.startswith("run:")
    )
    assert all(way in help_of_run for way in WAYS)


def test_pictures_are_light() -> None:
    shown = re.findall(r"!\[[^]]+\]\(([^)]+)\)", README)
    assert len(shown) == 3
    assert all((ROOT / picture).stat().st_size <= 300_000 for picture in shown)


def test_the_clone_is_of_the_projects_home() -> None:
    urls = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["urls"]
    assert f"\ngit clone {urls['Homepage']} && cd stepscope\nmake run\n" in README
    assert f"home: {urls['Homepage']}\n" in (ROOT / "deploy" / "helm" / "Chart.yaml").read_text()
