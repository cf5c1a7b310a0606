"""Copies a run from S3, Google Cloud Storage or a web server into a temporary folder, by fsspec.

Nothing is written at its place. What a server lists is not trusted: only names below the folder are copied,
up to a number of files, of folders in folders, and of bytes.
"""

import atexit
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from errno import EDQUOT, ENOSPC
from importlib import import_module
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import Lock
from typing import Any
from urllib.parse import unquote, urlsplit

from stepscope.common.errors import UserError, describe
from stepscope.common.words import number, size
from stepscope.runs.model import Progress
from stepscope.runs.prometheus.address import EXAMPLE, without_secrets

SCHEMES = ("s3", "gs", "http", "https")
MOST_FILES = 50_000
MOST_BYTES = 16 << 30
DEEPEST = 8  # folders in folders; Debugger's output has 4
LONGEST_NAME = 255  # bytes, of Linux's file systems
AT_ONCE = 8  # files
CHUNK = 1 << 20
ROOM = "set TMPDIR to a folder with room"
# What changes with a file's content: each service has its own names.
CHANGES = ("size", "ETag", "etag", "LastModified", "updated", "mtime", "Last-Modified")

_Version = tuple[str, ...]


@dataclass(frozen=True)
class _Listed:
    """A file as its service lists it."""

    place: str  # as the service names it
    size: int  # bytes; 0: not known
    version: _Version  # changes with its content

    @classmethod
    def of(cls, info: Mapping[str, Any]) -> "_Listed":
        """Returns what fsspec knows of a file."""
        version = tuple(str(info.get(change)) for change in CHANGES)
        return cls(info["name"], max(info.get("size") or 0, 0), version)


def is_remote(place: str) -> bool:
    """Returns whether it is an address of a service that runs are copied from."""
    return place.partition("://")[0] in SCHEMES


def local_copy(address: str, progress: Progress | None = None, again: bool = False) -> Path:
    """Returns a copy of the file or folder at the address, which exists until this process ends.

    A second call returns the same copy. `again` copies what is new or has changed since. `progress` gets the
    bytes copied and to copy. Raises UserError.
    """
    copy = _copies.setdefault(address, _Copy(address))
    if again or copy.path is None:
        copy.renew(progress or (lambda _done, _total: None))
    assert copy.path is not None
    return copy.path


@dataclass
class _Copy:
    """The copy of one address."""

    address: str
    path: Path | None = None  # None: not copied yet
    _folder: TemporaryDirectory[str] | None = None
    _copied: dict[str, _Version] = field(default_factory=dict)  # by name below the folder

    def renew(self, progress: Progress) -> None:
        """Makes the local files those at the address. Raises UserError."""
        shown = without_secrets(self.address)
        try:
            system, root = import_module("fsspec.core").url_to_fs(self.address)
            try:
                self._bring(system, root, progress)
            except FileNotFoundError:  # a journal has become a part since it was listed
                self._bring(system, root, progress)
        except UserError as error:
            raise UserError(f"{shown}: {error}") from error
        except ImportError:
            raise UserError(
                f"{shown}: needs packages that are not installed: pip install 'stepscope[remote]'"
            ) from None
        except FileNotFoundError:
            hint = f", or give {EXAMPLE}" if _is_web(self.address) else ""
            raise UserError(f"{shown}: does not exist, or does not answer; check the address{hint}") from None
        except Exception as error:  # noqa: BLE001 - each service's library has its own kinds
            if isinstance(error, OSError) and error.errno in (EDQUOT, ENOSPC):
                raise UserError(f"{shown}: cannot be copied: {error.strerror}; {ROOM}") from None
            reason = describe(error).replace(self.address, shown)
            raise UserError(f"{shown}: cannot be read: {reason}; check your credentials") from None

    def _bring(self, system: Any, root: str, progress: Progress) -> None:
        system.invalidate_cache()
        listed = _listed(system, root)
        if self._folder is None:
            try:
                self._folder = TemporaryDirectory(prefix="stepscope-")
            except OSError as error:
                raise UserError(f"cannot be copied: {error.strerror}; {ROOM}") from error
            atexit.register(self._folder.cleanup)
        folder = Path(self._folder.name)
        for name in self._copied.keys() - listed.keys():
            (folder / name).unlink(missing_ok=True)
            del self._copied[name]
        wanted = {name: file for name, file in listed.items() if self._copied.get(name) != file.version}
        counter = _Counter(sum(file.size for file in wanted.values()), progress)
        with ThreadPoolExecutor(AT_ONCE) as pool:
            for _ in pool.map(lambda name: _download(system, wanted[name], folder / name, counter), wanted):
                pass
        self._copied |= {name: file.version for name, file in wanted.items()}
        self.path = folder / next(iter(listed)).partition("/")[0]


class _Counter:
    """The bytes that all threads have copied. Raises UserError above the limit."""

    def __init__(self, total: int, progress: Progress) -> None:
        self._total = total  # 0: not known
        self._progress = progress
        self._done = 0
        self._lock = Lock()
        self.add(0)

    def add(self, count: int) -> None:
        with self._lock:
            self._done += count
            if max(self._done, self._total) > MOST_BYTES:
                raise UserError(f"is larger than {size(MOST_BYTES)}; give the folder of one run")
            self._progress(self._done, max(self._done, self._total))


def _download(system: Any, file: _Listed, target: Path, counter: _Counter) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    options = {"block_size": 0, "size": file.size or None} if _is_web(file.place) else {}  # as a stream
    with system.open(file.place, "rb", **options) as source, target.open("wb") as copy:
        while part := source.read(CHUNK):
            counter.add(len(part))
            copy.write(part)


def _listed(system: Any, root: str) -> dict[str, _Listed]:
    """Returns the files of a folder, or the file, by their names in the copy, which begin with its own."""
    info = system.info(root)
    path = unquote(urlsplit(root).path) if _is_web(root) else root
    own = path.rstrip("/").rpartition("/")[2] or "run"
    is_folder = info["type"] == "directory" or root.endswith("/") or info.get("mimetype") == "text/html"
    if not is_folder:
        return {_safe(own): _Listed.of(info)}
    found = list(_walked(system, root))
    if _is_web(root):  # whose lists have names only
        with ThreadPoolExecutor(AT_ONCE) as pool:
            found = list(pool.map(system.info, [each["name"] for each in found]))
    if not found:
        hint = "; a web server must list its folders" if _is_web(root) else ""
        raise UserError(f"has no file{hint}")
    names = [own + each["name"].removeprefix(root.rstrip("/")) for each in found]
    names = [unquote(name) for name in names] if _is_web(root) else names
    return {_safe(name): _Listed.of(each) for name, each in zip(names, found, strict=True)}


def _walked(system: Any, root: str) -> Iterator[dict[str, Any]]:
    """Yields what is known of each file of a folder, of folders in it, and so on."""
    folders, seen = [(root, 0)], 0
    while folders:
        folder, depth = folders.pop()
        for info in system.ls(folder, detail=True):
            name = info["name"]
            seen += 1
            if seen > MOST_FILES or depth > DEEPEST:
                raise UserError(
                    f"has more than {number(MOST_FILES)} files, or {DEEPEST} folders in folders; "
                    "give the folder of one run"
                )
            if name.rstrip("/") == folder.rstrip("/") or (_is_web(root) and "?" in name):
                continue  # the folder itself, or its list in another order
            if not name.startswith(f"{root.rstrip('/')}/"):
                raise UserError(f"lists {without_secrets(name)!r}, which is not in it")
            if info["type"] == "directory":
                folders.append((name, depth + 1))
            else:
                yield info


def _safe(name: str) -> str:
    """Returns the path of a file below the copy's folder. Raises UserError if it leads elsewhere."""
    for part in name.split("/"):
        if part in ("", ".", "..") or "\0" in part or len(part.encode()) > LONGEST_NAME:
            raise UserError(f"lists {name!r}, which is no name of a file")
    return name


def _is_web(place: str) -> bool:
    return place.startswith(("http://", "https://"))


_copies: dict[str, _Copy] = {}
