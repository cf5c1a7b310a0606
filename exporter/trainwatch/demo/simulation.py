"""Plays a scenario: every tick of the sampler advances the host, the GPUs and the ranks."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from pathlib import Path
from random import Random

from trainwatch.demo.gpus import MEMORY_BYTES, SimulatedNvml
from trainwatch.demo.host import SimulatedHost
from trainwatch.demo.ranks import RankLedger, steps_of_ranks
from trainwatch.demo.scenario import GPUS, Busy, Scenario, Step
from trainwatch.sampling.collector import Collector
from trainwatch.sampling.sample import Sample

IDLE_MEMORY = 0.01  # of a GPU, when no process is on it
OnStep = Callable[[RankLedger, Step], None]


class Simulation(Collector):
    """The first collector of each tick: it writes what the others read.

    The same scenario and seed give the same readings and steps, whatever the speed.
    """

    name = "simulation"

    def __init__(
        self,
        scenario: Scenario,
        seed: int,
        run: str,
        start: float,
        duration: float | None,
        directory: Path,
        on_step: OnStep | None = None,
    ) -> None:
        """Prepares a run of `duration` seconds (None: without an end) that starts at `start` since the epoch.

        `directory` gets the ledgers and the simulated /proc. `on_step` is called with each finished step.
        """
        self.scenario = scenario
        self.start = start
        self.duration = duration
        self.nvml = SimulatedNvml()
        self.living: set[Path] = set()
        self.stalled = False
        self.ended_well = False  # the run is over, and its processes ended normally
        self._on_step = on_step
        self._elapsed = 0.0
        self._random = Random(f"{scenario.name} {seed} node")
        self._host = SimulatedHost(directory / "proc", scenario.memory)
        self._ledgers = [RankLedger(directory, run, rank, scenario, start) for rank in range(scenario.ranks)]
        self.living.update(ledger.path for ledger in self._ledgers)
        self._coming = steps_of_ranks(scenario, Random(f"{scenario.name} {seed} steps"))
        self._next: list[Step] | None = next(self._coming)
        self._begun: deque[list[Step]] = deque()
        self._busy: list[list[Busy]] = [[] for _ in range(GPUS)]
        self._use_gpus(0.0)

    def collect(self, sample: Sample) -> None:
        """Advances everything to the sample's time."""
        until = sample.time - self.start
        seconds = until - self._elapsed
        if seconds <= 0:
            return
        if self.living:
            self._train(until)
        self._advance_host(seconds)
        for gpu in range(GPUS):
            self._advance_gpu(gpu, self._elapsed, until)
        self._use_gpus(until)
        self._busy = [[busy for busy in work if busy.end > until] for work in self._busy]
        self._elapsed = until
        if self.living and self.duration is not None and until >= self.duration:
            self._end(self.duration)

    def _train(self, until: float) -> None:
        """Begins the steps that begin before `until`, and records those that end."""
        while self._next is not None and self._next[0].start < until:
            self._begun.append(self._next)
            for rank, step in enumerate(self._next):
                for busy in self.scenario.busy(rank, step, self._random):
                    self._busy[busy.gpu].append(busy)
            self._next = next(self._coming, None)
        while self._begun and self._begun[0][0].end <= until:
            for ledger, step in zip(self._ledgers, self._begun.popleft(), strict=True):
                ledger.record(step)
                if self._on_step:
                    self._on_step(ledger, step)
        if self._next is None and not self._begun:
            self.stalled = True

    def _end(self, moment: float) -> None:
        """Ends the processes; kills those that hang."""
        self.ended_well = not self.stalled
        if self.ended_well:
            for ledger in self._ledgers:
                ledger.finish(moment)
        self.living.clear()
        self._next = None
        self._busy = [[] for _ in range(GPUS)]

    def _advance_host(self, seconds: float) -> None:
        scenario, random = self.scenario, self._random
        busy, waiting = scenario.cores(random), scenario.waiting_cores(random)
        if not self.living or self.stalled:
            busy, waiting = [0.02 * ratio for ratio in busy], [0.0] * len(waiting)
        self._host.advance(seconds, busy, waiting, scenario.disk_bytes if any(waiting) else 0.0)
        self._host.write(scenario.memory if self.living else 0.02)

    def _advance_gpu(self, gpu: int, since: float, until: float) -> None:
        spinning = self.stalled and bool(self.living)
        load = 1.0 if spinning else self._load(gpu, since, until)
        share = self.scenario.heat_throttling(gpu, until) if load > 0 else 0.0
        hot = share > 0 and self._random.random() < share
        self.nvml.gpus[gpu].advance(until - since, load, self.scenario.celsius, hot, spinning)

    def _load(self, gpu: int, since: float, until: float) -> float:
        """Returns the share of the time between two moments in which the GPU had work."""
        seconds = sum(
            busy.load * (min(busy.end, until) - max(busy.begin, since))
            for busy in self._busy[gpu]
            if busy.begin < until and busy.end > since
        )
        return min(1.0, seconds / (until - since))

    def _use_gpus(self, elapsed: float) -> None:
        """Sets memory and processes of each GPU."""
        pids = [ledger.pid for ledger in self._ledgers] if self.living else []
        for number, gpu in enumerate(self.nvml.gpus):
            gpu.pids = (pids[number % len(pids)],) if pids else ()
            share = self.scenario.gpu_memory(number, elapsed) if pids else IDLE_MEMORY
            gpu.memory_bytes = round(MEMORY_BYTES * share)
