"""Adds up the operators of profile windows by rank and device, from the traces that running jobs write.

A trace takes seconds, hundreds of megabytes and numpy to read. So a process reads it, one at a time, with the
rights of the run's user: see `runs/window_operators.py`. What it prints is that user's, too, and not trusted.
Nothing is counted if the exporter is neither root nor this user.
"""

import json
import logging
import os
import subprocess
from collections.abc import Iterable
from contextlib import suppress
from importlib.util import find_spec
from math import inf

from stepscope.common.errors import describe
from stepscope.common.fresh_python import fresh_python
from stepscope.exporter.ledgers.reader import LedgerError
from stepscope.exporter.ledgers.run_totals import NAME_BYTES, Ledger, OperatorSeconds, Run
from stepscope.exporter.sampling.limits import cut
from stepscope.training.layout import LARGEST

logger = logging.getLogger(__name__)

READER = "stepscope.runs.window_operators"
DEVICES = 4  # kinds of devices of a rank
MOST_BYTES = 1 << 20  # that the process prints
MOST_SECONDS = 120.0  # until it is killed
REST = 4.0  # times as long as a trace took, until the next one is read
ENVIRONMENT = {"OPENBLAS_NUM_THREADS": "1"}  # whose threads reserve memory


class WindowOperators:
    """Reads the traces of windows, of each user in turn, into `operators` of their runs."""

    def __init__(self) -> None:
        self._reading: _Reading | None = None
        self._not_before = -inf
        self._served: dict[int, float] = {}  # when a trace of each user was last read
        self._logged = False

    def look(self, runs: Iterable[Run], now: float) -> None:
        """Counts a trace that has been read, or starts to read the next one. Never waits."""
        reading = self._reading
        if reading is not None:
            if not reading.has_ended(now):
                return
            reading.count()
            self._reading, self._not_before = None, now + REST * (now - reading.since)
        if now < self._not_before:
            return
        waiting = [
            (each, run)
            for run in runs
            for each in run.ledgers
            if os.geteuid() in (0, each.key.owner) and each.totals.traced_steps > each.traced_steps
        ]
        if waiting:
            ledger, run = min(waiting, key=lambda pair: self._served.get(pair[0].key.owner, -inf))
            self._served[ledger.key.owner] = now
            self._start(ledger, run, now)

    def _start(self, ledger: Ledger, run: Run, now: float) -> None:
        try:
            folder = ledger.reader.trace_folder()
            ledger.reader.close()
            if find_spec("numpy") is None:
                raise ModuleNotFoundError("numpy is missing")
            self._reading = _Reading(ledger, run, folder, now)
        except (OSError, ImportError, LedgerError) as error:
            ledger.traced_steps = ledger.totals.traced_steps
            if not self._logged:
                self._logged = True
                logger.warning("operators of a profile window are not counted: %s", describe(error))

    def close(self) -> None:
        if self._reading is not None:
            self._reading.end()


class _Reading:
    """The process that reads a trace, and then has the rights of its owner. Raises OSError."""

    def __init__(self, ledger: Ledger, run: Run, folder: str, now: float) -> None:
        self.since = now
        self._ledger, self._run = ledger, run
        self._until = ledger.totals.traced_steps
        self._output = b""
        header = ledger.header
        process = ledger.key.owner, header.rank, header.pid, header.start, ledger.traced_steps
        self._process = subprocess.Popen(
            fresh_python(READER, folder, *map(str, process)),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            cwd="/",
            env=ENVIRONMENT,  # no secret of the exporter
            start_new_session=True,
            bufsize=0,
        )
        assert self._process.stdout is not None
        os.set_blocking(self._process.stdout.fileno(), False)

    def has_ended(self, now: float) -> bool:
        """Returns whether the process has printed all, or has been killed."""
        assert self._process.stdout is not None
        while chunk := self._process.stdout.read(MOST_BYTES):
            self._output += chunk
        if chunk is None and len(self._output) <= MOST_BYTES and now - self.since < MOST_SECONDS:
            return False
        self.end()
        return True

    def end(self) -> None:
        assert self._process.stdout is not None
        self._process.kill()
        self._process.wait()
        self._process.stdout.close()

    def count(self) -> None:
        """Adds what was printed to the run. A trace that cannot be read is left out."""
        end, _, text = self._output.partition(b"\n")
        ledger = self._ledger
        found = int(end) if end.isdigit() and len(end) <= 15 else self._until  # there is none any more
        ledger.traced_steps = min(max(found, ledger.traced_steps + 1), self._until)
        with suppress(ValueError, RecursionError):
            seconds, flops = _checked(json.loads(text))
            counted, rank = self._run.operators, ledger.header.rank
            for device, operators in seconds.items():
                key = rank, cut(device, NAME_BYTES)
                if key in counted or sum(known == rank for known, _ in counted) < DEVICES:
                    counted.setdefault(key, OperatorSeconds()).add(operators)
            if flops is not None:  # of the first window: a counter follows
                self._run.flops_per_step.setdefault(ledger.header.rank, flops)


def _checked(values: object) -> tuple[dict[str, dict[str, float]], float | None]:
    """Returns seconds by device and operator, and the operations of a step. Raises ValueError."""
    if not isinstance(values, list) or len(values) != 2 or not isinstance(values[0], dict):
        raise ValueError("not a table and a number")
    seconds, flops = values
    for device, operators in seconds.items():
        if not isinstance(operators, dict) or not device.isalpha():
            raise ValueError("not a device")
        if not all(map(_is_amount, operators.values())):
            raise ValueError("not seconds")
    if flops is not None and not _is_amount(flops):
        raise ValueError("not a number of operations")
    return seconds, flops


def _is_amount(value: object) -> bool:
    return type(value) in (int, float) and 0 <= value <= LARGEST  # type: ignore[operator] # nor is NaN
