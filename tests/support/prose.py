"""Lints the English of a project: its words, its shapes, the length of its sentences.

`python -m tests.support.prose` checks the files of CHECKED; with paths, it checks those instead.
"""

from __future__ import annotations

import ast
import inspect
import io
import json
import re
import sys
import tokenize
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import yaml
from markdown_it import MarkdownIt
from trainwatch.rules import all_rules

ROOT = Path(__file__).parents[2]
CHECKED = (
    "*.md",
    "docs/*.md",
    "docs/*.json",
    ".github/**/*.yml",
    ".env.example",
    "Dockerfile",
    "Makefile",
    "docker-compose.yml",
    "alertmanager/*.yml",
    "alertmanager/templates/*.tmpl",
    "deploy/**/*.service",
    "deploy/**/*.yaml",
    "deploy/**/*.sh",
    "examples/**/*.py",
    "grafana/*.ini",
    "grafana/*.yaml",
    "grafana/provisioning/**/*.yml",
    "prometheus/*.yml",
    "pyproject.toml",
)
LONGEST_SENTENCE = 25  # words; code, a link and a number are one word each


@dataclass(frozen=True)
class Shape:
    """A way to write that is rejected: its pattern, the better way, and a sentence of each kind."""

    pattern: str
    advice: str
    wrong: str
    right: str

    def found_in(self, sentence: str) -> str | None:
        """Returns the words that match, or None."""
        match = re.search(self.pattern, sentence, re.IGNORECASE)
        return match.group() if match else None


_UNIT = (
    r"(?:second|minute|hour|day|file|rule|node|rank|GPU|core|step|scrape|sample|worker|process|scenario"
    r"|tick)"
)
_COUNTED = (
    r"(?:rows?|lines?|files?|folders?|columns?|charts?|readings?|scrapes?|calls?|steps|bytes|joules|values|views?"
    r"|million|messages?|workers?|series|times|operations|outlines?|keys?|functions?|purpose)"
)
SHAPES = (
    Shape(r"\b(anew|afresh)\b", "again", "Writes it anew.", "Writes it again."),
    Shape(r"\bmend(s|ed|ing)?\b", "fix", "Mend the transform.", "Fix the transform."),
    Shape(
        r"\b(for|to|by|from|only|than) who\b|^(?-i:Who)\b[^?]*\.$|\bwhoever\b",
        'name the person: "clients that ...", "users who ..."',
        "Gzip for who accepts it.",
        "Gzip for clients that accept it.",
    ),
    Shape(
        r"\bso (many|much|long) (times|points|of|minutes|after)\b",
        "give the number or the unit",
        "It is so many times as fast.",
        "The speed-up is 16.",
    ),
    Shape(
        r"\b(tell|tells|told|telling|take|takes|taken)\b[^.;]{0,60}\bapart\b",
        "distinguish",
        "The rule tells slow storage and slow transforms apart.",
        "The rule distinguishes slow storage from slow transforms.",
    ),
    Shape(
        r"\bin the place of\b", "instead of", "Pass a URL in the place of DIR.", "Pass a URL instead of DIR."
    ),
    Shape(r"\btakes? the place of\b", "replaces", "It takes the place of DIR.", "It replaces DIR."),
    Shape(r"\bfor want of\b", "because of", "It failed for want of room.", "It failed: the disk is full."),
    Shape(r"\beach \d", "every", "It samples each 500 ms.", "It samples every 500 ms."),
    Shape(
        rf"\b{_COUNTED} an? {_UNIT}\b",
        "per, or one ... per ...",
        "There is one file a rule.",
        "There is one file per rule.",
    ),
    Shape(
        r"[,;] else\b|\band else\b",
        "otherwise, or if ... otherwise",
        "It is the script's name, else the run's.",
        "It is the script's name, otherwise the run's.",
    ),
    Shape(
        r"^(?-i:Of|Where)\b[^?]*$",
        "put the subject first",
        "Where no GPU is read, nothing is judged.",
        "Nothing is judged if no GPU is read.",
    ),
    Shape(
        r"^(?-i:Kept|Checked|Simulated|Counted|Supported|Measured|Compared|Printed) (are|is)\b",
        "put the subject first",
        "Kept are the last ten.",
        "The last ten are kept.",
    ),
    Shape(
        r"\b(is|are|was|were) to be\b|\bneeds? not\b|\bshall\b",
        "must, will, does not have to",
        "The file is to be read once.",
        "The file must be read once.",
    ),
    Shape(r"\bsnapshots?\b", "sample", "A snapshot every 500 ms.", "A sample every 500 ms."),
    Shape(r"\bheuristics?\b", "rule", "Adding a heuristic.", "Adding a rule."),
    Shape(r"\bbesides?\b", "next to, with, also", "The JSON is beside it.", "The JSON is next to it."),
    Shape(
        r"\b(stands?|stood)\b(?! (for|out)\b)",
        "is, stalls, is written",
        "The reason stands in the log.",
        "The reason is in the log.",
    ),
    Shape(r"\b(lie|lies|lying)\b", "is", "The files lie in DIR.", "The files are in DIR."),
    Shape(
        r"(?<!lag )(?<!lags )(?<!falls )(?<!fall )\bbehind\b(?! a proxy)",
        "after, following, causing",
        "Give a start behind it.",
        "Give a start after it.",
    ),
    Shape(
        r"\b(tells|told)\b",
        "says, reports, notifies, sets",
        "The trace tells the time.",
        "The trace has the time.",
    ),
    Shape(
        r"\bsays? findings\b",
        "prints findings",
        "It says findings as they appear.",
        "It prints findings as they appear.",
    ),
    Shape(r"\bdear(er|est)?\b", "expensive", "The dearer rules.", "The more expensive rules."),
    Shape(r"\bmistakes?\b", "error", "A wrong flag is a mistake.", "A wrong flag is an error."),
    Shape(
        r"\b(hold|holds|held|holding) (\w+ ){0,2}up\b",
        "delays, blocks, slows down",
        "Storage holds the loader up.",
        "Storage delays the loader.",
    ),
    Shape(r"\bfits and starts\b", "fluctuates", "It is used in fits and starts.", "Its use fluctuates."),
    Shape(
        r"\b(works?|are|is|were|slow) alike\b",
        "balanced, the same, similar",
        "The GPUs do not work alike.",
        "The load is unbalanced.",
    ),
    Shape(r"\b(samples?|is|are) concerned\b", "counts", "A sample is concerned.", "A sample counts."),
    Shape(
        r"\b(hence|thereof|therein|whereof|whereupon|upon)\b",
        "so, therefore, on",
        "Hence the absolute paths.",
        "This is why paths are absolute.",
    ),
    Shape(r"\bbears?\b", "has", "The alert bears the label.", "The alert has the label."),
    Shape(r"\bat the (most|least)\b", "at most, at least", "Ten at the most.", "Ten at most."),
    Shape(r"\bin good order\b", "cleanly, normally", "It ends in good order.", "It ends cleanly."),
    Shape(
        r"\b(as|when|before|what|if|that) one (looks|sees|reads|has|can|would|must)\b",
        "you",
        "Such as one sees on a node.",
        "Such as you see on a node.",
    ),
    Shape(
        r"(?<!there )\b(is|are) none\b", "say what it is", "Such a scan is none.", "Such a scan is skipped."
    ),
    Shape(r"\btaken for\b", "treated as", "It is taken for an error.", "It is treated as an error."),
    Shape(r"\btime-outs?\b|\bre-(use|try)\b", "timeout, reuse, retry", "A time-out.", "A timeout."),
    Shape(r"\b(goes|go|going|went) on\b(?! to)", "continue", "The run goes on.", "The run continues."),
    Shape(
        r"\ba \w+ of (its|their) own\b",
        'write "its own ..."',
        "Each secret is a file of its own.",
        "Each secret has its own file.",
    ),
    Shape(r"\basked for\b", "requested", "Once it is asked for.", "Once it is requested."),
    Shape(r"\b(do|does) without\b", "does not need", "It does without root.", "It does not need root."),
    Shape(r"\ball the same\b", "still, anyway", "It runs all the same.", "It still runs."),
    Shape(r"\bbe had\b", "is available", "The nearest that can be had.", "The nearest available one."),
    Shape(
        r"\b(is|are) (not )?there\b(?=[.,;:)]|$)",
        "exists, is available",
        "The label is there.",
        "The label exists.",
    ),
    Shape(r"\bhears? of\b", "is notified", "Who hears of it?", "Who is notified?"),
    Shape(r"\bspeaks? (of|to)\b", "refer to, describe", "Rules speak of samples.", "Rules count samples."),
    Shape(
        r"\bcomes? and goes?\b",
        "is intermittent",
        "The signal comes and goes.",
        "The signal is intermittent.",
    ),
    Shape(
        r"\b(for|after|of) so (long|many)\b",
        "give the number or the unit",
        "It lasts for so long.",
        "It lasts for ten minutes.",
    ),
    Shape(
        r"\bby the clock\b",
        "wall time",
        "It took 3 s by the clock.",
        "It took 3 s of wall time.",
    ),
)


@dataclass(frozen=True)
class Passage:
    """Some sentences of a file, without code and without what the program itself says."""

    line: int
    text: str
    flowing: bool = True  # a paragraph or a list item, whose sentences have a limit; not a table's cell


def complaints(file: Path) -> list[str]:
    """Returns what to write otherwise in a file, a line each: "FILE:LINE: ..."."""
    found = []
    name = file.relative_to(ROOT) if file.is_relative_to(ROOT) else file
    for passage in _passages(file):
        for sentence in re.split(r"(?<=[.?!])[\"')*]*\s+", passage.text.strip()):
            found += [
                f"{name}:{passage.line}: {problem}: {sentence}"
                for problem in problems(sentence, passage.flowing)
            ]
    if file.suffix == ".py":
        found += [f"{name}:{line}: {text}" for line, text in _docstrings_without_a_verb(file.read_text())]
    return found


def problems(sentence: str, flowing: bool = True) -> Iterator[str]:
    """Yields what is wrong with one sentence, with the better word."""
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


def _passages(file: Path) -> Iterator[Passage]:
    for passage in _READERS.get(file.suffix, _comments)(file.read_text(encoding="utf-8")):
        text = " ".join(passage.text.split())
        if file.suffix == ".md":
            text = _said_by_the_program().sub("CODE", text)
        text = re.sub(r"[\w./-]+\.(md|yml|py|json|html)\b", "FILE", text)
        yield Passage(passage.line, text, passage.flowing)


@cache
def _said_by_the_program() -> re.Pattern[str]:
    """Returns a pattern of what pages quote: it is checked where it is written."""
    quoted = {text for rule in all_rules().values() for text in (rule.question, rule.recommendation)}
    for file in (ROOT / "grafana" / "dashboards").glob("*.json"):
        quoted.update(re.findall(r'"title": "([^"]{8,})"', file.read_text(encoding="utf-8")))
    return re.compile(rf"(?<!\w)({'|'.join(map(re.escape, sorted(quoted, key=len, reverse=True)))})(?!\w)")


def _markdown(text: str) -> Iterator[Passage]:
    """Yields paragraphs, list items, headings and cells; leaves out code, quotations and pictures' texts."""
    inside: list[str] = []
    line = 0
    for token in MarkdownIt("commonmark").enable("table").parse(text):
        if token.nesting == 1:
            inside.append(token.type)
        elif token.nesting == -1:
            inside.pop()
        line = token.map[0] + 1 if token.map else line
        if token.type == "inline" and "blockquote_open" not in inside:
            words = "".join(
                {"code_inline": "CODE", "softbreak": " ", "hardbreak": " "}.get(child.type, child.content)
                for child in token.children or ()
                if child.type not in ("image", "html_inline")
            )
            cell = bool({"td_open", "th_open", "heading_open"} & set(inside))
            yield Passage(line, words, flowing=not cell)


def _comments(text: str) -> Iterator[Passage]:
    """Yields comments after # or ; of configuration files, lines that follow each other as one passage."""
    passage: list[str] = []
    for number, line in enumerate([*text.splitlines(), ""], 1):
        whole = re.match(r"\s*[#;]+!?\s*(.*)", line)
        if whole and whole.group(1) and not re.match(r"\s*[#;](\S|\s{3,})", line):
            passage.append(whole.group(1))
            continue
        if passage:
            yield Passage(number - len(passage), _without_code(" ".join(passage)))
            passage = []
        trailing = re.search(r"\s#+\s(.+)$", line)
        if trailing and not whole:
            yield Passage(number, _without_code(trailing.group(1)))


def _templates(text: str) -> Iterator[Passage]:
    for comment in re.finditer(r"\{\{/\*(.*?)\*/\}\}", text, re.DOTALL):
        yield Passage(text.count("\n", 0, comment.start()) + 1, comment.group(1))


def _html(text: str) -> Iterator[Passage]:
    """Yields the comments and words of Jinja templates, paragraph by paragraph."""
    text = re.sub(r"{{.*?}}", "CODE", text, flags=re.DOTALL)
    text = re.sub(r"{%.*?%}|</?(?:a|b|em|strong|span|code|i)\b[^>]*>", " ", text, flags=re.DOTALL)
    for words in re.finditer(r"{#(.+?)#}|(?<=>)([^<>{}]*\w\s+\w[^<>{}]*)(?=<)", text, re.DOTALL):
        yield Passage(text.count("\n", 0, words.start()) + 1, words.group(1) or words.group(2))


def _script(text: str) -> Iterator[Passage]:
    """Yields the comments of JavaScript and CSS, and strings of several words."""
    for words in re.finditer(
        r"/\*(.*?)\*/|//\s([^\n]*)|[\"'`]([A-Za-z]+ [a-z][^\"'`<>{}]*)[\"'`]", text, re.DOTALL
    ):
        line = text.count("\n", 0, words.start()) + 1
        yield Passage(line, re.sub(r"(?m)^\s*\*", "", next(filter(None, words.groups()), "")))


def _yaml(text: str) -> Iterator[Passage]:
    """Yields comments, and the texts of rule files and of issue forms."""
    yield from _comments(text)
    if re.search(r"(?m)^(groups|body):", text):
        yield from _texts(yaml.safe_load(text), _TEXTS_OF_YAML)


def _json(text: str) -> Iterator[Passage]:
    """Yields the texts of dashboards."""
    return _texts(json.loads(text), _TEXTS_OF_JSON)


def _texts(value: Any, keys: Collection[str]) -> Iterator[Passage]:
    """Yields the strings below these keys of a document."""
    for key, words in value.items() if isinstance(value, dict) else enumerate(value):
        if isinstance(words, (dict, list)):
            yield from _texts(words, keys)
        elif isinstance(words, str) and key in keys:
            yield Passage(1, re.sub(r"{{.*?}}", "CODE", _without_code(words)), flowing=key != "title")


_TEXTS_OF_YAML = {"summary", "description", "recommendation", "question", "label", "placeholder"}
_TEXTS_OF_JSON = {"title", "description", "content"}


def _python(text: str) -> Iterator[Passage]:
    """Yields docstrings, comments and strings of several words that do not look like code."""
    nodes = list(ast.walk(ast.parse(text)))
    formatted = [node for node in nodes if isinstance(node, ast.JoinedStr)]
    parts = {id(part) for node in formatted for part in ast.walk(node)}
    docstrings = {id(node.value) for node in nodes if isinstance(node, ast.Expr)}
    for joined in formatted:
        words = "".join(
            str(part.value) if isinstance(part, ast.Constant) else "CODE" for part in joined.values
        )
        yield from _string(joined.lineno, words, docstring=False)
    for node in nodes:
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in parts:
            yield from _string(node.lineno, node.value, docstring=id(node) in docstrings)
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT and not re.match(r"#\s*(type|ruff|noqa)\b", token.string):
            yield Passage(token.start[0], _without_code(token.string.lstrip("#! ")))


def _docstrings_without_a_verb(text: str) -> Iterator[tuple[int, str]]:
    """Yields docstrings of functions that do not start with a verb, and any that start with "What"."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)):
            words = ast.get_docstring(node) or "Does nothing"
            start = r"(?!What\b)" if isinstance(node, (ast.Module, ast.ClassDef)) else r"[A-Z][a-z]+s\b"
            if not re.match(start, words):
                first = words.splitlines()[0]
                yield getattr(node, "lineno", 1), f'start with a verb, as in "Returns the ...": {first}'


def _string(line: int, words: str, docstring: bool) -> Iterator[Passage]:
    if docstring or (re.search(r"[a-z] [a-z]", words) and not re.search(r"[{}<=;]|\w\(", words)):
        for paragraph in re.split(r"\n\s*\n", inspect.cleandoc(words)):
            if not paragraph.startswith("    "):
                yield Passage(line, _without_code(paragraph))


def _without_code(words: str) -> str:
    return re.sub(r"`[^`]*`|https?://\S+", "CODE", words)


_READERS: dict[str, Callable[[str], Iterator[Passage]]] = {
    ".md": _markdown,
    ".py": _python,
    ".tmpl": _templates,
    ".json": _json,
    ".html": _html,
    ".js": _script,
    ".css": _script,
    ".yml": _yaml,
    ".yaml": _yaml,
}


def main(paths: list[str]) -> int:
    """Prints every complaint; returns the exit status."""
    files = [Path(path).resolve() for path in paths] or checked_files()
    found = [complaint for file in files for complaint in complaints(file)]
    print(*found, sep="\n", end="\n" if found else "")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
