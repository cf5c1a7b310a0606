"""Lints the English of the project: words, shapes, the length of sentences, and docstrings without a verb.

`python -m tests.support.prose` checks the files of CHECKED. With paths, it checks those instead.
"""

import ast
import re
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

from tests.support.prose_readers import passages
from tests.support.prose_shapes import SHAPES, Shape

ROOT = Path(__file__).parents[2]
CHECKED = (
    "*.md",
    "docs/*.md",
    "docs/*.json",
    "trials/README.md",
    ".github/**/*.yml",
    ".env.example",
    "Dockerfile",
    "Makefile",
    "docker-compose.yml",
    "alertmanager/*.yml",
    "alertmanager/templates/*.tmpl",
    "benchmarks/*.md",
    "benchmarks/*.py",
    "deploy/**/*.service",
    "deploy/**/*.yaml",
    "deploy/**/*.sh",
    "deploy/**/*.sbatch",
    "examples/**/*.py",
    "exporter/**/*.py",
    "exporter/**/*.html",
    "grafana/*.ini",
    "grafana/dashboards/*.json",
    "grafana/provisioning/**/*.yml",
    "prometheus/*.yml",
    "trials/*.py",
    "pyproject.toml",
)
LONGEST_SENTENCE = 25  # words; code, a link and a number are one word each


def complaints(file: Path) -> list[str]:
    """Returns the problems of a file, one line each: "FILE:LINE: PROBLEM: SENTENCE"."""
    found = []
    name = file.relative_to(ROOT) if file.is_relative_to(ROOT) else file
    for passage in passages(file):
        for sentence in re.split(r"(?<=[.?!])[\"')*]*\s+", passage.text.strip()):
            found += [
                f"{name}:{passage.line}: {problem}: {sentence}"
                for problem in problems(sentence, passage.flowing)
            ]
    if file.suffix == ".py":
        found += [f"{name}:{line}: {text}" for line, text in _docstrings_without_a_verb(file.read_text())]
    return found


def problems(sentence: str, flowing: bool = True) -> Iterator[str]:
    """Yields the problems of one sentence, each with the better word."""
    for shape in SHAPES:
        words = shape.found_in(sentence)
        if words:
            yield f'"{words if len(words) < 40 else words[:40] + "..."}": {shape.advice}'
    longest = max(len(part.split()) for part in re.split(r":\s", sentence)) if flowing else 0
    if longest > LONGEST_SENTENCE:
        yield f"{longest} words: at most {LONGEST_SENTENCE}, one idea per sentence"


def checked_files() -> list[Path]:
    """Returns the files of CHECKED, each once."""
    return sorted({file for pattern in CHECKED for file in ROOT.glob(pattern)})


def faults(shapes: Iterable[Shape] = SHAPES, patterns: Iterable[str] = CHECKED) -> Iterator[str]:
    """Yields what is wrong with the linter itself: with its shapes, and with its patterns of files."""
    for shape in shapes:
        if not shape.found_in(shape.wrong):
            yield f"{shape.advice}: accepts {shape.wrong!r}"
        if wrong := list(problems(shape.right)) or shape.found_in(shape.right):
            yield f"{shape.advice}: {shape.right!r} is rejected: {wrong}"
    yield from (f"{pattern}: finds no file" for pattern in patterns if not any(ROOT.glob(pattern)))


def _docstrings_without_a_verb(text: str) -> Iterator[tuple[int, str]]:
    """Yields docstrings of functions that do not start with a verb, and any that start with "What"."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)):
            words = ast.get_docstring(node) or "Does nothing"
            start = r"(?!What\b)" if isinstance(node, (ast.Module, ast.ClassDef)) else r"[A-Z][a-z]+s\b"
            if not re.match(start, words):
                first = words.splitlines()[0]
                yield getattr(node, "lineno", 1), f'start with a verb, as in "Returns the ...": {first}'


def main(paths: list[str]) -> int:
    """Prints every complaint; returns the exit status."""
    files = [Path(path).resolve() for path in paths] or checked_files()
    found = [*faults(), *(complaint for file in files for complaint in complaints(file))]
    print(*found, sep="\n", end="\n" if found else "")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
