"""Reads pickles of plain values without `pickle`, which executes what a pickle says.

PyTorch writes dumps as pickles of dicts, lists, tuples, texts, numbers, booleans and None. Only operations
that build these are known here; a pickle that imports, calls or builds anything else is refused.
"""

import pickle
from collections.abc import Callable
from struct import unpack_from
from typing import Any

MOST_OPERATIONS = 8_000_000  # 20,000 collectives have 4 million; each makes at most a few hundred bytes


class PickleError(ValueError):
    """Says why a pickle is not read."""


def loads(data: bytes) -> Any:
    """Returns the value. Raises PickleError if it is damaged, too large, or holds more than plain values."""
    reader = _Reader(data)
    try:
        for _ in range(MOST_OPERATIONS):
            code = data[reader.at : reader.at + 1]
            reader.at += 1
            if code == pickle.STOP:
                return reader.stack.pop()
            _OPERATIONS[code](reader)
    except KeyError as error:
        raise PickleError(f"holds something else than plain values (operation {code!r})") from error
    except (IndexError, ValueError, TypeError, AttributeError) as error:
        raise PickleError(f"is damaged at byte {reader.at}: {error}") from error
    raise PickleError(f"has more than {MOST_OPERATIONS:,} values")


class _Reader:
    def __init__(self, data: bytes) -> None:
        self.data, self.at = data, 0
        self.stack: list[Any] = []
        self.marks: list[int] = []
        self.memo: dict[int, Any] = {}

    def number(self, form: str, size: int) -> Any:
        """Returns the next number of `size` bytes."""
        self.at += size
        if self.at > len(self.data):
            raise ValueError("it ends in the middle of a value")
        return unpack_from(form, self.data, self.at - size)[0]

    def text(self, size: int) -> bytes:
        self.at += size
        if self.at > len(self.data):
            raise ValueError("it ends in the middle of a value")
        return self.data[self.at - size : self.at]

    def push(self, value: Any) -> None:
        self.stack.append(value)

    def since_mark(self) -> list[Any]:
        """Removes the values since the last mark, and returns them."""
        mark = self.marks.pop()
        values = self.stack[mark:]
        del self.stack[mark:]
        return values

    def tuple_of(self, count: int) -> None:
        if len(self.stack) < count:
            raise ValueError("a tuple lacks values")
        self.stack[-count:] = [tuple(self.stack[-count:])]

    def recall(self, index: int) -> None:
        if index not in self.memo:
            raise ValueError(f"nothing was stored as {index}")
        self.stack.append(self.memo[index])

    def append(self, values: list[Any]) -> None:
        target = self.stack[-1]
        if not isinstance(target, list):
            raise TypeError("no list to append to")
        target.extend(values)

    def set_items(self, values: list[Any]) -> None:
        target = self.stack[-1]
        if not isinstance(target, dict) or len(values) % 2:
            raise TypeError("no dict to set items of")
        for key, value in zip(values[::2], values[1::2], strict=True):
            if not isinstance(key, str | int):  # hashing a deep tuple would end the process
                raise TypeError(f"a key is a {type(key).__name__}")
            target[key] = value


def _pop(reader: _Reader, count: int) -> list[Any]:
    values = reader.stack[-count:]
    del reader.stack[-count:]
    return values


_UNSIGNED = {1: "<B", 2: "<H", 4: "<I", 8: "<Q"}


def _unsigned(size: int, use: Callable[[_Reader, Any], object]) -> Callable[[_Reader], object]:
    return lambda reader: use(reader, reader.number(_UNSIGNED[size], size))


def _store(reader: _Reader, index: int) -> None:
    reader.memo[index] = reader.stack[-1]


def _push_text(reader: _Reader, size: int) -> None:
    reader.push(reader.text(size).decode("utf-8", "replace"))


_OPERATIONS: dict[bytes, Callable[[_Reader], object]] = {
    pickle.PROTO: lambda reader: reader.number("<B", 1),
    pickle.FRAME: lambda reader: reader.number("<Q", 8),
    pickle.MARK: lambda reader: reader.marks.append(len(reader.stack)),
    pickle.NONE: lambda reader: reader.push(None),
    pickle.NEWTRUE: lambda reader: reader.push(True),
    pickle.NEWFALSE: lambda reader: reader.push(False),
    pickle.BININT: lambda reader: reader.push(reader.number("<i", 4)),
    pickle.BININT1: _unsigned(1, _Reader.push),
    pickle.BININT2: _unsigned(2, _Reader.push),
    pickle.LONG1: _unsigned(
        1, lambda reader, size: reader.push(int.from_bytes(reader.text(size), "little", signed=True))
    ),
    pickle.BINFLOAT: lambda reader: reader.push(reader.number(">d", 8)),
    pickle.SHORT_BINUNICODE: _unsigned(1, _push_text),
    pickle.BINUNICODE: _unsigned(4, _push_text),
    pickle.EMPTY_DICT: lambda reader: reader.push({}),
    pickle.EMPTY_LIST: lambda reader: reader.push([]),
    pickle.EMPTY_TUPLE: lambda reader: reader.push(()),
    pickle.TUPLE: lambda reader: reader.push(tuple(reader.since_mark())),
    pickle.TUPLE1: lambda reader: reader.tuple_of(1),
    pickle.TUPLE2: lambda reader: reader.tuple_of(2),
    pickle.TUPLE3: lambda reader: reader.tuple_of(3),
    pickle.APPEND: lambda reader: reader.append(_pop(reader, 1)),
    pickle.APPENDS: lambda reader: reader.append(reader.since_mark()),
    pickle.SETITEM: lambda reader: reader.set_items(_pop(reader, 2)),
    pickle.SETITEMS: lambda reader: reader.set_items(reader.since_mark()),
    pickle.BINPUT: _unsigned(1, _store),
    pickle.LONG_BINPUT: _unsigned(4, _store),
    pickle.MEMOIZE: lambda reader: _store(reader, len(reader.memo)),
    pickle.BINGET: _unsigned(1, _Reader.recall),
    pickle.LONG_BINGET: _unsigned(4, _Reader.recall),
}
