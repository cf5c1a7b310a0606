"""Finds the sentences of a file: Markdown, comments, docstrings, texts of rules, dashboards and templates."""

import ast
import inspect
import io
import json
import re
import tokenize
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import yaml
from markdown_it import MarkdownIt
from stepscope.rules import all_rules

DASHBOARDS = Path(__file__).parents[2] / "grafana" / "dashboards"


@dataclass(frozen=True)
class Passage:
    """Some sentences of a file, without code and without what the program itself says."""

    line: int
    text: str
    flowing: bool = True  # a paragraph or a list item, whose sentences have a limit; not a table's cell


def passages(file: Path) -> Iterator[Passage]:
    """Yields the passages of a file, without code and without what the program itself says."""
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
    for file in DASHBOARDS.glob("*.json"):
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


def _string(line: int, words: str, docstring: bool) -> Iterator[Passage]:
    if docstring or (re.search(r"[a-z] [a-z]", words) and not re.search(r"[{}<=;]|\w\(|\bby \(", words)):
        for paragraph in re.split(r"\n\s*\n", inspect.cleandoc(words)):
            if not re.search(r"^ {4}|\S {2,}\S", paragraph):  # code, or columns
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
