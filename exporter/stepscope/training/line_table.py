"""Counts line samples in the memory of a file, of which line_layout.py describes the layout.

Whole stacks are a tree: those that begin alike share their nodes. When all nodes are used, a new stack counts
for the part of it that is known, so the deepest calls are lost first.
"""

from __future__ import annotations

import mmap
import os

from stepscope.training import line_layout as layout
from stepscope.training.ledger_files import make_file
from stepscope.training.line_layout import SEPARATOR, text_checksum

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

_SLOT_DOUBLES = layout.SLOT_BYTES // 8
_NUMBERS = layout.NUMBERS_AT // 8
_MOST_KNOWN = 2_000  # stacks whose node is remembered
_NODE_DOUBLES = layout.NODE_BYTES // 8
_TICKS = 2  # the double of a node


class LineTable:
    """The counts of this process, at first in memory only; `publish` gives them a file.

    The descriptor stays open while the process lives: it holds the lock.
    """

    def __init__(self, slots: int = layout.SLOTS, nodes: int = layout.NODES) -> None:
        self.path = ""
        self._fd = -1
        self._slots = slots
        self._places: dict[tuple[int, str], int] = {}
        self._tree = _StackTree(nodes)
        self._use(bytearray(self._tree_at() + nodes * layout.NODE_BYTES))
        self._write_slot(0, (0, ""))
        self.set(layout.USED, 1.0)
        self.set(layout.RANK, -1.0)

    def count(self, code: int, text: str, state: int, ticks: float, stack: str = "") -> None:
        """Counts a sample of a place, with the code of line_layout.SLOT, and of a whole stack."""
        key = (code, text)
        slot = self._places.get(key)
        if slot is None:
            slot = self._place(key)
        self._doubles[self._first_count(slot) + state] += ticks
        self.add(layout.TICKS, ticks)
        if stack:
            self._tree.count(code, stack, ticks)
            self.set(layout.USED_NODES, self._tree.used)

    def move(self, code: int, text: str, state: int, ticks: float, to: int, stack: str = "") -> None:
        """Counts a place's samples for another code, as far as the place still has them."""
        slot = self._places.get((code, text))
        if slot is not None:
            at = self._first_count(slot) + state
            ticks = min(ticks, self._doubles[at])
            self._doubles[at] -= ticks
            self.add(layout.TICKS, -ticks)
            if stack:
                self._tree.count(code, stack, -ticks)
            self.count(to, text, state, ticks, stack)

    def set(self, number: int, value: float) -> None:
        self._doubles[_NUMBERS + number] = value

    def add(self, number: int, value: float) -> None:
        self._doubles[_NUMBERS + number] += value

    def name_run(self, run: str) -> None:
        data = run.encode("utf-8", "replace")[: layout.RUN_BYTES - 1].decode("utf-8", "ignore").encode()
        self._memory[layout.RUN_AT : layout.RUN_AT + layout.RUN_BYTES] = data.ljust(layout.RUN_BYTES, b"\0")

    def publish(self, directory: str, start: float) -> None:
        """Moves the counts into a new file of the ledger directory. Raises OSError."""
        size, name = len(self._memory), f"{os.getpid()}.{os.urandom(4).hex()}{layout.SUFFIX}"
        header = (layout.MAGIC, layout.VERSION, size, self._slots, self._tree.nodes, os.getpid(), -1, start)
        layout.HEADER.pack_into(self._memory, 0, *header)

        def fill(memory: mmap.mmap) -> None:
            memory[:] = bytes(self._memory)

        fd, memory = make_file(directory, name, size, layout.LOCK_ALIVE, fill)
        self._use(memory)
        self._fd, self.path = fd, os.path.join(directory, name)

    def _use(self, memory: Any) -> None:
        self._memory = memory
        self._doubles = memoryview(memory).cast("d")
        self._tree.use(memoryview(memory)[self._tree_at() :])

    def _tree_at(self) -> int:
        return layout.HEADER_BYTES + self._slots * layout.SLOT_BYTES

    def _place(self, key: tuple[int, str]) -> int:
        """Returns a slot for a new place: a free one, otherwise that of the place that was seen least."""
        slot = len(self._places) + 1
        if slot < self._slots:
            self._write_slot(slot, key)
            self.set(layout.USED, slot + 1.0)
        else:
            least = min(self._places, key=lambda known: self._ticks(self._places[known]))
            slot = self._places.pop(least)
            first, others = self._first_count(slot), self._first_count(0)
            for state in range(len(layout.STATES)):
                self._doubles[others + state] += self._doubles[first + state]
                self._doubles[first + state] = 0.0
            self._write_slot(slot, key)
        self._places[key] = slot
        return slot

    def _ticks(self, slot: int) -> float:
        first = self._first_count(slot)
        return sum(self._doubles[first : first + len(layout.STATES)])

    def _write_slot(self, slot: int, key: tuple[int, str]) -> None:
        code, text = key
        at = layout.HEADER_BYTES + slot * layout.SLOT_BYTES
        data = text.encode("utf-8", "replace")[: layout.TEXT_BYTES].ljust(layout.TEXT_BYTES, b"\0")
        layout.SLOT.pack_into(self._memory, at, text_checksum(code, data), code)
        self._memory[at + layout.TEXT_AT : at + layout.SLOT_BYTES] = data

    def _first_count(self, slot: int) -> int:
        return layout.HEADER_BYTES // 8 + slot * _SLOT_DOUBLES + layout.COUNTS


class _StackTree:
    """The nodes of this process. The first one counts what found no node at all."""

    def __init__(self, nodes: int) -> None:
        self.nodes = nodes
        self.used = 0
        self._children: dict[tuple[int, str], int] = {}
        self._known: dict[tuple[int, str], int] = {}

    def use(self, memory: Any) -> None:
        """Counts in this memory from now on, which has what was counted so far."""
        self._memory = memory
        self._doubles = memory.cast("d")

    def count(self, code: int, stack: str, ticks: float) -> None:
        """Counts a sample; the code is 16 x phase + component (+ LONG, which makes no difference here)."""
        key = code % layout.LONG, stack
        node = self._known.get(key)
        if node is None:
            if len(self._known) >= _MOST_KNOWN:
                self._known.clear()
            node = self._known[key] = self._find(*key)
        self._doubles[_NODE_DOUBLES * node + _TICKS] += ticks

    def _find(self, code: int, stack: str) -> int:
        if not self.used:
            self._add(-1, "")
        node = -1 - code
        for text in stack.split(SEPARATOR):
            child = self._children.get((node, text))
            if child is None:
                if self.used >= self.nodes:
                    break
                child = self._children[node, text] = self._add(node, text)
            node = child
        return max(0, node)

    def _add(self, parent: int, text: str) -> int:
        node, at = self.used, self.used * layout.NODE_BYTES
        data = text.encode("utf-8", "replace")[: layout.NODE_TEXT_BYTES].ljust(layout.NODE_TEXT_BYTES, b"\0")
        layout.NODE.pack_into(self._memory, at, text_checksum(parent, data), parent, 0.0)
        self._memory[at + layout.NODE_TEXT_AT : at + layout.NODE_BYTES] = data
        self.used += 1
        return node
