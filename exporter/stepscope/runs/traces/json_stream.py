"""Reads a trace's JSON piece by piece: a trace of gigabytes never is in memory as a whole.

A document is an object with a list `traceEvents`, among other values, or only that list (Chrome's two forms).
The standard library's decoder parses each event; only the text around them is scanned here.
"""

import gzip
import json
import os
import re
import zlib
from collections.abc import Callable, Iterator
from contextlib import suppress
from encodings.utf_8_sig import IncrementalDecoder  # now: a reader with fewer rights may not import it
from io import BufferedReader
from pathlib import Path
from typing import Any, NoReturn

from stepscope.common.errors import UserError
from stepscope.common.words import uncapitalised

PIECE = 1 << 18  # bytes read at a time
LONGEST = 1 << 26  # characters of one value; a longer one counts as damaged
LONGEST_BEFORE = 1 << 22  # the same before the events: other documents are not read to their end
ENDING = 256  # bytes that show whether a document is complete
EVENTS = "traceEvents"
COMPRESSED = b"\x1f\x8b"  # the first bytes of gzip
_SPACE = re.compile(r"[ \t\r\n]*")
_NEXT_EVENT = re.compile(r"[ \t\r\n]*,[ \t\r\n]*(?=\{)")


def beginning(path: Path, most: int) -> bytes:
    """Returns at most the first `most` bytes of a file; none if it cannot be read."""
    try:
        with path.open("rb") as file:
            return file.read(most)
    except OSError:
        return b""


class JsonTrace:
    """One file. `rows` yields its events; `about` has all other values of the document after that.

    Calls `progress` with the bytes of the file that were read since the last call. Raises UserError if the
    file cannot be read or is not such a document.
    """

    def __init__(self, path: Path, progress: Callable[[int], None] | None = None) -> None:
        self.path = path
        self.about: dict[str, Any] = {}
        self.has_events = False
        self.has_more = False  # after the document's end
        self._progress = progress
        self._decode = json.JSONDecoder(strict=False).raw_decode
        self._pieces: Iterator[str] = iter(())
        self._text, self._at, self._ended = "", 0, False
        self._lines = 0  # in the text that was dropped

    @property
    def is_cut_off(self) -> bool:
        """Returns whether the end of a document is missing, without reading it; False if it is compressed."""
        with suppress(OSError), self.path.open("rb") as file:
            if file.peek(2)[:2] != COMPRESSED:
                file.seek(max(file.seek(0, os.SEEK_END) - ENDING, 0))
                return file.read().rstrip()[-1:] not in (b"]", b"}")
        return False

    def rows(self) -> Iterator[Any]:
        """Yields the events in the order of the file, and then knows whether there `has_more`."""
        try:
            with self.path.open("rb") as file:
                self._pieces = self._read(file)
                first = self._peek()
                if first == "[":
                    yield from self._events()
                else:
                    yield from self._members(first)
                self.has_more = bool(self._next())
        except json.JSONDecodeError as error:
            line = self._lines + error.lineno
            ends = self.is_cut_off or error.pos >= len(error.doc.rstrip())
            why = "the trace is cut off" if ends else uncapitalised(error.msg)
            raise UserError(f"{self.path}, line {line}: not JSON; {why}, export it again") from error
        except (OSError, EOFError, RecursionError, zlib.error) as error:
            raise UserError(f"{self.path}: cannot be read ({error}); export the trace again") from error

    def _read(self, file: BufferedReader) -> Iterator[str]:
        decode = IncrementalDecoder("replace").decode
        compressed = file.peek(2)[:2] == COMPRESSED
        source = gzip.GzipFile(fileobj=file) if compressed else file
        before = 0
        while piece := source.read(PIECE):
            if self._progress is not None:
                self._progress(file.tell() - before)
                before = file.tell()
            yield decode(piece)
        yield decode(b"", True)

    def _members(self, first: str) -> Iterator[Any]:
        if first != "{":
            self._fail("an object or a list")
        self._at += 1
        while self._peek() != "}":
            name = self._value()
            if self._peek() != ":":
                self._fail("a colon")
            self._at += 1
            if name == EVENTS and self._peek() == "[":
                yield from self._events()
            else:
                self.about[str(name)] = self._value()
            self._comma("}")
        self._at += 1

    def _events(self) -> Iterator[Any]:
        self.has_events = True
        self._at += 1
        while self._peek() != "]":
            yield self._value()
            while found := _NEXT_EVENT.match(self._text, self._at):  # faster, if all of it is in the text
                try:
                    value, self._at = self._decode(self._text, found.end())
                except json.JSONDecodeError:
                    break
                yield value
            self._comma("]")
        self._at += 1

    def _comma(self, end: str) -> None:
        found = self._peek()
        if found == ",":
            self._at += 1
        elif found != end:
            self._fail("a comma")

    def _peek(self) -> str:
        """Returns the next character that is no space."""
        return self._next() or self._fail("more")

    def _next(self) -> str:
        """Returns the next character that is no space; "" at the end."""
        while True:
            match = _SPACE.match(self._text, self._at)
            assert match is not None
            self._at = match.end()
            if self._at < len(self._text):
                return self._text[self._at]
            if not self._more():
                return ""

    def _value(self) -> Any:
        self._peek()
        while True:
            try:
                value, end = self._decode(self._text, self._at)
            except json.JSONDecodeError:
                length = len(self._text) - self._at
                if length > LONGEST_BEFORE and not self.has_events:
                    raise UserError(f"{self.path} is no trace: it begins with other data") from None
                if length > LONGEST or not self._more():
                    raise
                continue
            # A number may continue in the next piece, also after "." or "e-".
            if end + 2 < len(self._text) or not self._more():
                self._at = end
                return value

    def _more(self) -> bool:
        """Appends as much text as there is, at least a piece, and drops what was read; False at the end."""
        rest, pieces, added = self._text[self._at :], [], 0
        while added <= len(rest) and (piece := next(self._pieces, "")):
            pieces.append(piece)
            added += len(piece)
        if added:
            self._lines += self._text.count("\n", 0, self._at)
            self._text, self._at = "".join((rest, *pieces)), 0
        return added > 0

    def _fail(self, expected: str) -> NoReturn:
        raise json.JSONDecodeError(f"expected {expected}", self._text, self._at)
