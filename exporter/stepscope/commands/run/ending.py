"""The end of `stepscope run`: completes the recording."""

import os
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from dataclasses import replace
from math import isnan, nan
from pathlib import Path
from signal import SIGKILL
from stat import S_ISREG

from stepscope.commands.run.terminal import say
from stepscope.common.signals import name_of
from stepscope.exporter.ledgers.presence import FINISHED, OUT_OF_MEMORY
from stepscope.exporter.ledgers.reader import LedgerError, LedgerReader, open_ledgers
from stepscope.exporter.processes.cgroup import Hierarchies, oom_kills
from stepscope.runs.recording.files import RunFile
from stepscope.runs.recording.lines import continued
from stepscope.runs.recording.writer import RecordingWriter, folder_of

PROCFS, CGROUPS = Path("/proc"), Path("/sys/fs/cgroup")
MOST_FILES, MOST_BYTES = 50, 4 << 20  # files that are read, and bytes of one
MOST_CHARACTERS = 100  # of a line


def finish_recording(
    directory: Path,
    node: str,
    run: RunFile,
    ledgers: Path,
    why_no_steps: Callable[[], str],
    command: Sequence[str],
) -> None:
    """Completes the recording after the exporter has ended, normally or not.

    Journals become parts. Steps that the exporter has not read are read from the ledgers, and the text of
    lines from the files of the command. Raises OSError or UserError, or RuntimeError without a thread for it.
    """
    run.write(directory)
    writer = RecordingWriter(directory, node, run.interval, run.run)
    try:
        steps = _record_ledgers(writer, ledgers)
        _record_lines(writer, ledgers, folder_of(directory, node), run, command)
    finally:
        writer.close()
    if not steps:
        replace(run, no_steps=why_no_steps()).write(directory)


def _record_ledgers(writer: RecordingWriter, ledgers: Path) -> int:
    """Records what the exporter has not read. Returns the number of all steps of the run."""
    with ExitStack() as opened:
        ranks = []
        for path in open_ledgers(ledgers):
            try:
                reader = opened.enter_context(LedgerReader(path))
                steps, _ = reader.new_steps()
                totals = reader.totals()
            except (LedgerError, OSError) as error:
                say(f"a ledger could not be read to its end: {error}", "warning")
                continue
            writer.steps(reader.header, steps)
            ranks.append((reader.header, totals, reader.alive()))
        writer.ranks(ranks)
        return sum(totals.steps_recorded for _, totals, _ in ranks)


def _record_lines(
    writer: RecordingWriter, ledgers: Path, folder: Path, run: RunFile, command: Sequence[str]
) -> None:
    lines = continued(ledgers, folder)
    lines.read_all({(run.run, os.geteuid())})
    if counts := lines.counts():
        places = [line.place for of_thread in counts.values() for line in of_thread.lines if line.place]
        sources = source_lines(places, command, run.start) if run.start is not None else {}
        writer.lines(counts, lines.retired, set(lines.removed), lines.remove, sources)


def source_lines(places: Iterable[str], command: Sequence[str], began: float) -> dict[str, str]:
    """Returns the text of each place (`file:line`) whose file is as it was when the run began, epoch seconds.

    Files are those below the working directory, and scripts that the command names.
    """
    named = {os.sep.join(path.parts[-2:]): path for word in command if (path := Path(word)).suffix == ".py"}
    files: dict[str, list[str]] = {}
    found = {}
    for place in places:
        name, _, number = place.rpartition(":")
        if name not in files:
            if len(files) >= MOST_FILES:
                continue
            files[name] = _read(named.get(name, Path(name)), began)
        line = int(number) if number.isdecimal() else 0
        if 0 < line <= len(files[name]):
            text = "".join(c if c.isprintable() else " " for c in files[name][line - 1])
            if text := " ".join(text.split()):
                found[place] = text if len(text) <= MOST_CHARACTERS else f"{text[: MOST_CHARACTERS - 1]}…"
    return found


def _read(path: Path, began: float) -> list[str]:
    """Returns the lines of a file; [] if it has changed since, or cannot be read."""
    try:
        if not path.is_absolute() and ".." in path.parts:
            return []
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        with open(fd, "rb") as file:
            status = os.fstat(fd)
            if not S_ISREG(status.st_mode) or status.st_mtime > began or status.st_size > MOST_BYTES:
                return []
            return file.read(MOST_BYTES).decode("utf-8", "replace").splitlines()
    except (OSError, ValueError):
        return []


class OutOfMemory:
    """Compares the kernel's kills in the cgroup of this process, which the command shares.

    A process in the root cgroup has no such count: then that of the whole node counts, if a SIGKILL ended the
    command.
    """

    def __init__(self, procfs: Path = PROCFS, cgroups: Path = CGROUPS) -> None:
        self._procfs, self._cgroups = procfs, cgroups
        self._before = self._kills(), self._kills_of_node()

    def happened(self, ended_by: int | None = None) -> bool:
        """Returns whether the kernel killed a process because memory ran out; False if that is unknown."""
        before, before_on_node = self._before
        if isnan(before) and ended_by == SIGKILL:
            return self._kills_of_node() > before_on_node
        return self._kills() > before

    def _kills(self) -> float:
        try:
            return oom_kills(Hierarchies(self._procfs, self._cgroups).of(os.getpid()).memory)
        except (OSError, ValueError):
            return nan

    def _kills_of_node(self) -> float:
        try:
            text = (self._procfs / "vmstat").read_text()
            return next(float(line.split()[1]) for line in text.splitlines() if line.startswith("oom_kill "))
        except (OSError, ValueError, StopIteration):
            return nan


def reason(status: int, ended_by: int | None, out_of_memory: bool) -> str:
    """Returns the reason in the words of `stepscope_run_ended_info`.

    A command that was asked to stop may end with any status. A launcher may end with any error if one of its
    ranks ran out of memory.
    """
    if status == 0:
        return FINISHED
    if ended_by is not None and not (out_of_memory and ended_by == SIGKILL):
        return f"signal {name_of(ended_by)}"
    return OUT_OF_MEMORY if out_of_memory else f"exit status {status}"
