"""Hooks of the command's Python processes: the environment that loads them, and why no steps were seen.

Processes that load the hooks leave words in the ledger directory (stepscope_startup.py). From outside, this
module looks for Pythons that the environment did not reach.
"""

import json
import os
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import stepscope_startup

from stepscope import training
from stepscope.common.masking import masked
from stepscope.common.shared_files import entries, read_file
from stepscope.exporter.ledgers.reader import LedgerError, LedgerReader, open_ledgers
from stepscope.exporter.processes.tree import ProcessTrees
from stepscope.training.launch import LAUNCH_KEY, NODE_KEY, Launch
from stepscope.training.off import is_off

STARTUP = Path(training.__path__[0]) / "startup"  # holds a sitecustomize.py, and nothing else
WORDS, WORD_BYTES = 100, 1 << 16  # at most
WARN_AFTER = 60.0  # seconds without a ledger, if the environment does not reach a Python
_MARKS = (
    'mark the steps with `with stepscope.step("train"):` and the loader with `stepscope.watch(loader)` '
    "(docs/training.md)"
)
# Words of frameworks, the most telling first, and what none of them did.
_OPTIMIZER = "optimizer of it made a step. If the script trains without one,"
_JIT = (
    "function of `jax.jit` with gradients got back what it had returned. If the script trains without one, "
    "compile its step, or"
)
_UNSEEN = (
    ("keras", "Keras", _OPTIMIZER),
    ("torch", "PyTorch", _OPTIMIZER),
    ("jax", "JAX", _JIT),
    ("tensorflow", "TensorFlow", _OPTIMIZER),
)


def command_environment(
    environment: Mapping[str, str], launch: Launch, ledgers: Path, lines: bool = True
) -> dict[str, str]:
    """Returns the environment of the command: this run, its ledgers, and hooks unless they are switched off.

    STEPSCOPE_INSTRUMENT and STEPSCOPE_LINES that are set already stay.
    """
    told = {
        **environment,
        "STEPSCOPE_RUN": launch.name,
        stepscope_startup.LEDGERS: str(ledgers),
    }
    if launch.unique:  # otherwise its ranks may agree on a better key
        told[NODE_KEY if launch.of_node else LAUNCH_KEY] = launch.key
    if not is_off():
        told.setdefault(stepscope_startup.INSTRUMENT, "1")
        told.setdefault(stepscope_startup.LINES, "1")
        if not lines:
            told[stepscope_startup.LINES] = "0"
        path = environment.get("PYTHONPATH")
        told["PYTHONPATH"] = f"{STARTUP}{os.pathsep}{path}" if path else str(STARTUP)
    return told


class HookedProcesses:
    """Watches the processes of the command, and says why no steps were seen."""

    def __init__(
        self,
        ledgers: Path,
        procfs: Path = Path("/proc"),
        clock: Callable[[], float] = time.monotonic,
        switched_off: bool = False,
    ) -> None:
        self._ledgers = ledgers
        self._procfs = procfs
        self._clock = clock
        self._trees = ProcessTrees(procfs, clock)
        self._switched_off = switched_off
        self._started = clock()
        self._pythons: set[int] = set()
        self._stripped = ""  # a command line of a Python that the environment did not reach
        self._unhooked = ""  # the path of a Python that the environment reached
        self._warned = False
        with suppress(OSError):  # of a full disk: then less is known
            (ledgers / stepscope_startup.WORDS).mkdir()

    def look(self, root: int) -> str:
        """Looks at the processes from `root` down. Returns a warning once, if training continues unseen."""
        for pid in self._trees.of([root])[root] - self._pythons:
            if self._is_python(self._procfs / str(pid)):
                self._pythons.add(pid)
        late = self._clock() - self._started > WARN_AFTER
        if self._warned or not late or not self._stripped or any(open_ledgers(self._ledgers)):
            return ""
        self._warned = True
        return self.why_no_steps()

    def why_no_steps(self) -> str:
        """Returns why no steps were seen, as far as it is known, and the fix: one or two sentences."""
        words = self._words()
        if self._switched_off:
            return "The hooks are switched off by STEPSCOPE or STEPSCOPE_INSTRUMENT in the environment."
        if "failed" in words:
            return f"The hooks failed: {words['failed']}. Until that is fixed, {_MARKS}."
        reasons = [
            f"{name} was imported, but no {none} {_MARKS}." for word, name, none in _UNSEEN if word in words
        ][:1]
        if self._stripped:  # which trains, or helps what the hooks did see
            reasons.append(
                f"`{self._stripped}` ran without the environment of `stepscope run`, because its launcher "
                "strips it. Make the launcher pass on PYTHONPATH and all STEPSCOPE variables (`sudo -E`, "
                "`srun --export=ALL`, `mpirun -x NAME`, `docker run -e NAME`)."
            )
        if reasons:
            return " ".join(reasons)
        if "old" in words:
            return f"Python {words['old']} is too old for the hooks. Use Python 3.11 or later, or {_MARKS}."
        if "python" in words:
            return (
                "No Python process imported PyTorch, TensorFlow, Keras or JAX, so there was nothing to hook. "
                f"To see steps, {_MARKS}."
            )
        if self._unhooked:
            return (
                f"{self._unhooked} ignored PYTHONPATH, as it does with -E, -I and -S. Start it without them, "
                f"or run `stepscope hooks install --python {self._unhooked}` if it needs -E or -I."
            )
        return (
            "No Python process was seen below the command. If its launcher starts Python elsewhere, as "
            "docker, ssh and srun do, install stepscope there and pass on all STEPSCOPE variables."
        )

    def _words(self) -> dict[str, str]:
        """Returns what processes left, by its name."""
        folder, words = self._ledgers / stepscope_startup.WORDS, {}
        with suppress(OSError):
            for entry in entries(folder, WORDS):
                with suppress(OSError):
                    words[entry.name] = read_file(folder / entry.name, most=WORD_BYTES).decode(
                        errors="replace"
                    )
        return words

    def exceptions(self, pid: int, *, failed: bool = True) -> tuple[dict[str, str], dict[str, str]]:
        """Returns what ended the command, of which `pid` is the process, and its last attempt but one.

        When one rank fails, the others soon fail because of it: the one that a signal killed, as its launcher
        says, otherwise the first one of an attempt counts. Without ranks, it is that of the command itself,
        otherwise the last one. Both are as in run.json, {} if none is known.
        """
        found, of_last = [], -1
        for word, text in self._words().items():
            if word.startswith(f"{stepscope_startup.EXCEPTION}-"):
                with suppress(ValueError, TypeError, KeyError):  # cut off by a full disk
                    known = json.loads(text)
                    when, helper, attempt = float(known["time"]), known["rank"] is None, int(known["attempt"])
                    order = (1, known["pid"] != pid, -when) if helper else (0, -attempt, when)
                    order = (-1, 0, when) if known["killed"] else order
                    of_last = max(of_last, -1 if helper or known["killed"] else attempt)
                    found.append((order, attempt, _of_run_file(known)))
        found.sort(key=lambda each: each[0])
        of_ranks = [(attempt, known) for order, attempt, known in found if not order[0]]
        earlier = [known for attempt, known in of_ranks if attempt < of_last or not failed]
        return found[0][2] if found and failed else {}, earlier[0] if earlier else {}

    def all_raised(self) -> bool:
        """Returns whether an exception ended the last process of each rank, though the command may hide it.

        `python train.py | tee log` ends with the status of `tee`.
        """
        last: dict[int, tuple[float, bool]] = {}
        for path in open_ledgers(self._ledgers):
            with suppress(LedgerError, OSError), LedgerReader(path) as reader:
                process = reader.header.start, reader.exception() is not None
                last[reader.header.rank] = max(last.get(reader.header.rank, process), process)
        return bool(last) and all(raised for _, raised in last.values())

    def why_no_lines(self) -> str:
        """Returns why a process sampled no lines of code; "" if all did, or it is not known."""
        return self._words().get(stepscope_startup.NO_LINES, "")

    def _is_python(self, process: Path) -> bool:
        """Returns whether the process runs a Python, and notes if that has the environment."""
        try:
            path = os.readlink(process / "exe")
            if not os.path.basename(path).startswith("python"):
                return False
            environment = (process / "environ").read_bytes().split(b"\0")
            words = (process / "cmdline").read_bytes().decode(errors="replace").split("\0")
        except OSError:  # it has ended, or is another user's
            return False
        if words == [""]:  # it is being started: the kernel fills in its words and its environment last
            return False
        if any(entry.startswith(f"{stepscope_startup.INSTRUMENT}=".encode()) for entry in environment):
            self._unhooked = words[0] if os.path.isabs(words[0]) else path
        elif os.path.basename(words[0]).startswith("python"):  # a new title overwrites words and environment
            self._stripped = " ".join(masked(words[:3])).strip()
        return True


def _of_run_file(known: dict[str, Any]) -> dict[str, str]:
    """Returns an exception as run.json has it. Raises KeyError, TypeError."""
    message = " ".join(masked(str(known["message"]).split(" ")))
    rank = "" if known["rank"] is None else str(known["rank"])
    return {"type": str(known["type"]), "message": message, "place": str(known["place"]), "rank": rank}
