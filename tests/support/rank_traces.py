"""Makes traces of several ranks as Kineto writes them, from a simulated job whose slow rank is known.

The simulation goes layer by layer: every rank computes on its device (or, with gloo, on its host), and
arrives at collectives. All ranks leave a collective together, when the last one has come. Clocks differ per
rank, and everything has noise. Times are seconds; those in the files are microseconds.
"""

import json
import random
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

BASE = 1_700_000_000  # seconds since the epoch
LOADING = "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__"
LAYERS = 4
LAUNCH = 20e-6  # from the host's call to the work on the device
CAUSES = ("compute", "data", "host", "copies")
COMPONENTS = {"compute": "compute", "data": "data_wait", "host": "host", "copies": "copies"}
Row = dict[str, Any]


@dataclass(frozen=True)
class Job:
    """A training job; what is delayed, and by how much."""

    seed: int = 0
    ranks: int = 8
    steps: int = 5
    gloo: bool = False
    tensor: int = 1  # ranks of a tensor-parallel group; the others are data-parallel
    sends: str = "in their group"  # of stages; or "in the world", or "alone": nothing is known of a send
    world: bool = True  # whether all ranks begin together: otherwise stages without replicas only send
    pipeline: int = 1  # stages; ranks with the same place in consecutive lots of so many do the same one
    slow: tuple[int, ...] = ()  # a rank that is listed twice is delayed by twice as much
    cause: str = "compute"
    delay: float = 0.05  # per step
    uneven: float = 0.0  # most seconds by which the sequences of a step lengthen a rank's computing
    layer: float = 0.006  # forward pass of a layer; the backward pass takes twice as long
    exchange: float = 0.003  # the transfer of a layer's gradients
    noise: float = 0.02  # share of each duration
    clocks: float = 0.02  # by which clocks differ, at most
    described: bool = True  # whether the profiler wrote what a collective is, and its group
    numbered: bool = True  # whether it wrote the collective's number
    synchronised: bool = False  # whether the host waits for its device at the end of a step
    nodes: int = 2
    first_step: int = 10

    @classmethod
    def random(cls, seed: int, **more: Any) -> "Job":
        """Returns a job with everything by chance but its slow rank and what is given."""
        chance = random.Random(seed)
        gloo = chance.random() < 0.3
        job = cls(
            seed=seed,
            steps=chance.choice((4, 5, 6)),
            gloo=gloo,
            tensor=1 if gloo else chance.choice((1, 1, 2, 4)),
            layer=chance.uniform(0.003, 0.012),
            exchange=chance.uniform(0.001, 0.01),
            noise=chance.uniform(0.0, 0.03),
            clocks=chance.choice((0.0, 0.001, 0.02, 0.5)),
            numbered=chance.random() < 0.5,
            synchronised=chance.random() < 0.5,
        )
        return replace(job, **more)

    def write(self, directory: Path) -> Path:
        """Writes one trace per rank, and returns the directory."""
        directory.mkdir(parents=True, exist_ok=True)
        for rank, trace in enumerate(traces(self)):
            (directory / f"rank-{rank}.pt.trace.json").write_text(json.dumps(trace))
        return directory


def one_slow(seed: int, **more: Any) -> Job:
    """Returns a job with one slow rank, by 50 ms per step. Its host does not run ahead of the device, so that
    no delay of the host is hidden."""
    chance = random.Random(-seed - 1)
    job = Job.random(seed, slow=(chance.randrange(8),), **more)
    cause = chance.choice(CAUSES[:3] if job.gloo else CAUSES)
    return replace(job, cause=cause, synchronised=job.synchronised or cause in ("host", "data"))


@dataclass
class _Rank:
    """One rank while it is simulated: when its host, its device and its exchange are free."""

    rank: int
    job: Job
    ahead: float  # its clock
    host: float = 0.0
    device: float = 0.0
    exchange: float = 0.0
    rows: list[Row] = field(default_factory=list)
    sequence: dict[str, int] = field(default_factory=dict)
    correlation: int = 0

    def row(self, category: str, name: str, start: float, end: float, thread: int = 1, **args: Any) -> None:
        device = args.get("device")
        self.rows.append(
            {
                "ph": "X",
                "cat": category,
                "name": name,
                "pid": 100 + self.rank if device is None else device,
                "tid": thread,
                "ts": round((start + self.ahead) * 1e6, 3),
                "dur": round((end - start) * 1e6, 3),
                "args": args,
            }
        )

    def launch(self) -> dict[str, Any]:
        """Calls the runtime, and returns what links the call to its work."""
        self.correlation += 1
        start = self.host
        self.host += LAUNCH / 2
        self.row("cuda_runtime", "cudaLaunchKernel", start, self.host, correlation=self.correlation)
        return {"correlation": self.correlation, "device": self.rank % 8}

    def compute(self, name: str, seconds: float) -> None:
        """Computes on the device behind what it does already, or on the host."""
        if self.job.gloo:
            self.row("cpu_op", name, self.host, self.host + seconds)
            self.host += seconds
            return
        link = self.launch()
        start = max(self.host + LAUNCH, self.device)
        self.device = start + seconds
        self.row("kernel", name, start, self.device, 7, stream=7, **link)

    def copy(self, seconds: float) -> None:
        if not self.job.gloo:
            link = self.launch()
            start = max(self.host + LAUNCH, self.device)
            self.device = start + seconds
            self.row("gpu_memcpy", "Memcpy HtoD (Pageable -> Device)", start, self.device, 7, **link)

    def arrive(self) -> tuple[float, dict[str, Any]]:
        """Calls a collective; returns when it is there, and the link to the call."""
        if self.job.gloo:
            return self.host, {}
        link = self.launch()
        return max(self.host + LAUNCH, self.device, self.exchange), link

    def wait(self) -> None:
        """Lets what follows wait for the collectives so far."""
        if self.job.gloo:
            self.host = max(self.host, self.exchange)
        else:
            self.device = max(self.device, self.exchange)


def traces(job: Job) -> list[Row]:
    """Returns the document of each rank."""
    chance = random.Random(job.seed)
    ranks = [_Rank(rank, job, chance.uniform(-job.clocks, job.clocks)) for rank in range(job.ranks)]
    everybody = [list(range(job.ranks))]
    tensor = [list(range(first, first + job.tensor)) for first in range(0, job.ranks, job.tensor)]
    lots = [list(range(first, first + job.pipeline)) for first in range(0, job.ranks, job.pipeline)]
    apart = max(job.tensor, job.pipeline)
    data = [list(range(first, job.ranks, apart)) for first in range(apart)]

    def took(seconds: float) -> float:
        return max(seconds * (1 + chance.gauss(0, job.noise)), 1e-6)

    def collect(operation: str, groups: list[list[int]], name: str, seconds: float, wait: bool) -> None:
        for number, members in enumerate(groups):
            if len(members) > 1:
                came = [ranks[member] for member in members]
                _collect(came, operation, f"{name}{number}", took(seconds), chance, wait)

    if job.world:
        collect("allreduce", everybody, "world", 1e-4, True)
    for step in range(job.steps):
        begins = [rank.host for rank in ranks]
        slower = {rank.rank: chance.uniform(0, job.uneven) for rank in ranks}
        for rank in ranks:
            delay = job.delay * job.slow.count(rank.rank)
            data_wait = took(0.0005) + (delay if job.cause == "data" else 0.0)
            rank.row("user_annotation", LOADING, rank.host, rank.host + data_wait)
            rank.host += data_wait + took(0.0002) + (delay if job.cause == "host" else 0.0)
            rank.copy(took(0.0003) + (delay if job.cause == "copies" else 0.0))
            slower[rank.rank] += delay if job.cause == "compute" else 0.0
        for _ in range(LAYERS):
            for rank in ranks:
                rank.compute("gemm", took(job.layer) + slower[rank.rank] / (3 * LAYERS))
            collect("allreduce", tensor, "tensor", job.exchange / 4, True)
        for lot in lots:
            for stage in range(1, job.pipeline):
                _send(job, ranks[lot[stage - 1]], ranks[lot[stage]], lot)
        for lot in lots:
            for stage in reversed(range(1, job.pipeline)):
                _send(job, ranks[lot[stage]], ranks[lot[stage - 1]], lot)
        for _ in range(LAYERS):
            for rank in ranks:
                rank.compute("gemm", took(2 * job.layer) + slower[rank.rank] * 2 / (3 * LAYERS))
            collect("allreduce", tensor, "tensor", job.exchange / 4, True)
            collect("allreduce", data, "data", job.exchange, False)
        for rank in ranks:
            rank.wait()
            rank.compute("adam", took(job.layer / 4))
            if job.synchronised and not job.gloo:
                rank.row("cuda_runtime", "cudaDeviceSynchronize", rank.host, max(rank.host, rank.device))
                rank.host = max(rank.host, rank.device)
            # A host does not run ahead without end.
            rank.host = max(rank.host, rank.device - 5 * job.layer)
            number = job.first_step + step
            rank.row("user_annotation", f"ProfilerStep#{number}", begins[rank.rank], rank.host)
    return [_document(job, rank, {"tensor": tensor, "data": data, "world": everybody}) for rank in ranks]


def _send(job: Job, source: _Rank, target: _Rank, lot: list[int]) -> None:
    """Lets a stage of a pipeline wait for what another one sends."""
    arrivals = {rank.rank: rank.arrive() for rank in (source, target)}
    end = max(start for start, _ in arrivals.values()) + job.exchange / 4
    for rank, operation in ((source, "send"), (target, "recv")):
        start, link = arrivals[rank.rank]
        about = _of_send(job, operation, source.rank, target.rank, lot)
        rank.row("kernel", "ncclDevKernel_SendRecv(ncclArgs)", start, end, 30, stream=30, **link, **about)
        rank.device = max(rank.device, end)


def _of_send(job: Job, operation: str, source: int, target: int, lot: list[int]) -> dict[str, Any]:
    """Returns what PyTorch writes about a send or a receive: only its other end, which "Rank" is, too."""
    if job.sends == "alone":  # as it writes the kernel of a batch (batch_isend_irecv)
        return {}
    members = lot if job.sends == "in their group" else list(range(job.ranks))
    other = {"send": ("Dst Rank", target), "recv": ("Src Rank", source)}[operation]
    return {
        "Collective name": operation,
        "Group size": len(members),
        "Process Group Name": f"pp{lot[0]}" if members is lot else "world0",
        "Process Group Ranks": str(members),
        "Rank": members.index(other[1]),
        other[0]: other[1],
    }


def _collect(
    members: list[_Rank], operation: str, name: str, seconds: float, chance: random.Random, wait: bool
) -> None:
    job = members[0].job
    arrivals = [rank.arrive() for rank in members]
    end = max(start for start, _ in arrivals) + seconds
    for rank, (start, link) in zip(members, arrivals, strict=True):
        left = end + abs(chance.gauss(0, 10e-6))
        rank.exchange = max(rank.exchange, left)
        number = rank.sequence[name] = rank.sequence.get(name, 0) + 1
        if job.gloo:
            rank.row("cpu_op", "c10d::allreduce_", rank.host, rank.host + 1e-5)
            rank.row("user_annotation", "gloo:all_reduce", start, left, 2)
            rank.host += 1e-5
        else:
            about = {
                "Collective name": operation,
                "In msg nelems": 1000,
                "Out msg nelems": 1000,
                "Group size": len(members),
                "dtype": "Float",
                "Process Group Name": name,
                "Process Group Description": f"mesh_{name.rstrip('0123456789')}",
                "Process Group Ranks": str([member.rank for member in members]),
                **({"Seq": number} if job.numbered else {}),
            }
            stream = {"t": 20, "d": 24, "w": 28}[name[0]]
            name_of_kernel = "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
            more = about if job.described else {}
            rank.row("kernel", name_of_kernel, start, left, stream, stream=stream, **link, **more)
        if wait:
            rank.wait()


def _document(job: Job, rank: _Rank, groups: dict[str, list[list[int]]]) -> Row:
    config = [
        {"pg_name": f"{kind}{index}", "pg_desc": f"mesh_{kind}", "pg_size": len(members), "ranks": members}
        for kind, found in groups.items()
        for index, members in enumerate(found)
        if rank.rank in members and len(members) > 1
    ]
    return {
        "schemaVersion": 1,
        "host_name": f"node-{rank.rank * job.nodes // job.ranks}",
        "baseTimeNanoseconds": BASE * 10**9,
        "distributedInfo": {
            "backend": "gloo" if job.gloo else "nccl",
            "rank": rank.rank,
            "world_size": job.ranks,
            **({"pg_config": config} if job.described or job.gloo else {}),
        },
        "deviceProperties": [] if job.gloo else [{"id": rank.rank % 8, "name": "NVIDIA H100"}],
        "traceEvents": rank.rows,
    }
