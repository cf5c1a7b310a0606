"""Text for GitHub's Markdown in which no name, whatever it holds, can be anything but text."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable, Sequence

# What begins or ends something within a line; a _ within a word and the $ of an amount do not. A number or
# dash at a line's begin makes a list, but no line of ours begins with a name.
SPECIAL = re.compile(r"([\\`*\[\]<>|~&]|(?<!\w)_|_(?!\w)|\$(?!\d))")
# What is made a link of after all escapes are undone: @person, a@b.c, #123, https://..., www....
LINKED = re.compile(r"(?<=@)(?=\w)|(?<=\S)(?=@)|(?<=#)(?=\w)|(?<=:)(?=//)|(?<=\bwww)(?=\.)", re.IGNORECASE)
ZERO_WIDTH_SPACE = "\u200b"


def plain(words: str) -> str:
    """Words as they are, on one line."""
    return SPECIAL.sub(r"\\\1", LINKED.sub(ZERO_WIDTH_SPACE, one_line(words)))


def code(words: str) -> str:
    """Words in a code span: the fence is longer than any in them. What is empty has no span."""
    words = one_line(words).strip()
    if not words:
        return ""
    fence = "`" * (1 + max((len(run) for run in re.findall("`+", words)), default=0))
    space = " " if "`" in words else ""
    # In a table a | ends the cell even within code; the table's parser takes the backslash away again.
    return f"{fence}{space}{words}{space}{fence}".replace("|", r"\|")


def sentence(words: str) -> str:
    """A sentence of the report, in which backticks mark what is to be typed."""
    pieces = words.split("`")
    if len(pieces) % 2 == 0:  # an odd backtick is just a character
        return plain(words)
    return "".join(code(piece) if number % 2 else plain(piece) for number, piece in enumerate(pieces))


def table(header: Sequence[str], rows: Iterable[Sequence[str]], right: Iterable[int] = ()) -> str:
    """A table of cells that are Markdown already; the columns `right` are aligned to the right."""
    aligned = set(right)
    ruler = ["---:" if number in aligned else "---" for number in range(len(header))]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in (header, ruler, *rows))


def one_line(words: str) -> str:
    """No ends of lines, nothing invisible that turns what is visible around."""
    return "".join(
        " "
        if character.isspace()
        else ""
        if unicodedata.category(character) in ("Cc", "Cf", "Cs")
        else character
        for character in words
    )
