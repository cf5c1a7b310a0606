"""Where real training processes are, and what they do: stopped, killed, in a loop, before the first step."""

import os
import pty
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack
from math import inf, nan
from pathlib import Path
from subprocess import Popen

import pytest
from stepscope.demo.node import SimulatedClock
from stepscope.exporter.collectors.training import TrainingCollector
from stepscope.exporter.exporter import Exporter
from stepscope.exporter.ledgers.ages import Ages, Place
from stepscope.exporter.ledgers.presence import main_thread_state, presence
from stepscope.exporter.ledgers.reader import LedgerError, LedgerReader, open_ledgers
from stepscope.exporter.processes.used import read_state
from stepscope.exporter.sampling.collector import Collector
from stepscope.exporter.sampling.sample import Sample
from stepscope.runs.model import NodeSamples
from stepscope.runs.recording.directory import RecordingDirectory
from stepscope.runs.recording.live import LiveRecording
from stepscope.training import layout

from tests.support.places import put_counters, put_place
from tests.support.training_script import go_on, training, wait_for_line, wait_until_held
from tests.support.waiting import SECONDS, wait_until

MINUTE = 60.0
STEPS = "stepscope.record_step('train', 1.0, 2.0, forward=0.5)"
LAUNCH = {"STEPSCOPE_RUN": "run", "STEPSCOPE_LAUNCH": "one", "WORLD_SIZE": "2"}


class Node:
    """Two ranks that train on this machine, and a collector some time later, by its own clock."""

    def __init__(self, directory: Path, stack: ExitStack, *scripts: str) -> None:
        self.directory = directory
        self.later = 0.0
        self.processes: list[Popen[str]] = []
        for rank, script in enumerate(scripts):
            environment = {**LAUNCH, "RANK": str(rank), "LOCAL_RANK": str(rank)}
            process = stack.enter_context(training(script, directory, environment))
            (wait_until_held if "hold()" in script else wait_for_line)(process)
            self.processes.append(process)
        self.collector = TrainingCollector(directory)
        stack.callback(self.collector.close)

    def ledger(self, rank: int) -> Path:
        for path in open_ledgers(self.directory):
            with LedgerReader(path) as reader:
                if reader.header.rank == rank:
                    return path
        raise AssertionError(f"rank {rank} has no ledger")

    def after(self, seconds: float = 0.0) -> None:
        self.later += seconds
        later = self.later
        self.collector.collect(Sample(time=time.time() + later, monotonic=time.monotonic() + later))

    def values(self, name: str) -> dict[tuple[str, ...], float]:
        family = next(each for each in self.collector.families if each.name == f"stepscope_{name}")
        return {labels[1:]: value for labels, value in family.samples.items()}

    def states(self) -> dict[str, str]:
        return {key[0]: key[1] for key in self.values("rank_process_state")}

    def places(self) -> dict[str, tuple[str, str, int]]:
        """Returns component, operation and whole minutes of each rank."""
        found = self.values("rank_component_age_seconds")
        return {key[0]: (key[1], key[2], int(age // MINUTE)) for key, age in found.items()}


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


@pytest.fixture
def two(tmp_path: Path, stack: ExitStack) -> Node:
    script = f"{STEPS}\nhold()\nhold()"
    return Node(tmp_path, stack, script, script)


def test_a_rank_in_the_data_loader_and_one_that_waits_for_its_gradients(two: Node) -> None:
    put_place(two.ledger(0), "communication", time.perf_counter(), "gradients")
    put_place(two.ledger(1), "data_wait", time.perf_counter(), "barrier")  # that it waited in before
    two.after()
    assert (two.places(), two.states()) == ({}, {"0": "running", "1": "running"}), "nothing lasts yet"
    two.after(9)
    assert two.places() == {}
    two.after(8 * MINUTE)
    assert two.places() == {"0": ("communication", "gradients", 8), "1": ("data_wait", "", 8)}
    assert two.states() == {"0": "waiting", "1": "waiting"}
    assert two.values("run_world_size") == {(): 2}


def test_a_component_that_is_entered_again_has_a_new_age(two: Node) -> None:
    put_place(two.ledger(1), "data_wait", time.perf_counter())
    two.after(8 * MINUTE)
    put_place(two.ledger(1), "data_wait", time.perf_counter() + two.later)
    two.after()
    assert "1" not in two.places()
    two.after(MINUTE)
    assert two.places()["1"] == ("data_wait", "", 1)


def test_a_rank_that_is_stopped_is_stopped_until_it_goes_on(two: Node) -> None:
    put_place(two.ledger(1), "forward", time.perf_counter())
    process = two.processes[1]
    process.send_signal(signal.SIGSTOP)
    wait_until(lambda: Path(f"/proc/{process.pid}/stat").read_text().split()[2] == "T")
    two.after(MINUTE)
    assert two.states()["1"] == "stopped"
    assert two.places()["1"] == ("forward", "", 1)
    process.send_signal(signal.SIGCONT)
    wait_until(lambda: Path(f"/proc/{process.pid}/stat").read_text().split()[2] == "S")
    two.after(MINUTE)
    assert two.states()["1"] == "waiting"


@pytest.mark.parametrize(
    ("script", "state"),
    [("breakpoint()", "at a prompt"), ("print('> ', end=''); sys.stdin.read(1)", "waiting")],
)
def test_a_debugger_in_the_foreground_of_a_terminal_is_at_a_prompt(script: str, state: str) -> None:
    terminal, of_process = pty.openpty()
    program = f"import os, sys; os.open(os.ttyname(0), os.O_RDWR); {script}"
    command = [sys.executable, "-c", program]
    with (
        open(terminal, "rb", buffering=0) as screen,
        Popen(command, stdin=of_process, stdout=of_process, start_new_session=True) as process,
    ):
        try:
            os.close(of_process)
            shown = b""
            while b"> " not in shown and b"(Pdb)" not in shown:
                shown += screen.read(100)
            wait_until(lambda: read_state(Path("/proc"), process.pid) == "S")
            assert main_thread_state(Path("/proc"), process.pid) == state
        finally:
            process.kill()


def test_the_kernel_of_a_notebook_is_at_a_prompt_between_cells_but_not_in_a_component(tmp_path: Path) -> None:
    files = tmp_path / "7"
    files.mkdir()
    (files / "stat").write_text("7 (python) S 1 7 7 0 -1 0")
    (files / "status").write_text("SigCgt:\t0000000000000002\n")
    for command, state in (
        ("train.py", "waiting"),
        ("-m\0ipykernel_launcher\0-f\0kernel.json", "at a prompt"),
    ):
        (files / "cmdline").write_text(f"python\0{command}\0")
        assert main_thread_state(tmp_path, 7) == state
    ages = Ages()
    for component, state in (("host", "at a prompt"), ("initialization", "at a prompt"), ("gc", "waiting")):
        ages.place, ages.place_began, ages.phase_began = Place(component, "", 0.0), 0.0, 0.0
        assert presence(ages, MINUTE, lambda: main_thread_state(tmp_path, 7)).state == state


def test_a_rank_that_is_killed_is_dead_also_after_its_ledger_is_gone(two: Node) -> None:
    two.after()
    two.processes[1].kill()
    two.processes[1].wait()
    two.after(MINUTE)
    assert two.states() == {"0": "waiting", "1": "dead"}
    assert "1" not in two.places()
    two.after(10 * MINUTE)  # its ledger is removed
    two.after(MINUTE)
    assert len(list(open_ledgers(two.directory))) == 1
    assert two.states()["1"] == "dead"


def test_a_rank_that_has_ended_is_not_dead_and_an_ended_run_has_no_states(two: Node) -> None:
    for process in (two.processes[1], two.processes[0]):
        two.after()
        process.communicate("\n\n", timeout=SECONDS)
        two.after()
        if process is two.processes[1]:
            assert two.states() == {"0": "waiting", "1": "ended"}
    assert two.states() == {}


def test_a_rank_that_is_busy_in_an_endless_loader_runs(tmp_path: Path, stack: ExitStack) -> None:
    script = f"{STEPS}\nsay()\nwhile True: pass"
    node = Node(tmp_path, stack, script)
    put_place(node.ledger(0), "data_wait", time.perf_counter())
    node.after(MINUTE)
    assert (node.states(), node.places()) == ({"0": "running"}, {"0": ("data_wait", "", 1)})


def test_before_its_first_step_a_rank_is_in_initialization(tmp_path: Path, stack: ExitStack) -> None:
    script = "stepscope.start()\nhold()\nhold()"
    node = Node(tmp_path, stack, script, script)
    put_place(node.ledger(1), "communication", time.perf_counter(), "init_process_group")
    node.after(6 * MINUTE)
    assert node.places() == {
        "0": ("initialization", "", 6),
        "1": ("communication", "init_process_group", 6),
    }


def test_between_components_a_rank_is_on_the_host_since_the_last_of_them(two: Node) -> None:
    put_place(two.ledger(0), "", time.perf_counter())
    two.after(2 * MINUTE)
    assert two.places() == {"0": ("host", "", 2)}, "rank 1 does not say where it is"


def test_a_finished_step_is_progress_without_any_component(tmp_path: Path, stack: ExitStack) -> None:
    node = Node(
        tmp_path,
        stack,
        f"{STEPS}\nhold()\nnow = float(sys.stdin.readline())\n"
        "stepscope.record_step('train', now - 1, now)\nhold()",
    )
    put_place(node.ledger(0), "", time.perf_counter())
    node.after(2 * MINUTE)
    go_on(node.processes[0])
    assert node.processes[0].stdin is not None
    node.processes[0].stdin.write(f"{time.perf_counter() + node.later}\n")
    node.processes[0].stdin.flush()
    wait_for_line(node.processes[0])
    node.after()
    assert node.places() == {}


def test_a_process_out_of_sight_has_a_place_but_no_state(tmp_path: Path, stack: ExitStack) -> None:
    node = Node(tmp_path, stack, f"{STEPS}\nhold()\nhold()")
    node.collector = TrainingCollector(tmp_path, procfs=tmp_path / "proc")
    put_place(node.ledger(0), "backward", time.perf_counter())
    node.after(MINUTE)
    assert (node.states(), node.places()) == ({}, {"0": ("backward", "", 1)})
    node.collector.close()


@pytest.mark.parametrize("component", [-1.0, 0.5, 10.0, nan, inf])
@pytest.mark.parametrize("counter", [layout.COUNTER_COMPONENT, layout.COUNTER_OPERATION])
def test_a_component_that_does_not_exist_refuses_the_ledger(
    two: Node, counter: int, component: float
) -> None:
    value = 16.0 if (counter, component) == (layout.COUNTER_OPERATION, 10.0) else component
    put_counters(two.ledger(1), counter, value)
    with LedgerReader(two.ledger(1)) as reader, pytest.raises(LedgerError):
        reader.totals()
    assert os.path.exists(two.ledger(1))


@pytest.mark.parametrize("since", [-1e9, 1e29])
def test_any_moment_gives_an_age_that_can_be(two: Node, since: float) -> None:
    put_place(two.ledger(1), "forward", since)
    two.after()
    two.after(MINUTE)
    ages = two.values("rank_component_age_seconds").values()
    assert all(0 <= age < 2 * MINUTE for age in ages)


class Slow(Collector):
    """Takes two seconds of each tick, as one that waits for a driver or a core."""

    name = "slow"

    def __init__(self, clock: SimulatedClock) -> None:
        self._clock = clock

    def collect(self, sample: Sample) -> None:
        self._clock.advance(2.0)


def test_a_rank_is_recorded_at_the_time_of_the_look_at_it_however_long_the_tick_takes(
    two: Node, tmp_path: Path
) -> None:
    """A rank that has gone on meanwhile would be recorded as still waiting, after its next steps."""
    clock, recording = SimulatedClock(time.time()), tmp_path / "recording"
    collectors = [two.collector, Slow(clock)]
    exporter = Exporter(collectors, clock=clock, recording=LiveRecording(recording), node="node")
    exporter.tick()
    exporter.catch_up()
    recorded = RecordingDirectory(recording)
    (samples,) = (each for each in recorded.read() if isinstance(each, NodeSamples))
    exporter.close()
    assert [rank.last_alive for rank in recorded.facts.ranks] == [*samples.times, *samples.times]
