"""Finds the rules: every class that is marked with `@rule` in its own file."""

from __future__ import annotations

import os
import pkgutil
import sys
from collections.abc import Iterator
from functools import cache
from importlib import import_module
from importlib.metadata import entry_points
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from stepscope.common.errors import UserError, describe

if TYPE_CHECKING:
    from stepscope.rules.parts.base import Rule

R = TypeVar("R", bound="type[Rule[Any, Any]]")

# Folders with more rules, separated as in PATH: to try a rule before it is part of Stepscope.
FOLDERS = "STEPSCOPE_RULES_PATH"
PLUGINS = "stepscope.rules"  # the group of entry points: each is a module, or a package, with rules

FILE = "stepscope_rules:"  # before the path, in the name of the module of a file in FOLDERS

_marked: list[type[Rule[Any, Any]]] = []


def rule(marked: R) -> R:
    """Registers a class as a rule; the name of the class is the rule's."""
    _marked.append(marked)
    return marked


def all_rules() -> dict[str, type[Rule[Any, Any]]]:
    """Returns every rule by name, in alphabetical order: ours, and those of plug-ins and of FOLDERS.

    Raises UserError if a folder does not exist, a plug-in or file fails, or two rules have the same name.
    """
    return _rules_of(os.environ.get(FOLDERS, ""))


@cache
def _rules_of(folders: str) -> dict[str, type[Rule[Any, Any]]]:
    package = sys.modules["stepscope.rules"]
    modules = {f"{package.__name__}.{module.name}" for module in pkgutil.iter_modules(package.__path__)}
    for name in modules:
        import_module(name)
    plugins = set(_plugins())
    modules |= plugins
    inside = tuple(f"{plugin}." for plugin in plugins)
    for folder in filter(None, folders.split(os.pathsep)):
        if not Path(folder).is_dir():
            raise UserError(f"{FOLDERS}={folder}: there is no such folder; name a folder with rules")
        modules |= {_imported(file) for file in sorted(Path(folder).glob("*.py"))}
    found: dict[str, type[Rule[Any, Any]]] = {}
    for marked in _marked:
        module = marked.__module__
        if module not in modules and not module.startswith(inside):
            continue
        if found.setdefault(marked.__name__, marked) is not marked:
            place = module.removeprefix(FILE)
            raise UserError(f"{place}: there is already a rule {marked.__name__}; rename this one")
    return dict(sorted(found.items()))


def _plugins() -> Iterator[str]:
    """Imports the modules of installed plug-ins, and yields their names."""
    for point in entry_points(group=PLUGINS):
        try:
            import_module(point.module)
        except Exception as error:  # somebody else's code
            raise UserError(
                f"{point.module}: this plug-in with rules fails ({describe(error)}); update or uninstall it"
            ) from error
        yield point.module


def _imported(file: Path) -> str:
    """Imports a file, and returns the name of its module, which is unique per file.

    Raises UserError if the file fails.
    """
    name = f"{FILE}{file.resolve()}"
    specification = spec_from_file_location(name, file)
    assert specification is not None, file
    assert specification.loader is not None, file
    module = sys.modules[name] = module_from_spec(specification)  # dataclasses look up annotations there
    try:
        specification.loader.exec_module(module)
    except Exception as error:  # somebody else's code
        raise UserError(f"{file}: this file with rules fails ({describe(error)}); correct it") from error
    return name
