"""The directory for what an exporter must know after a restart: its user's own, for one exporter at a time.

Rules believe the counts in it. So it is never a directory that other users can write to, like the ledger
directory: they could change the counts, or fill them with files that the exporter has to read.
"""

import errno
import logging
import os
import socket
import stat
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from stepscope.common.errors import UserError
from stepscope.common.shared_files import open_file, open_folder, try_lock
from stepscope.common.users import user_name

logger = logging.getLogger(__name__)

ROOT_STATE = Path("/var/lib")


@contextmanager
def state_directory(given: Path | None, port: int) -> Iterator[Path | None]:
    """Yields the directory `given`, otherwise the default, made if missing and locked for this exporter.

    Yields None, after a warning, if no directory can be used. Raises UserError if it was given and other
    users could write to it.
    """
    with ExitStack() as opened:
        used = None
        try:
            path = given or default_state_directory(port)
            if given is None and not os.environ.get("STATE_DIRECTORY"):
                os.close(open_own_directory(path.parent))
            _lock(path, opened)
            used = path
        except UserError as error:
            if given:
                raise UserError(f"--state-dir {error}") from None
            reason = str(error)
        except BlockingIOError:
            reason = f"{path}: another exporter uses the directory; give this exporter its own --state-dir"
        except OSError as error:
            reason = f"{path}: {error.strerror}; give this exporter another --state-dir"
        except RuntimeError:
            reason = f"user {user_name(os.geteuid())} has no home directory; give this exporter a --state-dir"
        if used is None:
            logger.warning("the sample counters will not survive a restart: %s", reason)
        yield used


def default_state_directory(port: int) -> Path:
    """Returns $STATE_DIRECTORY of systemd, otherwise a directory per node and port.

    That is in /var/lib/stepscope for root, otherwise in $XDG_STATE_HOME/stepscope or
    ~/.local/state/stepscope. The node is part of its name because nodes may share home directories, and the
    port because a user may run several exporters. Raises RuntimeError if the user has no home.
    """
    if set_by_systemd := os.environ.get("STATE_DIRECTORY"):
        # With DynamicUser= it is a symbolic link of systemd's.
        return Path(set_by_systemd.partition(":")[0]).resolve()
    configured = Path(os.environ.get("XDG_STATE_HOME", ""))
    if os.geteuid() == 0:
        base = ROOT_STATE
    elif configured.is_absolute():  # the XDG specification has relative paths ignored
        base = configured
    else:
        base = Path.home() / ".local" / "state"
    return base / "stepscope" / f"{socket.gethostname()}-{port}"


def _lock(path: Path, opened: ExitStack) -> None:
    """Locks the directory until `opened` is closed; the kernel unlocks it when the process dies."""
    directory = open_own_directory(path)
    opened.callback(os.close, directory)
    lock = open_file("exporter.lock", {os.geteuid()}, os.O_RDWR | os.O_CREAT, folder=directory)
    opened.callback(os.close, lock)
    if not try_lock(lock, 0):
        raise BlockingIOError


def open_own_directory(path: Path) -> int:
    """Returns a descriptor of a directory that only this user can write to. Makes it if missing.

    Raises UserError if it is something else, or another user's, and OSError if it cannot be made or opened.
    """
    try:
        path.mkdir(0o700, parents=True, exist_ok=True)
        directory = open_folder(path)
    except OSError as error:
        if error.errno not in (errno.ENOTDIR, errno.ELOOP, errno.EEXIST) or not os.path.lexists(path):
            raise
        kind = "is a symbolic link" if path.is_symlink() else "is not a directory"
        raise UserError(f"{path} {kind}: give the path of a directory") from None
    status = os.fstat(directory)
    problem = ""
    if status.st_uid != os.geteuid():
        problem = f"belongs to user {user_name(status.st_uid)}: choose a directory of your own"
    elif status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        problem = f"can be written by other users: run `chmod go-w {path}`, or choose another directory"
    if problem:
        os.close(directory)
        raise UserError(f"{path} {problem}")
    return directory
