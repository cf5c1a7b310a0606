"""Line samples of real processes: which line, what the main thread does, forks, threads, limits, trouble."""

import ast
import errno
import json
import os
import shutil
import struct
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace

import pytest
import stepscope
from stepscope.commands.run.hooks import STARTUP, command_environment
from stepscope.exporter.ledgers import line_files
from stepscope.exporter.ledgers.line_files import (
    LONG,
    OTHER_THREAD,
    TOOL,
    Line,
    LineFile,
    LineFolder,
    read_line_file,
)
from stepscope.training import layout as ledger_layout
from stepscope.training import line_identity, line_sampler
from stepscope.training import line_layout as layout
from stepscope.training.launch import Launch
from stepscope.training.ledger_checks import LedgerError
from stepscope.training.line_layout import text_checksum
from stepscope.training.line_names import LineNames
from stepscope.training.line_sampler import LineSampler, Turns, code_of, is_long
from stepscope.training.line_table import LineTable
from stepscope.training.main_stack import Frame

from tests.support.environment import unobserved
from tests.support.processes import ran
from tests.support.pythons import VERSIONS, pythons
from tests.support.smallest import smallest
from tests.support.training_script import EXPORTER
from tests.support.waiting import SECONDS

RUN = "STEPSCOPE_RUN", "lines"
TICK = 0.02  # seconds: more samples in less time than by default
# On a busy machine, too, all ticks are sampled, and a fork waits until the thread has ended.
SAMPLING = (
    f"from stepscope.training import line_sampler; line_sampler.layout.TICK_SECONDS = {TICK}; "
    "line_sampler.ALLOWED = 1.0; line_sampler.ENDED_WITHIN = 30.0; line_sampler.start()\n"
)
LONG_ENOUGH = 0.8  # seconds of the processes' own clock, for what is sampled after 20 ticks
MORE_OFTEN = "line_sampler.layout.TICK_SECONDS = 0.01\n"  # 200 samples in two seconds

BURN = """
import time
def spin(rounds):
    x = 0
    for i in range(rounds):
        x += i * i
def rest():
    time.sleep(0.005)
def until(seconds, work):
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        work()
"""


def sampled(
    tmp_path: Path, ledgers: Path, script: str, environment: dict[str, str] | None = None, expect: int = 0
) -> list[LineFile]:
    """Runs a script with line samples, warnings being errors, and returns what its processes left."""
    path = tmp_path / "slow.py"
    path.write_text(SAMPLING + BURN + script)
    clean = unobserved()
    process = ran(
        [sys.executable, "-W", "error", str(path)],
        env={
            **clean,
            "PYTHONPATH": EXPORTER,
            "STEPSCOPE_LEDGER_DIR": str(ledgers),
            "STEPSCOPE_LAUNCH": "one",
            RUN[0]: RUN[1],
            **(environment or {}),
        },
        cwd=tmp_path,
    )
    assert process.returncode == expect, process.stderr
    assert not process.stderr, process.stderr
    return [read_line_file(file) for file in sorted(ledgers.glob("*.lines"))]


def ticks_by(file: LineFile, field: str) -> dict[str, float]:
    found: dict[str, float] = {}
    for line, counts in file.counts.lines.items():
        name = getattr(line, field)
        found[name] = found.get(name, 0.0) + sum(counts)
    return found


def test_functions_are_seen_in_the_shares_of_the_time_that_they_take(tmp_path: Path, ledgers: Path) -> None:
    script = """
import json
took = {"sixty": 0.0, "thirty": 0.0, "ten": 0.0}
def clocked(function):
    start = time.monotonic()
    function()
    took[function.__name__] += time.monotonic() - start
def sixty(): spin(60_000)
def thirty(): spin(30_000)
def ten(): spin(10_000)
until(2, lambda: (clocked(sixty), clocked(thirty), clocked(ten)))
with open("took.json", "w") as file: json.dump(took, file)
"""
    (file,) = sampled(tmp_path, ledgers, MORE_OFTEN + script)
    seen = ticks_by(file, "caller")
    took = json.loads((tmp_path / "took.json").read_text())
    whole = sum(seen[name] for name in took)
    assert whole > 100
    for name, seconds in took.items():  # on busy cores, those that loops of these lengths suggest
        # Four standard deviations of a share of 100 samples are 20 points; of 160, 15.
        assert seen[name] / whole == pytest.approx(seconds / sum(took.values()), abs=0.15), name
    assert file.counts.ticks == sum(map(sum, file.counts.lines.values()))


def test_the_thread_is_woken_in_time_and_no_other_thread_is(tmp_path: Path, ledgers: Path) -> None:
    script = f"""
import os, threading
until({LONG_ENOUGH}, rest)
def slack(thread):
    with open(f"/proc/{{thread}}/timerslack_ns") as file: return int(file.read())
found = []
other = threading.Thread(target=lambda: found.append(slack(threading.get_native_id())))
other.start(); other.join()
usual = slack(os.getppid())
assert [slack(os.getpid()), *found] == [usual, usual], (usual, found)
assert slack(line_sampler._sampler._task.rpartition("/")[2]) == 1000
"""
    assert len(sampled(tmp_path, ledgers, script)) == 1


def test_next_to_busy_processes_a_line_that_gives_up_the_interpreter_lock_is_not_blamed_for_others(
    tmp_path: Path, ledgers: Path
) -> None:
    script = """
import os
def work(): spin(20_000)
def give_up(): os.stat(".")
until(1.5, lambda: (work(), give_up()))
"""
    neighbours = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(4)]
    try:
        (file,) = sampled(tmp_path, ledgers, MORE_OFTEN + script)
    finally:
        for process in neighbours:
            process.kill()
            process.wait()
    work, blamed = ticks_by(file, "caller").get("work", 0), ticks_by(file, "function").get("give_up", 0)
    assert work > blamed  # it takes a thousandth of the time


def test_after_a_sample_that_cost_much_cpu_time_ticks_are_skipped_and_count_for_the_next_one(
    tmp_path: Path, ledgers: Path
) -> None:
    script = f"""
import itertools
clock, samples = itertools.count(), []
line_sampler.ALLOWED = 0.1
line_sampler._sampler._owed = 0.0
line_sampler.thread_time = lambda: next(clock)  # a sample owes 20 ticks
count = line_sampler.LineTable.count
line_sampler.LineTable.count = lambda self, *what: (samples.append(what), count(self, *what))
until(1.6, rest)
assert len(samples) < 1.6 / {TICK} / 5, len(samples)
"""
    (file,) = sampled(tmp_path, ledgers, script)
    assert file.counts.ticks > 0.5 * file.counts.seconds / TICK  # those after the last sample miss


def test_what_samples_of_an_import_cost_makes_those_of_what_follows_no_rarer(
    tmp_path: Path, ledgers: Path
) -> None:
    folder = tmp_path / "site-packages"
    folder.mkdir()
    folder.joinpath("imported.py").write_text("""
from __main__ import line_sampler, samples
from itertools import count
from time import sleep
line_sampler.thread_time = lambda clock=count(): 1000 * next(clock)
while len(samples) < 5:
    sleep(0.005)
line_sampler.thread_time = lambda: 0
""")
    script = f"""
import sys
sys.path.insert(0, {str(folder)!r})
samples, count = [], line_sampler.LineTable.count
line_sampler.LineTable.count = lambda self, *what: (samples.append(what), count(self, *what))
line_sampler._sampler._owed = 0.0
import imported
assert line_sampler._sampler._owed <= 0 and line_sampler._sampler._usual < 1
"""
    sampled(tmp_path, ledgers, script)


@pytest.mark.parametrize(("cost", "interval"), [(20e-6, 20), (600e-6, 1000), (1.0, 5000)])
def test_the_sampler_asks_for_the_interpreter_lock_as_often_as_its_cpu_time_allows(
    cost: float, interval: int
) -> None:
    turns = Turns()
    try:
        for _ in range(100):  # at half of the interval a wait costs twice as much
            cost_now = cost if cost < Turns.COST else cost * 500e-6 / sys.getswitchinterval()
            turns.adjust(cost_now, late=1.0, woken=0, alone=True)
        assert sys.getswitchinterval() * 1e6 == pytest.approx(interval, rel=0.01)
    finally:
        turns.restore()
    assert sys.getswitchinterval() == 0.005


def test_a_thread_that_is_woken_in_vain_asks_for_the_interpreter_lock_sooner() -> None:
    turns = Turns()
    try:
        for late, interval in ((1e-3, 39), (1.0, 5000)):
            for _ in range(7 if late < 1 else 200):
                turns.adjust(1e-3, late=late, woken=50, alone=True)
            assert sys.getswitchinterval() * 1e6 == pytest.approx(interval, abs=1)
    finally:
        turns.restore()


def test_the_line_of_the_user_is_named_with_the_library_function_that_it_called(
    tmp_path: Path, ledgers: Path
) -> None:
    script = """
import json
text = json.dumps([{"a": i} for i in range(1000)], indent=1)
def parse():
    return json.loads(text)
until(1, parse)
"""
    (file,) = sampled(tmp_path, ledgers, script)
    line = max(file.counts.lines, key=lambda line: sum(file.counts.lines[line]))
    assert (line.function, line.library) == ("parse", "json.loads")
    name, _, number = line.place.partition(":")
    assert (name, (tmp_path / name).read_text().splitlines()[int(number) - 1]) == (
        "slow.py",
        "    return json.loads(text)",
    )
    assert line.caller == "until"
    assert (file.run.rpartition("-")[0], file.thread) == ("lines", (-1, "script"))


@pytest.mark.parametrize(
    ("state", "work"),
    [
        ("running", "spin(1000)"),
        ("lock", "lock.acquire(timeout=1.2)"),
        ("lock", "wait_for_file()"),
        ("child", "os.waitpid(subprocess.Popen(['sleep', '1.2']).pid, 0)"),
        ("other", "time.sleep(1.2)"),
    ],
)
def test_what_the_main_thread_waits_for_is_counted(
    tmp_path: Path, ledgers: Path, state: str, work: str
) -> None:
    script = f"""
import _thread, fcntl, os, subprocess, warnings
warnings.simplefilter("ignore")
lock = _thread.allocate_lock(); lock.acquire()
held, file = (os.open(__file__, os.O_RDONLY) for _ in range(2))
def release():
    time.sleep(1.2)
    fcntl.flock(held, fcntl.LOCK_UN)
def wait_for_file():
    fcntl.flock(held, fcntl.LOCK_EX)
    _thread.start_new_thread(release, ())
    fcntl.flock(file, fcntl.LOCK_EX)
    fcntl.flock(file, fcntl.LOCK_UN)
until(1.2, lambda: {work})  # one wait: between two, a busy machine has it wait for a core
"""
    (file,) = sampled(tmp_path, ledgers, script)
    totals = [sum(counts) for counts in zip(*file.counts.lines.values(), strict=True)]
    assert totals[layout.STATES.index(state)] > 0.6 * sum(totals), dict(
        zip(layout.STATES, totals, strict=True)
    )
    if state == "running":
        ran = file.counts.ran_seconds + file.counts.core_wait_seconds
        assert ran > 0.8 * file.counts.seconds


def test_a_forked_child_has_samples_of_its_own_and_no_fork_sees_the_thread(
    tmp_path: Path, ledgers: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = """
import os
def child(): spin(1000)
def parent(): spin(1000)
first_ticks, line_sampler.WORKER_FIRST_TICKS = line_sampler.WORKER_FIRST_TICKS, 1000
for _ in range(20):
    pid = os.fork()
    if pid == 0:
        os._exit(0)  # within 20 seconds, on a busy machine, too
    os.waitpid(pid, 0)
line_sampler.WORKER_FIRST_TICKS = first_ticks
pid = os.fork()
table, work = line_sampler._sampler._table, parent if pid else child
while not (table.path and any(work.__name__ in text for _, text in list(table._places))):
    work()
if pid:
    os.waitpid(pid, 0)
"""
    # A hook before a fork that is registered first is called last: after the sampler's.
    counting = (
        "import os\n"
        "os.register_at_fork(before=lambda: len(os.listdir('/proc/self/task')) == 1 or os._exit(3))\n"
    )
    (tmp_path / "first.py").write_text(counting)
    monkeypatch.setattr(sys.modules[__name__], "SAMPLING", "import first\n" + SAMPLING)
    files = sampled(tmp_path, ledgers, script)
    assert len(files) == 2  # children that end at once leave none
    callers = [set(ticks_by(file, "caller")) & {"child", "parent"} for file in files]
    assert sorted(map(sorted, callers)) == [["child"], ["parent"]]


def test_what_many_forks_take_is_sampled_although_no_thread_samples_meanwhile(
    tmp_path: Path, ledgers: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A pool of processes per step forks all the time: of 17.5 s in its line, 3.3 s were seen."""
    script = """
import os
def forks():
    for _ in range(20):
        pid = os.fork()
        if pid == 0:
            os._exit(0)
        os.waitpid(pid, 0)
forks()
"""
    # A hook before a fork that is registered first is called last: after the sampler's.
    (tmp_path / "first.py").write_text(
        "import os, time\nos.register_at_fork(before=lambda: time.sleep(0.1))\n"
    )
    monkeypatch.setattr(sys.modules[__name__], "SAMPLING", "import first\n" + SAMPLING)
    (file,) = sampled(tmp_path, ledgers, script)
    assert file.counts.seconds > 2.0
    assert ticks_by(file, "function")["forks"] * TICK > 0.8 * 2.0


def test_a_thread_that_makes_the_steps_is_sampled_as_long_as_it_lives(tmp_path: Path, ledgers: Path) -> None:
    script = f"""
import stepscope, threading
def step():
    stepscope.begin_step(); spin(20_000); stepscope.end_step()
def trains(): until({LONG_ENOUGH}, step)
def after(): spin(20_000)
thread = threading.Thread(target=trains)
thread.start(); thread.join()
until({LONG_ENOUGH}, after)
"""
    (file,) = sampled(tmp_path, ledgers, script)
    seen = ticks_by(file, "caller")
    assert min(seen[name] * TICK for name in ("step", "after")) > LONG_ENOUGH / 2
    assert not [line for line in file.counts.lines if line.phase == OTHER_THREAD]
    assert (file.counts.ran_seconds + file.counts.core_wait_seconds) > LONG_ENOUGH


def test_threads_that_fork_at_the_same_time_leave_one_sampling_thread(tmp_path: Path, ledgers: Path) -> None:
    script = """
import os
sampler = line_sampler._sampler
sampler.stop(); sampler.stop()  # before the forks of two threads,
sampler.start(); sampler.start()  # and after them
sampler.stop()
assert os.listdir("/proc/self/task") == [str(os.getpid())]
"""
    assert sampled(tmp_path, ledgers, script) == []


def test_wherever_python_switches_between_threads_that_fork_one_thread_samples(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    started: list[object] = []
    monkeypatch.setattr(line_sampler, "start_new_thread", lambda *thread: started.append(thread))
    monkeypatch.setattr(line_sampler, "ENDED_WITHIN", 0.0)
    for place in range(6):
        sampler = LineSampler()
        sampler.start()
        with switched_at(place, sampler.stop):
            sampler.stop()
        started.clear()
        with switched_at(place, sampler.start):
            sampler.start()
        assert len(started) == 1
        sampler.stop()


@contextmanager
def switched_at(place: int, function: Callable[[], None]) -> Iterator[None]:
    """Calls a function after so many calls of C code, as if another thread ran there and called it."""
    left = place

    def profile(_frame: object, event: str, _what: object) -> None:
        nonlocal left
        if event == "c_return":
            left -= 1
            if left == -1:
                function()

    before = sys.getprofile()
    sys.setprofile(profile)
    try:
        yield
    finally:
        sys.setprofile(before)


def test_workers_that_multiprocessing_forks_and_spawns_are_sampled_without_a_warning(
    tmp_path: Path, ledgers: Path
) -> None:
    script = f"""
import multiprocessing
def work(): until({LONG_ENOUGH}, lambda: spin(1000))
if __name__ == "__main__":
    for method in ("fork", "spawn"):
        process = multiprocessing.get_context(method).Process(target=work)
        process.start()
        process.join()
        assert process.exitcode == 0
"""
    files = sampled(tmp_path, ledgers, script)
    assert len(files) == 3
    assert sum(ticks_by(file, "function").get("spin", 0) > 10 for file in files) == 2


def test_a_process_that_was_started_before_the_run_works_for_the_rank_that_started_it(
    tmp_path: Path, ledgers: Path
) -> None:
    script = f"""
import multiprocessing, stepscope
def work():
    until({LONG_ENOUGH}, lambda: spin(1000))
if __name__ == "__main__":
    process = multiprocessing.get_context("fork").Process(target=work)
    process.start()
    stepscope.start(run="later")
    process.join()
"""
    roles = {file.thread.role: file for file in sampled(tmp_path, ledgers, script)}
    assert set(roles) == {"training", "child"}
    assert (roles["child"].run, roles["child"].thread.rank) == (roles["training"].run, 0)
    assert ticks_by(roles["child"], "function").get("spin", 0) > 10


def test_the_ledger_of_a_dead_process_with_the_pid_of_the_one_that_started_it_is_not_its_rank(
    tmp_path: Path, ledgers: Path
) -> None:
    sampled(tmp_path, ledgers, "import stepscope; stepscope.start(run='dead')")
    (dead,) = ledgers.glob("*.ledger")
    run, rank, _, key, suffix = dead.name.split(".")
    dead.rename(ledgers / f"{run}.{rank}.{os.getpid()}.{key}.{suffix}")
    files = sampled(tmp_path, ledgers, f"until({LONG_ENOUGH}, lambda: spin(1000))")
    assert [file.thread.role for file in files] == ["script"]


def test_other_threads_and_a_main_thread_without_python_code_do_no_harm(
    tmp_path: Path, ledgers: Path
) -> None:
    script = """
import threading
threads = [threading.Thread(target=until, args=(1, lambda: spin(1000))) for _ in range(3)]
for thread in threads: thread.start()
for thread in threads: thread.join()
"""
    (file,) = sampled(tmp_path, ledgers, script)
    assert set(ticks_by(file, "library")) & {"threading.join", "threading.Thread.join"}


LIBRARY = os.path.dirname(os.__file__)
OURS = os.path.dirname(stepscope.__file__)


def named(*frames: Frame) -> dict[str, str]:
    return dict(zip(layout.FIELDS, LineNames().of(frames).split("\n"), strict=True))


def test_no_frame_of_the_main_thread_is_a_line_without_a_place() -> None:
    assert set(named().values()) == {""}


def test_a_long_name_keeps_its_package_and_loses_whole_parts_after_it() -> None:
    file = f"{LIBRARY}/multiprocessing/{'of_a_library/' * 5}connection.py"
    kept = f"multiprocessing...{'of_a_library.' * 3}connection.inner"
    assert named((file, 1, "inner"))["library"] == kept


@pytest.mark.parametrize(
    ("file", "function", "library"),
    [
        (f"{LIBRARY}/json/__init__.py", "loads", "json.loads"),
        ("/x/site-packages/torch/optim/sgd.py", "SGD.step", "torch.optim.sgd.step"),
        ("/x/python3.zip/queue.py", "get", "queue.get"),
        ("<frozen importlib._bootstrap>", "_find_and_load", "import"),
        ("<frozen runpy>", "run_path", "runpy.run_path"),
        ("<made by exec>", "__init__", "__init__"),
    ],
)
def test_a_function_of_a_library_has_the_name_of_its_module(file: str, function: str, library: str) -> None:
    found = named((file, 3, function), ("train.py", 7, "step"), ("train.py", 9, "<module>"))
    assert found == dict(
        zip(layout.FIELDS, ("train.py:7", "step", library, "train.py:9", "<module>"), strict=True)
    )


def test_of_a_framework_that_runs_everything_the_innermost_function_is_named() -> None:
    packages = "/x/site-packages"
    frames = [
        (f"{LIBRARY}/csv.py", 1, "DictWriter.writerows"),
        (f"{packages}/lightning/fabric/loggers/csv_logs.py", 2, "save"),
        (f"{packages}/lightning/pytorch/trainer/trainer.py", 3, "Trainer.fit"),
        ("train.py", 4, "main"),
    ]
    assert named(*frames)["library"] == "fit: lightning.fabric.loggers.csv_logs.save"
    frames = [
        (f"{packages}/gymnasium/core.py", 1, "Env.step"),
        (f"{packages}/stable_baselines3/common/vec_env/dummy_vec_env.py", 2, "DummyVecEnv.step_wait"),
        (f"{packages}/stable_baselines3/ppo/ppo.py", 3, "PPO.learn"),
        ("train.py", 4, "main"),
    ]
    assert named(*frames)["library"] == "learn: stable_baselines3.common.vec_env.dummy_vec_env.step_wait"
    frames = [
        (f"{packages}/fastai/optimizer.py", 1, "adam_step"),
        (f"{packages}/fastai/callback/schedule.py", 2, "fit_one_cycle"),
        ("train.py", 3, "<module>"),
    ]
    assert named(*frames)["library"] == "fit_one_cycle: fastai.optimizer.adam_step"
    model = (f"{packages}/torch/nn/modules/linear.py", 5, "Linear.forward")
    called = (f"{packages}/torch/nn/modules/module.py", 6, "Module._call_impl")
    assert named(model, called, ("train.py", 4, "main"))["library"] == "torch.nn.modules.linear.forward"


def test_the_framework_whose_fit_another_library_calls_is_named() -> None:
    packages = "/x/site-packages"
    search = (f"{packages}/keras_tuner/src/engine/base_tuner.py", 4, "BaseTuner.search")
    between = (f"{packages}/keras_tuner/src/engine/hypermodel.py", 3, "HyperModel.fit")
    fit = (f"{packages}/keras/src/backend/tensorflow/trainer.py", 2, "TensorFlowTrainer.fit")
    save = (f"{packages}/keras/src/callbacks/model_checkpoint.py", 1, "ModelCheckpoint.on_epoch_end")
    own = ("train.py", 4, "main")
    assert named(fit, between, search, own)["library"] == "keras.src.backend.tensorflow.trainer.fit"
    assert named(save, fit, between, search, own)["library"].startswith("fit: keras.src.callbacks.")
    assert named(between, search, own)["library"].endswith("base_tuner.search")


def test_the_function_that_was_called_is_named_instead_of_its_decorator_s(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sys, "argv", ["train.py"])  # of `python -c`, as in xdist, <string> is the script
    torch = "/x/site-packages/torch"
    around = (f"{torch}/distributed/c10d_logger.py", 2, "_exception_logger.<locals>.wrapper")
    called = (f"{torch}/distributed/distributed_c10d.py", 1, "all_gather_object")
    own = ("train.py", 4, "main")
    assert named(called, around, own)["library"].endswith("distributed_c10d.all_gather_object")
    assert named(around, own)["library"].endswith("wrapper"), "of what has no Python"
    xgboost = "/x/site-packages/xgboost"
    around, called = (f"{xgboost}/core.py", 2, "inner_f"), (f"{xgboost}/training.py", 1, "cv")
    assert named(called, around, own)["library"] == "xgboost.training.cv"
    ray = "/x/site-packages/ray/_private"
    around, called = (f"{ray}/auto_init_hook.py", 2, "auto_init_wrapper"), (f"{ray}/worker.py", 1, "get")
    assert named(called, around, own)["library"] == "ray._private.worker.get"
    proxy, called = ("<string>", 2, "get"), (f"{LIBRARY}/multiprocessing/managers.py", 1, "_callmethod")
    assert named(called, proxy, own)["library"] == "multiprocessing.managers._callmethod"
    assert named(proxy, own)["library"] == "get"
    keras = "/x/site-packages/keras/src"
    fit = (f"{keras}/trainers/trainer.py", 2, "Trainer.fit")
    around = (f"{keras}/utils/traceback_utils.py", 3, "filter_traceback.<locals>.error_handler")
    layer = (f"{keras}/layers/core/dense.py", 1, "Dense.call")
    assert named(layer, around, fit, around, own)["library"].startswith("fit: "), "it runs what it is given"


def test_a_call_that_imports_a_module_at_its_first_use_is_an_import() -> None:
    module = ("/x/site-packages/torch/_dynamo/__init__.py", 1, "<module>")
    loads = ("<frozen importlib._bootstrap>", 9, "_find_and_load")
    called = ("/x/site-packages/torch/optim/sgd.py", 7, "SGD.__init__")
    own = ("train.py", 4, "main")
    assert named(module, loads, called, own)["library"] == "import"
    assert named(called, own, loads)["library"] == "torch.optim.sgd.__init__"


def test_generated_code_is_nobodys_line(monkeypatch: pytest.MonkeyPatch) -> None:
    own = ("train.py", 7, "train")
    fit = ("/x/site-packages/keras/src/trainers/trainer.py", 2, "Trainer.fit")
    traced = ("/tmp/__autograph_generated_fileab1_.py", 12, "outer_factory.<locals>.tf__step")
    for frames in (
        [traced, fit, own],
        [("/x/site-packages/tensorflow/ops.py", 1, "matmul"), traced, fit, own],
    ):
        found = named(*frames)
        assert (found["place"], found["library"]) == ("train.py:7", "keras.src.trainers.trainer.fit")
    assert LineNames().whole([traced, fit, own]) == LineNames().whole([fit, own])
    torch = ("/x/site-packages/torch/_inductor/output_code.py", 3, "CompiledFxGraph.__call__")
    assert named(("/tmp/torchinductor_me/ab/cabc.py", 40, "call"), torch, own)["place"] == "train.py:7"
    written = ("/tmp/torch_geometric.nn.conv.gcn_conv_GCNConv_propagate_ab1.py", 96, "collect")
    assert named(written, own)["place"] == "train.py:7"
    elsewhere = ("/scratch/inductor/ab/cabc.py", 40, "call")
    assert named(elsewhere, own)["place"] == "ab/cabc.py:40"
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", "/scratch/inductor")
    assert named(elsewhere, torch, own)["place"] == "train.py:7"


@pytest.mark.parametrize("package", [f"{LIBRARY}/multiprocessing", "/x/site-packages/multiprocess"])
def test_the_frames_of_a_forked_process_end_where_multiprocessing_began_it(package: str) -> None:
    began = (f"{package}/process.py", 3, "BaseProcess._bootstrap")
    loop = ("/x/site-packages/torch/utils/data/_utils/worker.py", 1, "_worker_loop")
    waits = (f"{LIBRARY}/multiprocessing/queues.py", 1, "Queue.get")
    found = named(waits, loop, began, ("train.py", 9, "main"))
    assert (found["place"], found["library"]) == ("", "multiprocessing.queues.get")
    assert named(waits, ("train.py", 7, "Rows.__getitem__"), loop, began)["place"] == "train.py:7"


def test_a_hook_between_the_user_and_the_library_is_not_the_function_that_was_called() -> None:
    inner, outer = ((f"{LIBRARY}/library.py", line, name) for line, name in ((1, "inner"), (2, "outer")))
    between = [(f"{OURS}/hook.py", 3, "hooked"), ("<shim>", 0, "<interpreter trampoline>")]
    found = named(inner, outer, *between, ("__init__", 1, "__init__"), ("train.py", 4, "step"))
    assert (found["function"], found["library"]) == ("step", "library.outer")
    assert named(between[0], outer)["library"] == "library.outer"


def test_a_main_module_in_site_packages_and_code_after_c_are_the_users_own(tmp_path: Path) -> None:
    module = tmp_path / "site-packages" / "of_a_package.py"
    module.parent.mkdir()
    ask = "from stepscope.training.line_names import LineNames\nprint(LineNames()._is_own({}))\n"
    module.write_text(ask.format("__file__"))
    environment = {**os.environ, "PYTHONPATH": f"{EXPORTER}:{module.parent}"}
    for words in (["-m", "of_a_package"], [str(module)], ["-c", ask.format("'<string>'")]):
        done = subprocess.run([sys.executable, *words], env=environment, capture_output=True, check=True)
        assert done.stdout == b"True\n", words


def test_a_main_module_of_the_standard_library_is_not_the_users_own(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(
        "import sys\nfrom stepscope.training.line_names import LineNames\n"
        "print(LineNames()._is_own(sys._getframe(2).f_code.co_filename), LineNames()._is_own(__file__))\n"
    )
    environment = {**os.environ, "PYTHONPATH": EXPORTER}
    words = [sys.executable, "-m", "trace", "--count", "--coverdir", str(tmp_path), "train.py"]
    done = subprocess.run(words, env=environment, cwd=tmp_path, capture_output=True, check=True)
    assert done.stdout == b"False True\n"


def test_a_main_module_in_site_packages_that_another_script_starts_is_a_library_s(tmp_path: Path) -> None:
    worker = tmp_path / "site-packages" / "worker.py"
    worker.parent.mkdir()
    ask = "from stepscope.training.line_names import LineNames\nprint(LineNames()._is_own(__file__))\n"
    worker.write_text(ask)
    (tmp_path / "train.py").write_text(
        f"import subprocess, sys\n{ask}sys.stdout.flush()\n"
        "subprocess.run([sys.executable, 'site-packages/worker.py'])\n"
    )
    environment = {**os.environ, "PYTHONPATH": f"{STARTUP}:{EXPORTER}", "STEPSCOPE_INSTRUMENT": "1"}
    done = subprocess.run(
        [sys.executable, "train.py"], env=environment, cwd=tmp_path, capture_output=True, check=True
    )
    assert done.stdout == b"True\nFalse\n"


def test_a_process_that_executes_another_program_is_sampled_again(tmp_path: Path, ledgers: Path) -> None:
    (tmp_path / "second.py").write_text(SAMPLING + BURN + f"until({LONG_ENOUGH}, rest)")
    script = f"""
import os, sys
until({LONG_ENOUGH}, rest)
os.execv(sys.executable, [sys.executable, "second.py"])
"""
    files = sampled(tmp_path, ledgers, script)
    assert len(files) == 2
    assert {place.partition(":")[0] for file in files for place in ticks_by(file, "place")} >= {
        "slow.py",
        "second.py",
    }


def test_what_a_script_does_after_its_run_ended_belongs_to_the_run(tmp_path: Path, ledgers: Path) -> None:
    script = f"""
import stepscope
def report():
    rest()
stepscope.start(run="ended")
until({LONG_ENOUGH}, rest)
stepscope.finish()
until({LONG_ENOUGH}, report)
"""
    (file,) = sampled(tmp_path, ledgers, script)
    assert (file.run.partition("-")[0], file.thread.role) == ("ended", "training")
    phases = {line.phase for line in file.counts.lines if line.caller.endswith("report")}
    assert phases == {"finalization"}


def test_what_runs_in_a_step_that_lasts_longer_than_twice_the_usual_is_counted_for_long_steps(
    tmp_path: Path, ledgers: Path
) -> None:
    script = """
import stepscope
def usual(): time.sleep(0.02)
def compact(): until(1.5, lambda: spin(1000))
def step(work):
    stepscope.begin_step()
    work()
    stepscope.end_step()
for _ in range(30): step(usual)
step(compact)
for _ in range(30): step(usual)
"""
    (file,) = sampled(tmp_path, ledgers, script)
    long = {line: sum(counts) for line, counts in file.counts.lines.items() if line.step == LONG}
    compacting = [line for line in file.counts.lines if line.function == "spin"]
    assert sum(long.get(line, 0.0) for line in compacting) > sum(long.values()) / 2
    assert {line.step for line in file.counts.lines if line.phase != "train"} <= {""}


@pytest.mark.parametrize(
    ("role", "ticks", "leaves"),
    [("loader worker", 5, True), ("child", 5, False), ("child", 20, True), ("training", 19, False)],
)
def test_only_a_loader_worker_leaves_a_file_before_20_ticks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, role: str, ticks: int, leaves: bool
) -> None:
    known = SimpleNamespace(run="short", role=layout.ROLES.index(role), rank=0, directory=str(tmp_path))
    monkeypatch.setattr(line_identity, "Identity", lambda _: known)
    table = LineTable(8, 8)
    LineSampler()._identify(table, ticks)
    assert [read_line_file(path).run for path in tmp_path.iterdir()] == ["short"] * leaves
    if table.path:
        os.close(table._fd)


def test_a_child_that_outlives_its_training_stays_a_child_of_its_rank(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    child, orphan = (
        SimpleNamespace(run=run, role=role, rank=rank, directory=str(tmp_path))
        for run, role, rank in (("long", layout.ROLES.index("child"), 1), ("", 0, -1))
    )
    looks = iter([orphan, child, orphan])  # before the training began, and after it was killed
    monkeypatch.setattr(line_identity, "Identity", lambda _: next(looks))
    table, sampler = LineTable(8, 8), LineSampler()
    for ticks in (20, 40, 60):
        sampler._identify(table, ticks)
    (path,) = tmp_path.iterdir()
    file = read_line_file(path)
    assert (file.run, file.thread.role, file.thread.rank) == ("long", "child", 1)
    os.close(table._fd)


def test_what_a_long_step_waits_for_a_core_is_counted(tmp_path: Path, ledgers: Path) -> None:
    """Another process uses the only core in the long step; no process does in one that sleeps as long."""
    script = """
import os, stepscope
os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
def step(work):
    with stepscope.step("train"): work()
def crowded():
    pid = os.fork()
    until(1.5, lambda: spin(1000))
    if pid == 0: os._exit(0)
    os.waitpid(pid, 0)
stepscope.start()
for _ in range(20): step(lambda: time.sleep(0.03))
step(LAST)
"""
    waited = []
    for last in ("crowded", "lambda: time.sleep(1.5)"):
        folder = ledgers / last[:7]
        folder.mkdir(parents=True)
        files = sampled(tmp_path, folder, script.replace("LAST", last))
        counts = max((file.counts for file in files), key=lambda counts: counts.long_core_wait_seconds)
        at_most = counts.core_wait_seconds + 1e-9  # each is a sum that is rounded by itself
        assert counts.long_core_wait_seconds <= at_most
        assert counts.train_core_wait_seconds <= at_most
        waited.append((counts.long_core_wait_seconds, counts.train_core_wait_seconds))
    assert all(crowded > 0.3 + slept for crowded, slept in zip(*waited, strict=True))


AFTER_STEPS = f"""
import stepscope
def usual(): time.sleep(0.02)
def predict(): until({LONG_ENOUGH}, rest)
for _ in range(30):
    with stepscope.step(): usual()
stepscope.begin_step()
predict()
"""


def ticks_of(function: str, file: LineFile) -> dict[str, float]:
    """Returns the ticks of a function, which has several lines, by phase."""
    found = defaultdict[str, float](float)
    for line, counts in file.counts.lines.items():
        found[line.phase] += sum(counts) if line.function == function else 0.0
    return found


def test_what_an_exception_ends_was_in_the_step_that_was_open(tmp_path: Path, ledgers: Path) -> None:
    quiet = "import sys\nsys.excepthook = lambda *_: None\n"
    (file,) = sampled(tmp_path, ledgers, f"{quiet}{AFTER_STEPS}raise KeyboardInterrupt", expect=1)
    assert set(ticks_of("rest", file)) >= {"train"}
    assert ticks_of("rest", file)["finalization"] == 0


def test_what_follows_the_last_step_is_counted_as_that_and_not_for_a_step_that_never_came(
    tmp_path: Path, ledgers: Path
) -> None:
    (file,) = sampled(tmp_path, ledgers, AFTER_STEPS)
    resting = ticks_of("rest", file)
    assert resting["finalization"] > sum(resting.values()) / 2 > 0
    assert "train" in {line.phase for line in file.counts.lines if line.function == "usual"}
    assert file.counts.ticks == pytest.approx(sum(map(sum, file.counts.lines.values())))


def test_a_last_step_that_was_recorded_is_not_what_follows_it(tmp_path: Path, ledgers: Path) -> None:
    (file,) = sampled(tmp_path, ledgers, f"{AFTER_STEPS}stepscope.end_step()")
    assert ticks_of("rest", file)["train"] > 0
    assert ticks_of("rest", file)["finalization"] == 0


def test_the_function_that_another_thread_runs_has_its_cpu_time(tmp_path: Path, ledgers: Path) -> None:
    script = """
import functools, threading
def summarise(): until(4, lambda: spin(1000))
def asleep(): time.sleep(4)
class Reader(threading.Thread):
    def run(self): until(4, lambda: spin(1000))
threads = [threading.Thread(target=functools.partial(summarise)), threading.Thread(target=asleep), Reader()]
for thread in threads: thread.start()
for thread in threads: thread.join()
"""
    (file,) = sampled(tmp_path, ledgers, script)
    others = {line for line in file.counts.lines if line.phase == OTHER_THREAD}
    assert {line.function for line in others} <= {"summarise", "run", "Reader.run"}  # the latter from 3.11 on
    assert {line.place.partition(":")[0] for line in others} == {"slow.py"}
    assert file.counts.known_seconds == file.counts.seconds > 0


@pytest.mark.parametrize(
    ("tool", "seen"),
    [
        ("tracemalloc.start()", {("", "tracemalloc")}),
        ("sys.settrace(lambda *_: None)", {("slow.py", "")}),
        ("sys.setprofile(Profiler())", {("", "__main__.Profiler")}),
        ("os.environ.update(CUDA_LAUNCH_BLOCKING='1', PYTHONMALLOC='')", {("", "CUDA_LAUNCH_BLOCKING=1")}),
        ("pass", set()),
    ],
)
def test_a_tool_that_is_on_is_counted_for_as_long(
    tmp_path: Path, ledgers: Path, tool: str, seen: set[tuple[str, str]]
) -> None:
    script = f"""
import os, stepscope, sys, tracemalloc
class Profiler:
    def __call__(self, *_): pass
{tool}
with stepscope.step("train"):
    until({LONG_ENOUGH}, lambda: spin(1000))
sys.settrace(None)
sys.setprofile(None)
"""
    (file,) = sampled(tmp_path, ledgers, script)
    tools = {line: sum(ticks) for line, ticks in file.counts.lines.items() if line.component == TOOL}
    assert {(line.place.partition(":")[0], line.library) for line in tools} == seen
    assert all(ticks * TICK > LONG_ENOUGH / 2 for ticks in tools.values())


def test_a_tool_counts_as_on_from_the_step_at_which_the_thread_has_it_to_the_step_at_which_it_has_not(
    tmp_path: Path, ledgers: Path
) -> None:
    script = """
import stepscope, sys
from stepscope.training import tools
@stepscope.step("train")
def step(): spin(1000)
def until_noted(tool):
    sys.setprofile(tool)
    end = time.monotonic() + 60
    while [place[2] for place in tools.noted] != [each.__name__ for each in [tool] if each]:
        assert time.monotonic() < end, tools.noted
        step()
def early(*_): pass
def late(*_): pass
for tool in (early, None, late, None): until_noted(tool)
assert "stepscope.training.windows" not in sys.modules  # nobody asked for one
"""
    (file,) = sampled(tmp_path, ledgers, MORE_OFTEN + script)
    assert {line.function for line in file.counts.lines if line.component == TOOL} == {"early", "late"}


@pytest.mark.parametrize(
    ("steps", "open_for", "expected"),
    [
        ([0.1] * 7, 9.0, False),  # what is usual is not known yet
        ([0.1] * 8, 0.19, False),
        ([0.1] * 8, 0.21, True),
        ([0.1] * 20 + [5.0], 0.21, True),  # one long step is not usual,
        (([0.1] * 4 + [1.0]) * 6, 0.21, False),  # but one in five is
    ],
)
def test_a_step_is_long_from_twice_the_time_that_nine_in_ten_take(
    steps: list[float], open_for: float, expected: bool
) -> None:
    counters, ring = [0.0] * ledger_layout.COUNTER_DOUBLES, [0.0] * (16 * ledger_layout.RING_RECORDS)
    began = 100.0
    for number, seconds in enumerate(steps):
        ring[16 * number : 16 * number + 4] = [number + 1.0, began, seconds, 0.0]
        began += seconds
    counters[ledger_layout.COUNTER_RECORDED] = len(steps)
    counters[ledger_layout.COUNTER_STEP_SINCE] = began
    assert is_long(counters, ring, began + open_for) is expected
    counters[ledger_layout.COUNTER_STEP_SINCE] = began - 0.01  # closed: training waits for the next batch
    assert not is_long(counters, ring, began + open_for)
    counters[ledger_layout.COUNTER_WAIT_SINCE] = began
    assert is_long(counters, ring, began + open_for) is expected


def test_before_the_first_step_only_communication_and_compiling_are_components() -> None:
    counters = [0.0] * ledger_layout.COUNTER_DOUBLES
    found = {}
    for number, name in enumerate(ledger_layout.COMPONENTS, 1):
        counters[ledger_layout.COUNTER_COMPONENT] = number
        phase, found[name] = divmod(code_of(counters), 16)
        assert layout.PHASES[phase] == "initialization"
    known = {name: ledger_layout.COMPONENTS.index(name) + 1 for name in ("communication", "compile")}
    assert {name: component for name, component in found.items() if component} == known
    counters[ledger_layout.COUNTER_RECORDED] = 1.0
    assert code_of(counters) == 16 * layout.FIRST_PHASE + len(ledger_layout.COMPONENTS)


@pytest.mark.parametrize(("work", "least", "most"), [("done.wait()", 0, 400), ("run()", 500, 5000)])
def test_only_threads_that_compute_make_the_sampler_ask_later_for_the_interpreter_lock(
    tmp_path: Path, ledgers: Path, work: str, least: int, most: int
) -> None:
    script = f"""
import sys, threading
done = threading.Event()
def run():
    while not done.is_set(): spin(1000)
other = threading.Thread(target=lambda: {work})
other.start()
seen = []
until(2, lambda: (spin(1000), seen.append(sys.getswitchinterval())))
done.set(); other.join()
seen = sorted(1e6 * each for each in seen[len(seen) // 2 :])
assert {least} <= seen[len(seen) // 2] <= {most}, seen[len(seen) // 2]
"""
    assert sampled(tmp_path, ledgers, MORE_OFTEN + script)


def test_the_switch_interval_of_the_program_is_kept(tmp_path: Path, ledgers: Path) -> None:
    script = f"""
import sys
sys.setswitchinterval(0.01)
until({LONG_ENOUGH}, lambda: spin(1000))
assert sys.getswitchinterval() == 0.01
line_sampler._sampler.stop()
assert sys.getswitchinterval() == 0.01
sys.setswitchinterval(0.005)
line_sampler._sampler.start()
until({LONG_ENOUGH}, lambda: spin(1000))
assert sys.getswitchinterval() < 0.005
line_sampler._sampler.stop()
assert sys.getswitchinterval() == 0.005
assert line_sampler._sampler._running is None  # so that the one at the end waits for nothing
"""
    assert len(sampled(tmp_path, ledgers, script)) == 1


# -- what another thread may do -------------------------------------------------------------------------


def test_no_code_of_ours_in_a_training_process_touches_the_frames_of_another_thread() -> None:
    frames = {
        "_current_frames",
        "_current_exceptions",
        "f_back",
        "f_code",
        "tb_frame",
        "gi_frame",
        "cr_frame",
    }
    own = {
        "training/last_exception.py",  # reads the traceback of its own thread, which has ended
        "torch_hooks/steps.py",  # goes through the callers of a hook, in its own thread
        "training/python_profiler.py",  # is called with the frame of its own thread
    }
    touched = [
        f"{path.name}: {name}"
        for path in [*Path(OURS, "training").rglob("*.py"), Path(EXPORTER, "stepscope_startup.py")]
        if not path.as_posix().endswith(tuple(own))
        for node in ast.walk(ast.parse(path.read_text()))
        if (name := getattr(node, "attr", getattr(node, "name", ""))) in frames
    ]
    assert touched == []


@pytest.mark.parametrize("version", smallest(VERSIONS, {0, 2}))  # the module has two names
def test_a_program_that_makes_an_interpreter_ends_as_without_samples(
    version: str, tmp_path: Path, ledgers: Path
) -> None:
    if version not in pythons():
        pytest.skip(f"no Python {version} on PATH or of pyenv")
    script = tmp_path / "interpreters.py"
    script.write_text("""
try:
    import _interpreters as interpreters
except ImportError:
    import _xxsubinterpreters as interpreters
run = getattr(interpreters, "exec", None) or interpreters.run_string
for _ in range(20):
    other = interpreters.create()
    run(other, "print('other', flush=True)")
    interpreters.destroy(other)
print("main goes on")
""")
    environment = command_environment(
        unobserved(),
        Launch("lines", "one"),
        ledgers,
    )
    done = ran([pythons()[version], str(script)], env=environment)
    assert (done.returncode, done.stdout) == (0, "other\n" * 20 + "main goes on\n"), done.stderr


@pytest.mark.parametrize(
    "name", ["wait", "wait_für_es", "wait_ж_\U00029baa_e", pytest.param("wait_" * 48, id="more-than-64-KiB")]
)
def test_a_stack_is_read_with_its_innermost_100_frames_and_names_that_are_not_ascii(
    name: str, tmp_path: Path
) -> None:
    script = tmp_path / f"{name}\\n.py"
    script.write_text(f"""
from _thread import allocate_lock, start_new_thread
from stepscope.training.main_stack import NOT_ASCII, stack_of_this_thread
open_stack, read, go_on = stack_of_this_thread(), [], allocate_lock()
def look():
    stack = open_stack()
    try:
        for _ in range(100):  # more text than the file keeps
            seen = stack.read()
        read.extend(stack.frames(seen))
        stack.check()
    except OSError as error:
        read.append(str(error))
    stack.close()
    go_on.release()
def {name}():
    go_on.acquire()
def {name}_{name}(depth):
    return {name}_{name}(depth - 1) if depth else {name}()
go_on.acquire()
start_new_thread(look, ())
{name}_{name}(200)
if {sys.version_info >= (3, 14) and not name.isascii()}:
    assert read == [NOT_ASCII], read
else:
    assert read[0][::2] == (__file__, "{name}"), read[0]
    assert [(line, function) for _, line, function in read[1:]] == [(19, "{name}_{name}")] * 99, read[1]
""")
    environment = {**os.environ, "PYTHONPATH": EXPORTER}
    subprocess.run([sys.executable, "-W", "error", str(script)], env=environment, timeout=SECONDS, check=True)


def test_a_program_that_closes_all_descriptors_loses_its_samples_and_nothing_else(
    tmp_path: Path, ledgers: Path
) -> None:
    (ledgers / "startup").mkdir(parents=True)
    script = """
import os
until(0.6, rest)
os.closerange(3, 2000)
files = [open(f"file-{number}", "w+b") for number in range(900)]
until(1.2, rest)
assert not any(file.read() for file in files)
for file in files: file.close()
"""
    sampled(tmp_path, ledgers, script)


# -- the table -----------------------------------------------------------------------------------------


def test_more_places_than_slots_cost_the_rarest_ones_their_names_and_no_count() -> None:
    table = LineTable(slots=8)
    for number in range(1000):
        table.count(0, "hot.py:1\nhot\n\n\n", 0, 1)
        table.count(0, f"cold.py:{number}\ncold\n\n\n", 0, 1)
    assert table._ticks(table._places[0, "hot.py:1\nhot\n\n\n"]) == 1000
    assert sum(map(table._ticks, range(8))) == 2000


@contextmanager
def published(ledgers: Path) -> Iterator[Path]:
    table = LineTable(slots=8)
    table.count(16 * 2 + 2, "train.py:3\nstep\n\n\n", 0, 5, "train.py:9\nstep, train.py:3")
    table.name_run("lines-1")
    table.publish(str(ledgers), 1e9)
    yield Path(table.path)


def test_a_file_is_read_as_it_was_written(ledgers: Path) -> None:
    with published(ledgers) as path:
        file = read_line_file(path)
    assert file.counts.lines == {Line("train", "forward", "train.py:3", "step"): (5, 0, 0, 0, 0)}
    assert file.counts.stacks == {("train", "forward", "train.py:9", "step, train.py:3"): 5}
    assert (file.run, file.owner, file.counts.ticks) == ("lines-1", os.geteuid(), 5)
    assert path.stat().st_mode & 0o777 == 0o644


def test_what_is_half_written_is_left_out_until_the_next_look(ledgers: Path) -> None:
    with published(ledgers) as path, open(path, "r+b") as file:
        for at in (HEADER_FIELD + layout.TEXT_AT, TREE_AT + layout.NODE_BYTES + layout.NODE_TEXT_AT):
            file.seek(at)
            file.write(b"T")
        file.flush()
        counts = read_line_file(path).counts
        assert (counts.lines, counts.stacks) == ({}, {})  # nor is a stack whose caller is half written


HEADER_FIELD = layout.HEADER_BYTES + layout.SLOT_BYTES
TREE_AT = layout.HEADER_BYTES + 8 * layout.SLOT_BYTES


def of_node(caller: int, name: bytes = b"planted") -> bytes:
    text = name.ljust(layout.NODE_TEXT_BYTES, b"\0")
    return layout.NODE.pack(text_checksum(caller, text), caller, 1.0) + text


@pytest.mark.parametrize(
    ("reason", "at", "data"),
    [
        ("magic", 0, b"SSLEDGER"),
        ("version", 8, struct.pack("<q", 2)),
        ("length", 16, struct.pack("<q", 1 << 40)),
        ("length", 24, struct.pack("<q", 1 << 40)),
        ("length", 32, struct.pack("<q", 1 << 40)),
        ("header", 40, struct.pack("<q", 0)),
        ("header", layout.NUMBERS_AT + 8 * layout.ROLE, struct.pack("<d", 0.5)),
        ("header", layout.NUMBERS_AT + 8 * layout.USED, struct.pack("<d", 1e18)),
        ("header", layout.NUMBERS_AT + 8 * layout.USED_NODES, struct.pack("<d", 1e18)),
        ("header", layout.NUMBERS_AT + 8 * layout.RANK, struct.pack("<d", float("nan"))),
        ("counter", layout.NUMBERS_AT + 8 * layout.SECONDS, struct.pack("<d", float("inf"))),
        ("counter", layout.NUMBERS_AT + 8 * layout.TICKS, struct.pack("<d", -1.0)),
        ("counter", HEADER_FIELD + 8 * layout.COUNTS, struct.pack("<d", float("nan"))),
        ("name", layout.RUN_AT, b"\x1b[2J"),
        ("counter", TREE_AT + layout.NODE_BYTES + 16, struct.pack("<d", float("nan"))),
        ("counter", TREE_AT + layout.NODE_BYTES, of_node(1)),
        ("counter", TREE_AT + layout.NODE_BYTES, of_node(-200)),
        ("record", TREE_AT + layout.NODE_BYTES, of_node(-16)),
        ("name", TREE_AT + layout.NODE_BYTES, of_node(-1, b"\x1b[2J")),
    ],
)
def test_a_file_that_cannot_be_is_refused_and_costs_only_itself(
    ledgers: Path, reason: str, at: int, data: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    with published(ledgers) as path, published(ledgers) as healthy:
        with open(path, "r+b") as file:
            file.seek(at)
            file.write(data)
        with pytest.raises(LedgerError) as refused:
            read_line_file(path)
        assert refused.value.reason == reason
        (ledgers / "link.lines").symlink_to(healthy)
        os.mkfifo(ledgers / "pipe.lines")
        folder = LineFolder(ledgers)
        folder.read_all({("lines-1", os.geteuid())})
        folder.read_all({("lines-1", os.geteuid())})
    assert [counts.ticks for counts in folder.counts().values()] == [5]
    assert len(caplog.records) == 3  # each refused once


def test_the_samples_of_an_ended_process_are_kept_when_its_file_is_removed(ledgers: Path) -> None:
    with published(ledgers) as path:
        pass
    folder = LineFolder(ledgers)
    for _ in range(2):  # and are counted once
        folder.read_all({("lines-1", os.geteuid())})  # this process does not see its own lock: it looks dead
        assert [counts.ticks for counts in folder.counts().values()] == [5]
        folder.remove(set(folder.removed))
    assert not path.exists()


@pytest.mark.parametrize("call", ["entries", "open_plain_file"])
def test_a_moment_without_file_descriptors_costs_no_samples(
    ledgers: Path, call: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.EMFILE, "Too many open files")

    monkeypatch.setattr(line_files, "is_locked", lambda *_: True)  # this process does not see its own lock
    runs = {("lines-1", os.geteuid())}
    with published(ledgers):
        folder = LineFolder(ledgers)
        folder.read_all(runs)
        with monkeypatch.context() as patched:
            patched.setattr(line_files, call, full)
            folder.read_all(runs)
        folder.read_all(runs)
    assert not folder.removed  # the process lives
    assert not caplog.messages  # nor is the file refused
    assert [counts.ticks for counts in folder.counts().values()] == [5]


def test_samples_of_other_runs_and_users_are_not_read(ledgers: Path) -> None:
    with published(ledgers):
        folder = LineFolder(ledgers)
        folder.read_all({("lines-2", os.geteuid())})
        folder.read_all({("lines-1", os.geteuid() + 1)})
    assert folder.counts() == {}


# -- trouble -------------------------------------------------------------------------------------------


def test_a_full_directory_costs_the_samples_and_says_so_once(tmp_path: Path, ledgers: Path) -> None:
    if shutil.which("sh") is None:
        pytest.skip("needs a shell")
    path = tmp_path / "slow.py"
    (ledgers / "startup").mkdir(parents=True)
    path.write_text(SAMPLING + BURN + f"until({LONG_ENOUGH}, rest)\nprint('done')")
    limited = ("sh", "-c", 'ulimit -f 8; exec "$@"', "sh", sys.executable, "-W", "error", str(path))
    environment = {**os.environ, "PYTHONPATH": EXPORTER, "STEPSCOPE_LEDGER_DIR": str(ledgers)}
    process = ran(limited, env=environment)
    assert (process.returncode, process.stdout) == (0, "done\n")
    assert process.stderr == ""
    assert (ledgers / "startup" / "no_lines").read_text().startswith("of process ")
    assert (ledgers / "startup" / "no_lines").read_text().endswith("File too large")
    assert list(ledgers.iterdir()) == [ledgers / "startup"]


@pytest.mark.parametrize(
    ("python", "reason"),
    [
        ("sys.hexversion = 0x030F00F0", "not tried with cpython 3."),
        ("sys.implementation.name = 'pypy'", "not tried with pypy 3."),
        ("sys.abiflags = 't'", "this Python has no interpreter lock to stop the main thread by"),
    ],
)
def test_a_python_without_a_sound_way_to_read_a_stack_is_not_sampled(
    python: str, reason: str, ledgers: Path
) -> None:
    (ledgers / "startup").mkdir(parents=True)
    script = f"import sys; {python}\n{SAMPLING}assert line_sampler._sampler is None"
    environment = {**os.environ, "PYTHONPATH": EXPORTER, "STEPSCOPE_LEDGER_DIR": str(ledgers)}
    subprocess.run([sys.executable, "-c", script], env=environment, check=True, timeout=SECONDS)
    assert f": {reason}" in (ledgers / "startup" / "no_lines").read_text()


@pytest.mark.parametrize(
    ("main_thread", "waits"),
    [
        ("while True: pass", "for the interpreter lock"),
        ("lock = _thread.allocate_lock(); lock.acquire(); lock.acquire()", "for a lock of the program"),
    ],
)
def test_the_interpreter_lock_is_among_cpythons_own_variables_and_no_lock_of_a_program_is(
    main_thread: str, waits: str
) -> None:
    script = f"""
import _thread
from stepscope.training.main_thread import variables_of_the_interpreter
print(variables_of_the_interpreter(), flush=True)
if {waits == "for the interpreter lock"}:
    _thread.start_new_thread(sum, (range(10**12),))  # one long call never gives the interpreter lock back
{main_thread}
"""
    environment = {**os.environ, "PYTHONPATH": EXPORTER}
    process = subprocess.Popen(
        [sys.executable, "-c", script], env=environment, stdout=subprocess.PIPE, text=True
    )
    try:
        assert process.stdout is not None
        variables = json.loads(process.stdout.readline().replace("(", "[").replace(")", "]"))
        path = Path(f"/proc/{process.pid}/syscall")
        while (call := path.read_text().split())[0] not in ("202", "98"):  # futex, on x86-64 and on ARM
            time.sleep(0.01)
        among = any(begin <= int(call[1], 16) < end for begin, end in variables)
        assert among == (waits == "for the interpreter lock")
    finally:
        process.kill()
        process.communicate()
