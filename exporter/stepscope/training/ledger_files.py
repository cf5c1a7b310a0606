"""The directory of ledger files, for the training process and the exporter.

A lock on a byte of a file shows that its process is alive: the kernel releases it even after `kill -9`. It
belongs to the process and not to the descriptor: a forked child does not inherit it, and a process that
closes any descriptor of a file loses all of its locks on it.
"""

from __future__ import annotations

import os

from stepscope.common.shared_files import AboveStandardStreams, create_locked, open_folder

TYPE_CHECKING = False
if TYPE_CHECKING:
    import mmap
    from collections.abc import Callable, Mapping

SHARED_MEMORY = "/dev/shm"


def ledger_directory(environment: Mapping[str, str] = os.environ) -> str:
    """Returns STEPSCOPE_LEDGER_DIR, otherwise `stepscope` in /dev/shm or in the temporary directory."""
    configured = environment.get("STEPSCOPE_LEDGER_DIR")
    if configured:
        return configured
    shared = os.path.join(SHARED_MEMORY, "stepscope")
    # A reader may see the directory where nothing can be written.
    if os.path.isdir(shared) or os.access(SHARED_MEMORY, os.W_OK | os.X_OK):
        return shared
    return os.path.join(environment.get("TMPDIR") or "/tmp", "stepscope")


def open_directory(path: str) -> int:
    """Returns a descriptor of the ledger directory. Makes it if missing: shared by all users, like /tmp.

    Also shares the default directory if this user owns it: a container engine may have made it, or a process
    that was killed before it could share it. Follows a symbolic link only if STEPSCOPE_LEDGER_DIR names it.
    Raises OSError.
    """
    try:
        os.mkdir(path, 0o700)
        made = True
    except FileExistsError:
        made = False
    fd = open_folder(path, follow=bool(os.environ.get("STEPSCOPE_LEDGER_DIR")))
    status = os.fstat(fd)
    own = status.st_uid == os.geteuid()
    if made or (own and status.st_mode & 0o7777 != 0o1777 and path == ledger_directory({})):
        try:  # noqa: SIM105 - contextlib takes longer to import than all of this package
            os.fchmod(fd, 0o1777)  # mkdir's mode is subject to the umask
        except OSError:  # of a read-only mount
            pass
    return fd


def hidden_name(name: str) -> str:
    """Returns what a file is called until it is complete; the exporter removes what a killed process left."""
    return f".{os.path.splitext(name)[0]}.new"


def make_file(
    directory: str, name: str, size: int, lock: int, fill: Callable[[mmap.mmap], None]
) -> tuple[int, mmap.mmap]:
    """Makes a file of the ledger directory: see `shared_files.create_locked`. Raises OSError."""
    folder = open_directory(directory)
    try:
        with AboveStandardStreams():
            return create_locked(folder, name, hidden_name(name), size, lock, fill)
    finally:
        os.close(folder)
