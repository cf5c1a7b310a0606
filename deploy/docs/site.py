"""Hooks of MkDocs: docs/README.md is the navigation, and links that leave docs/ lead to the repository."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

INDEX = "README.md"
OUTSIDE = re.compile(r"\]\(\.\./([^)\s]+)\)")


def on_config(config: Any) -> Any:
    """Sets the navigation: the kinds of pages, and the pages that the index has below each."""
    _, *kinds = (Path(config["docs_dir"]) / INDEX).read_text(encoding="utf-8").split("\n## ")
    pages = {kind.partition(":")[0]: re.findall(r"\]\(([\w-]+\.md)\)", kind) for kind in kinds}
    config["nav"] = [INDEX, *({kind: names} for kind, names in pages.items())]
    return config


def on_page_markdown(markdown: str, *, config: Any, **_: Any) -> str:
    """Returns the page with `](../PATH)` replaced by the address of PATH in the repository."""
    return OUTSIDE.sub(rf"]({config['repo_url']}/blob/main/\1)", markdown)
