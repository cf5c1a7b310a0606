"""Watched loaders, and fetches in worker processes: forked, spawned, killed, and PyTorch's own."""

import os
import textwrap
from pathlib import Path
from typing import NamedTuple

import pytest
from stepscope.common.shared_files import is_locked, open_private
from stepscope.exporter.ledgers.reader import LedgerHeader, LedgerReader, LedgerTotals, open_ledgers
from stepscope.training import fetch as fetches
from stepscope.training import layout
from stepscope.training.ledger import create_ledger
from stepscope.training.ranks import Ranks

from tests.support.pytorch import needs_torch
from tests.support.training_script import only_ledger, run_to_end, training, wait_for_line
from tests.support.waiting import SECONDS, wait_until

WAIT = 0  # place of data_wait in COMPONENTS


class Fetched(NamedTuple):
    output: str
    runs: dict[str, tuple[LedgerHeader, LedgerTotals]]
    unnamed: list[int]  # how many fetches each of the other runs has counted


def test_a_wait_right_before_a_step_belongs_to_that_step(ledgers: Path) -> None:
    run = run_to_end(
        """
        def batches():
            for i in range(3):
                time.sleep(0.02)
                yield i
        settings = dict(workers=4, pin_memory=True, prefetch_factor=2, batch_size=32)
        for batch in stepscope.watch(batches(), **settings):
            with stepscope.step(), stepscope.component("forward"): time.sleep(0.001)
        """,
        ledgers,
    )
    first, *others = run.steps
    assert first.components[WAIT] == 0.0  # it begins with its batch
    assert len(others) == 2
    for step in others:
        assert step.components[WAIT] >= 0.02
        assert step.duration >= 0.021
        assert sum(step.components) <= step.duration + 1e-9
    (loader,) = run.totals.loaders
    assert (loader.phase, loader.workers, loader.pin_memory, loader.prefetch_factor) == ("train", 4, True, 2)
    assert loader.batch_size == 32
    assert sum(loader.wait_counts) == 3
    in_steps = sum(step.components[WAIT] for step in run.steps)
    assert run.totals.component_seconds["data_wait"] == pytest.approx(in_steps)
    assert loader.wait_sum >= in_steps + 0.02


def test_a_wait_inside_a_step_belongs_to_it_and_one_before_no_step_to_none(ledgers: Path) -> None:
    run = run_to_end(
        """
        def batches():
            while True:
                time.sleep(0.02)
                yield 1
        stepscope.record_step("eval", 1.0, 1.0)
        loader = iter(stepscope.watch(batches(), phase="eval"))
        next(loader)                                # no step follows
        next(loader)                                # before a step
        with stepscope.step("eval"):
            with stepscope.component("forward"):
                next(loader)                        # inside
        """,
        ledgers,
    )
    _, step = run.steps
    assert 0.04 <= step.components[WAIT] <= step.duration
    assert step.components[1] < step.duration - 0.04
    assert run.totals.component_seconds["data_wait"] >= 0.06
    assert run.totals.loaders[0].phase == "eval"
    assert run.totals.loaders[0].workers is None
    assert run.totals.loaders[0].batch_size is None
    assert sum(run.totals.loaders[0].wait_counts) == 3


def test_a_component_between_batch_and_step_belongs_to_that_step(ledgers: Path) -> None:
    run = run_to_end(
        """
        for batch in stepscope.watch([1, 2]):
            with stepscope.component("host_to_device"): time.sleep(0.01)
            with stepscope.step(): pass
        """,
        ledgers,
    )
    assert [step.components[5] >= 0.01 for step in run.steps] == [True, True]


def test_a_timed_step_counts_its_watched_wait_once(ledgers: Path) -> None:
    run = run_to_end(
        """
        def batches():
            for i in range(2):
                time.sleep(0.01)
                yield i
        start = time.perf_counter()
        for batch in stepscope.watch(batches()):
            end = time.perf_counter()
            stepscope.record_step("train", start, end, data_wait=end - start)
            start = end
        """,
        ledgers,
    )
    assert run.totals.component_seconds["data_wait"] == pytest.approx(run.totals.phase_seconds["train"])
    assert sum(run.totals.loaders[0].wait_counts) == 2


def test_a_watched_loader_stands_in_for_the_loader(ledgers: Path) -> None:
    run = run_to_end(
        """
        class Loader(list):
            num_workers, pin_memory, prefetch_factor, batch_size = 3, False, 5, 16
            sampler = "mine"
        loader = Loader([1, 2, 3])
        watched = stepscope.watch(loader)
        assert len(watched) == 3 and watched.sampler == "mine"
        assert list(watched) == [1, 2, 3] and list(watched) == [1, 2, 3]
        watched.epoch = 4
        assert loader.epoch == 4
        del watched.epoch
        assert not hasattr(loader, "epoch")
        assert not stepscope.watch([]) and stepscope.watch(iter(loader))
        try: watched.missing
        except AttributeError as error: say(error)
        try: len(stepscope.watch(iter(loader)))
        except TypeError as error: say(error)
        """,
        ledgers,
    )
    assert run.output == (
        "'Loader' object has no attribute 'missing'\nobject of type 'list_iterator' has no len()\n"
    )
    (loader,) = run.totals.loaders
    assert (loader.workers, loader.pin_memory, loader.prefetch_factor) == (3, False, 5)
    assert loader.batch_size == 16
    assert sum(loader.wait_counts) == 6


def test_an_exception_of_the_loader_goes_through(ledgers: Path) -> None:
    run = run_to_end(
        """
        def broken():
            yield 1
            raise OSError("disk on fire")
        try:
            for _ in stepscope.watch(broken()): pass
        except OSError as error: say(error)
        """,
        ledgers,
    )
    assert run.output == "disk on fire\n"
    assert sum(run.totals.loaders[0].wait_counts) == 1


def test_watching_keeps_no_batch_in_memory(ledgers: Path) -> None:
    run_to_end(
        """
        import weakref
        class Batch: pass
        iterator = iter(stepscope.watch(Batch() for _ in range(2)))
        batch = next(iterator)
        gone = weakref.ref(batch)
        del batch
        assert gone() is None
        """,
        ledgers,
    )


WORKERS = """
import multiprocessing
@stepscope.fetch
def load(i):
    time.sleep(0.001)
    sum(range(10_000))
    return i
def work(count):
    for i in range(count): load(i)
def run(method):
    context = multiprocessing.get_context(method)
    workers = [context.Process(target=work, args=(5,)) for _ in range(3)]
    for worker in workers: worker.start()
    for worker in workers: worker.join()
    assert [worker.exitcode for worker in workers] == [0, 0, 0]
if __name__ == "__main__":
    with stepscope.step(): pass
"""


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_fetches_of_workers_are_counted_in_their_ranks_ledger(
    method: str, ledgers: Path, tmp_path: Path
) -> None:
    script = WORKERS + f"    run({method!r}); run({method!r}); load(1)\n"
    run = run_to_end(script, ledgers, file=tmp_path / "train.py")
    assert run.errors == ""
    assert sum(run.totals.fetch_counts) == 2 * 3 * 5 + 1
    assert run.totals.fetch_sum >= 31 * 0.001
    assert 0 < run.totals.fetch_cpu_seconds < run.totals.fetch_sum
    assert run.totals.steps == {"train": 1}


@pytest.mark.skipif(not Path("/proc/self/schedstat").exists(), reason="this kernel does not count core waits")
def test_a_fetch_that_waits_for_a_core_is_told_from_one_that_sleeps(ledgers: Path, tmp_path: Path) -> None:
    script = """
        import multiprocessing, os, time
        def work(one_core, all_there):
            os.sched_setaffinity(0, {one_core})
            all_there.wait()
            with stepscope.fetch:
                while time.thread_time() < 0.3: pass
            with stepscope.fetch: time.sleep(1)
        stepscope.start()
        core = min(os.sched_getaffinity(0))
        fork = multiprocessing.get_context("fork")
        all_there = fork.Barrier(3)
        workers = [fork.Process(target=work, args=(core, all_there)) for _ in range(3)]
        for worker in workers: worker.start()
        for worker in workers: worker.join()
    """
    run = run_to_end(script, ledgers, file=tmp_path / "train.py")
    assert run.errors == ""
    slept = run.totals.fetch_sum - run.totals.fetch_cpu_seconds - run.totals.fetch_core_wait_seconds
    # Three workers on one core wait for 0.6 s, 0.6 s and less at the least, and sleep for 1 s each.
    waited = run.totals.fetch_core_wait_seconds
    assert waited > 0.5
    assert 2.99 < slept < 3 + waited / 2


def test_a_thread_that_loses_its_core_when_its_cpu_time_is_read_does_not_seem_to_sleep(ledgers: Path) -> None:
    """On a busy machine, Linux often lets others run then: half of a fetch seemed to wait for storage."""
    run = run_to_end(
        """
        import sys
        class Machine:  # on which the thread loses its core for 10 s at each look at its CPU time
            wall = cpu = waited = 0.0
            pid = os.getpid()
            def work(self): self.wall += 1; self.cpu += 1
            def cpu_time(self):
                cpu = self.cpu
                self.wall += 10; self.waited += 10
                return cpu
            def seconds(self): return self.waited
        machine, module = Machine(), sys.modules["stepscope.training.fetch"]
        module.perf_counter = lambda: machine.wall
        module.fetch._cpu_time = machine.cpu_time
        module._thread.core_wait = machine
        for _ in range(3):
            with stepscope.fetch: machine.work()
        """,
        ledgers,
    )
    totals = run.totals
    assert totals.fetch_cpu_seconds == 3
    assert totals.fetch_core_wait_seconds > 0
    assert totals.fetch_sum == totals.fetch_cpu_seconds + totals.fetch_core_wait_seconds


def test_fetches_without_workers_start_the_run_and_nested_or_failed_ones_do_not_count(ledgers: Path) -> None:
    run = run_to_end(
        """
        with stepscope.fetch:
            with stepscope.fetch: pass
        try:
            with stepscope.fetch: raise KeyError
        except KeyError: pass
        import threading
        def fetches():
            for _ in range(1000):
                with stepscope.fetch: pass
        threads = [threading.Thread(target=fetches) for _ in range(4)]
        for thread in threads: thread.start()
        for thread in threads: thread.join()
        """,
        ledgers,
    )
    assert sum(run.totals.fetch_counts) == 4001


def test_a_process_that_was_forked_within_a_fetch_counts_its_own_fetches(ledgers: Path) -> None:
    run = run_to_end(
        """
        with stepscope.step("train"): pass
        with stepscope.fetch:
            child = os.fork()
            if child == 0:
                with stepscope.fetch: pass
        if child == 0:
            with stepscope.fetch: pass
            os._exit(0)
        os.waitpid(child, 0)
        """,
        ledgers,
    )
    assert sum(run.totals.fetch_counts) == 3


def test_a_killed_workers_fetches_stay_counted_and_its_slot_is_claimed_again(ledgers: Path) -> None:
    script = """
    import signal
    def worker(count, then):
        pid = os.fork()
        if pid: return pid
        for _ in range(count):
            with stepscope.fetch: pass
        say("counted")
        if then == "hang": time.sleep(600)
        os._exit(0)
    stepscope.start()
    first = worker(7, "hang")
    sys.stdin.readline()
    os.kill(first, signal.SIGKILL)
    os.waitpid(first, 0)
    os.waitpid(worker(5, "end"), 0)
    say("ended")
    sys.stdin.readline()
    """
    with training(script, ledgers) as process:
        wait_for_line(process, "counted")
        with only_ledger(ledgers) as reader:
            assert sum(reader.totals().fetch_counts) == 7
            (number,) = layout.SLOTS_FD.unpack_from(reader.path.read_bytes(), layout.SLOTS_FD_AT)
            with open(open_private(process.pid, number), "rb") as slots:
                assert is_locked(slots.fileno(), 0)
                assert process.stdin is not None
                process.stdin.write("\n")
                process.stdin.flush()
                wait_for_line(process, "counted")
                wait_for_line(process, "ended")
                wait_until(lambda: not is_locked(slots.fileno(), 0))
            assert reader.alive()
            assert sum(reader.totals().fetch_counts) == 12
            slot = layout.WORKERS_AT + 8 * layout.WORKER_DOUBLES
            data = reader.path.read_bytes()[slot : slot + 8 * layout.WORKER_DOUBLES]
            assert not any(data), "the second worker took a second slot"


def test_more_workers_than_slots_give_one_warning_and_no_error(ledgers: Path) -> None:
    run = run_to_end(
        f"""
        stepscope.start()
        hold_open, release = os.pipe()
        pids = []
        for _ in range({layout.WORKER_SLOTS} + 1):
            counted, told = os.pipe()
            pid = os.fork()
            if pid == 0:
                os.close(release)
                with stepscope.fetch: pass
                os.write(told, b"x")
                os.read(hold_open, 1)
                os._exit(0)
            os.read(counted, 1)
            os.close(counted); os.close(told)
            pids.append(pid)
        os.close(release)
        for pid in pids: assert os.waitpid(pid, 0)[1] == 0
        """,
        ledgers,
    )
    assert run.errors == "stepscope: more than 128 loader workers at once: the rest are not timed\n"
    assert sum(run.totals.fetch_counts) == layout.WORKER_SLOTS


PYTORCH = """
import warnings
warnings.simplefilter("ignore")
import torch
from torch.utils.data import DataLoader, Dataset
torch.set_num_threads(1)
class Numbers(Dataset):
    def __len__(self): return 12
    def __getitem__(self, i):
        time.sleep(0.001)
        return torch.tensor(i)
started = []
def worker_started(worker):
    open(os.environ["STARTED"], "a").write(f"{worker}\\n")
"""


SETTINGS = """
started = os.environ["STARTED"]
open(started, "w").close()
loader = DataLoader(Numbers(), batch_size=4, num_workers=2, prefetch_factor=3,
    worker_init_fn=worker_started, multiprocessing_context={method!r})
watched = stepscope.watch(stepscope.watch(loader))
watched = stepscope.watch(loader)
for epoch in range(2):
    for batch in watched:
        with stepscope.step("train"), stepscope.component("forward"): batch.sum()
with open(started) as file:
    assert sorted(file.read().split()) == ["0", "0", "1", "1"]
"""


@needs_torch
def test_a_pytorch_loader_tells_its_settings_and_its_workers_fetches_are_timed(fetched: Fetched) -> None:
    has_settings(fetched.runs["settings"][1])


@needs_torch
@pytest.mark.trial
def test_a_pytorch_loader_tells_its_settings_and_its_spawned_workers_fetches_are_timed(
    ledgers: Path, tmp_path: Path
) -> None:
    body = textwrap.indent(SETTINGS.format(method="spawn"), "    ")
    script = f'{PYTORCH}\nif __name__ == "__main__":\n{body}'
    started = {"STARTED": str(tmp_path / "started")}
    has_settings(run_to_end(script, ledgers, started, file=tmp_path / "train.py").totals)


def has_settings(totals: LedgerTotals) -> None:
    (loader,) = totals.loaders
    assert (loader.phase, loader.workers, loader.pin_memory, loader.prefetch_factor) == ("train", 2, False, 3)
    assert loader.batch_size == 4
    assert loader.persistent_workers is False
    assert loader.restart_seconds is not None
    assert 0 < loader.restart_seconds < loader.wait_sum
    assert totals.busiest_fetch_seconds < totals.fetch_sum
    assert totals.worker_threads == 2
    assert loader.queue_depth is not None
    assert sum(loader.wait_counts) == 6
    assert totals.steps == {"train": 6}
    assert sum(totals.fetch_counts) == 6
    assert totals.fetch_sum >= 6 * 4 * 0.001


THREADS_OF_WORKERS = """
import hashlib
from concurrent.futures import ThreadPoolExecutor
cores = os.sched_getaffinity(0)
os.sched_setaffinity(0, {min(cores)})
class Hashed(Numbers):
    def __len__(self): return 24
    def __getitem__(self, index):
        many = [bytes(4_000_000)] * 8
        return len(list(pool.map(lambda data: hashlib.sha256(data).digest(), many)))
def start(_):
    global pool
    pool = ThreadPoolExecutor(4)
for batch in stepscope.watch(DataLoader(Hashed(), batch_size=4, num_workers=2, worker_init_fn=start)):
    with stepscope.step("train"): pass
os.sched_setaffinity(0, cores)
"""


@needs_torch
def test_a_fetch_that_waits_for_its_own_threads_waits_for_a_core_if_they_do(fetched: Fetched) -> None:
    _, totals = fetched.runs["threads of workers"]
    waited_elsewhere = totals.fetch_sum - totals.fetch_cpu_seconds - totals.fetch_core_wait_seconds
    assert waited_elsewhere < 0.2 * totals.fetch_sum, totals
    assert totals.worker_threads >= 2 * 4


def test_a_thread_of_a_worker_that_waits_for_a_core_to_hand_batches_over_does_not_compute(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now, times = 10.0, {"main": (0.0, 0.0), "hands over": (0.0, 0.0), "computes": (0.0, 0.0)}
    monkeypatch.setattr(os, "listdir", lambda _: list(times))
    monkeypatch.setattr(fetches, "thread_times", times.__getitem__)
    monkeypatch.setattr(fetches, "get_native_id", lambda: "main")
    monkeypatch.setattr(fetches, "perf_counter", lambda: now)
    helpers = fetches._Helpers()
    now += 1.0
    times |= {"hands over": (0.001, 0.9), "computes": (0.05, 0.9)}
    assert helpers._look() == 1


THREADS_AS_WORKERS = """
import multiprocessing, queue, threading
open(os.environ["STARTED"], "w").close()
class Process(threading.Thread):
    pid = property(id)
class Queue(queue.Queue):
    def close(self): pass
    cancel_join_thread = close
context = multiprocessing.context.SpawnContext()
context.Process, context.Queue = Process, Queue
loader = DataLoader(Numbers(), batch_size=4, num_workers=2, worker_init_fn=worker_started,
    multiprocessing_context=context)
for batch in stepscope.watch(loader):
    with stepscope.step("train"): pass
with open(os.environ["STARTED"]) as file:
    assert sorted(file.read().split()) == ["0", "1"]
"""


@needs_torch
def test_threads_of_the_training_process_that_stand_in_for_workers_are_none(fetched: Fetched) -> None:
    _, totals = fetched.runs["threads as workers"]
    assert sum(totals.loaders[0].wait_counts) == 3
    assert (sum(totals.fetch_counts), totals.worker_threads) == (0, 0)


WRAPPED_FETCHES = """
from functools import wraps
from torch.utils.data._utils.fetch import _MapDatasetFetcher
calls, original = [], _MapDatasetFetcher.fetch
@wraps(original)
def counted(self, indices):
    calls.append(indices)
    return original(self, indices)
_MapDatasetFetcher.fetch = counted
for workers in (0, 1):
    for batch in stepscope.watch(DataLoader(Numbers(), batch_size=4, num_workers=workers)):
        with stepscope.step("train"): pass
assert _MapDatasetFetcher.fetch is counted
assert len(calls) == 3
_MapDatasetFetcher.fetch = original
"""


@needs_torch
def test_what_a_script_put_around_the_fetches_of_pytorch_is_timed_and_stays(fetched: Fetched) -> None:
    _, totals = fetched.runs["wrapped"]
    assert sum(totals.fetch_counts) == 6


def test_fetches_count_although_workers_that_started_before_fetch_nothing(ledgers: Path) -> None:
    ledgers.mkdir(exist_ok=True)
    ledger = create_ledger(str(ledgers), "resnet", Ranks(0, None, 1))
    for slot in range(20):
        at = layout.WORKERS_AT + 8 * slot * layout.WORKER_DOUBLES
        values = memoryview(ledger.memory)[at : at + 8 * layout.WORKER_DOUBLES].cast("d")
        values[layout.WORKER_THREADS] = 1.0
    values[layout.WORKER_SECONDS] = 5.0
    values.release()
    with LedgerReader(ledger.path) as reader:
        totals = reader.totals()
    os.close(ledger.fd)
    assert (totals.fetch_sum, totals.busiest_fetch_seconds, totals.worker_threads) == (5.0, 5.0, 20)


# Three ways to fetch, each in a run of its own.
FETCHING = """
import threading
from torch.utils.data import BatchSampler, IterableDataset
seconds = cpu_seconds = 0.0
class Data:
    def __init__(self, work): self.work = work
    def __len__(self): return 8
    def __getitem__(self, index):
        global seconds, cpu_seconds
        began, cpu_began = time.perf_counter(), time.thread_time()
        self.work()
        cpu_seconds += time.thread_time() - cpu_began
        seconds += time.perf_counter() - began
        return index
for name, work in (("sleeps", lambda: time.sleep(0.02)), ("computes", lambda: sum(range(200_000)))):
    seconds = cpu_seconds = 0.0
    stepscope.start(run=name)
    began = time.thread_time()
    for batch in stepscope.watch(DataLoader(Data(work), batch_size=2)):
        with stepscope.step(): pass
    print(name, seconds, cpu_seconds, time.thread_time() - began)
    stepscope.finish()

class Stream(IterableDataset):
    def __iter__(self): return iter(range(12))
stepscope.start(run="streams")
sampler = BatchSampler(range(12), batch_size=4, drop_last=False)
for batch in stepscope.watch(DataLoader(range(12), batch_sampler=sampler), phase="eval"):
    with stepscope.step("eval"): pass
for batch in stepscope.watch(DataLoader(Stream(), batch_size=4, num_workers=1), phase="train"):
    with stepscope.step("train"): pass
stepscope.finish()

def spin(): sum(range(3_000_000))
class Spinning(list):
    def __getitem__(self, index):
        thread = threading.Thread(target=spin)
        thread.start()
        thread.join()
        return index
stepscope.start(run="threads")
for batch in stepscope.watch(DataLoader(Spinning([1, 2]), batch_size=1, num_workers=1)):
    with stepscope.step(): pass
stepscope.finish()
"""
IN_RUNS = {
    "settings": SETTINGS.format(method="fork"),
    "threads of workers": THREADS_OF_WORKERS,
    "threads as workers": THREADS_AS_WORKERS,
    "wrapped": WRAPPED_FETCHES,
}


@pytest.fixture(scope="module")
def fetched(tmp_path_factory: pytest.TempPathFactory) -> Fetched:
    """All that fetches with PyTorch, in one process."""
    folder = tmp_path_factory.mktemp("fetched")
    script = PYTORCH + RUNS + FETCHING
    for name, body in IN_RUNS.items():
        script += f"stepscope.start(run={name!r})\n{body}\nstepscope.finish()\n"
    ledgers, file = folder / "ledgers", folder / "train.py"
    with training(script, ledgers, {"STARTED": str(folder / "started")}, file=file) as process:
        output, errors = process.communicate(timeout=SECONDS)
    assert (process.returncode, errors) == (0, "")
    runs, unnamed = {}, []
    for path in open_ledgers(ledgers):
        with LedgerReader(path) as reader:
            header, totals = reader.header, reader.totals()
        if header.name == file.stem:
            unnamed.append((header.start, sum(totals.fetch_counts)))
        else:
            runs[header.name] = header, totals
    assert runs.keys() == {"computes", "sleeps", "streams", "threads", *IN_RUNS}
    return Fetched(output, runs, [count for _, count in sorted(unnamed)])


@needs_torch
def test_pytorch_loaders_without_workers_or_over_streams_are_watched(fetched: Fetched) -> None:
    header, totals = fetched.runs["streams"]
    assert totals.steps == {"train": 3, "eval": 3}
    train, evaluation = totals.loaders
    assert (train.phase, train.workers, evaluation.phase, evaluation.workers) == ("train", 1, "eval", 0)
    assert (train.batch_size, evaluation.batch_size) == (4, 4)
    assert (train.restart_seconds, evaluation.restart_seconds) == (0, 0), "one pass each"
    assert sum(totals.fetch_counts) == 6, "three by the process itself, before there were workers"
    assert header.framework == "pytorch"
    assert header.framework_version.startswith("2.")


@needs_torch
def test_the_fetches_of_a_loader_without_workers_are_its_waits_and_say_whether_they_compute(
    fetched: Fetched,
) -> None:
    for line in fetched.output.splitlines():
        name, *measured = line.split()
        inside, cpu_inside, cpu_of_loop = map(float, measured)
        _, totals = fetched.runs[name]
        assert sum(totals.fetch_counts) == 4
        assert inside <= totals.fetch_sum <= totals.loaders[0].wait_sum
        assert cpu_inside <= totals.fetch_cpu_seconds <= cpu_of_loop


@needs_torch
def test_the_threads_of_a_worker_compute_for_its_fetches(fetched: Fetched) -> None:
    _, totals = fetched.runs["threads"]
    assert totals.fetch_cpu_seconds > 0.02, "spinning twice takes longer on any machine"


RUNS = """
from torch.utils.data._utils.fetch import _MapDatasetFetcher
untimed = _MapDatasetFetcher.fetch
def train(items, **settings):
    for batch in stepscope.watch(DataLoader(range(items), batch_size=1, **settings)):
        with stepscope.step(): pass
    stepscope.finish()
    assert _MapDatasetFetcher.fetch is untimed
train(2)
list(DataLoader(range(5), batch_size=1))   # between the runs: of none
stepscope.start()
train(3)
stepscope.start()
train(4, num_workers=1)
list(DataLoader(range(5), batch_size=1))
stepscope.start()
train(5)
"""


@needs_torch
def test_fetches_count_in_the_run_of_their_process_in_which_they_were_made(fetched: Fetched) -> None:
    assert fetched.unnamed == [2, 3, 4, 5]


FETCHES_IN_A_SIGNAL = """
import signal
from stepscope.training import fetch as module
def fetches(*_):
    with stepscope.fetch: pass
def interrupted(*arguments, bisect_left=module.bisect_left):  # while the fetch is counted
    module.bisect_left = bisect_left
    signal.raise_signal(signal.SIGUSR1)
    return bisect_left(*arguments)
signal.signal(signal.SIGUSR1, fetches)
module.bisect_left = interrupted
fetches()
"""


def test_a_fetch_of_a_signal_handler_does_not_wait_for_the_one_that_it_interrupts(ledgers: Path) -> None:
    totals = run_to_end(FETCHES_IN_A_SIGNAL, ledgers).totals
    assert sum(totals.fetch_counts) == 2
