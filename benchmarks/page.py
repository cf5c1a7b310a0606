"""Writes a table of measurements between the markers of a page."""

import os
import platform
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

DOCS = Path(__file__).parents[1] / "docs"
BENCHMARKS = Path(__file__).parent / "README.md"
RESULTS = Path(__file__).parents[1] / "trials" / "README.md"
BEGIN, END = "<!-- table: begin -->", "<!-- table: end -->"  # a page's second table has another name


def markdown(head: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """Returns the lines of a Markdown table."""
    lines = [head, ["---"] * len(head), *([cell.replace("|", "/") for cell in row] for row in rows)]
    return [f"| {' | '.join(line)} |".replace("| --- ", "|---").replace("|--- |", "|---|") for line in lines]


def write_table(page: Path, command: str, table: Sequence[str], name: str = "table") -> None:
    """Replaces the text between the markers of the page by a table that `command` measured."""
    replace_part(page, name, [_circumstances(command), "", *table])


def replace_part(page: Path, name: str, lines: Sequence[str]) -> None:
    """Replaces the text between the markers of the page by these lines."""
    head, _, tail = _parts(page, name)
    begin, end = _markers(name)
    page.write_text("\n".join([f"{head}{begin}", "", *lines, "", f"{end}{tail}"]), encoding="utf-8")


def read_part(page: Path, name: str) -> list[str]:
    """Returns the lines between the markers of the page, without those that are empty at both ends."""
    return _parts(page, name)[1].strip("\n").split("\n")


def read_table(page: Path, name: str = "table") -> list[list[str]]:
    """Returns the rows of the page's table, without its head."""
    lines = [line for line in _parts(page, name)[1].splitlines() if line.startswith("| ")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[1:]]


def _parts(page: Path, name: str = "table") -> tuple[str, str, str]:
    """Returns the text before, between and after the markers."""
    text = page.read_text(encoding="utf-8")
    begin, end = _markers(name)
    if text.count(begin) != 1 or text.count(end) != 1:
        raise SystemExit(f"{page}: must have {begin} and {end} once each")
    head, _, rest = text.partition(begin)
    table, _, tail = rest.partition(end)
    return head, table, tail


def _markers(name: str) -> tuple[str, str]:
    return BEGIN.replace("table", name), END.replace("table", name)


def _circumstances(command: str) -> str:
    date = datetime.now(UTC).strftime("%Y-%m-%d")
    return f"Measured on {date} by `{command}` with {machine()}."


def machine() -> str:
    """Returns Python, kernel, processor, cores and memory in words."""
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / 2**30
    return (
        f"Python {platform.python_version()} on Linux {platform.release().split('-')[0]}, {_processor()}, "
        f"{os.cpu_count()} cores, {memory:.0f} GiB of memory"
    )


def _processor() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()
