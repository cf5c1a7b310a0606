"""Where ledgers lie: the same answer for the training process and for the exporter."""

from __future__ import annotations

import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

SHARED_MEMORY = "/dev/shm"


def ledger_directory(environment: Mapping[str, str] = os.environ) -> str:
    """TRAINWATCH_LEDGER_DIR, else `trainwatch` in /dev/shm, else `trainwatch` in the temporary folder."""
    configured = environment.get("TRAINWATCH_LEDGER_DIR")
    if configured:
        return configured
    if os.path.isdir(SHARED_MEMORY) and os.access(SHARED_MEMORY, os.W_OK | os.X_OK):
        return os.path.join(SHARED_MEMORY, "trainwatch")
    return os.path.join(environment.get("TMPDIR") or "/tmp", "trainwatch")


def open_directory(path: str) -> int:
    """A descriptor of the ledger directory, which is made if missing: shared by all users, like /tmp.

    A symbolic link in its place is followed only where the user named the directory. Raises OSError.
    """
    try:
        os.mkdir(path)
    except FileExistsError:
        pass
    else:
        os.chmod(path, 0o1777)  # mkdir's mode is subject to the umask
    link = 0 if os.environ.get("TRAINWATCH_LEDGER_DIR") else os.O_NOFOLLOW
    return os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC | link)
