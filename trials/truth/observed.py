"""Runs one case under `stepscope run -- torchrun train.py`, and reads who was accused of what."""

import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from math import inf
from pathlib import Path
from typing import Any, Protocol

from trials.processes import Processes
from trials.truth.alerts import alerting_ranks
from trials.truth.plan import ALONE, LIGHTNING, OTHERS, RANKS, TRAINER, Case

SCRIPT = Path(__file__).with_name("train.py")
OTHER_SCRIPTS = {TRAINER: "train_hugging_face.py", LIGHTNING: "train_lightning.py", ALONE: "train_alone.py"}
STEPSCOPE = (sys.executable, "-m", "stepscope")
FIRST = {  # words of first findings, and the component that they name
    "waited for data": "data_wait",
    "collected garbage": "gc",
    "wrote checkpoints": "checkpoint",
}
SECONDS = 300.0  # after which a run is ended
SLOW_NETWORK = (
    'ip link set lo up && tc qdisc add dev lo root tbf rate 100mbit burst 128kb latency 2s && exec "$@"'
)


@dataclass(frozen=True)
class Seen:
    """What a run's report says."""

    case: str
    accused: tuple[int, str] | None  # rank and component
    status: str  # of the rule Straggler; "failed": the run itself
    finding: str
    communication_bound: bool  # the rule CommunicationBound fired
    terminal: str
    steps: int
    seconds: float

    def as_json(self) -> str:
        """Returns it as a line."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, line: str) -> "Seen":
        """Reads such a line."""
        fields: dict[str, Any] = json.loads(line)
        rank_and_component = fields.pop("accused")
        return cls(accused=tuple(rank_and_component) if rank_and_component else None, **fields)


class Tool(Protocol):
    """Observes a training command."""

    def words(self, case: Case, folder: Path) -> list[str]:
        """Returns the command that trains, observed."""

    def read(self, case: Case, folder: Path, terminal: str, status: int, seconds: float) -> Seen:
        """Returns what it reported."""


class Stepscope:
    """`stepscope run`, with the script as it is."""

    def words(self, case: Case, folder: Path) -> list[str]:
        """Returns the command."""
        words = [*STEPSCOPE, "run", "--name", "train", "--out", str(folder / "run"), "--", *training(case)]
        if case.kind == "slow network":
            return ["unshare", "--net", "sh", "-c", SLOW_NETWORK, "sh", *words]
        return words

    def read(self, case: Case, folder: Path, terminal: str, status: int, seconds: float) -> Seen:
        """Reads the report. A run that failed has accused nobody, and is no success either."""
        if RANKS[case.script] == 1 or (case.script in OTHERS and case.expected is None):
            return _first_finding(case, folder, terminal, status, seconds)
        try:
            straggler, communication = (
                json.loads((folder / "run" / "profiler-reports" / f"{rule}.json").read_text())
                for rule in ("Straggler", "CommunicationBound")
            )
        except (OSError, ValueError) as error:
            return Seen(case.name, None, "failed", str(error), False, terminal, 0, seconds)
        accused, finding = None, straggler["finding"]
        if straggler["status"] == "found":
            accused = (int(straggler["Details"]["rank"]), str(straggler["Details"]["component"]))
            if f"rank {accused[0]}" not in terminal.lower():
                status, finding = 1, f"only the report names rank {accused[0]}, and not the terminal"
        if case.alerts:
            alerting = alerting_ranks(folder / "run")
            if alerting != ({accused[0]} if accused else set()):
                status, finding = 1, f"the alert names {sorted(alerting)}, and the report: {finding}"
        return Seen(
            case.name,
            accused,
            straggler["status"] if status == 0 else "failed",
            finding,
            communication["status"] == "found",
            terminal,
            straggler["Datapoints"],
            seconds,
        )


def _first_finding(case: Case, folder: Path, terminal: str, status: int, seconds: float) -> Seen:
    """Reads the first finding of the report, whichever rule found it: a healthy run has none, and a rank
    without others is compared with none."""
    try:
        report = json.loads((folder / "run" / "report.json").read_text())
    except (OSError, ValueError) as error:
        return Seen(case.name, None, "failed", str(error), False, terminal, 0, seconds)
    verdict, accused, finding = report["verdict"], None, ""
    if verdict["findings"]:
        first = verdict["findings"][0]
        finding = first["finding"]
        named = (component for words, component in FIRST.items() if words in finding)
        accused = (0, next(named, first["rule"]))
        if first["title"] not in terminal:
            status, finding = 1, f"only the report has the title {first['title']!r}, and not the terminal"
    judged = next(rule for rule in report["rules"] if rule["rule"] == "StepOutlier")["datapoints"]
    said = verdict["status"] if status == 0 else "failed"
    return Seen(case.name, accused, said, finding, False, terminal, judged, seconds)


class Observer:
    """Observes runs with a tool, several at a time. `stop` ends them."""

    def __init__(self, tool: Tool, until: float = inf) -> None:
        self._tool = tool
        self._until = until  # on the monotonic clock
        self._processes = Processes(SECONDS)
        self.stop = self._processes.stop

    def observe(self, case: Case) -> Seen | None:
        """Runs the case, and reads its report. Returns None if it is too late to start."""
        begin = time.monotonic()
        if begin > self._until:
            return None
        with tempfile.TemporaryDirectory(prefix="stepscope-truth-", ignore_cleanup_errors=True) as folder:
            place = Path(folder)
            status = self._processes.run(self._tool.words(case, place), environment(case), place)
            terminal = (place / "log").read_text(errors="replace")
            return self._tool.read(case, place, terminal, status, time.monotonic() - begin)


def training(case: Case) -> list[str]:
    """Returns the training command."""
    script = SCRIPT.with_name(OTHER_SCRIPTS.get(case.script, SCRIPT.name))
    launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(RANKS[case.script])]
    return [sys.executable, *([] if case.script == ALONE else launcher), str(script), *case.words]


def environment(case: Case) -> dict[str, str]:
    """Returns the variables of the training command."""
    variables = {**os.environ, "PLANTED": case.planted, "OMP_NUM_THREADS": "1"}
    if case.script in OTHER_SCRIPTS:
        variables["PYTHONPATH"] = str(SCRIPT.parents[2])  # it imports train.py
    return variables


def slow_network_is_possible() -> bool:
    """Returns whether this machine lets us make a network with a limited rate."""
    if not all(map(shutil.which, ("unshare", "ip", "tc"))):
        return False
    tried = subprocess.run(
        ["unshare", "--net", "sh", "-c", SLOW_NETWORK, "sh", "true"], capture_output=True, check=False
    )
    return tried.returncode == 0
