"""Reads Prometheus rule files: their rules, and the options that they were rendered with."""

import re
import shutil
import subprocess
from argparse import ArgumentTypeError
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import yaml

from stepscope.common.durations import parse_duration
from stepscope.common.errors import UserError
from stepscope.prometheus.crosscheck.server import Milliseconds, Pace
from stepscope.prometheus.rules.files import META, RULES, command_of, render
from stepscope.prometheus.rules.meta import HARDWARE
from stepscope.prometheus.rules.options import ENGINES, PROMETHEUS, Options
from stepscope.rules.parts.promql import MINUTE
from stepscope.runs.malformed import MALFORMED

# Checks rules that the server cannot have, because it evaluates those of another engine.
CHECK = f"stepscope crosscheck --recording RUN --rules DIR/{RULES}"

_METRIC = re.compile(r"\bstepscope_\w+")


@dataclass(frozen=True)
class FileRule:
    """A recording rule (`record`) or an alerting one (`alert`); durations are seconds.

    Labels whose values are templates, such as the owner of a run, are left out: only a server fills them in.
    """

    name: str
    is_alert: bool
    expression: str
    labels: Mapping[str, str]
    pending: float = 0.0
    keep_firing: float = 0.0


@dataclass(frozen=True)
class FileGroup:
    """A group of rules."""

    name: str
    interval: Milliseconds
    rules: Sequence[FileRule]


def read_groups(text: str, place: str) -> list[FileGroup]:
    """Returns the groups of a file. Raises UserError, which names `place`, if it is not a rule file."""
    try:
        return [_group(group) for group in yaml.safe_load(text)["groups"]]
    except (yaml.YAMLError, ArgumentTypeError, *MALFORMED) as error:
        reason = " ".join(str(error).split())
        raise UserError(
            f"{place}: is not a Prometheus rule file ({reason}); see `promtool check rules`"
        ) from None


def rules_of(options: Options) -> list[FileGroup]:
    """Returns the groups of rules that the options give."""
    return read_groups(render(options)[RULES], RULES)


def hardware_of(options: Options) -> FileGroup:
    """Returns the group of alerts on hardware that the options give; it is empty with the lean profile."""
    groups = read_groups(render(options)[META], META)
    return next((group for group in groups if group.name == HARDWARE), FileGroup(HARDWARE, 0, []))


def pace(group: FileGroup) -> Pace:
    """Returns how often a group of a file must be evaluated, and how long its alerts wait and stay."""
    alerts = [(rule.pending, rule.keep_firing) for rule in group.rules if rule.is_alert]
    return Pace(group.interval, alerts)


def metrics(groups: Sequence[FileGroup]) -> set[str]:
    """Returns the names of the raw series that the rules read."""
    return {name for group in groups for rule in group.rules for name in _METRIC.findall(rule.expression)}


def _group(group: Mapping[str, Any]) -> FileGroup:
    interval = round(1000 * _seconds(group.get("interval", f"{MINUTE:g}s")))
    return FileGroup(group["name"], interval, [_rule(rule) for rule in group["rules"]])


def _rule(rule: Mapping[str, Any]) -> FileRule:
    is_alert = "alert" in rule
    return FileRule(
        rule["alert" if is_alert else "record"],
        is_alert,
        rule["expr"],
        {name: value for name, value in (rule.get("labels") or {}).items() if "{{" not in str(value)},
        _seconds(rule.get("for", 0)),
        _seconds(rule.get("keep_firing_for", 0)),
    )


def _seconds(written: Any) -> float:
    return parse_duration(str(written)) if written else 0.0


@dataclass(frozen=True)
class Rendered:
    """The text of each file by path, and the options in the files' headers."""

    texts: dict[str, str]
    options: Options


def _not_checked(options: Options) -> str:
    command = replace(options, engine=PROMETHEUS).command()
    return (
        f"was rendered with --engine {options.engine}, so its rules decide an evaluation later; check the "
        f"same rules on a recorded run: `{command} --out DIR`, then `{CHECK}`"
    )


def _refused(path: Path) -> None:
    """Raises UserError for a file that Prometheus's own tool, if there is one, refuses."""
    if (promtool := shutil.which("promtool")) is None:
        return
    done = subprocess.run(
        [promtool, "check", "rules", path], capture_output=True, text=True, errors="replace", check=False
    )
    if done.returncode:
        reason = " ".join((done.stderr or done.stdout).split())
        raise UserError(f"--rules {path}: promtool refuses it ({reason[:300]})")


def rendered(files: Sequence[Path]) -> Rendered:
    """Returns the files, or the default rules if there are none. Raises UserError if their options differ."""
    if not files:
        return Rendered({RULES: render(Options())[RULES]}, Options())
    texts: dict[str, str] = {}
    found: dict[Options, Path] = {}
    for path in files:
        try:
            texts[str(path)] = path.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
            raise UserError(f"--rules {path}: cannot be read ({reason}); name a rendered rule file") from None
        command = command_of(texts[str(path)])
        if command is None:
            raise UserError(f"--rules {path}: does not say how it was rendered; name a rendered rule file")
        try:
            options = Options.from_command(command)
        except UserError as error:
            raise UserError(f"--rules {path}: {error}") from None
        if not ENGINES[options.engine].stores_at_once:
            raise UserError(f"--rules {path}: {_not_checked(options)}")
        _refused(path)
        found.setdefault(options, path)
    if len(found) > 1:
        first, second, *_ = found.values()
        raise UserError(
            f"--rules {second}: was rendered with flags that differ from {first}'s; check one file at a time"
        )
    return Rendered(texts, next(iter(found)))
