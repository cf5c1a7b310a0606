"""All rule files by name, and whether those of a directory are as they would be rendered now."""

from __future__ import annotations

from pathlib import Path

from trainwatch.errors import UserError
from trainwatch.prometheus_rules.existing_clusters import existing_clusters_groups
from trainwatch.prometheus_rules.groups import rule_groups
from trainwatch.prometheus_rules.meta import meta_group
from trainwatch.prometheus_rules.options import Options
from trainwatch.prometheus_rules.text import command_of, rule_file
from trainwatch.prometheus_rules.usage import usage_groups

HEURISTICS = "trainwatch.yml"
META = "trainwatch-meta.yml"
USAGE = "trainwatch-usage.yml"
EXISTING_CLUSTERS = "optional/dcgm-and-node-exporter.yml"  # not among rules/*.yml: nobody gets it unasked


def render(options: Options) -> dict[str, str]:
    """Text by name. Raises UserError where a setting is wrong, or cannot be told in Prometheus."""
    return {
        HEURISTICS: rule_file(
            ["Trainwatch: why training jobs leave their GPUs idle (docs/rules.md)."],
            rule_groups(options),
            options,
        ),
        META: rule_file(
            ["Trainwatch: whether it sees what it should (docs/rules.md)."], [meta_group(options)], options
        ),
        USAGE: rule_file(
            ["Trainwatch: what nodes and runs use, recorded for dashboards (docs/dashboards.md)."],
            usage_groups(options),
            options,
        ),
        EXISTING_CLUSTERS: rule_file(
            [
                "Trainwatch's rules for clusters without its exporter: from the series of dcgm-exporter and",
                "node_exporter, as coarse as these are scraped (docs/rules.md).",
            ],
            existing_clusters_groups(options),
            options,
        ),
    }


def stale(directory: Path) -> list[str]:
    """What is wrong with the rule files of a directory, a line a file.

    They are compared with what the command in the header of the first one renders now. Raises UserError where
    they cannot be read, or do not say how they were rendered.
    """
    first = directory / HEURISTICS
    command = command_of(_read(first))
    if command is None:
        raise UserError(
            f"{first}: does not say how it was rendered; render it with `trainwatch rules render`"
        )
    try:
        rendered = render(Options.from_command(command))
    except UserError as mistake:
        raise UserError(f"{first}: {mistake}") from None
    lines = []
    for name, text in rendered.items():
        path = directory / name
        if not path.exists():
            lines.append(f"{path}: is missing")
        elif (found := _read(path)) != text:
            lines.append(f"{path}:{_first_difference(found, text)}: is not what `{command}` renders")
    return lines


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
        raise UserError(f"{path}: cannot be read ({reason}); name a directory of rendered rules") from None


def _first_difference(found: str, text: str) -> int:
    """The number of the first line that differs."""
    lines, others = found.splitlines(), text.splitlines()
    same = (one == other for one, other in zip(lines, others, strict=False))
    return next(
        (number for number, it_is in enumerate(same, 1) if not it_is), min(len(lines), len(others)) + 1
    )
