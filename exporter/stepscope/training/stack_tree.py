"""Counts whole stacks as a tree in the memory of a file of line samples: line_layout.py describes its nodes.

Stacks that begin alike share their nodes. When all nodes are used, a new stack counts for the part of it that
is known, so the deepest calls are lost first.
"""

from __future__ import annotations

from binascii import crc32

from stepscope.training import line_layout as layout

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

SEPARATOR = "\n"  # between the functions of a stack, outermost first
MOST_KNOWN = 2_000  # stacks whose node is remembered
_NODE_DOUBLES = layout.NODE_BYTES // 8
_TICKS = 2  # the double of a node


class StackTree:
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
            if len(self._known) >= MOST_KNOWN:
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


def text_checksum(number: int, text: bytes) -> int:
    """Returns the checksum of a slot or a node, for writer and reader."""
    return crc32(text, number & 0xFFFF)
