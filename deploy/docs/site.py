"""Hooks of MkDocs: docs/README.md is the navigation, and links that leave docs/ lead to the repository.

A page that links a table, NAME.csv, ends with it.
"""

from __future__ import annotations

import csv
import re
from pathlib import Path
from typing import Any

INDEX = "README.md"
TABLE = re.compile(r"\]\(([\w-]+\.csv)\)")
OUTSIDE = re.compile(r"\]\(\.\./([^)\s]+)\)")


def on_config(config: Any) -> Any:
    """Sets the navigation: the kinds of pages, and the pages that the index has below each."""
    _, *kinds = (Path(config["docs_dir"]) / INDEX).read_text(encoding="utf-8").split("\n## ")
    pages = {kind.partition(":")[0]: re.findall(r"\]\(([\w-]+\.md)\)", kind) for kind in kinds}
    config["nav"] = [INDEX, *({kind: names} for kind, names in pages.items())]
    return config


def on_page_markdown(markdown: str, *, config: Any, **_: Any) -> str:
    """Returns the page with its tables, and `](../PATH)` replaced by the address in the repository."""
    tables = (table(Path(config["docs_dir"]) / name) for name in TABLE.findall(markdown))
    markdown = "\n\n".join([markdown, *tables])
    return OUTSIDE.sub(rf"]({config['repo_url']}/blob/main/\1)", markdown)


def table(path: Path) -> str:
    """Returns a CSV file as a table of Markdown, with its name as heading."""
    with path.open(encoding="utf-8", newline="") as file:
        heading, *rows = csv.reader(file)
    lines = [heading, ["---"] * len(heading), *rows]
    return "\n".join([f"## {path.name}", "", *(f"| {' | '.join(line)} |" for line in lines)])
