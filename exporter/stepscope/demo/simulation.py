"""Plays a node: every tick of the sampler advances the host, the GPUs and the ranks."""

from pathlib import Path

from stepscope.demo.gpus import MEMORY_BYTES, SimulatedNvml
from stepscope.demo.host import SimulatedHost
from stepscope.demo.processes import RunProcesses
from stepscope.demo.runs import SimulatedRun
from stepscope.demo.scenario import CORES, Scenario
from stepscope.exporter.sampling.collector import Collector
from stepscope.exporter.sampling.sample import Sample

IDLE = 0.02  # share of the host's cores and memory that the system uses
IDLE_MEMORY = 0.01  # of a GPU, when no process is on it
CELSIUS = 64.0  # of a busy GPU


class SimulatedNode(Collector):
    """The first collector of each tick: it writes what the others read. Its runs share no core and no GPU.

    The same scenarios and seeds give the same readings and steps, whatever the speed.
    """

    name = "simulation"

    def __init__(self, title: str, start: float, directory: Path) -> None:
        """Prepares a node without runs, whose simulation begins at `start` since the epoch.

        `directory` gets the ledgers and the simulated /proc.
        """
        self.title = title
        self.start = start
        self.nvml = SimulatedNvml()
        self.runs: list[SimulatedRun] = []
        self.living: set[Path] = set()  # ledgers of processes that are alive
        self.owners: dict[Path, int] = {}  # of ledgers, if their users are simulated
        self.directory = directory
        self.processes: dict[SimulatedRun, RunProcesses] = {}
        self._elapsed = 0.0
        self._host = SimulatedHost(directory / "proc", IDLE)
        (directory / "cgroup").mkdir()
        (directory / "cgroup" / "cgroup.controllers").write_text("cpuset cpu io memory\n")

    def add(self, run: SimulatedRun) -> None:
        """Adds a run that begins now."""
        self.runs.append(run)
        for ledger in run.ledgers:
            self.living.add(ledger.path)
            if run.place.uid is not None:
                self.owners[ledger.path] = run.place.uid
        self.processes[run] = self.processes_of(run)
        self._use_gpus(self._elapsed)
        self._write_host()

    def processes_of(self, run: SimulatedRun) -> RunProcesses:
        """Returns the processes of a run that begins."""
        return RunProcesses(self.directory / "proc", run)

    def collect(self, sample: Sample) -> None:
        """Advances everything to the sample's time."""
        until = sample.time - self.start
        seconds = until - self._elapsed
        if seconds <= 0:
            return
        for run in self.runs:
            run.train(until - run.start)
        self._advance_host(until, seconds)
        self._advance_gpus(until, seconds)
        self._use_gpus(until)
        for run in self.runs:
            run.forget(until - run.start)
            if run.alive and run.duration is not None and until - run.start >= run.duration:
                self.end(run, run.duration)
        self._elapsed = until

    def end(self, run: SimulatedRun, moment: float, well: bool = True) -> None:
        """Ends a run `moment` seconds after its start; kills its processes unless it ends `well`."""
        self.living.difference_update(ledger.path for ledger in run.ledgers)
        self.processes.pop(run).end()
        run.end(moment, well)

    def _write_host(self) -> None:
        living = [run.scenario for run in self.runs if run.alive]
        memory = max((scenario.memory for scenario in living), default=IDLE)
        self._host.write(memory, max((scenario.swap for scenario in living), default=0.0))

    def _advance_host(self, until: float, seconds: float) -> None:
        busy, waiting, disk_bytes = [IDLE] * CORES, [0.0] * CORES, 0.0
        for run in self.runs:
            own, own_waiting, own_bytes = run.cores(until - run.start)
            disk_bytes += own_bytes
            present = run.scenario.at(until - run.start)
            for core, ratio, wait in zip(run.place.cores, own, own_waiting, strict=True):
                busy[core], waiting[core] = min(1.0, ratio + present.neighbours), wait
            if run.alive:
                self.processes[run].advance(seconds, sum(own), present)
        self._host.advance(seconds, busy, waiting, disk_bytes)
        self._write_host()

    def _advance_gpus(self, until: float, seconds: float) -> None:
        idle = set(range(len(self.nvml.gpus)))
        for run in self.runs:
            spinning = run.stalled and run.alive
            for own, gpu in enumerate(run.place.gpus):
                if run.alive or gpu in idle:
                    idle.discard(gpu)
                    load, hot = run.load(own, self._elapsed - run.start, until - run.start)
                    self.nvml.gpus[gpu].advance(seconds, load, run.scenario.celsius, hot, spinning)
        for gpu in idle:
            self.nvml.gpus[gpu].advance(seconds, 0.0, CELSIUS, False, False)

    def _use_gpus(self, elapsed: float) -> None:
        """Sets memory and processes of each GPU."""
        for gpu in self.nvml.gpus:
            gpu.pids, gpu.memory_bytes = (), round(MEMORY_BYTES * IDLE_MEMORY)
        for run in self.runs:
            pids = run.pids
            for own, gpu_number in enumerate(run.place.gpus if pids else ()):
                pid = pids[own % len(pids)]
                if pid in run.killed:
                    continue
                gpu = self.nvml.gpus[gpu_number]
                gpu.pids = (pid,)
                present = run.scenario.at(elapsed - run.start)
                share = present.gpu_memory(run.first_gpu + own, elapsed - run.start)
                gpu.memory_bytes = round(MEMORY_BYTES * share)


class Simulation(SimulatedNode):
    """A node with one run, which plays a scenario on the whole node."""

    def __init__(
        self, scenario: Scenario, seed: int, run: str, start: float, duration: float | None, directory: Path
    ) -> None:
        """Prepares a run of `duration` seconds (None: without an end), from `start` since the epoch."""
        super().__init__(scenario.name, start, directory)
        self.scenario = scenario
        self.duration = duration
        self._run = SimulatedRun(scenario, seed, run, directory, start, duration=duration)
        self.add(self._run)

    @property
    def stalled(self) -> bool:
        return self._run.stalled

    @property
    def ended_well(self) -> bool:
        return self._run.ended_well
