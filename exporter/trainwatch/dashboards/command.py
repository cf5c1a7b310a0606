"""`trainwatch dashboards`: writes Grafana's dashboards, and checks that they are as they would be written."""

from __future__ import annotations

import json
import pkgutil
from argparse import ArgumentParser, Namespace
from importlib import import_module
from pathlib import Path

from trainwatch.dashboards import catalogue
from trainwatch.dashboards.page import Dashboard
from trainwatch.errors import UserError
from trainwatch.rendered import add_actions, add_out, differences, report, write

DIRECTORY = Path("grafana/dashboards")
EXAMPLES = """\
examples:
  trainwatch dashboards render --out /var/lib/grafana/dashboards
  trainwatch dashboards check                 exit status 1 where a file was edited or is old
"""


def add_arguments(parser: ArgumentParser) -> None:
    """The flags of `trainwatch dashboards`."""
    parser.epilog = EXAMPLES
    rendering = add_actions(parser, "dashboards", "write the dashboards, a JSON file each", DIRECTORY)
    add_out(rendering, DIRECTORY)


def run(arguments: Namespace) -> int:
    """Renders or checks. Raises UserError for a bad directory."""
    if arguments.action == "check":
        return report(_stale(arguments.directory))
    return write(render(), arguments.out)


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


def _stale(directory: Path) -> list[str]:
    """What is wrong with the dashboards of a directory, a line a file. Raises UserError where it is none."""
    if not directory.is_dir():
        raise UserError(f"{directory}: is no directory; name one of rendered dashboards")
    rendered = render()
    ours = {path.name for path in directory.glob("trainwatch-*.json")}
    return [
        *differences(rendered, directory, "trainwatch dashboards render"),
        *(f"{directory / name}: is no dashboard any more" for name in sorted(ours - rendered.keys())),
    ]
