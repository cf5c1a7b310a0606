"""`trainwatch rules`: writes Prometheus rule files, and checks that they are as they would be written."""

from __future__ import annotations

import os
import sys
from argparse import ArgumentParser, Namespace
from pathlib import Path

from trainwatch.errors import UserError
from trainwatch.rules.files import render, stale
from trainwatch.rules.options import Options, add_options

EXAMPLES = """\
examples:
  trainwatch rules render --out /etc/prometheus/rules
  trainwatch rules render --scrape-interval 30s --set CPUBottleneck.cpu_threshold=80 --out rules/
  trainwatch rules check                      exit status 1 where a file in rules/ was edited or is old
"""


def add_arguments(parser: ArgumentParser) -> None:
    """The flags of `trainwatch rules`."""
    parser.epilog = EXAMPLES
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True)
    rendering = actions.add_parser("render", help="write the rule files")
    add_options(rendering)
    rendering.add_argument(
        "--out", type=Path, default=Path("rules"), metavar="DIR", help="where to (default: %(default)s/)"
    )
    checking = actions.add_parser("check", help="exit 1 where rule files are not what would be written now")
    checking.add_argument(
        "directory",
        type=Path,
        nargs="?",
        default=Path("rules"),
        metavar="DIR",
        help="where they are (default: %(default)s/)",
    )


def run(arguments: Namespace) -> int:
    """Renders or checks. Raises UserError for a bad flag or directory."""
    if arguments.action == "check":
        lines = stale(arguments.directory)
        for line in lines:
            print(f"trainwatch: {line}", file=sys.stderr)
        return 1 if lines else 0
    for name, text in render(Options.from_arguments(arguments)).items():
        path = arguments.out / name
        _write(path, text)
        print(path)
    return 0


def _write(path: Path, text: str) -> None:
    """Whole or not at all: Prometheus may read the directory at any moment."""
    temporary = path.with_name(f".{path.name}.new")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary.write_text(text, encoding="utf-8")
        os.replace(temporary, path)
    except OSError as error:
        raise UserError(f"{path}: cannot be written ({error.strerror}); give another --out") from error
