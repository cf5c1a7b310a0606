"""Renders a page that is one self-contained HTML file: no network, no other file.

The report and the comparison are such pages. A template extends `page.html` and fills its blocks. Tables and
sentences are plain HTML. Scripts draw the charts from one JSON object; only these scripts, by hash, may run.
"""

import base64
import hashlib
import json
import re
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from importlib.util import cache_from_source
from pathlib import Path
from typing import Any

from jinja2 import ChoiceLoader, Environment, FileSystemBytecodeCache, PackageLoader, StrictUndefined
from jinja2.bccache import Bucket
from markupsafe import Markup, escape

from stepscope import __version__
from stepscope.common import words
from stepscope.common.status import Status
from stepscope.evaluation.as_json import json_value

HERE = "stepscope.report"
STYLE = "report.css"
ECHARTS = "echarts-6.1.0.min.js"
# The spaces within an amount: "71 %", "12.3 ms", "1 h 05 min".
AMOUNT = re.compile(
    r"(?<=\d) (?=%|(?:[mµ]?s|min|h|d)\b|[kMGT]?B/s)|(?<=\d (?:h|d)) (?=\d)|(?<=\d min) (?=\d)"
)


def render_page(
    template: str,
    *,
    scripts: Sequence[str],
    data: Mapping[str, Any],
    live: bool = False,
    package: str = HERE,
    **context: Any,
) -> str:
    """Renders a template of the package's `templates/` as one HTML document.

    `scripts` are names in the package's `assets/`, in the order in which they run. Every package can use the
    templates and assets of the report. Scripts find `data` as `stepscope.data`, by the chart name of a
    `<div data-chart="NAME">`. With `live` the page may fetch itself again. `page.html` lists the names that
    the context must have.
    """
    inlined = [_asset(name, package) for name in scripts]
    style = _asset(STYLE, package)
    return (
        templates(package)
        .get_template(template)
        .render(
            words=words,
            version=__version__,
            policy=_content_security_policy(style, inlined, live),
            style=style.text,
            scripts=[script.text for script in inlined],
            data=Markup(script_json(data)),
            **context,
        )
    )


def script_json(value: Any) -> str:
    """Returns JSON that is safe inside a <script> element, whatever strings it contains.

    `<`, `>` and `&` are escaped, so that they cannot open or end an element. U+2028 and U+2029 end a line in
    old scripts, so they are escaped too. Numbers that JSON lacks (NaN, infinity) become null.
    """
    text = json.dumps(json_value(value), ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    for character in "<>&\u2028\u2029":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return text


@dataclass(frozen=True)
class _Asset:
    text: Markup
    hash: str  # as a Content-Security-Policy writes it


@cache
def _asset(name: str, package: str) -> _Asset:
    own = files(package) / "assets" / name
    path = own if own.is_file() else files(HERE) / "assets" / name
    text = path.read_text(encoding="utf-8")
    digest = base64.b64encode(hashlib.sha256(text.encode("utf-8")).digest()).decode("ascii")
    return _Asset(Markup(text), f"'sha256-{digest}'")


def _content_security_policy(style: _Asset, scripts: list[_Asset], live: bool) -> str:
    """Returns a policy that allows only the content of this file; the live page may also fetch itself."""
    return "; ".join(
        (
            "default-src 'none'",
            f"script-src {' '.join(script.hash for script in scripts)}",
            f"style-src {style.hash}",
            "img-src data:",
            "connect-src 'self'" if live else "connect-src 'none'",
            "base-uri 'none'",
            "form-action 'none'",
        )
    )


class CompiledTemplates(FileSystemBytecodeCache):
    """Keeps compiled templates where Python keeps compiled modules, if it may: compiling them takes 0.3 s."""

    def load_bytecode(self, bucket: Bucket) -> None:
        try:
            super().load_bytecode(bucket)
        except Exception:  # noqa: BLE001 - a damaged file raises whatever its bytes say
            bucket.reset()

    def dump_bytecode(self, bucket: Bucket) -> None:
        if not sys.dont_write_bytecode:
            with suppress(OSError):  # a directory of root's, or a full disk
                super().dump_bytecode(bucket)


@cache
def templates(package: str) -> Environment:
    """Returns the templates of a package, and those of the report."""
    environment = Environment(
        loader=ChoiceLoader([PackageLoader(name) for name in dict.fromkeys((package, HERE))]),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        bytecode_cache=CompiledTemplates(str(Path(cache_from_source(__file__)).parent)),
    )
    environment.globals["Status"] = Status
    environment.filters["code"] = _with_code
    environment.filters["grouped"] = _grouped
    return environment


def _grouped(rows: Sequence[Any], attribute: str) -> list[tuple[Any, list[Any]]]:
    """Groups rows by an attribute, in their first order (Jinja's groupby sorts)."""
    groups: dict[Any, list[Any]] = {}
    for row in rows:
        groups.setdefault(getattr(row, attribute), []).append(row)
    return list(groups.items())


def _with_code(sentence: str) -> Markup:
    """Turns `words` into <code>words</code>, everything escaped; an amount stays on one line."""
    sentence = AMOUNT.sub("\u00a0", sentence)
    pieces = sentence.split("`")
    if len(pieces) % 2 == 0:  # an odd backtick is just a character
        return escape(sentence)
    return Markup("").join(
        Markup("<code>{}</code>").format(piece) if index % 2 else escape(piece)
        for index, piece in enumerate(pieces)
    )
