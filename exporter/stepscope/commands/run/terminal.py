"""Prints the lines of `stepscope run` on the terminal, between those of the training command."""

import sys

from stepscope.common.console import COLOURS, DIM, PLAIN, Console
from stepscope.common.status import Status

PREFIX = "stepscope:"

_STYLES = {
    "warning": COLOURS[Status.FOUND],
    "good": COLOURS[Status.HEALTHY],
    "dim": DIM,
    "plain": PLAIN,
}


class _Between:
    """Whether the command may have left the cursor in the middle of a line."""

    lines = False


def command_begins() -> None:
    """Notes that the command writes on the same terminal from now on."""
    _Between.lines = True


def command_ended() -> None:
    """Ends the line that the command may have left open."""
    console = Console(sys.stderr)
    if _Between.lines and console.is_terminal:
        console.write(fresh_line(console.width), end="")
    _Between.lines = False


def say(text: str, style: str = "plain") -> None:
    """Prints one prefixed line on stderr, wrapped and with colours only on a terminal. Never raises."""
    console = Console(sys.stderr)
    first, *rest = console.wrapped(f"{PREFIX} {text}", rest=2)
    if style == "dim":
        first, rest = console.styled(first, DIM), [console.styled(line, DIM) for line in rest]
    else:
        first = console.styled(PREFIX, _STYLES[style]) + first.removeprefix(PREFIX)
    if _Between.lines and console.is_terminal:
        first = f"{fresh_line(console.width)}{first}"
    console.write(first, *rest)


def fresh_line(width: int) -> str:
    """Returns what moves the cursor to the start of an empty line, whatever line it is in.

    At the start of a line, as many spaces as columns fill this line. Otherwise they reach the next one.
    """
    return f"{' ' * width}\r\033[K"
