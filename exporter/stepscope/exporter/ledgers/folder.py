"""The ledger directory as the exporter reads it: what it refuses, what a limit leaves out, what it removes.

Every user may write to the directory. So a file costs itself only: it is opened once, and again only when it
changed. A look takes a bounded time, however many files there are; the rest waits for the next look. Live
ledgers go before dead ones, and no user's ledgers crowd out another's.
"""

import logging
import os
import re
import resource
import stat
from argparse import ArgumentParser, _ArgumentGroup
from collections import Counter, deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from errno import ELOOP, ENOTDIR
from math import inf
from pathlib import Path
from time import monotonic, time
from typing import TypeVar

from stepscope.common.errors import UserError, describe
from stepscope.common.shared_files import entries, open_folder, remove
from stepscope.common.users import user_name
from stepscope.exporter.ledgers.note import LedgerNote
from stepscope.exporter.ledgers.reader import LedgerReader
from stepscope.exporter.ledgers.run_totals import Ledger, Run, RunKey
from stepscope.exporter.sampling.limits import Limits
from stepscope.training.layout import SUFFIX
from stepscope.training.ledger_checks import REASONS, LedgerError
from stepscope.training.ledger_files import ledger_directory
from stepscope.training.stack_request import REQUEST_SUFFIX as STACK_REQUEST_SUFFIX
from stepscope.training.stack_request import SUFFIX as STACK_SUFFIX

logger = logging.getLogger(__name__)

LOOK_SECONDS = 0.25  # for new and dead ledgers per look, and for removing files
DEAD_SECONDS = 0.05  # of a look, for dead ones: the collector then reads each of them, which takes longer
RESCAN_SECONDS = 10.0  # between two looks at a directory that did not change
LOGGED = 20  # refused files that the log names; afterwards only the counter does
REFUSALS = 8  # of a user whose reasons are kept
TRIED_AGAIN = 20  # ledgers per user that a limit leaves out, per RESCAN_SECONDS
PATIENCE_SECONDS = 10.0  # for a ledger that cannot be read for a reason that may pass, such as EMFILE
UNFINISHED_SECONDS = 60.0  # to make a ledger, which takes a millisecond
UNNAMED_SECONDS = 300.0  # to wait for a run's label, which some runs know only at their first step
_UNFINISHED = re.compile(r"\..+\.\d+\.\d+\.[0-9a-f]{8}\.new")  # as the training process names it until then

T = TypeVar("T")


@dataclass(slots=True)
class _File:
    """A file of the directory with a ledger's name."""

    inode: int
    state: str = "new"  # dead, read, left out, refused, spoilt (while it was read), counted (to the end)
    owner: int = 0  # of a new file
    changed: tuple[int, int] | None = None  # size and last change of a refused file
    key: RunKey | None = None  # of a file that is left out
    limit: str = ""  # that leaves it out; "": its run is not known yet
    expires: float = inf  # when a dead ledger that is left out is removed
    unnamed_since: float = inf  # when it was first seen without a label that stays


class _Turns:
    """Files that wait, of each user in turn: those of one user delay nobody else's."""

    def __init__(self) -> None:
        self._names: dict[int, deque[str]] = {}

    def __bool__(self) -> bool:
        return bool(self._names)

    def add(self, name: str, file: _File) -> None:
        owner = file.key.owner if file.key else file.owner
        self._names.setdefault(owner, deque()).append(name)

    def next(self) -> str:
        """Returns the next file; that of another user, if there is one, comes after it."""
        owner = next(iter(self._names))
        names = self._names.pop(owner)
        name = names.popleft()
        if names:
            self._names[owner] = names
        return name


class LedgerFolder:
    """The ledgers in a directory, and their runs.

    `ledgers` are read at each tick. `refused` counts files by reason, and `refusals` has those whose rank is
    known. `labels` has the label `run` of each run; it ends in `@USER` if another user's run had it before.
    """

    def __init__(
        self,
        path: Path,
        retention: float,
        open_ledger: Callable[[Path], LedgerReader] = LedgerReader,
    ) -> None:
        self.path = path
        self.ledgers: list[Ledger] = []
        self.runs: dict[RunKey, Run] = {}
        self.labels: dict[RunKey, str] = {}
        self.refused = Counter(dict.fromkeys(REASONS, 0))
        self.refusals: dict[tuple[int, str, int], str] = {}  # by owner, run and rank: why, in words
        self.note = LedgerNote()
        self._retention = retention
        self._open_ledger = open_ledger
        self._files: dict[str, _File] = {}
        self._new, self._dead = _Turns(), _Turns()
        self._left_out: set[str] = set()
        self._left_out_by_run: dict[str, Counter[str]] = {"ledgers": Counter(), "ranks": Counter()}
        self._counted: dict[str, int] = {}  # files to remove once the note has them, with their inode
        self._complete = False  # whether every file of the first look has been opened
        self._fd = -1
        self._seen_at = 0  # the directory's last change, in ns, when it was read
        self._next_scan = 0.0
        self._now, self._limits = 0.0, Limits()  # of the present look
        self._later: list[str] = []  # files that wait for the next one
        self._complaints: set[str] = set()
        self._logged = 0
        self.descriptors = max(8, min(256, resource.getrlimit(resource.RLIMIT_NOFILE)[0] // 8))

    # -- at each tick ----------------------------------------------------------------------------------

    def look(self, now: float, limits: Limits) -> None:
        """Opens new ledgers and removes dead ones. Raises OSError, UserError if the directory is unusable."""
        if not self._directory_is_open():
            return
        self._now, self._limits, self._later = now, limits, []
        if self._scan():
            self._try_again()
        deadline = monotonic() + LOOK_SECONDS
        try:
            while self._new and monotonic() < deadline:
                self._examine(self._new.next())
            deadline = min(deadline, monotonic() + DEAD_SECONDS)
            while self._dead and not self._new and monotonic() < deadline:
                self._examine_dead(self._dead.next())
            if not (self._complete or self._new or self._dead or self._later):
                self._complete = True
                waiting = {self._files[name].key for name in self._left_out}
                for key in self.note.runs.keys() - waiting:  # gone: a later run of the name begins at 0
                    del self.note.runs[key]
        finally:
            for name in self._later:
                self._new.add(name, self._files[name])

    def tidy(self, now: float) -> None:
        """Retires ledgers of processes that died `retention` seconds ago, then removes their files."""
        expired = [
            each for each in self.ledgers if each.died is not None and now - each.died > self._retention
        ]
        for ledger in expired:
            name = ledger.reader.path.name
            self.forget(ledger)
            if name in self._files:
                self._count_to_the_end(name)
        if not self._counted:
            return
        if self._save():
            deadline = monotonic() + LOOK_SECONDS
            while self._counted and monotonic() < deadline:
                self._remove(*self._counted.popitem())

    def _save(self) -> bool:
        kept = {name: inode for name, inode in self.note.counted.items() if name in self._files}
        return self.note.save({**kept, **self._counted}, {**self.note.runs, **self.runs})

    def left_out(self) -> dict[str, Counter[str]]:
        """Returns how many ledgers of each run a limit leaves out, by limit."""
        if len(self._left_out) != sum(map(Counter.total, self._left_out_by_run.values())):
            self._left_out_by_run = {"ledgers": Counter(), "ranks": Counter()}
            for file in map(self._files.__getitem__, self._left_out):
                if file.key is not None and file.limit:
                    self._left_out_by_run[file.limit][self.labels.get(file.key, file.key.run)] += 1
        return self._left_out_by_run

    def refuse(self, ledger: Ledger, error: Exception) -> None:
        """Reads a ledger no more; what it counted before stays, so it must not be counted again."""
        name = ledger.reader.path.name
        self._refuse(name, error, ledger.reader)
        if name in self._files:
            self._files[name].state = "spoilt"
        self.forget(ledger)

    def rename(self, ledger: Ledger) -> None:
        """Reads a ledger again from its start: its run is known now, see `LedgerHeader.named`."""
        name = ledger.reader.path.name
        self.forget(ledger, counted=False)
        if name in self._files:
            self._files[name] = file = _File(self._files[name].inode, owner=ledger.key.owner)
            self._new.add(name, file)

    def forget(self, ledger: Ledger, counted: bool = True) -> None:
        """Reads a ledger no more. Its run keeps the counts unless it may be read again."""
        ledger.reader.close()
        self.ledgers.remove(ledger)
        run = self.runs[ledger.key]
        run.remove(ledger, counted)
        if not run.ledgers:
            del self.runs[ledger.key], self.labels[ledger.key]

    def close(self) -> None:
        if self.ledgers:  # an exporter that starts again continues the time of their processes
            self._save()
        for ledger in self.ledgers:
            ledger.reader.close()
        self.note.close()
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    # -- the directory ---------------------------------------------------------------------------------

    def _directory_is_open(self) -> bool:
        """Opens the directory, again if it was replaced. Returns False while there is none."""
        try:
            now = os.stat(self.path)
            if self._fd >= 0:
                before = os.fstat(self._fd)
                if (now.st_dev, now.st_ino) == (before.st_dev, before.st_ino):
                    return True
                os.close(self._fd)
                self._fd = -1
            self._fd = open_shared(self.path, self._complain)
        except (FileNotFoundError, NotADirectoryError):
            return False
        self._seen_at = 0
        return True

    def _scan(self) -> bool:
        """Notes new, replaced and vanished files, if there may be some. Returns whether a rescan was due."""
        status = os.fstat(self._fd)
        # A file that came in the same moment as the last scan may not have changed the time again.
        recent = time() - status.st_mtime < 2.0
        due = monotonic() >= self._next_scan
        if status.st_mtime_ns == self._seen_at and not recent and not due:
            return False
        self._seen_at = status.st_mtime_ns
        if due:
            self._next_scan = monotonic() + RESCAN_SECONDS
        new: list[tuple[int, str]] = []
        seen = set()
        for entry in entries(self._fd):
            if entry.name.endswith(SUFFIX):
                seen.add(entry.name)
                self._note_entry(entry, new)
            elif _UNFINISHED.fullmatch(entry.name):
                self._remove_unfinished(entry)
        for name in self._files.keys() - seen:
            if self._files[name].state != "read":  # a process may write on in a file without a name
                self._forget_file(name)
        # The oldest first, by a time that its owner cannot set: it keeps its name.
        for _, name in sorted(new):
            self._new.add(name, self._files[name])
        return due

    def _try_again(self) -> None:
        """Looks again at some ledgers that a limit leaves out: there may be room by now."""
        room = self._limits.ledgers - len(self.ledgers)
        tried: Counter[int] = Counter()
        for name in sorted(self._left_out):
            file = self._files[name]
            dead, owner = file.expires < inf, file.key.owner if file.key else 0
            if dead and file.expires <= self._now:
                self._count_to_the_end(name)
            elif room > 0 or (not dead and tried[owner] < TRIED_AGAIN):
                room -= 1
                tried[owner] += 1
                self._new.add(name, file)

    def _count_to_the_end(self, name: str) -> None:
        self._left_out.discard(name)
        self._files[name] = _File(self._files[name].inode, "counted")
        self._counted[name] = self._files[name].inode

    def _note_entry(self, entry: os.DirEntry[str], new: list[tuple[int, str]]) -> None:
        file, inode = self._files.get(entry.name), entry.inode()
        same = file is not None and file.inode == inode
        if file is not None and same and file.state != "refused":
            return
        try:
            status = entry.stat(follow_symlinks=False)
        except OSError:
            return
        if file is not None and same and file.changed == (status.st_size, status.st_mtime_ns):
            return
        if file is not None and file.state == "read":  # a new process of the same name replaced the file
            self.forget(next(each for each in self.ledgers if each.reader.path.name == entry.name))
        if self.note.counted.get(entry.name) == inode and not self._complete:
            self._files[entry.name] = _File(inode, "counted")
            self._remove(entry.name, inode)
            return
        self._files[entry.name] = _File(inode, owner=status.st_uid)
        self._left_out.discard(entry.name)
        new.append((status.st_ctime_ns, entry.name))

    def _remove_unfinished(self, entry: os.DirEntry[str]) -> None:
        """Removes what is left of a process that was killed while it made its ledger."""
        with suppress(OSError):  # it is gone
            status = entry.stat(follow_symlinks=False)
            if stat.S_ISREG(status.st_mode) and time() - status.st_ctime > UNFINISHED_SECONDS:
                remove(entry.name, self._fd)

    # -- one file --------------------------------------------------------------------------------------

    def _examine(self, name: str) -> None:
        """Opens a new file, and reads it from now on if its process is alive."""
        if name not in self._files or self._files[name].state not in ("new", "left out"):
            return
        reader = self._guarded(name, lambda: self._open_ledger(self.path / name))
        if reader is None:
            return
        alive = self._guarded(name, reader.alive)
        unnamed_since = min(self._files[name].unnamed_since, self._now)
        if alive and not reader.header.named and self._now - unnamed_since < UNNAMED_SECONDS:
            reader.close()
            self._leave_out(name, RunKey(reader.header.run, reader.owner), "")
            self._files[name].unnamed_since = unnamed_since
            return
        if alive:
            self._admit(name, reader)
            return
        reader.close()
        if alive is not None:
            self._files[name].state = "dead"
            self._dead.add(name, self._files[name])

    def _examine_dead(self, name: str) -> None:
        """Reads a dead ledger if it died recently or its run still trains; otherwise removes it."""
        if name not in self._files or self._files[name].state != "dead":
            return
        reader = self._guarded(name, lambda: self._open_ledger(self.path / name))
        if reader is None:
            return
        totals = self._guarded(name, reader.totals, reader)
        if totals is None:
            reader.close()
            return
        key = RunKey(reader.header.run, reader.owner)
        end = totals.end or totals.last_step_end or reader.header.start
        expires = min(end, self._now) + self._retention
        if key in self.runs or key in self.note.runs or self._now <= expires:
            self._admit(name, reader, expires)
        else:
            reader.close()
            self._count_to_the_end(name)

    def _guarded(self, name: str, read: Callable[[], T], reader: LedgerReader | None = None) -> T | None:
        """Calls `read`. Returns None if the file is refused, gone, or must wait for the next look."""
        try:
            return read()
        except LedgerError as error:
            self._refuse(name, error, reader)
        except FileNotFoundError:
            self._forget_file(name)
        except OSError as error:  # too many open files, no memory: it may pass
            self._complain(f"a ledger in {self.path} cannot be opened now: {error.strerror}")
            self._later.append(name)
            if self._files[name].state == "dead":
                self._files[name].state = "new"
        return None

    def _refuse(self, name: str, error: Exception, reader: LedgerReader | None) -> None:
        reason = error.reason if isinstance(error, LedgerError) else "unreadable"
        self.refused[reason] += 1
        if reader is not None:
            what = error.what if isinstance(error, LedgerError) else describe(error)
            key = reader.owner, reader.header.run, reader.header.rank
            if sum(owner == reader.owner for owner, *_ in self.refusals) < REFUSALS:
                self.refusals.setdefault(key, what)
        self._logged += 1
        if self._logged <= LOGGED:
            logger.warning("%s; refused until it changes", " ".join(str(error).split()))
        if self._logged == LOGGED:
            logger.warning("more refused ledgers are only counted: stepscope_ledgers_refused_total")
        try:
            status = os.stat(name, dir_fd=self._fd, follow_symlinks=False)
        except OSError:
            self._forget_file(name)
        else:
            self._left_out.discard(name)
            self._files[name] = _File(status.st_ino, "refused", changed=(status.st_size, status.st_mtime_ns))

    def _complain(self, text: str) -> None:
        if text not in self._complaints:
            self._complaints.add(text)
            logger.warning("%s", text)

    # -- admission -------------------------------------------------------------------------------------

    def _admit(self, name: str, reader: LedgerReader, expires: float = inf) -> None:
        """Reads the ledger from now on, unless a limit leaves it out; `expires` is of a dead one."""
        key = RunKey(reader.header.run, reader.owner)
        if limit := self._reached(key, reader.header.rank, expires == inf):
            reader.close()
            self._leave_out(name, key, limit, expires)
            return
        ledger = self._guarded(name, lambda: Ledger(reader, counts_losses=self._complete), reader)
        if ledger is None:
            reader.close()
            return
        if key not in self.runs:
            self.runs[key] = self.note.runs.pop(key, Run())
            self.labels[key] = self._label(key)
        if expires < inf:
            reader.close()  # one look may admit more than there are descriptors; it is read once more
        inode, seconds = self.note.spent.pop(name, (0, {}))
        if inode == reader.inode[1]:
            ledger.spent.seconds = seconds
        self._files[name] = _File(self._files[name].inode, "read")
        self._left_out.discard(name)
        self.ledgers.append(ledger)
        self.runs[key].ledgers.append(ledger)

    def _reached(self, key: RunKey, rank: int, alive: bool) -> str:
        """Returns the limit that leaves a ledger out; "": none, after making room for it."""
        if key in self.runs:
            ranks = {ledger.header.rank for ledger in self.runs[key].ledgers}
            if rank not in ranks and len(ranks) >= self._limits.ranks:
                return "ranks"
        if len(self.ledgers) < self._limits.ledgers:
            return ""
        displaced = self._displaced_by(key.owner) if alive else None
        if displaced is None:
            return "ledgers"
        dead = displaced.died is not None
        self.forget(displaced, counted=dead)
        if (name := displaced.reader.path.name) in self._files:
            if dead:
                self._count_to_the_end(name)
            else:
                self._leave_out(name, displaced.key, "ledgers")
        return ""

    def _leave_out(self, name: str, key: RunKey, limit: str, expires: float = inf) -> None:
        self._files[name] = _File(self._files[name].inode, "left out", key=key, limit=limit, expires=expires)
        self._left_out.add(name)

    def _displaced_by(self, owner: int) -> Ledger | None:
        """Returns a dead ledger, or the newest of the user with the most, if `owner` has fewer by two.

        So what is left out does not change from look to look, and no user's processes crowd out another's.
        """
        dead = next((ledger for ledger in self.ledgers if ledger.died is not None), None)
        if dead is not None:
            return dead
        owned = Counter(ledger.key.owner for ledger in self.ledgers)
        most, count = owned.most_common(1)[0]
        if most == owner or count <= owned[owner] + 1:
            return None
        return next(ledger for ledger in reversed(self.ledgers) if ledger.key.owner == most)

    def _label(self, key: RunKey) -> str:
        label = key.run
        while label in self.labels.values():
            label = f"{label}@{user_name(key.owner)}"
        return label

    def _remove(self, name: str, inode: int) -> None:
        """Removes a file that is counted to the end. If it may not, the note keeps it from coming back."""
        with suppress(OSError):  # it is gone
            if os.stat(name, dir_fd=self._fd, follow_symlinks=False).st_ino == inode:
                if reason := remove(name, self._fd):
                    self._complain(f"dead ledgers in {self.path} may not be removed: {reason}")
                    return
                for suffix in (STACK_SUFFIX, STACK_REQUEST_SUFFIX):  # others may have put anything there
                    remove(name + suffix, self._fd)
        self._forget_file(name)

    def _forget_file(self, name: str) -> None:
        self._files.pop(name, None)
        self._left_out.discard(name)


def open_shared(path: Path, warn: Callable[[str], None]) -> int:
    """Returns a descriptor of a directory that other users may write to.

    Follows a symbolic link only if root or this user made it. Makes the directory safe where this user may:
    its owner could remove other users' ledgers. Raises OSError, and UserError for a foreign link.
    """
    me = os.geteuid()
    try:
        fd = open_folder(path)
    except OSError as error:
        if error.errno not in (ELOOP, ENOTDIR) or not path.is_symlink():
            raise
        if path.lstat().st_uid not in (0, me):
            raise UserError(
                f"{path} is a symbolic link of another user: remove it, or set --ledger-dir"
            ) from None
        fd = open_folder(path, follow=True)
    status = os.fstat(fd)
    shared = bool(status.st_mode & stat.S_IWOTH)
    if shared and me == 0 and status.st_uid != 0:
        os.fchown(fd, 0, 0)
    if shared and not status.st_mode & stat.S_ISVTX and me in (0, status.st_uid):
        os.fchmod(fd, 0o1777)
    status = os.fstat(fd)
    if shared and not (status.st_uid in (0, me) and status.st_mode & stat.S_ISVTX):
        warn(
            f"{path}: user {user_name(status.st_uid)} can remove others' ledgers; let root make it, mode 1777"
        )
    return fd


def add_ledger_dir(parser: ArgumentParser | _ArgumentGroup) -> None:
    """Adds the flag `--ledger-dir`."""
    parser.add_argument(
        "--ledger-dir",
        type=Path,
        default=Path(ledger_directory()),
        metavar="DIR",
        help="STEPSCOPE_LEDGER_DIR of the training processes (default: %(default)s)",
    )
