"""Changes one operator or number at random places, and reports which changes the tests catch.

`python -m tests.support.mutations --count 60 --seed 1` works in a copy of the tree. A seed gives the same
places each time, so that two versions of the tests can be compared: `--tests FOLDER` takes another one.
"""

from __future__ import annotations

import argparse
import ast
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from random import Random

ROOT = Path(__file__).parents[2]
PACKAGE = "exporter/stepscope"
TESTS = {  # of each part of the package
    "rules": ("rules", "evaluation", "prometheus/rules"),
    "measurements": ("measurements", "rules", "evaluation"),
    "runs": ("runs", "report"),
    "exporter/ledgers": ("exporter/ledgers", "exporter/collectors", "training/test_steps.py"),
    "exporter/sampling/exposition": ("exporter", "rules"),
}
PAIRS = [
    ("<", "<="),
    (">", ">="),
    ("==", "!="),
    ("is", "is not"),
    ("in", "not in"),
    ("+", "-"),
    ("*", "/"),
    ("and", "or"),
]
OTHER = {one: other for pair in PAIRS for one, other in (pair, pair[::-1])}


@dataclass(frozen=True)
class Mutation:
    """What stands in bytes `begin` to `end` of a file becomes `text`."""

    file: Path
    begin: int
    end: int
    text: str

    def apply(self, root: Path) -> str:
        """Changes the file below `root`, and returns what it was."""
        before = (root / self.file).read_bytes()
        (root / self.file).write_bytes(before[: self.begin] + self.text.encode() + before[self.end :])
        return before[self.begin : self.end].decode()


def mutations(file: Path) -> Iterator[Mutation]:
    """Yields every possible one of a file."""
    source = (ROOT / file).read_bytes()
    starts = [0]
    for line in source.splitlines(keepends=True):
        starts.append(starts[-1] + len(line))

    def begin(node: ast.expr) -> int:
        return starts[node.lineno - 1] + node.col_offset

    def end(node: ast.expr) -> int:
        assert node.end_lineno is not None
        assert node.end_col_offset is not None
        return starts[node.end_lineno - 1] + node.end_col_offset

    for node in ast.walk(ast.parse(source)):
        operands: list[ast.expr] = []
        if isinstance(node, ast.Compare):
            operands = [node.left, *node.comparators]
        elif isinstance(node, ast.BinOp):
            operands = [node.left, node.right]
        elif isinstance(node, ast.BoolOp):
            operands = node.values
        elif (
            isinstance(node, ast.Constant)
            and isinstance(node.value, int | float)
            and not isinstance(node.value, bool)
        ):
            yield Mutation(file, begin(node), end(node), str(node.value + 1))
        for left, right in pairwise(operands):
            between = source[end(left) : begin(right)].decode()
            if (operator := between.strip(" \n()")) in OTHER:
                at = end(left) + between.index(operator)
                yield Mutation(file, at, at + len(operator.encode()), OTHER[operator])


def is_caught(tree: Path, tests: tuple[str, ...]) -> bool:
    words = [sys.executable, "-m", "pytest", "-x", "-q", "--numprocesses=2", "--dist=loadfile", "-m"]
    environment = {**os.environ, "PYTHONPATH": str(tree / "exporter")}
    command = [*words, "not trial and not alone", *(f"tests/{folder}" for folder in tests)]
    return subprocess.run(command, cwd=tree, env=environment, capture_output=True).returncode != 0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=60)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--tests", type=Path, default=ROOT / "tests")
    flags = parser.parse_args()
    every = [
        (mutation, tests)
        for part, tests in TESTS.items()
        for path in sorted({*ROOT.glob(f"{PACKAGE}/{part}/**/*.py"), *ROOT.glob(f"{PACKAGE}/{part}.py")})
        for mutation in mutations(path.relative_to(ROOT))
    ]
    chosen = Random(flags.seed).sample(every, flags.count)
    caught = 0
    with tempfile.TemporaryDirectory() as folder:
        tree = Path(folder) / "tree"
        left_out = shutil.ignore_patterns(".git", ".venv", ".*_cache", "__pycache__", "tests")
        shutil.copytree(ROOT, tree, ignore=left_out)
        shutil.copytree(flags.tests, tree / "tests", symlinks=True)
        (tree / ".venv").symlink_to(ROOT / ".venv")
        for mutation, tests in chosen:
            source = (tree / mutation.file).read_bytes()
            before = mutation.apply(tree)
            found = is_caught(tree, tests)
            (tree / mutation.file).write_bytes(source)
            caught += found
            line = source[: mutation.begin].count(b"\n") + 1
            verdict = "caught" if found else "missed"
            print(f"| {mutation.file}:{line} | `{before}` to `{mutation.text}` | {verdict} |", flush=True)
    print(f"{caught} of {flags.count} caught, seed {flags.seed}")


if __name__ == "__main__":
    main()
