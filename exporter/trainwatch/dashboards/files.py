"""All dashboards by the names of their files, and whether those of a directory are as they would be now."""

from __future__ import annotations

import json
import pkgutil
from importlib import import_module
from pathlib import Path

from trainwatch.dashboards import catalogue
from trainwatch.dashboards.page import Dashboard
from trainwatch.errors import UserError


def dashboards() -> dict[str, Dashboard]:
    """Every dashboard by its uid, which is its file's name too. Being in the folder is being among them."""
    found = [
        import_module(f"{catalogue.__name__}.{module.name}").dashboard()
        for module in pkgutil.iter_modules(catalogue.__path__)
    ]
    return {one["uid"]: one for one in found}


def render() -> dict[str, str]:
    """Text by name."""
    return {
        f"{uid}.json": json.dumps(one, indent=2, ensure_ascii=False) + "\n"
        for uid, one in dashboards().items()
    }


def stale(directory: Path) -> list[str]:
    """What is wrong with the dashboards of a directory, a line a file. Raises UserError where it is none."""
    if not directory.is_dir():
        raise UserError(f"{directory}: is no directory; name one of rendered dashboards")
    rendered = render()
    lines = []
    for name, text in rendered.items():
        path = directory / name
        if not path.exists():
            lines.append(f"{path}: is missing")
        elif path.read_text(encoding="utf-8", errors="replace") != text:
            lines.append(f"{path}: is not what `trainwatch dashboards render` writes")
    ours = {path.name for path in directory.glob("trainwatch-*.json")}
    return lines + [
        f"{directory / name}: is no dashboard any more" for name in sorted(ours - rendered.keys())
    ]
