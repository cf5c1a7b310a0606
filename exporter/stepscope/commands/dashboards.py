"""`stepscope dashboards`: writes Grafana's dashboards, and checks that they are up to date."""

import json
import pkgutil
from argparse import ArgumentParser, Namespace
from importlib import import_module
from pathlib import Path

from stepscope.common.errors import UserError
from stepscope.common.rendered import add_actions, add_out, differences, report, write
from stepscope.grafana import catalogue
from stepscope.grafana.page import Dashboard

DIRECTORY = Path("grafana/dashboards")
EXAMPLES = """\
examples:
  stepscope dashboards render --out /var/lib/grafana/dashboards
  stepscope dashboards check                 exit status 1 if a file was edited or is out of date
"""


def add_arguments(parser: ArgumentParser) -> None:
    """Adds the flags of `stepscope dashboards`."""
    parser.epilog = EXAMPLES
    rendering = add_actions(parser, "dashboards", "write the dashboards, one JSON file each", DIRECTORY)
    add_out(rendering, DIRECTORY)


def run(arguments: Namespace) -> int:
    """Renders or checks. Raises UserError for a bad directory."""
    if arguments.action == "check":
        return report(_stale(arguments.directory))
    return write(render(), arguments.out)


def dashboards() -> dict[str, Dashboard]:
    """Returns every dashboard of catalogue/ by its uid, which is also its file's name."""
    found = [
        import_module(f"{catalogue.__name__}.{module.name}").dashboard()
        for module in pkgutil.iter_modules(catalogue.__path__)
    ]
    return {dashboard["uid"]: dashboard for dashboard in found}


def render() -> dict[str, str]:
    """Returns texts by file name."""
    return {
        f"{uid}.json": json.dumps(dashboard, indent=2, ensure_ascii=False) + "\n"
        for uid, dashboard in dashboards().items()
    }


def _stale(directory: Path) -> list[str]:
    """Returns the problems of a directory's dashboards, one line per file. Raises UserError for a file."""
    if not directory.is_dir():
        raise UserError(f"{directory}: is not a directory; give one of rendered dashboards")
    rendered = render()
    existing = {path.name for path in directory.glob("stepscope-*.json")}
    return [
        *differences(rendered, directory, "stepscope dashboards render"),
        *(f"{directory / name}: is not a dashboard any more" for name in sorted(existing - rendered.keys())),
    ]
