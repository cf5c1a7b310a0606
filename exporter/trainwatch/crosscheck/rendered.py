"""Reads the checked rule files, and the options that they were rendered with."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from trainwatch.errors import UserError
from trainwatch.prometheus_rules.files import RULES, command_of, render
from trainwatch.prometheus_rules.options import Options


@dataclass(frozen=True)
class Rendered:
    """The text of each file by path, and the options in the files' headers."""

    texts: dict[str, str]
    options: Options


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
            found.setdefault(Options.from_command(command), path)
        except UserError as error:
            raise UserError(f"--rules {path}: {error}") from None
    if len(found) > 1:
        first, second, *_ = found.values()
        raise UserError(
            f"--rules {second}: was rendered with flags that differ from {first}'s; check one file at a time"
        )
    return Rendered(texts, next(iter(found)))
