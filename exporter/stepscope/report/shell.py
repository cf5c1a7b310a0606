"""Commands that a reader may copy, as a shell reads them."""

import shlex
from collections.abc import Sequence
from pathlib import Path

from stepscope.common.masking import MASK, masked


def shell_words(words: Sequence[str | Path]) -> str:
    """Returns words of a command, quoted; paths inside the current directory are relative to it."""
    return " ".join(shlex.quote(_shown(word) if isinstance(word, Path) else word) for word in words)


def shell_command(words: Sequence[str]) -> str:
    """Returns a command as it was typed, with secrets masked."""
    line = " ".join(word if word == MASK else shlex.quote(word) for word in masked(words))
    return line.encode(errors="replace").decode()  # an argument may be any bytes


def compare_command(before: Path, after: Path) -> str:
    """Returns the command that compares two runs."""
    return f"stepscope compare {shell_words([before, after])} --out comparison.html"


def _shown(path: Path) -> str:
    try:
        return str(path.absolute().relative_to(Path.cwd()))
    except (ValueError, OSError):
        return str(path.absolute())
