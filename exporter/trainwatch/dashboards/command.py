"""`trainwatch dashboards`: writes Grafana's dashboards, and checks that they are as they would be written."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from pathlib import Path

from trainwatch.dashboards.files import render, stale
from trainwatch.rendered import add_actions, add_out, report, write

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
        return report(stale(arguments.directory))
    return write(render(), arguments.out)
