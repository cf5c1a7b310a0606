"""`trainwatch dashboards`: writes Grafana's dashboards, and checks that they are as they would be written."""

from __future__ import annotations

import sys
from argparse import ArgumentParser, Namespace
from pathlib import Path

from trainwatch.dashboards.files import render, stale
from trainwatch.errors import UserError
from trainwatch.recording.whole_file import write_whole

DIRECTORY = Path("grafana/dashboards")
EXAMPLES = """\
examples:
  trainwatch dashboards render --out /var/lib/grafana/dashboards
  trainwatch dashboards check                 exit status 1 where a file was edited or is old
"""


def add_arguments(parser: ArgumentParser) -> None:
    """The flags of `trainwatch dashboards`."""
    parser.epilog = EXAMPLES
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True)
    rendering = actions.add_parser("render", help="write the dashboards, a JSON file each")
    rendering.add_argument(
        "--out", type=Path, default=DIRECTORY, metavar="DIR", help="where to (default: %(default)s/)"
    )
    checking = actions.add_parser("check", help="exit 1 where dashboards are not what would be written now")
    checking.add_argument(
        "directory",
        type=Path,
        nargs="?",
        default=DIRECTORY,
        metavar="DIR",
        help="where they are (default: %(default)s/)",
    )


def run(arguments: Namespace) -> int:
    """Renders or checks. Raises UserError for a bad directory."""
    if arguments.action == "check":
        lines = stale(arguments.directory)
        for line in lines:
            print(f"trainwatch: {line}", file=sys.stderr)
        return 1 if lines else 0
    for name, text in render().items():
        path = arguments.out / name
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            write_whole(path, text)
        except OSError as error:
            raise UserError(f"{path}: cannot be written ({error.strerror}); give another --out") from error
        print(path)
    return 0
