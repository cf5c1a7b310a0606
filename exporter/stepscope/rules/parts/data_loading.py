"""Finds why data comes too late, from the times of the loader's workers and the cores of their node."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from stepscope.common.words import capitalised, count, duration, number, percent
from stepscope.rules.parts.remedies import HAND_OVER_LESS, HOOKS
from stepscope.training.layout import FETCH_BOUNDS

Cause = Literal[
    "heavy transform",
    "too few workers",
    "slow storage",
    "lock",
    "neighbours",
    "restarts",
    "one worker",
    "uneven fetches",
    "sampler",
    "lists",
    "threads",
    "hand-over",
    "Python pipeline",
    "sequential map",
    "slow pipeline",
    "PyDataset",
    "not known",
]

CPU_BOUND = 0.5  # workers compute for more than this share of a fetch, not counting waits for a core
LEAST_WAITING = 0.2  # of a fetch: below it, no storage is slow
WAITING_FOR_IO = 0.2  # if fetches were not timed, storage is slow if cores wait for it for more of the time
CORES_FULL = 0.85  # above this use of the cores that the run may use, they are full
WAITING_FOR_CORE = 0.2  # fetches that wait for a core for more of their time do so because of neighbours
WORKERS_BUSY = 0.5  # below this share of time fetching, workers are idle
SHORT_FETCH = 0.005  # seconds: a worker takes some milliseconds to hand a batch over
WAITING_FOR_LOCK = 0.5  # of what workers wait for in the user's lines: above it, they wait for each other
WAITING_FOR_DISK = 0.5  # of the same: below it, they wait for something that is not storage, or far away
OF_THE_SAMPLER = 0.5  # of a wait without workers: above it, most is in no fetch
OF_LISTS = 0.5  # of the same: above it, most makes tensors of the numbers in lists
RESTARTS = 0.5  # of the wait for data: above it, most is for the first batch of a pass
ONE_WORKER = 0.8  # of the seconds of fetches: with more, one of several workers does nearly everything
TOO_MANY_THREADS = 2  # of workers, per worker and per core of the rank
IN_PYTHON = 0.5  # of the wait for tf.data: with more CPU seconds in functions of Python, they are the cause
UNEVEN = 0.5  # of the wait: above it, most is for long fetches, which the others do not hide
LATE_ALONE = 0.1  # of steps without waits for a core: shorter fetches are no problem, as in DataStarved
SEVERAL_THREADS = 1.3  # CPU seconds per second of a fetch: a worker uses more than one thread

MOST_AHEAD = 16  # times as many batches as now: more would take too much memory
SPLIT = "Split the items that take long, or make them once and keep them: more batches ahead would not do."

CHEAPER_FETCH = "make the transform cheaper: cache its results, use a faster library, or move it to the GPU"
IN_WORKERS = "torch.set_num_threads(1) or cv2.setNumThreads(0) in the loader's worker_init_fn"
ONE_THREAD = f"one thread (OMP_NUM_THREADS=1, TOKENIZERS_PARALLELISM=false; {IN_WORKERS})"
NOT_TIMED = "no fetch was timed"
HOW_TO_TIME = (
    f"{HOOKS} time the fetches of PyTorch's workers. Time those of other loaders with `stepscope.fetch`. "
    "That shows whether storage, the transform or the number of workers delays batches."
)


def _cores(amount: float) -> str:
    return f"{amount:g} {'core' if amount == 1 else 'cores'}"


class CoresInUse(NamedTuple):
    """How many of the cores that the run may use on a node were used on average, and by whom."""

    allowed: float
    loaders: float
    rest: float  # the run's main processes
    others: float

    @property
    def are_full(self) -> bool:
        return self.loaders + self.rest + self.others > CORES_FULL * self.allowed

    def words(self) -> str:
        loaders, rest, others = (number(round(cores, 1)) for cores in (self.loaders, self.rest, self.others))
        return (
            f"of {_cores(self.allowed)}, its loaders use {loaders}, "
            f"the rest of the run {rest}, others {others}"
        )

    def full_of(self) -> str:
        """Returns who uses most of them."""
        names = {
            "its own loaders": self.loaders,
            "its own main process": self.rest,
            "neighbours": self.others,
        }
        return max(names, key=lambda name: names[name])


class PyDataset(NamedTuple):
    """How Keras makes batches of a PyDataset, or of a generator, ahead of the steps."""

    workers: int  # 0: one after another, in one thread
    processes: bool  # instead of threads
    queue: int  # at most so many batches at once


@dataclass(frozen=True)
class Loading:
    """The data loading of one rank so far; seconds are sums over its workers or over its steps."""

    workers: int | None  # None if no loader is known
    fetch_seconds: float
    fetch_cpu_seconds: float
    fetch_core_wait_seconds: float  # ready to run, but no core was free; 0 if never or not counted
    step_seconds: float
    wait_seconds: float
    cores: float  # per rank of the node; 0 if not known
    cpu_busy: float  # mean utilisation of the node's cores, a ratio
    io_wait: float
    in_use: CoresInUse | None = None  # None: not measured
    fetches: int = 0
    # What the threads that fetch wait for in lines of the user's code, by samples: shares by STATES of
    # training/line_layout.py, all together 1, or {} if none was seen.
    waits: Mapping[str, float] = field(default_factory=dict)
    busiest_fetch_seconds: float = 0.0  # of fetch_seconds, of the worker with most; 0: not known
    fetch_counts: Sequence[int] = ()  # fetches between FETCH_BOUNDS
    prefetch: int | None = None  # batches that each worker makes ahead
    restart_seconds: float = 0.0  # of wait_seconds, for the first batch of each pass but the first
    persistent_workers: bool | None = None
    worker_threads: int = 0  # that compute, of all workers of the rank; 0: not known
    sequential_maps: int | None = None  # of tf.data, without parallel calls; None: another loader
    pipeline_python_seconds: float = 0.0  # CPU seconds of functions of Python that tf.data calls
    py_dataset: PyDataset | None = None  # None: another loader
    lists_share: float = 0.0  # of the wait, by samples: a tensor is made of each position of lists of numbers
    step_core_wait_seconds: float = 0.0  # of the main thread, in step_seconds; 0: not counted

    @property
    def computing_seconds(self) -> float:
        return max(self.step_seconds - self.wait_seconds, 1e-9)

    @property
    def cpu_share(self) -> float:
        """Returns the CPU seconds per second of fetching, NaN if fetches were not timed."""
        return self.fetch_cpu_seconds / self.fetch_seconds if self.fetch_seconds else math.nan

    @property
    def waiting_share(self) -> float:
        """Returns the share of the fetch time without computing and without waiting for a core."""
        elsewhere = self.cpu_share + self.fetch_core_wait_seconds / max(self.fetch_seconds, 1e-9)
        return max(1 - elsewhere, 0.0)  # two clocks: their sum may exceed the whole by a little

    @property
    def workers_wait(self) -> bool:
        """Returns whether fetches wait for something other than a core. False if they were not timed."""
        if self.fetch_core_wait_seconds:
            # Waits for a core count for neither side: computing and waking up from a read both need one.
            # On a busy machine, what little is left is no measure: a lock that a thread without a core holds.
            if self.waiting_share < LEAST_WAITING:
                return False
            return self.cpu_share <= CPU_BOUND * (self.cpu_share + self.waiting_share)
        return self.cpu_share <= CPU_BOUND * self.cpu_share_of_computing

    @property
    def cpu_share_of_computing(self) -> float:
        """Returns the CPU share of fetches that only compute, estimated if waits for a core were not counted.

        It is 1 on idle cores. On full cores it is the share of a core per worker, with the training process
        computing too.
        """
        on_full_cores = min(1.0, self.cores / ((self.workers or 0) + 1))
        return 1 - self.cpu_busy * (1 - on_full_cores)

    @property
    def workers_needed(self) -> int:
        """Returns the workers that would keep up: seconds of fetching per second of computing."""
        work = self.fetching_seconds if self.workers_wait else self.fetch_cpu_seconds
        if self.workers == 0 and self.fetch_seconds:  # a wait is a fetch; other fetches were for evaluation
            work *= self.wait_seconds / self.fetch_seconds
        return math.ceil(work / self.computing_seconds)

    @property
    def workers_suggested(self) -> int | None:
        """Returns how many workers to use: as many as keep up, if there are cores for them.

        Workers that sleep in reads hardly use a core, so there can be more of them than cores. Returns None
        if more workers are no remedy, or if that is not known.
        """
        cause = self.cause()
        if not self.fetch_seconds or self.workers is None or self.is_short:
            return None
        sleeps_alone = cause == "slow storage" and self.workers == 0  # more workers may find storage busy
        if cause != "too few workers" and not sleeps_alone:
            return None
        wanted = max(self.workers_needed, self.workers + 1)
        if self.cores:
            of_a_core = max(self.cpu_share / (self.cpu_share + self.waiting_share), 0.01)
            wanted = min(wanted, max(1, int(self.cores / of_a_core)))
        return wanted if wanted > self.workers else None

    @property
    def is_short(self) -> bool:
        """Returns whether this process fetches a batch in less time than a worker takes to hand it over.

        Waits for a core do not count: a worker would wait, too.
        """
        return self.workers == 0 and 0 < self.fetching_seconds < SHORT_FETCH * self.fetches

    @property
    def fetching_seconds(self) -> float:
        """Returns the seconds of fetches without waits for a core."""
        return max(self.fetch_seconds - self.fetch_core_wait_seconds, 0.0)

    @property
    def workers_busy(self) -> float:
        """Returns the share of the step time for which each worker was fetching."""
        return self.fetch_seconds / (max(self.workers or 0, 1) * max(self.step_seconds, 1e-9))

    def cause(self) -> Cause:
        """Returns the cause that was measured. Only timed fetches show what workers did."""
        if self.py_dataset is not None:
            return "PyDataset"
        if self.is_pipeline:
            if self.pipeline_python_seconds > IN_PYTHON * self.wait_seconds:
                return "Python pipeline"
            return "sequential map" if self.sequential_maps else "slow pipeline"
        if not self.fetch_seconds:
            slow = self.io_wait > WAITING_FOR_IO
            return "slow storage" if slow else "too few workers" if self.workers == 0 else "not known"
        if self.workers and self.restart_share > RESTARTS:
            return "restarts"
        if self.others_fill_cores and not self.is_short:  # a remedy for short fetches helps there as well
            return "neighbours"
        if self.one_does_all:
            return "one worker"
        if self.workers == 0 and self.wait_seconds - self.fetch_seconds > OF_THE_SAMPLER * self.wait_seconds:
            return "sampler"
        if self.workers == 0 and self.lists_share > OF_LISTS:
            return "lists"
        if (
            self.workers
            and self.cores
            and self.worker_threads > TOO_MANY_THREADS * max(self.workers, self.cores)
        ):
            return "threads"
        if self.longest_fetch:
            return "uneven fetches"
        if self.workers_wait and not self.is_short:
            return "lock" if self.waits.get("lock", 0.0) > WAITING_FOR_LOCK else "slow storage"
        if self.workers == 0:
            return "too few workers"
        could_keep_up = self.workers_needed <= self.cores
        if self.workers is None:
            return "not known" if could_keep_up or not self.cores else "heavy transform"
        if self.workers_busy < WORKERS_BUSY:
            return "hand-over"
        if not self.cores:
            return "not known"
        return "too few workers" if could_keep_up and self.workers < self.cores else "heavy transform"

    @property
    def is_pipeline(self) -> bool:
        """Returns whether the data comes from tf.data alone, which has threads instead of workers."""
        return self.sequential_maps is not None and self.workers is None and not self.fetch_seconds

    @property
    def one_does_all(self) -> bool:
        """Returns whether one of several workers fetches nearly everything, of what all could share."""
        workers = self.workers or 0
        most = self.busiest_fetch_seconds > ONE_WORKER * self.fetch_seconds
        return most and workers > 1 and self.fetches >= 2 * workers

    @property
    def restart_share(self) -> float:
        """Returns the share of the wait for the first batches of passes, some of which may be in no step."""
        return min(self.restart_seconds / self.wait_seconds, 1.0) if self.wait_seconds else 0.0

    @property
    def hidden_seconds(self) -> float:
        """Returns how long steps compute with the batches that workers make ahead."""
        ahead = (self.workers or 0) * (self.prefetch or 0)
        return ahead * self.computing_seconds / max(self.fetches, 1)

    @property
    def longest_fetch(self) -> float:
        """Returns the most seconds that a fetch took, if steps wait for a few long ones; otherwise 0.

        All together the workers keep up, but those fetches outlast the batches that are made ahead.
        """
        if not self.hidden_seconds or self.fetching_seconds > (self.workers or 0) * self.computing_seconds:
            return 0.0
        bounds = (0.0, *FETCH_BOUNDS, FETCH_BOUNDS[-1])
        found = [(at, fetches) for at, fetches in enumerate(self.fetch_counts) if fetches]
        about = [((bounds[at] + bounds[at + 1]) / 2, fetches) for at, fetches in found]
        beyond = [fetches * max(seconds - self.hidden_seconds, 0.0) for seconds, fetches in about]
        return bounds[found[-1][0] + 1] if sum(beyond) > UNEVEN * self.wait_seconds else 0.0

    @property
    def others_fill_cores(self) -> bool:
        """Returns whether fetches wait for cores that are full, mostly of other processes, most of all.

        Workers whose fetches take longer than steps compute are late on free cores, too. So are fetches of
        the training process that are long compared with computing, if neither had to wait for a core.
        """
        if self.workers and self.fetching_seconds > self.workers * self.computing_seconds:
            return False
        waits_of_computing = max(self.step_core_wait_seconds - self.fetch_core_wait_seconds, 0.0)
        if self.workers == 0 and waits_of_computing:
            alone = max(self.computing_seconds - waits_of_computing, 0.0)
            if self.fetching_seconds > LATE_ALONE * (self.fetching_seconds + alone):
                return False
        waits = self.fetch_core_wait_seconds > self.fetch_seconds * max(WAITING_FOR_CORE, self.waiting_share)
        use = self.in_use
        return waits and use is not None and use.are_full and use.others > use.loaders + use.rest

    def words(self) -> tuple[str, str]:
        """Returns the cause as a clause, and the remedy."""
        has = "an unknown number of workers"
        if self.workers is not None:
            has = count(self.workers, "worker") if self.workers else "no worker process"
        if self.py_dataset is not None:
            return self._words_of(self.py_dataset)
        if self.is_pipeline:
            return self._words_of_pipeline()
        needed = max(self.workers_needed, 1)
        timed = not math.isnan(self.cpu_share)
        cause = self.cause()
        if cause == "slow storage":
            who = "workers spend" if self.workers else "the rank spends"
            facts = f"{who} {percent(100 * self.waiting_share)} of a fetch waiting" if timed else ""
            waits = (
                f"the cores wait for I/O {percent(100 * self.io_wait)} of the time"
                if self.io_wait > 0.01
                else ""
            )
            ahead = "Read ahead with more workers or a higher prefetch factor."
            if best := self.workers_suggested:
                ahead = f"Give the loader {count(best, 'worker')} (num_workers={best}), which wait together."
            if facts and self.waits and self.waits.get("disk", 0.0) < WAITING_FOR_DISK:
                return (
                    f"{facts}, and hardly for a disk: for a network, a timer or another process",
                    "Ask for many items at once, and keep what was fetched in memory or on a local disk. "
                    f"{ahead}",
                )
            return (
                f"storage is slow: {' and '.join(filter(None, (facts, waits)))}",
                f"Keep the data in memory or on local storage, in few large files. {ahead}",
            )
        if cause == "lock" and not self.workers:
            return (
                f"the rank spends {percent(100 * self.waiting_share)} of a fetch waiting for other threads, "
                "which compute, read or hold a lock",
                "Let a worker process fetch during the steps (num_workers=1), and its threads do less. If "
                "they use all cores, more workers cannot help.",
            )
        if cause == "lock":
            return (
                f"workers wait for a lock: {percent(100 * self.waits['lock'])} of their waits are for one, "
                "so they fetch one after another",
                "Let each worker fetch without the lock: open files and connections in the worker "
                "(worker_init_fn), instead of sharing one. More workers cannot help.",
            )
        if cause == "restarts":
            waits = f"{percent(100 * self.restart_share)} of the wait is for"
            if self.persistent_workers:
                return (
                    f"{waits} the first batch of an epoch, although the workers persist: the sampler or the "
                    "dataset starts again",
                    "Make the start of an epoch cheap: shuffle with `torch.randperm`, draw no more items "
                    "than an epoch has, and keep what the dataset loads from one epoch to the next.",
                )
            return (
                f"{waits} the first batch of an epoch, because {has} start again at each epoch",
                "Keep the workers alive (persistent_workers=True), or make epochs longer: `iter(loader)` "
                "inside the loop begins one at each step. What each worker loads at its start, load before "
                "the loader forks.",
            )
        if cause == "threads":
            each = round(self.worker_threads / (self.workers or 1))
            return (
                f"each of {count(self.workers or 0, 'worker')} computes with {count(each, 'thread')} on a "
                f"share of {_cores(self.cores)}",
                f"Give each worker {ONE_THREAD}. More workers cannot help.",
            )
        if cause == "one worker":
            return (
                f"one of {count(self.workers or 0, 'worker')} does "
                f"{percent(100 * self.busiest_fetch_seconds / self.fetch_seconds)} of the fetching",
                "Split the data over the workers: at least one shard per worker, or every N-th item "
                "(`torch.utils.data.get_worker_info()`). More workers cannot help.",
            )
        if cause == "uneven fetches":
            workers, prefetch = self.workers or 1, self.prefetch or 1
            ahead = count(workers * prefetch, "batch", "batches")
            hidden, longest = self.hidden_seconds, self.longest_fetch
            times = longest / hidden
            more = (
                f"Let more batches be ready: prefetch_factor={math.ceil(times * prefetch)} instead of "
                f"{prefetch}, or num_workers={math.ceil(times * workers)} instead of {workers}. Or split the "
                "items that take long."
            )
            return (
                f"few fetches are long: {ahead} are made ahead, which last {duration(hidden)}, and the "
                f"longest fetch takes up to {duration(longest)}",
                more if times <= MOST_AHEAD else SPLIT,
            )
        if cause == "sampler":
            return (
                f"fetches take {percent(100 * self.fetch_seconds / self.wait_seconds)} of the wait: the rest "
                "is the sampler, which chooses the items of each batch",
                "Choose all items of an epoch at once: with `torch.randperm`, or `torch.multinomial` for "
                "weights. The sampler runs in the training process, so workers cannot help.",
            )
        if cause == "lists":
            return (
                f"items are lists of numbers: {percent(100 * self.lists_share)} of the wait makes tensors, "
                "one per position of a list",
                "Return tensors or arrays from the dataset (`with_format` of Hugging Face), or pass a "
                "`collate_fn` that makes one tensor per field. Workers would have to hand over all of these.",
            )
        if cause == "too few workers":
            share = f" on a share of {self.cores:g} cores" if self.cores else ""
            clause = f"there are too few loader workers: {has}{share}"
            if not timed:
                return f"{clause}; how many would keep up is unknown, because {NOT_TIMED}", (
                    f"Let worker processes load ahead (num_workers=1 or more). {HOW_TO_TIME}"
                )
            if self.is_short:
                of_a_fetch = duration(self.fetching_seconds / self.fetches)
                return (
                    f"the rank fetches each batch itself, in {of_a_fetch}",
                    "Fetch whole batches at once: index the tensors with all indices of a batch (a "
                    "`__getitems__` of the dataset), collate in one call, or use larger batches. A worker "
                    "would take about as long to hand a batch over.",
                )
            best = self.workers_suggested or needed
            enough = (
                f"and about {needed} would keep up"
                if needed > (self.workers or 0)
                else f"busy {percent(100 * min(self.workers_busy, 1.0))} of the time"
            )
            late = f" They do not keep up either: {CHEAPER_FETCH}." if needed > best else ""
            return f"{clause}, {enough}", (
                f"Give the loader {count(best, 'worker')} (num_workers={best}).{late}"
            )
        if cause == "neighbours" and self.in_use is not None:
            waited = percent(100 * min(self.fetch_core_wait_seconds / self.fetch_seconds, 1.0))
            return (
                f"the cores are full of neighbours: {self.in_use.words()}, and fetches wait for a core "
                f"{waited} of their time",
                "Give the run cores of its own, or move one of the two elsewhere: more workers cannot help "
                "while others use the cores. NoisyNeighbour names the users.",
            )
        if cause == "heavy transform":
            use, more = "", "more workers than cores cannot help"
            if self.in_use is not None:
                use = f"; {self.in_use.words()}"
                if self.in_use.are_full:
                    more = f"more workers cannot help: the cores are full of {self.in_use.full_of()}"
            threads = ""
            if self.cpu_share > SEVERAL_THREADS:
                threads = f"Each worker uses {self.cpu_share:.1f} cores at once: give it {ONE_THREAD}. "
            return (
                "the transform is too heavy for the cores: "
                f"{self.fetch_cpu_seconds / self.computing_seconds:.1f} CPU seconds per second of computing, "
                f"with {has} on {_cores(self.cores)}{use}"
            ), (f"{threads}{capitalised(CHEAPER_FETCH)}; {more}.")
        if cause == "hand-over":
            alone = ""
            if self.fetching_seconds < self.wait_seconds:
                alone = (
                    f" Without workers (num_workers=0) a batch takes "
                    f"{duration(self.fetching_seconds / max(self.fetches, 1))}, less than the wait for it."
                )
            return (
                f"the workers are idle {percent(100 * (1 - self.workers_busy))} of the time: "
                "handing over batches takes long",
                f"{HAND_OVER_LESS}{alone}",
            )
        if timed:
            unknown = "many there are" if self.workers is None else "many cores they may use"
            return (
                f"fetches compute, and about {needed} workers would keep up; how {unknown} is unknown",
                f"Check how many workers the loader has, and how many cores: about {needed} are needed.",
            )
        return f"the cause is unknown, because {NOT_TIMED}", HOW_TO_TIME

    def _words_of_pipeline(self) -> tuple[str, str]:
        """Returns why a pipeline of tf.data is late as a clause, and the remedy."""
        why, first = "it takes longer than the steps", "Make its functions cheaper."
        if self.cause() == "Python pipeline":
            why = f"its Python functions computed for {duration(self.pipeline_python_seconds)}, one at a time"
            first = (
                "Write its generator, or what its `map` calls, with TensorFlow's operations: parallel calls "
                "of Python share one interpreter. Otherwise use a PyDataset with processes."
            )
        elif self.sequential_maps:
            why = f"{count(self.sequential_maps, 'map')} without parallel calls"
            first = "Give `map` num_parallel_calls=tf.data.AUTOTUNE."
        if self.restart_share > RESTARTS:
            why += f"; {percent(100 * self.restart_share)} of the wait is for the first batch of an epoch"
            first = f"Call `shuffle` before `map` and `batch`: its buffer fills with what is cheap. {first}"
        return f"the tf.data pipeline is late: {why}", (
            f"{first} End the pipeline with `prefetch(tf.data.AUTOTUNE)`, `cache()` what is the same in each "
            "epoch, and read files with a parallel `interleave`."
        )

    def _words_of(self, python: PyDataset) -> tuple[str, str]:
        """Returns why a PyDataset is late as a clause, and the remedy. It makes batches all the time."""
        makes = self.fetch_seconds or max(python.workers, 1) * self.step_seconds
        wanted = max(math.ceil(makes / self.computing_seconds), python.workers + 1, 2)
        waits = bool(self.fetch_seconds) and self.workers_wait
        if self.cores and not waits:
            wanted = max(min(wanted, int(self.cores)), 2)
        wider = ""
        if python.workers > python.queue > 0:
            wider = f" Raise `max_queue_size` from {python.queue}: only so many batches are made at once."
        if not python.workers:
            ahead = (
                "Let a PyDataset make them ahead, which no generator does (Keras 2: a Sequence, arguments of "
                f"`fit`): `workers={wanted}` in the `super().__init__` of the PyDataset"
            )
            unless = "" if self.fetch_seconds else ", unless `__getitem__` mostly waits"
            return "Python makes one batch after another", (
                f"{ahead}. `__getitem__` mostly waits, so threads are enough."
                if waits
                else f"{ahead}, and `use_multiprocessing=True`{unless}: threads share one interpreter."
            )
        if not python.processes:
            return f"the {count(python.workers, 'thread')} of the PyDataset share one interpreter", (
                "Pass `use_multiprocessing=True` to the PyDataset, for processes instead. If `__getitem__` "
                f"mostly waits, more `workers` are enough.{wider}"
            )
        late = f"the {count(python.workers, 'process', 'processes')} of the PyDataset do not keep up"
        if wanted > python.workers:
            return late, f"Pass `workers={wanted}` to the PyDataset.{wider}"
        return f"{late} on {_cores(self.cores)}", (
            "Make `__getitem__` cheaper: decode once and keep the result, index whole arrays. More `workers` "
            f"than cores cannot help.{wider}"
        )
