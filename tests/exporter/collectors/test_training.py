"""The training collector on ledgers that real training processes write."""

import errno
import os
import time
from math import inf
from pathlib import Path

import pytest
from stepscope.common.users import user_name
from stepscope.exporter.collectors.training import TrainingCollector
from stepscope.exporter.ledgers.presence import UNSAID, tell_ending
from stepscope.exporter.ledgers.reader import LedgerReader, StepRecord, open_ledgers
from stepscope.exporter.ledgers.run_processes import Command
from stepscope.exporter.sampling.families import Family, HistogramValue
from stepscope.exporter.sampling.limits import Limits, ReachedLimits
from stepscope.exporter.sampling.sample import Sample
from stepscope.training.launch import Launch
from stepscope.training.layout import STEP_BOUNDS

from tests.support.training_process import RESNET, TrainingProcess, label
from tests.support.training_script import go_on, training, wait_for_line

CLOCK = 1_790_000_000.0
CONTAINER = ("unshare", "--user", "--map-root-user", "--pid", "--fork", "--kill-child")


class Node:
    """A collector, and what it publishes at a moment that the test chooses."""

    def __init__(
        self,
        directory: Path,
        retention: float = 300.0,
        state: Path | None = None,
        limits: Limits | None = None,
        command: Command | None = None,
    ) -> None:
        self.collector = TrainingCollector(directory, retention, command=command)
        self.collector.reached = ReachedLimits(limits)
        if state:
            self.collector.remember_in(state)
        self.now = time.time()

    def tick(self, seconds: float = 0.5) -> Sample:
        self.now += seconds
        sample = Sample(time=self.now)
        self.collector.collect(sample)
        return sample

    def family(self, name: str) -> Family:
        return next(family for family in self.collector.families if family.name == f"stepscope_{name}")

    def values(self, name: str) -> dict[tuple[str, ...], float]:
        return dict(self.family(name).samples)

    def histogram(self, name: str, *labels: str) -> HistogramValue:
        return self.family(name).histograms[labels]

    def steps(self, rank: str = "0", phase: str = "train", run: str = RESNET) -> int:
        return sum(self.histogram("step_duration_seconds", run, rank, phase).counts)


@pytest.fixture
def ledgers(tmp_path: Path) -> Path:
    return tmp_path / "ledgers"


def test_without_a_directory_or_a_ledger_nothing_is_published(ledgers: Path) -> None:
    node = Node(ledgers)
    node.tick()
    ledgers.mkdir()
    (ledgers / "notes.txt").write_text("not a ledger")
    node.tick()
    published = [family.name for family in node.collector.families if family.samples or family.histograms]
    assert published == ["stepscope_ledgers_refused_total", "stepscope_ledger_records_lost_total"]
    assert set(node.values("ledgers_refused_total").values()) == {0}
    assert node.collector.active_runs == set()


def test_a_run_its_steps_and_what_was_inside_them(ledgers: Path) -> None:
    node = Node(ledgers)
    with TrainingProcess(ledgers, clock=CLOCK) as trainer:
        trainer.do("stepscope.start(framework='pytorch', framework_version='2.13'); clock.now += 2.0")
        trainer.steps(0.25, 0.5)
        trainer.steps(0.125, phase="eval")
        trainer.do(
            "stepscope.begin_step('train'); stepscope.begin_component('forward'); clock.now += 0.75;"
            "stepscope.end_component(); clock.now += 0.25; stepscope.end_step(); clock.now += 4.0"
        )
        node.tick()

        assert node.values("run_info") == {
            (RESNET, "resnet", user_name(os.geteuid()), "0", "pytorch", "2.13", "2", "", "", "", ""): 1
        }
        assert node.values("run_start_time_seconds") == {(RESNET,): CLOCK}
        assert node.values("run_first_step_time_seconds") == {(RESNET,): CLOCK + 2.0}
        assert node.values("run_last_step_time_seconds") == {(RESNET,): CLOCK + 3.875}
        assert node.values("run_end_time_seconds") == {}
        assert node.collector.active_runs == {RESNET}
        train = node.histogram("step_duration_seconds", RESNET, "0", "train")
        assert (sum(train.counts), train.sum) == (3, 1.75)
        assert node.values("step_duration_squared_seconds_total") == {
            (RESNET, "0", "train"): 0.25**2 + 0.5**2 + 1.0,
            (RESNET, "0", "eval"): 0.125**2,
        }
        assert node.values("step_own_seconds_total") == {(RESNET, "0"): 1.75}
        assert node.values("step_own_squared_seconds_total") == {(RESNET, "0"): 0.25**2 + 0.5**2 + 1.0}
        phases = node.values("phase_seconds_total")
        assert phases[RESNET, "0", "train"] == 1.75
        assert phases[RESNET, "0", "eval"] == 0.125
        assert phases[RESNET, "0", "initialization"] == 2.0
        assert phases[RESNET, "0", "other"] == 0.0
        assert node.values("step_component_seconds_total")[RESNET, "0", "forward"] == 0.75
    node.tick()
    assert node.collector.active_runs == set()
    assert node.values("run_end_time_seconds") == {(RESNET,): CLOCK + 7.875}
    assert node.values("phase_seconds_total")[RESNET, "0", "finalization"] == 4.0


def test_the_newest_step_of_a_bucket_is_its_exemplar(ledgers: Path) -> None:
    node = Node(ledgers)
    with TrainingProcess(ledgers, clock=CLOCK) as trainer:
        trainer.steps(0.25, 0.5, 20000.0)
        node.tick()
        trainer.steps(0.1875)
        node.tick()
        exemplars = node.histogram("step_duration_seconds", RESNET, "0", "train").exemplars
    assert exemplars is not None
    bounds = (*STEP_BOUNDS, inf)
    seen = {exemplar.labels["step"]: (bounds[index], exemplar.value) for index, exemplar in exemplars.items()}
    assert {step: value for step, (_, value) in seen.items()} == {"3": 0.1875, "1": 0.5, "2": 20000.0}
    assert seen["2"][0] == inf
    assert all(value <= bound for bound, value in seen.values())


def test_the_bounds_are_published_as_values_of_their_own_le(ledgers: Path) -> None:
    node = Node(ledgers)
    with TrainingProcess(ledgers, clock=CLOCK) as trainer:
        trainer.steps(0.25)
        node.tick()
    bounds = node.values("step_duration_bound_seconds")
    assert {float(le): value for (le,), value in bounds.items()} == {bound: bound for bound in STEP_BOUNDS}
    assert ("1.0",) in bounds


def test_a_data_loader_and_its_settings(ledgers: Path) -> None:
    node = Node(ledgers)
    with TrainingProcess(ledgers, clock=CLOCK) as trainer:
        trainer.do(
            "def slow():\n"
            "    for wait in (0.25, 0.5):\n"
            "        clock.now += wait\n"
            "        yield wait\n"
            "settings = dict(workers=6, pin_memory=True, prefetch_factor=2, batch_size=8)\n"
            "for _ in stepscope.watch(slow(), **settings):\n"
            "    with stepscope.step('train'):\n"
            "        clock.now += 1.0\n"
        )
        node.tick()
        assert node.values("dataloader_workers") == {(RESNET, "0", "train"): 6}
        assert node.values("dataloader_pin_memory") == {(RESNET, "0", "train"): 1}
        assert node.values("dataloader_prefetch_factor") == {(RESNET, "0", "train"): 2}
        assert node.values("dataloader_batch_size") == {(RESNET, "0", "train"): 8}
        waits = node.histogram("dataloader_wait_seconds", RESNET, "0")
        assert waits.sum >= 0.75
        assert sum(waits.counts) >= 2
        assert node.family("dataloader_fetch_seconds").histograms == {}  # nobody timed a fetch
    node.tick()
    assert node.values("dataloader_workers") == {}  # a dead process has no workers


def test_each_rank_has_its_series_and_the_run_has_one(ledgers: Path) -> None:
    node = Node(ledgers)
    with (
        TrainingProcess(ledgers, clock=CLOCK + 5) as first,
        TrainingProcess(ledgers, rank=1, clock=CLOCK) as second,
    ):
        first.steps(0.25)
        second.steps(0.5, 0.5)
        node.tick()
        assert (node.steps("0"), node.steps("1")) == (1, 2)
        assert node.values("run_start_time_seconds") == {(RESNET,): CLOCK}
        assert node.values("run_last_step_time_seconds") == {(RESNET,): CLOCK + 5.25}
        assert len(node.values("run_info")) == 1
        first.kill()
        node.tick()
        assert node.values("run_end_time_seconds") == {}  # rank 1 goes on
        assert node.collector.active_runs == {RESNET}


def test_a_killed_process_ends_its_run_at_the_moment_when_that_is_seen(ledgers: Path) -> None:
    node = Node(ledgers)
    trainer = TrainingProcess(ledgers, clock=CLOCK)
    trainer.steps(0.25)
    node.tick()
    trainer.steps(0.25)
    trainer.kill()
    node.tick()
    assert node.steps() == 2  # what it did between the last look and its death counts
    assert node.values("run_end_time_seconds") == {(RESNET,): node.now}


def test_the_totals_of_a_rank_never_go_back_when_it_is_restarted(ledgers: Path) -> None:
    node = Node(ledgers, retention=10.0)
    trainer = TrainingProcess(ledgers, clock=CLOCK)
    trainer.steps(0.25, 0.25)
    trainer.do("stepscope.count('tokens', 100)")
    node.tick()
    trainer.kill()
    node.tick()
    with TrainingProcess(ledgers, clock=CLOCK + 100) as trainer:
        trainer.steps(0.5)
        node.tick()
        assert node.steps() == 3
        assert len(list(open_ledgers(ledgers))) == 2
        node.tick(11.0)
        node.tick()
        assert len(list(open_ledgers(ledgers))) == 1  # the dead one is gone
        trainer.steps(0.5)
        trainer.do("stepscope.count('tokens', 50); stepscope.gauge('loss', 0.5)")
        node.tick()
        assert node.steps() == 4
        assert node.family("run_counted_total").kind == "counter"
        assert node.values("run_counted_total") == {(RESNET, "0", "tokens"): 150}
        assert node.values("run_gauge") == {(RESNET, "0", "loss"): 0.5}
        assert node.histogram("step_duration_seconds", RESNET, "0", "train").sum == 1.5
        assert node.values("run_start_time_seconds") == {(RESNET,): CLOCK}


def test_a_dead_run_goes_some_time_after_its_death_with_its_file(ledgers: Path) -> None:
    node = Node(ledgers, retention=10.0)
    with TrainingProcess(ledgers, clock=CLOCK) as trainer:
        trainer.steps(0.25)
        node.tick(3600)
        assert node.steps() == 1
    node.tick()
    node.tick(9.0)
    assert node.steps() == 1
    node.tick(2.0)
    assert node.family("step_duration_seconds").histograms == {}
    assert node.values("run_info") == {}
    assert list(open_ledgers(ledgers)) == []


def test_an_error_that_nobody_foresaw_costs_one_run_and_no_other(
    ledgers: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refusing(directory: Path, run: str, _: int) -> str:
        if run == label("sick"):
            raise IsADirectoryError(errno.EISDIR, "Is a directory", str(directory))
        return UNSAID

    monkeypatch.setattr("stepscope.exporter.collectors.training.ending", refusing)
    node = Node(ledgers)
    with (
        TrainingProcess(ledgers, clock=CLOCK) as healthy,
        TrainingProcess(ledgers, run="sick", clock=CLOCK) as sick,
    ):
        healthy.steps(0.25)
        sick.steps(0.25)
        node.tick()
        sick.kill()
        for _ in range(3):
            node.tick()
            healthy.steps(0.25)
        node.tick()
        assert node.steps() == 4
        assert [labels[0] for labels in node.values("run_info")] == [RESNET]
    assert node.collector.apart.lost == 4
    assert len(caplog.messages) == 1
    assert f"Is a directory: '{ledgers}' (a file of user {user_name(os.getuid())})" in caplog.messages[0]


def test_a_ledger_whose_reading_fails_in_an_unforeseen_way_is_refused_alone(
    ledgers: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    node = Node(ledgers)
    with (
        TrainingProcess(ledgers, clock=CLOCK) as rank_0,
        TrainingProcess(ledgers, rank=1, clock=CLOCK) as rank_1,
    ):
        rank_0.steps(0.25)
        rank_1.steps(0.25)
        node.tick()
        read = LedgerReader.new_steps

        def refusing(reader: LedgerReader) -> tuple[list[StepRecord], int]:
            return read(reader) if reader.header.rank == 0 else ([], 1 // 0)

        monkeypatch.setattr(LedgerReader, "new_steps", refusing)
        rank_0.steps(0.25)
        node.tick()
        assert (node.steps("0"), node.steps("1")) == (2, 1)
    assert node.values("ledgers_refused_total")["unreadable",] == 1
    (line,) = caplog.messages
    assert "ZeroDivisionError" in line
    assert ".ledger" in line


def test_a_ledger_cut_short_while_it_is_read_keeps_its_last_totals_until_its_run_is_gone(
    ledgers: Path, caplog: pytest.LogCaptureFixture
) -> None:
    node = Node(ledgers)
    with (
        TrainingProcess(ledgers, clock=CLOCK) as rank_0,
        TrainingProcess(ledgers, rank=1, clock=CLOCK) as rank_1,
    ):
        rank_0.steps(0.25)
        rank_1.steps(0.25)
        node.tick()
        path = next(path for path in open_ledgers(ledgers) if rank_of(path) == 1)
        with path.open("r+b") as file:
            file.truncate(5000)
        for _ in range(3):
            node.tick()
        assert (node.steps("0"), node.steps("1")) == (1, 1)
        assert len(caplog.messages) == 1
        assert path.name in caplog.messages[0]


def rank_of(path: Path) -> int:
    with LedgerReader(path) as reader:
        return reader.header.rank


def test_records_are_kept_for_who_takes_them_and_each_is_given_once(ledgers: Path) -> None:
    node = Node(ledgers)
    node.collector.keep_steps = True
    with TrainingProcess(ledgers, clock=CLOCK) as trainer:
        trainer.steps(0.25, 0.5)
        node.tick()
        trainer.steps(0.75)
        node.tick()  # nobody has taken the first two yet
        taken = node.collector.take_steps()
        assert [record.duration for _, records in taken for record in records] == [0.25, 0.5, 0.75]
        assert node.collector.take_steps() == []


def test_records_overwritten_unread_are_counted_as_lost_but_their_steps_are_not(ledgers: Path) -> None:
    node = Node(ledgers)
    node.tick()
    with TrainingProcess(ledgers, clock=CLOCK) as trainer:
        trainer.steps(0.25)
        node.tick()
        assert node.values("ledger_records_lost_total") == {(): 0}
        trainer.do(
            "for _ in range(10000):\n"
            "    stepscope.begin_step('train'); clock.now += 0.25; stepscope.end_step()"
        )
        node.tick()
        assert node.steps() == 10001
        assert node.values("ledger_records_lost_total")[()] >= 10000 - 8192


def test_what_was_overwritten_before_the_exporter_started_is_not_its_loss(ledgers: Path) -> None:
    with TrainingProcess(ledgers, clock=CLOCK) as trainer:
        trainer.do(
            "for _ in range(10000):\n"
            "    stepscope.begin_step('train'); clock.now += 0.25; stepscope.end_step()"
        )
        node = Node(ledgers)
        node.tick()
        assert node.steps() == 10000
        assert node.values("ledger_records_lost_total") == {(): 0}


def test_a_sample_has_the_live_processes_of_each_run(ledgers: Path) -> None:
    node = Node(ledgers)
    with TrainingProcess(ledgers) as first, TrainingProcess(ledgers, rank=1) as second:
        first.do("stepscope.start()")
        second.do("stepscope.start()")
        run = node.tick().runs[RESNET]
        found = {process.pid: (process.rank, process.local_rank, process.owner) for process in run.processes}
        assert found == {first.process.pid: (0, 0, os.getuid()), second.process.pid: (1, 1, os.getuid())}
        assert run.pids == {first.process.pid, second.process.pid}
        second.kill()
        assert [process.rank for process in node.tick().runs[RESNET].processes] == [0]
    assert node.tick().runs == {}


def test_a_process_in_a_container_has_the_pid_of_the_node(ledgers: Path) -> None:
    node = Node(ledgers)
    with TrainingProcess(ledgers, sandbox=CONTAINER) as trainer:
        trainer.do("stepscope.start()")
        (process,) = node.tick().runs[RESNET].processes
        assert node.collector.ledgers[0].header.pid == 1
        assert process.pid is not None
        assert Path(f"/proc/{process.pid}/stat").read_text().split()[3] == str(trainer.process.pid)


# -- a run is one launch -------------------------------------------------------------------------------


def test_a_rerun_inherits_nothing_and_runs_of_one_name_are_never_summed(ledgers: Path) -> None:
    node = Node(ledgers)
    with TrainingProcess(ledgers) as first:
        first.steps(0.25, 0.25)
        node.tick()
    with TrainingProcess(ledgers, launch="another") as again:
        again.steps(0.5)
        node.tick()
        second = Launch("resnet", "another").run
        assert (node.steps(), node.steps(run=second)) == (2, 1)
        names = {labels[0]: labels[1] for labels in node.values("run_info")}
        assert names == {RESNET: "resnet", second: "resnet"}
        node.tick(301.0)
        assert node.collector.folder.runs.keys() == {(second, os.geteuid())}
        assert node.steps(run=second) == 1


def test_restarts_of_an_elastic_job_are_attempts_and_no_total_falls(
    ledgers: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    node = Node(ledgers)
    for attempt in range(3):
        monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", str(attempt))
        with TrainingProcess(ledgers) as trainer:
            trainer.steps(0.25, 0.25)
            node.tick()
            ((labels, _),) = node.values("run_info").items()
            assert (labels[0], labels[3]) == (RESNET, str(attempt))
            assert node.steps() == 2 * (attempt + 1)
            assert node.values("run_launch_unknown") == {}


def test_stepscope_run_says_how_its_run_ended_and_until_then_nobody_does(ledgers: Path) -> None:
    of_run, others = Node(ledgers, command=Command(RESNET, os.getpid())), Node(ledgers)
    with TrainingProcess(ledgers) as trainer:
        trainer.steps(0.25)
    of_run.tick()
    others.tick()
    assert others.values("run_ended_info") == {(RESNET, "ended without saying so"): 1}
    assert of_run.values("run_end_time_seconds")
    assert of_run.values("run_ended_info") == {}
    tell_ending(ledgers, RESNET, "exit status 7")
    of_run.tick()
    assert of_run.values("run_ended_info") == {(RESNET, "exit status 7"): 1}


def test_the_exception_of_the_rank_that_ended_first_is_published_once_all_have_ended(ledgers: Path) -> None:
    node = Node(ledgers)
    with TrainingProcess(ledgers, rank=0) as first, TrainingProcess(ledgers, rank=1) as second:
        for trainer in (first, second):
            trainer.steps(0.25)
        node.tick()
        for trainer, error in ((second, "KeyError('dog')"), (first, "OSError(1)")):
            assert trainer.process.stdin is not None
            trainer.process.stdin.write(repr(f"raise {error}"))
            assert node.values("run_exception_info") == {}
            trainer.end()
            node.tick()
    (((run, rank, kind, place), _),) = node.values("run_exception_info").items()
    assert (run, rank, kind) == (RESNET, "1", "KeyError")
    assert place.startswith("<string>:")


def test_stepscope_run_observes_the_label_on_which_the_nodes_of_its_run_agreed(ledgers: Path) -> None:
    node = Node(ledgers, command=Command(f"{RESNET[:-1]}_", os.getpid()))
    assert node.tick().runs.keys() <= {f"{RESNET[:-1]}_"}
    with TrainingProcess(ledgers) as trainer:
        trainer.steps(0.25)
        assert node.tick().runs.keys() == {RESNET}
        assert node.collector.observed_run == RESNET
    tell_ending(ledgers, RESNET, "exit status 7")
    node.tick()
    assert node.values("run_ended_info") == {(RESNET, "exit status 7"): 1}


KEYLESS = {"RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "node-1", "MASTER_PORT": "29500"}


def test_a_run_without_a_label_is_published_from_its_first_step_on(
    ledgers: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("stepscope.exporter.ledgers.folder.RESCAN_SECONDS", 0.0)
    node = Node(ledgers)
    with training(
        "stepscope.start(run='bert')\nhold()\nwith stepscope.step(): pass\nhold()", ledgers, KEYLESS
    ) as process:
        wait_for_line(process)
        node.tick()
        assert node.values("run_info") == {}
        go_on(process)
        wait_for_line(process)
        node.tick()
        run = Launch("bert", "node-1/29500").run
        assert node.steps(run=run, rank="1") == 1
        assert node.values("run_launch_unknown") == {(run,): 1}


def test_a_run_that_is_slow_to_its_first_step_has_a_label_for_the_time_being(
    ledgers: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its start-up must not be out of sight, although the ranks agree on a label only at the first step."""
    monkeypatch.setattr("stepscope.exporter.ledgers.folder.RESCAN_SECONDS", 0.0)
    node = Node(ledgers)
    node.collector.keep_steps = True
    script = """
    from stepscope.training import session
    session.shared_key = lambda: "random" if trained else None
    trained = False
    stepscope.start(run='bert')
    hold()
    trained = True
    with stepscope.step(): pass
    hold()
    """
    with training(script, ledgers, KEYLESS) as process:
        wait_for_line(process)
        node.tick()
        assert not node.values("run_start_time_seconds")
        node.tick(301.0)
        provisional, run = Launch("bert", "node-1/29500").run, Launch("bert", "random").run
        assert node.values("run_start_time_seconds").keys() == {(provisional,)}
        go_on(process)
        wait_for_line(process)
        for _ in range(2):
            node.tick()
        assert node.values("run_start_time_seconds").keys() == {(run,)}
        assert node.steps(run=run, rank="1") == 1
        ((header, steps),) = node.collector.take_steps()
        assert (header.run, len(steps)) == (run, 1)
        assert node.values("run_launch_unknown") == {}
