"""Writes files that a command renders, and reports those that are out of date."""

import sys
from argparse import ArgumentParser
from collections.abc import Mapping, Sequence
from itertools import zip_longest
from pathlib import Path

from stepscope.common.errors import UserError
from stepscope.common.whole_file import write_whole


def add_actions(parser: ArgumentParser, files: str, writing: str, default: Path) -> ArgumentParser:
    """Adds the actions `render` and `check`; returns the parser of `render`, for more flags.

    `files` names the files in the help of `check`; `writing` is the help of `render`.
    """
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True)
    rendering = actions.add_parser("render", aliases=["export"], help=writing)
    checking = actions.add_parser("check", help=f"exit 1 if {files} are out of date")
    checking.add_argument(
        "directory",
        type=Path,
        nargs="?",
        default=default,
        metavar="DIR",
        help="where they are (default: %(default)s/)",
    )
    return rendering


def add_out(rendering: ArgumentParser, default: Path) -> None:
    """Adds the output directory of `render`."""
    rendering.add_argument(
        "--out", type=Path, default=default, metavar="DIR", help="output directory (default: %(default)s/)"
    )


def differences(files: Mapping[str, str], directory: Path, command: str) -> list[str]:
    """Returns how files differ from what `command` writes, one line per file. Raises UserError."""
    lines = []
    for name, text in files.items():
        path = directory / name
        if not path.exists():
            lines.append(f"{path}: is missing")
        elif (found := read(path)) != text:
            pairs = zip_longest(found.splitlines(keepends=True), text.splitlines(keepends=True))
            number = next(number for number, (old, new) in enumerate(pairs, 1) if old != new)
            lines.append(f"{path}:{number}: is not what `{command}` writes")
    return lines


def read(path: Path) -> str:
    """Returns the text of a file. Raises UserError if it cannot be read."""
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
        raise UserError(f"{path}: cannot be read ({reason}); name a directory of rendered files") from None


def report(stale: Sequence[str]) -> int:
    """Prints the stale files; returns the exit status of `check`."""
    for line in stale:
        print(f"stepscope: {line}", file=sys.stderr)
    return 1 if stale else 0


def write(files: Mapping[str, str], directory: Path) -> int:
    """Writes files atomically, because a server may read them at any time, and prints their paths.

    Raises UserError if one cannot be written.
    """
    for name, text in files.items():
        path = directory / name
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            write_whole(path, text)
        except OSError as error:
            raise UserError(f"{path}: cannot be written ({error.strerror}); give another --out") from error
        print(path)
    return 0
