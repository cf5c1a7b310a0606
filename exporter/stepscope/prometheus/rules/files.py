"""Renders all rule files as readable YAML, and finds those of a directory that are out of date."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml

from stepscope.common.errors import UserError
from stepscope.common.rendered import differences, read
from stepscope.prometheus.rules.advice import advice_group
from stepscope.prometheus.rules.delayed import for_engine
from stepscope.prometheus.rules.engines import ENGINES
from stepscope.prometheus.rules.existing_clusters import existing_clusters_groups, other_sources_groups
from stepscope.prometheus.rules.groups import Group
from stepscope.prometheus.rules.hardware import hardware_group
from stepscope.prometheus.rules.meta import meta_group
from stepscope.prometheus.rules.options import Options
from stepscope.prometheus.rules.profiles import working, working_rules
from stepscope.prometheus.rules.speed import at_speed
from stepscope.prometheus.rules.usage import usage_groups

RULES = "stepscope.yml"
META = "stepscope-meta.yml"
USAGE = "stepscope-usage.yml"
EXISTING_CLUSTERS = "optional/dcgm-and-node-exporter.yml"  # not among rules/*.yml: loaded only on request

WIDTH = 110
LONG = 80  # characters; longer sentences are folded, longer expressions are written as a block
RENDERED_BY = "#   "


def render(options: Options) -> dict[str, str]:
    """Returns texts by file name. Raises UserError for a setting that PromQL cannot express."""
    files = {
        RULES: (
            "Stepscope: why training jobs leave their GPUs idle (docs/rules.md).",
            [*working_rules(options), *other_sources_groups(options)],
        ),
        META: (
            "Stepscope: whether it sees what it should, and whether hardware fails (docs/rules.md).",
            working([meta_group(options), hardware_group(options)], options),
        ),
        USAGE: (
            "Stepscope: what nodes and runs use, recorded for dashboards (docs/dashboards.md).",
            working([*usage_groups(options), advice_group(options)], options),
        ),
        EXISTING_CLUSTERS: (
            "Stepscope's rules for clusters without its exporter: from the series of dcgm-exporter and\n"
            "node_exporter, as coarse as these are scraped (docs/rules.md).",
            existing_clusters_groups(options),
        ),
    }
    return {name: _rule_file(title, groups, options) for name, (title, groups) in files.items()}


def stale(directory: Path) -> list[str]:
    """Returns the problems of a directory's rule files, one line per file.

    Compares them with what the command in the header of RULES renders now. Raises UserError if they cannot be
    read, or have no such header.
    """
    first = directory / RULES
    command = command_of(read(first))
    if command is None:
        raise UserError(f"{first}: does not say how it was rendered; render it with `stepscope rules render`")
    try:
        rendered = render(Options.from_command(command))
    except UserError as error:
        raise UserError(f"{first}: {error}") from None
    return differences(rendered, directory, command)


def command_of(text: str) -> str | None:
    """Returns the command in the header of a rule file, None without such a header."""
    lines = (line for line in text.splitlines() if line.startswith("#"))
    return next((line[len(RENDERED_BY) :] for line in lines if line.startswith(RENDERED_BY)), None)


def _rule_file(title: str, groups: Sequence[Group], options: Options) -> str:
    """Returns the text of a rule file that begins with `title`. The same input gives the same text."""
    header = [
        *title.splitlines(),
        "",
        "Rendered; do not edit it, render it again (with --set Rule.parameter=value for other thresholds):",
    ]
    lines = [f"# {line}".rstrip() for line in header]
    adapted = (for_engine(group, ENGINES[options.engine]) for group in groups if group["rules"])
    content: dict[str, Any] = {"groups": [at_speed(group, options.speed) for group in adapted]}
    body = yaml.dump(content, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=WIDTH)
    return "\n".join([*lines, RENDERED_BY + options.command(), body])


class _Dumper(yaml.SafeDumper):
    """Indents lists below their key, and uses no aliases."""

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
