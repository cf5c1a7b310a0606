"""Escapes text for GitHub's Markdown, so that any name is shown as plain text."""

import re
import unicodedata
from collections.abc import Iterable, Sequence

# Characters with a meaning within a line; a _ within a word and the $ of an amount have none. A number or
# dash at the start of a line makes a list, but no line starts with a name.
SPECIAL = re.compile(r"([\\`*\[\]<>~&]|(?<!\w)_|_(?!\w)|\$(?!\d))")
# GitHub links these even if escaped: @person, a@b.c, #123, https://..., www....
LINKED = re.compile(r"(?<=@)(?=\w)|(?<=\S)(?=@)|(?<=#)(?=\w)|(?<=:)(?=//)|(?<=\bwww)(?=\.)", re.IGNORECASE)
ZERO_WIDTH_SPACE = "\u200b"


def plain(words: str) -> str:
    """Returns words on one line, with every special character escaped."""
    return SPECIAL.sub(r"\\\1", LINKED.sub(ZERO_WIDTH_SPACE, one_line(words)))


def code(words: str) -> str:
    """Returns words in a code span, with a fence longer than any inside; empty words have no span."""
    words = one_line(words).strip()
    if not words:
        return ""
    fence = "`" * (1 + max((len(run) for run in re.findall("`+", words)), default=0))
    space = " " if "`" in words else ""
    return f"{fence}{space}{words}{space}{fence}"


def sentence(words: str) -> str:
    """Returns a sentence of the report, in which backticks mark code."""
    pieces = words.split("`")
    if len(pieces) % 2 == 0:  # an odd backtick is just a character
        return plain(words)
    return "".join(code(piece) if number % 2 else plain(piece) for number, piece in enumerate(pieces))


def table(header: Sequence[str], rows: Iterable[Sequence[str]], right: Iterable[int] = ()) -> str:
    """Returns a table of Markdown cells; the columns `right` are aligned to the right."""
    aligned = set(right)
    ruler = ["---:" if number in aligned else "---" for number in range(len(header))]
    # A | ends the cell even within code. The parser of tables removes the backslash; no other parser does.
    escaped = ([cell.replace("|", r"\|") for cell in cells] for cells in (header, ruler, *rows))
    return "\n".join(f"| {' | '.join(cells)} |" for cells in escaped)


def one_line(words: str) -> str:
    """Returns words without line ends, and without invisible characters that could reorder the text."""
    return "".join(
        " "
        if character.isspace()
        else ""
        if unicodedata.category(character) in ("Cc", "Cf", "Cs")
        else character
        for character in words
    )
