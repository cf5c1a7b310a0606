"""One file a heuristic. Being in this folder is being registered; nothing here reads or writes files."""

from __future__ import annotations

import pkgutil
from functools import cache
from importlib import import_module
from inspect import isabstract
from typing import Any

from trainwatch.rules.base import Rule


@cache
def all_rules() -> dict[str, type[Rule[Any, Any]]]:
    """Every heuristic of this folder by its name, in alphabetical order."""
    found: dict[str, type[Rule[Any, Any]]] = {}
    for module in pkgutil.iter_modules(__path__):
        members = vars(import_module(f"{__name__}.{module.name}")).values()
        for member in members:
            if isinstance(member, type) and issubclass(member, Rule) and not isabstract(member):
                found[member.__name__] = member
    return dict(sorted(found.items()))
