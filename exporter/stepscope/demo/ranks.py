"""The simulated ranks: their steps, written into real ledgers by the real recorder.

Ranks train data-parallel. Before the exchange of gradients they wait for the slowest rank, so all steps end
at the same time.
"""

from bisect import bisect_left
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from random import Random

from stepscope.demo.scenario import Scenario, Step
from stepscope.exporter.ledgers.reader import LedgerReader
from stepscope.training import layout
from stepscope.training.launch import Launch
from stepscope.training.ledger import Ledger, create_ledger
from stepscope.training.ranks import Ranks
from stepscope.training.recorder import Recorder, make_recorder

FIRST_PID = 4001
FRAMEWORK = "pytorch", "simulated"
PREFETCH = 2


class RankLedger:
    """The ledger of one simulated rank. Moments are seconds since the run's start."""

    def __init__(
        self,
        directory: Path,
        run: str,
        rank: int,
        scenario: Scenario,
        start: float,
        local_rank: int | None = None,
        first_pid: int = FIRST_PID,
        launch: str = "",
        attempt: int = 0,
    ) -> None:
        self.rank = rank
        self.local_rank = rank if local_rank is None else local_rank
        self.pid = first_pid + self.local_rank
        self._start = start
        self._scenario = scenario
        ranks = Ranks(rank, self.local_rank, scenario.ranks, attempt)
        identity = Launch(run, launch)
        label = identity.run if launch else run
        self._ledger = create_ledger(str(directory), label, ranks, identity)
        self._ledger.name_framework(*FRAMEWORK)
        self.path = Path(self._ledger.path)
        _stamp(self._ledger, self.pid, ranks, start)
        self._recorder: Recorder = make_recorder(lambda: True)
        self._recorder.attach(self._ledger.memory)
        counters = layout.COUNTERS_AT + 8 * layout.COUNTER_LOADERS
        self._loader = memoryview(self._ledger.memory)[counters:][: 8 * layout.LOADER_DOUBLES].cast("d")
        self._slots = memoryview(self._ledger.memory)[layout.WORKERS_AT : layout.RING_AT].cast("d")
        self._loader[layout.LOADER_WORKERS] = scenario.workers
        self._loader[layout.LOADER_PIN_MEMORY] = 1
        self._loader[layout.LOADER_PREFETCH] = PREFETCH
        self._loader[layout.LOADER_QUEUE] = layout.UNKNOWN
        self._loader[layout.LOADER_KNOWN] = 1

    def record(self, step: Step, scenario: Scenario | None = None) -> None:
        """Records a finished step, the wait for its batch, and the fetch of one more by a worker.

        `scenario` is the one in force, if it changes over the run.
        """
        work = step.work
        scenario = scenario or self._scenario
        self._recorder.record_step(
            work.phase,
            step.start,
            step.end,
            data_wait=work.data_wait,
            forward=work.forward,
            backward=work.backward,
            optimizer=work.optimizer,
            communication=work.communication + (step.waited if scenario.waits_show else 0.0),
            host_to_device=work.host_to_device,
            checkpoint=work.checkpoint,
            compile=work.compile,
            gc=work.gc,
        )
        self._loader[layout.LOADER_WAIT_SUM] += work.data_wait
        self._loader[layout.LOADER_WAIT_COUNTS + bisect_left(layout.WAIT_BOUNDS, work.data_wait)] += 1
        seconds, slot = scenario.fetch_seconds, step.number % scenario.workers * layout.WORKER_DOUBLES
        self._slots[slot + layout.WORKER_SECONDS] += seconds
        self._slots[slot + layout.WORKER_CPU_SECONDS] += seconds * scenario.fetch_cpu_share
        self._slots[slot + layout.WORKER_COUNTS + bisect_left(layout.FETCH_BOUNDS, seconds)] += 1
        if self.rank == 0 and (loss := scenario.loss(step.number)) is not None:
            self._ledger.set_gauge("loss", loss)

    def stay(self, scenario: Scenario, since: float) -> None:
        """Says where the rank is from now on, because training hangs."""
        stuck = scenario.stuck(self.rank)
        if stuck is None:
            return
        component, operation = stuck
        counters = memoryview(self._ledger.memory)[layout.COUNTERS_AT : layout.WORKERS_AT].cast("d")
        counters[layout.COUNTER_COMPONENT] = 1 + layout.COMPONENTS.index(component)
        counters[layout.COUNTER_OPERATION] = 1 + layout.OPERATIONS.index(operation) if operation else 0
        counters[layout.COUNTER_COMPONENT_SINCE] = since

    def finish(self, end: float) -> None:
        """Ends the process normally."""
        self._ledger.finish()
        ended = layout.COUNTERS_AT + 8 * layout.COUNTER_ENDED
        memoryview(self._ledger.memory)[ended : ended + 8].cast("d")[0] = self._start + end


def _stamp(ledger: Ledger, pid: int, ranks: Ranks, start: float) -> None:
    """Gives the ledger's header simulated moments: its clock counts from the run's start."""
    magic, version, size = layout.HEADER.unpack_from(ledger.memory)[:3]
    local_rank = -1 if ranks.local_rank is None else ranks.local_rank
    layout.HEADER.pack_into(
        ledger.memory, 0, magic, version, size, pid, ranks.rank, local_rank, ranks.world_size, start, start
    )


def steps_of_ranks(scenario: Scenario, random: Random) -> Iterator[list[Step]]:
    """Yields the simultaneous steps of all ranks, one list per step number. Ends when training hangs."""
    now, number = scenario.setup_seconds, 0
    while not scenario.hangs(number, now):
        present = scenario.at(now)
        works = [present.work(rank, number, random) for rank in range(scenario.ranks)]
        ready = max(work.until_exchange for work in works)
        rest = max(work.communication + work.after_exchange for work in works)
        yield [Step(number, work, now, now + ready + rest, ready - work.until_exchange) for work in works]
        now += ready + rest + present.pause_after(number)
        number += 1


class AliveReader(LedgerReader):
    """A reader in the same process as the simulated ranks, where their locks cannot be seen."""

    def __init__(
        self, path: Path, living: Collection[Path], owners: Mapping[Path, int] | None = None
    ) -> None:
        super().__init__(path)
        self._living = living
        self.owner = (owners or {}).get(path, self.owner)

    def alive(self) -> bool:
        return self.path in self._living

    def holder(self) -> int | None:
        return self.header.pid if self.alive() else None
