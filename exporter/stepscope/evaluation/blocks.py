"""Cuts the rows of a stream into blocks that do not depend on the chunks of its source."""

from collections.abc import Iterator
from dataclasses import dataclass, fields, replace
from math import floor
from typing import Generic, TypeVar

import numpy as np

from stepscope.measurements.state import Scans, State
from stepscope.runs.model import NodeSamples, Steps, Times

# Rows of a block: enough that a block's fixed cost is small, even for a node with few cores. Few enough to
# judge an incomplete block again for each live view: 4096 rows of 200 cores are 6 MB of numbers.
BLOCK_ROWS = 4096

C = TypeVar("C", NodeSamples, Steps)


@dataclass(frozen=True)
class Block(Generic[C]):
    """Consecutive rows, the scans that end in them, and when these end, in seconds since the epoch."""

    rows: C
    scans: Scans
    times: Times


class Blocks(State, Generic[C]):
    """The samples of one node or the steps of one rank, cut into blocks of `BLOCK_ROWS` rows and into scans.

    A scan ends every `scan_interval` seconds, counted from the first row's minute. Scans without rows are
    skipped. Equal blocks make results equal to the last bit, however the source is chunked.
    """

    def __init__(self, scan_interval: float) -> None:
        self.scan_interval = scan_interval
        self.rows = 0
        self.origin = 0.0
        self.last_scan = -1  # the number of the scan of the last yielded row
        self.last_end = -np.inf  # of the scans so far
        self.last_time = -np.inf  # of the last yielded row
        self.pending: list[C] = []
        self.pending_rows = 0

    def add(self, chunk: C) -> Iterator[Block[C]]:
        """Yields the blocks that the chunk completes."""
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
            yield self._block(_rows(whole, 0, BLOCK_ROWS))

    def rest(self) -> Iterator[Block[C]]:
        """Yields the rows of the incomplete block; the last, shorter scan ends with it."""
        if self.rows:
            block = self._block(_joined(self.pending))
            end = max(self.last_time, self.last_end)  # an earlier one where a clock was set back
            yield Block(block.rows, np.append(block.scans, len(block.rows)), np.append(block.times, end))

    def _block(self, rows: C) -> Block[C]:
        if not len(rows):
            return Block(rows, np.empty(0, np.intp), np.empty(0))
        moments = _times(rows)
        numbers = np.floor((moments - self.origin) / self.scan_interval)
        numbers = np.maximum.accumulate(np.concatenate(([self.last_scan], numbers)))
        ends = np.flatnonzero(np.diff(numbers))
        if self.last_scan < 0:
            ends = ends[1:]  # before the first row no scan ended
        times = self.origin + (numbers[ends] + 1) * self.scan_interval
        self.last_scan, self.last_time = int(numbers[-1]), float(moments[-1])
        if len(times):
            self.last_end = float(times[-1])
        return Block(rows, ends, times)


def _times(chunk: NodeSamples | Steps) -> Times:
    """Returns when each sample was taken, or when each step ended."""
    return chunk.times if isinstance(chunk, NodeSamples) else chunk.ends


def _rows(chunk: C, start: int, stop: int) -> C:
    arrays = {name: values[start:stop] for name, values in _arrays(chunk)}
    return replace(chunk, **arrays)  # type: ignore[arg-type]  # each is what it was


def _joined(chunks: list[C]) -> C:
    """Returns one chunk of all rows. Devices that only later chunks have are NaN in earlier rows."""
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
