"""Flags of an exporter under trial, and what its recording holds."""

from pathlib import Path
from typing import Any

from stepscope.runs.recording.files import pieces, read_piece

NODE = "node"
TICK = 0.02  # seconds between two samples

_QUIET = ("disk", "gpu", "memory", "network", "pressure")


def flags(folder: Path, *more: object) -> list[str]:
    """Returns flags for an exporter that samples fast, and keeps everything in `folder`."""
    ledgers = folder / "ledgers"
    ledgers.mkdir(exist_ok=True)
    return [
        f"--ledger-dir={ledgers}",
        f"--state-dir={folder / 'state'}",
        f"--node={NODE}",
        f"--sample-interval={TICK * 1000:.0f}ms",
        *(f"--no-collector.{name}" for name in _QUIET),
        *map(str, more),
    ]


def recorded(recording: Path, table: str, *columns: str) -> list[tuple[Any, ...]]:
    """Returns these columns of every row of a table, in the order in which they were recorded."""
    node = next(recording.glob("*/samples-*")).parent
    tables = [rows for piece in pieces(node, table) if (rows := read_piece(piece)) is not None]
    return [
        row
        for rows in tables
        for row in zip(*(rows.column(name).to_pylist() for name in columns), strict=True)
    ]


def numbers_per_process(recording: Path) -> dict[tuple[int, int], list[int]]:
    """Returns the numbers of the recorded steps of every training process, by rank and pid."""
    numbers: dict[tuple[int, int], list[int]] = {}
    for rank, pid, number in recorded(recording, "steps", "rank", "pid", "number"):
        numbers.setdefault((rank, pid), []).append(number)
    return numbers
