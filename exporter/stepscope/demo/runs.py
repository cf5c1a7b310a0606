"""A run's part on one simulated node: its ranks there, their steps, and the load of their cores and GPUs."""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random

from stepscope.demo.ranks import FIRST_PID, RankLedger, steps_of_ranks
from stepscope.demo.scenario import CORES, GPUS, Busy, Scenario, Step


@dataclass(frozen=True)
class Place:
    """The part of a node that a run uses. The default is the whole node, with all ranks of the run."""

    ranks: Sequence[int] | None = None  # those on this node; all if None
    cores: Sequence[int] = range(CORES)
    gpus: Sequence[int] = range(GPUS)  # of this node: the scenario's GPU n is `gpus[n - first rank]`
    first_pid: int = FIRST_PID
    uid: int | None = None  # of its processes; the user of this process if None
    launch: str = ""  # what all processes of this launch share
    attempt: int = 0  # how often the launcher restarted it


class SimulatedRun:
    """Processes that train from `start` on, in seconds of the node's simulation, for `duration` seconds.

    The parts of a run on several nodes draw the same steps, because they have the same name and seed.
    """

    def __init__(
        self,
        scenario: Scenario,
        seed: int,
        name: str,
        directory: Path,
        wall: float,
        start: float = 0.0,
        duration: float | None = None,
        place: Place | None = None,
    ) -> None:
        """Creates the ledgers. `wall` is the node's time at the run's start, in seconds since the epoch."""
        self.scenario, self.name, self.start, self.duration = scenario, name, start, duration
        self.place = place or Place()
        self.stalled = False
        self.killed: set[int] = set()  # PIDs of ranks that were killed while the others live
        self.ended_well = False  # the run is over, and its processes ended normally
        self.cpu_seconds = 0.0
        self._random = Random(f"{scenario.name} {seed} node")
        ranks = range(scenario.ranks) if self.place.ranks is None else self.place.ranks
        launched = self.place.first_pid, self.place.launch, self.place.attempt
        self.ledgers = [
            RankLedger(directory, name, rank, scenario, wall, local, *launched)
            for local, rank in enumerate(ranks)
        ]
        self._coming = steps_of_ranks(scenario, Random(f"{scenario.name} {seed} steps"))
        self._next: list[Step] | None = next(self._coming)
        self._begun: deque[list[Step]] = deque()
        self._busy: list[list[Busy]] = [[] for _ in self.place.gpus]
        self.first_gpu = ranks[0]  # the scenario's number of the first GPU here

    @property
    def alive(self) -> bool:
        return bool(self.ledgers)

    @property
    def pids(self) -> list[int]:
        return [ledger.pid for ledger in self.ledgers]

    def train(self, until: float) -> None:
        """Begins steps that begin before `until` seconds since its start, and records those that end."""
        if not self.alive:
            return
        while self._next is not None and self._next[0].start < until:
            self._begun.append(self._next)
            present = self.scenario.at(self._next[0].start)
            for ledger in self.ledgers:
                for busy in present.busy(ledger.rank, self._next[ledger.rank], self._random):
                    self._busy[busy.gpu - self.first_gpu].append(busy)
            self._next = next(self._coming, None)
        while self._begun and self._begun[0][0].end <= until:
            steps = self._begun.popleft()
            for ledger in self.ledgers:
                ledger.record(steps[ledger.rank], self.scenario.at(steps[ledger.rank].start))
        if self._next is None and not self._begun and not self.stalled:
            self.stalled = True
            for ledger in self.ledgers:
                ledger.stay(self.scenario, until)

    def end(self, moment: float, well: bool = True) -> None:
        """Ends the processes at `moment`; kills those that hang, or all of them unless it ends `well`."""
        self.ended_well = well and not self.stalled
        if self.ended_well:
            for ledger in self.ledgers:
                ledger.finish(moment)
        self.ledgers = []
        self._next = None
        self._busy = [[] for _ in self.place.gpus]

    def cores(self, elapsed: float) -> tuple[list[float], list[float], float]:
        """Returns utilisation and I/O wait of its cores since the last tick, and bytes read per second."""
        present = self.scenario.at(elapsed)
        busy, waiting = present.cores(self._random), present.waiting_cores(self._random)
        if not self.alive or self.stalled:
            busy, waiting = [0.02 * ratio for ratio in busy], [0.0] * len(waiting)
        return busy, waiting, present.disk_bytes if any(waiting) else 0.0

    def load(self, gpu: int, since: float, until: float) -> tuple[float, bool]:
        """Returns the share of the time in which its GPU had work, and whether heat throttled it."""
        if self.stalled and self.alive:
            load = 0.0 if self.pids[gpu % len(self.pids)] in self.killed else 1.0
        else:
            seconds = sum(
                busy.load * (min(busy.end, until) - max(busy.begin, since))
                for busy in self._busy[gpu]
                if busy.begin < until and busy.end > since
            )
            load = min(1.0, seconds / (until - since))
        hot = self.scenario.at(until).heat_throttling(self.first_gpu + gpu, until)
        share = hot if load > 0 else 0.0
        return load, share > 0 and self._random.random() < share

    def forget(self, until: float) -> None:
        """Forgets the GPU work that is over."""
        self._busy = [[busy for busy in work if busy.end > until] for work in self._busy]
