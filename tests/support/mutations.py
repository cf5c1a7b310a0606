"""Changes one operator or number at random places, and reports which changes the tests catch.

`python -m tests.support.mutations --count 60 --seed 1` works in copies of the tree. A seed gives the same
places each time, so that two versions of the tests can be compared: `--tests FOLDER` takes another one.
"""

import argparse
import ast
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from queue import SimpleQueue
from random import Random

from tests.support.world import ROOT, WORLDS

PACKAGE = "exporter/stepscope"
TESTS = {  # of each part of the package; those that import the changed module come first
    "rules": ("rules", "evaluation", "prometheus/rules"),
    "measurements": ("measurements", "rules", "evaluation"),
    "runs": ("runs",),
    "exporter/ledgers": ("exporter/ledgers", "exporter/collectors"),
    "exporter/sampling": ("exporter/sampling", "exporter/collectors"),
    "training/ledger": ("training",),
    "training/layout": ("training", "exporter/ledgers"),
    "training/recorder": ("training",),
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


def tests_of(file: Path, folders: tuple[str, ...], tests: Path) -> list[str]:
    """Returns the test files of a module: those that name it first, then those of its part."""
    *package, name = file.relative_to("exporter").with_suffix("").parts
    dotted = re.escape(".".join(package))
    named = re.compile(rf"{dotted}\.{name}\b|from {dotted} import .*\b{name}\b")
    found = {path: named.search(path.read_text()) is None for path in tests.rglob("test_*.py")}
    chosen = [
        path for path in found if not found[path] or path.relative_to(tests).as_posix().startswith(folders)
    ]
    return [
        f"tests/{path.relative_to(tests)}"
        for path in sorted(chosen, key=lambda path: (found[path], path.stat().st_size))
    ]


def verdict_of(tree: Path, tests: list[str], seconds: float) -> str:
    words = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", "--timeout=60", "-m"]
    environment = {**os.environ, "PYTHONPATH": str(tree / "exporter")}
    command = [*words, "not trial and not alone", *tests]
    try:
        done = subprocess.run(command, cwd=tree, env=environment, capture_output=True, timeout=seconds)
    except subprocess.TimeoutExpired:
        return "not finished"
    return "caught" if done.returncode else "missed"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=60)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=600, help="for the tests of one mutation")
    parser.add_argument("--tests", type=Path, default=ROOT / "tests")
    flags = parser.parse_args()
    every = [
        (mutation, tests)
        for part, tests in TESTS.items()
        for path in sorted({*ROOT.glob(f"{PACKAGE}/{part}/**/*.py"), *ROOT.glob(f"{PACKAGE}/{part}*.py")})
        for mutation in mutations(path.relative_to(ROOT))
    ]
    chosen = Random(flags.seed).sample(every, flags.count)
    trees: SimpleQueue[Path] = SimpleQueue()

    def verdict(mutation: Mutation, folders: tuple[str, ...]) -> str:
        tree = trees.get()
        source = (tree / mutation.file).read_bytes()
        before = mutation.apply(tree)
        found = verdict_of(tree, tests_of(mutation.file, folders, flags.tests), flags.seconds)
        (tree / mutation.file).write_bytes(source)
        trees.put(tree)
        line = source[: mutation.begin].count(b"\n") + 1
        print(f"| {mutation.file}:{line} | `{before}` to `{mutation.text}` | {found} |", flush=True)
        return found

    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(flags.jobs) as pool:
        for number in range(flags.jobs):
            tree = Path(folder) / f"tree{number}"
            left_out = shutil.ignore_patterns(".git", ".venv", ".*_cache", "__pycache__", "tests")
            shutil.copytree(ROOT, tree, ignore=left_out)
            shutil.copytree(flags.tests, tree / "tests", symlinks=True)
            (tree / ".venv").symlink_to(ROOT / ".venv")
            if WORLDS.exists():
                shutil.copytree(WORLDS, tree / WORLDS.relative_to(ROOT), copy_function=os.link)
            trees.put(tree)
        verdicts = Counter(pool.map(verdict, *zip(*chosen, strict=True)))
    print(*(f"{count} {word}" for word, count in verdicts.items()), f"seed {flags.seed}", sep=", ")


if __name__ == "__main__":
    main()
