"""Finds the run, rank and role of a process that samples its lines, and the directory of its file."""

from __future__ import annotations

import os
import sys

from stepscope.common.shared_files import entries, lock_holder, open_file
from stepscope.training import layout
from stepscope.training.launch import read_launch
from stepscope.training.ledger_files import ledger_directory
from stepscope.training.ranks import read_ranks

TYPE_CHECKING = False
if TYPE_CHECKING:
    from stepscope.training.ledger import Ledger

WORKER_OF = "STEPSCOPE_WORKER_OF"  # as in session.py


class Identity:
    """The label of the run ("": not known yet), the rank (-1: none) and a place in line_layout.ROLES."""

    __slots__ = ("directory", "rank", "role", "run")

    def __init__(self, ledger: Ledger | None) -> None:
        """Asks the ledger of this process, otherwise that of the process that it works for."""
        path = os.environ.get(WORKER_OF) or _ledger_of_parent() if ledger is None else ledger.path
        # This process would lose the lock on its own ledger by opening and closing it.
        header = bytes(ledger.memory[: layout.HEADER_BYTES]) if ledger is not None else _header(path)
        if header:
            self.rank = int(layout.HEADER.unpack_from(header)[4])
            label = header[layout.RUN_AT : layout.RUN_AT + layout.RUN_BYTES]
            self.run = label.partition(b"\0")[0].decode("utf-8", "replace")
            worker = sys.modules.get("torch.utils.data._utils.worker")
            is_worker = getattr(worker, "_worker_info", None) is not None
            self.role = 1 if ledger is not None else 2 if is_worker else 3
        else:
            ranks = read_ranks(os.environ)
            launch = read_launch(os.environ, ranks)
            self.rank = -1 if ranks.variable is None else ranks.rank
            self.run = launch.run if launch.unique else ""
            self.role = 0
        self.directory = os.path.dirname(path) if header else ledger_directory()


def _ledger_of_parent() -> str:
    """Returns the ledger that the process which started this one has made since, and holds; "": none."""
    folder, parent = ledger_directory(), os.getppid()
    try:
        names = [each.name for each in entries(folder)] if parent != 1 else []
    except OSError:  # there is none yet
        return ""
    for name in names:
        path = os.path.join(folder, name)
        # As in RUN.RANK.PID.KEY.ledger. A dead process may have had the same pid.
        if f".{parent}." in name and name.endswith(layout.SUFFIX) and _holder(path) == parent:
            return path
    return ""


def _holder(path: str) -> int | None:
    """Returns the process that writes a ledger; None if it is dead."""
    try:
        with os.fdopen(open_file(path), "rb") as file:
            return lock_holder(file.fileno(), layout.LOCK_ALIVE)
    except OSError:
        return None


def _header(path: str) -> bytes:
    if not path or f".{os.getpid()}." in os.path.basename(path):
        return b""
    try:
        with os.fdopen(open_file(path), "rb") as file:
            header = file.read(layout.HEADER_BYTES)
    except OSError:
        return b""
    return header if len(header) == layout.HEADER_BYTES and header.startswith(layout.MAGIC) else b""
