"""Rule files as YAML that people read: expressions as they were laid out, long sentences folded."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import yaml

from trainwatch.prometheus_rules.groups import Group
from trainwatch.prometheus_rules.options import Options
from trainwatch.prometheus_rules.speed import at_speed

WIDTH = 110
LONG = 80  # characters; longer sentences are folded, longer expressions have lines of their own
RENDERED_BY = "#   "


class _Dumper(yaml.SafeDumper):
    """Indents lists below their key, and writes out what occurs twice."""

    def ignore_aliases(self, data: object) -> bool:
        return True

    def increase_indent(self, flow: bool = False, indentless: bool = False) -> None:
        super().increase_indent(flow, False)


def _text(dumper: _Dumper, value: str) -> yaml.Node:
    style = None
    if "\n" in value or (len(value) > LONG and " " in value):
        style = ">" if value[-1] in ".?" else "|"
    return dumper.represent_scalar("tag:yaml.org,2002:str", value, style=style)


_Dumper.add_representer(str, _text)


def rule_file(title: Sequence[str], groups: Sequence[Group], options: Options) -> str:
    """The text of a rule file, `title` in its first lines. The same input gives the same text."""
    header = [
        *title,
        "",
        "Rendered; do not edit it, render it again (with --set Rule.parameter=value for other thresholds):",
    ]
    lines = [f"# {line}".rstrip() for line in header]
    content: dict[str, Any] = {"groups": [at_speed(group, options.speed) for group in groups]}
    body = yaml.dump(content, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=WIDTH)
    return "\n".join([*lines, RENDERED_BY + options.command(), body])


def command_of(text: str) -> str | None:
    """The command that a rule file says it was rendered by."""
    lines = (line for line in text.splitlines() if line.startswith("#"))
    return next((line[len(RENDERED_BY) :] for line in lines if line.startswith(RENDERED_BY)), None)
