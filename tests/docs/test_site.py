"""`make docs`: the site is built without a warning, and links that leave docs/ lead to the repository."""

import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from tests.support.waiting import SECONDS

ROOT = Path(__file__).parents[2]


def test_the_site_has_every_page_and_no_broken_link(tmp_path: Path) -> None:
    pytest.importorskip("mkdocs")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(tmp_path)]
    built = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=SECONDS)
    assert built.returncode == 0, built.stderr
    for page in (ROOT / "docs").glob("*.md"):
        name = "index.html" if page.stem == "README" else f"{page.stem}/index.html"
        assert (tmp_path / name).is_file(), name
    home = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["urls"]["Homepage"]
    assert f'href="{home}/blob/main/CONTRIBUTING.md"' in (tmp_path / "index.html").read_text()
    migrating = (tmp_path / "migrating-from-debugger" / "index.html").read_text()
    assert "<td><code>PandasFrameAnalysis.get_job_statistics()</code></td>" in migrating
    assert not list(tmp_path.rglob("*.md"))
