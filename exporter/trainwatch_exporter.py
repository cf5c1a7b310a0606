"""The `trainwatch` command's entry point, outside the package `trainwatch`, which may be somebody else's.

The distribution is `trainwatch-exporter`. On the package index, `trainwatch` is another tool with the same
import name: it overwrites our package, or precedes it on the path.
"""

from __future__ import annotations

import sys
from importlib.util import find_spec
from pathlib import Path

MARK = "trainwatch-exporter"  # in the docstring of our package
FIX = "pip uninstall trainwatch && pip install --force-reinstall trainwatch-exporter"


def main() -> int:
    """Runs the command. Returns its exit status, or 2 if `trainwatch` is not our package."""
    reason = why_not_ours()
    if reason is not None:
        print(f"trainwatch: {reason}; run `{FIX}`", file=sys.stderr)
        return 2
    from trainwatch.cli import main as command

    return command()


def why_not_ours() -> str | None:
    """Returns None if `import trainwatch` finds our package, otherwise the reason. Imports nothing."""
    found = find_spec("trainwatch")
    if found is None or found.origin is None:
        return "the package trainwatch is missing or incomplete"
    if MARK in Path(found.origin).read_text(encoding="utf-8", errors="replace"):
        return None
    return f"{found.origin} belongs to another package that is also called trainwatch"


if __name__ == "__main__":
    sys.exit(main())
