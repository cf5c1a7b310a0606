"""Lets `stepscope run` end with the status of its command although the disk of the recording hangs."""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from threading import Event, Thread

from stepscope.commands.run.terminal import say
from stepscope.common.shared_files import create_file, remove

EVERY_SECONDS = 10.0
HANGS_AFTER = 300.0  # seconds without an answer; an NFS client waits for its server without an end
TO_SAY = 5.0  # seconds: what stderr goes to may hang, too
PROBE = ".probe"


@contextmanager
def despite_hung_disk(directory: Path) -> Iterator[Callable[[int], None]]:
    """Yields a function to call when the command has ended with a status, before the recording is completed.

    From then on, this process ends with the status if a small write to the directory hangs. No signal ends a
    call of the kernel that waits for NFS, but the end of the process does.
    """
    done = Event()

    def watch(status: int) -> None:
        with suppress(RuntimeError):  # the system has no thread left
            Thread(target=_watch, args=(directory, status, done), name="hung disk", daemon=True).start()

    try:
        yield watch
    finally:
        done.set()


def _watch(directory: Path, status: int, done: Event) -> None:
    while not done.wait(EVERY_SECONDS):
        if not _ends(partial(_write, directory / PROBE), HANGS_AFTER) and not done.is_set():
            words = f"the disk under {directory} hangs: the recording and its report are not complete"
            _ends(partial(say, words, "warning"), TO_SAY)
            os._exit(status)


def _write(path: Path) -> None:
    remove(path)
    with suppress(OSError):  # also of a full disk: it has answered
        file = create_file(path)
        remove(path)
        try:
            os.write(file, b".")
            os.fsync(file)
        finally:
            os.close(file)


def _ends(act: Callable[[], None], within: float) -> bool:
    """Returns whether an act ends in time."""
    thread = Thread(target=act, daemon=True)
    with suppress(RuntimeError):  # as above
        thread.start()
        thread.join(within)
        thread.join(min(within, 1.0))  # this process may have been stopped meanwhile, and the thread with it
    return not thread.is_alive()
