"""Cuts the rows of a stream into blocks that do not depend on the chunks in which they came."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields, replace
from math import floor
from typing import Generic, TypeVar

import numpy as np

from trainwatch.measurements.state import Scans, State
from trainwatch.runs.model import NodeSamples, Steps, Times

# Rows of a block: enough that a block's fixed cost is small beside its values, also of a node with few
# cores; few enough that judging them again for each live view (up to so many rows wait for their block to
# fill) costs little: 4096 rows of 200 cores are 6 MB of numbers.
BLOCK_ROWS = 4096

C = TypeVar("C", NodeSamples, Steps)


class Blocks(State, Generic[C]):
    """The snapshots of one node, or the steps of one rank: blocks of `BLOCK_ROWS` rows and where scans end.

    A scan ends each `scan_interval` seconds, counted from the stream's first moment rounded down to the
    minute; one in which nothing came is none. Always the same blocks make results the same to the last bit.
    """

    def __init__(self, scan_interval: float) -> None:
        self.scan_interval = scan_interval
        self.rows = 0
        self.origin = 0.0
        self.last_scan = -1  # the number of the scan that the last row handed out belongs to
        self.pending: list[C] = []
        self.pending_rows = 0

    def add(self, chunk: C) -> Iterator[tuple[C, Scans]]:
        """The blocks that the chunk completes."""
        if not len(chunk):
            return
        if not self.rows:
            self.origin = floor(float(_times(chunk)[0]) / 60) * 60.0
        self.rows += len(chunk)
        self.pending.append(chunk)
        self.pending_rows += len(chunk)
        while self.pending_rows >= BLOCK_ROWS:
            whole = _joined(self.pending)
            self.pending = [_rows(whole, BLOCK_ROWS, len(whole))]
            self.pending_rows -= BLOCK_ROWS
            block = _rows(whole, 0, BLOCK_ROWS)
            yield block, self._scans(block)

    def rest(self) -> Iterator[tuple[C, Scans]]:
        """What no block was filled with yet; the last, shorter scan ends with it."""
        if self.rows:
            block = _joined(self.pending)
            yield block, np.append(self._scans(block), len(block))

    def _scans(self, block: C) -> Scans:
        if not len(block):
            return np.empty(0, np.intp)
        numbers = np.floor((_times(block) - self.origin) / self.scan_interval)
        numbers = np.maximum.accumulate(np.concatenate(([self.last_scan], numbers)))
        ends = np.flatnonzero(np.diff(numbers))
        if self.last_scan < 0:
            ends = ends[1:]  # before the first row no scan ended
        self.last_scan = int(numbers[-1])
        return ends


def _times(chunk: NodeSamples | Steps) -> Times:
    """When each row became known: when a snapshot was taken, when a step ended."""
    return chunk.times if isinstance(chunk, NodeSamples) else chunk.starts + chunk.durations


def _rows(chunk: C, start: int, stop: int) -> C:
    arrays = {name: values[start:stop] for name, values in _arrays(chunk)}
    return replace(chunk, **arrays)  # type: ignore[arg-type]  # each is what it was


def _joined(chunks: list[C]) -> C:
    """One chunk of all rows. A device that only later chunks have is missing (NaN) in earlier ones."""
    if len(chunks) == 1:
        return chunks[0]
    columns = zip(*(_arrays(chunk) for chunk in chunks), strict=True)
    arrays = {pieces[0][0]: _stacked([values for _, values in pieces]) for pieces in columns}
    return replace(chunks[-1], **arrays)  # type: ignore[arg-type]  # each is what it was


def _stacked(pieces: list[np.ndarray]) -> np.ndarray:
    if pieces[0].ndim == 2:
        width = max(piece.shape[1] for piece in pieces)
        pieces = [
            piece
            if piece.shape[1] == width
            else np.pad(piece, ((0, 0), (0, width - piece.shape[1])), constant_values=np.nan)
            for piece in pieces
        ]
    return np.concatenate(pieces)


def _arrays(chunk: NodeSamples | Steps) -> list[tuple[str, np.ndarray]]:
    named = ((item.name, getattr(chunk, item.name)) for item in fields(chunk))
    return [(name, value) for name, value in named if isinstance(value, np.ndarray)]
