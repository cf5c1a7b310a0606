"""Whatever another user puts, or locks, next to somebody's ledger costs nobody else anything."""

import os
import struct
import time
from pathlib import Path

import pytest
from stepscope.exporter.collectors.training import TrainingCollector
from stepscope.exporter.exporter import Exporter
from stepscope.exporter.ledgers.line_files import LineFolder, read_line_file
from stepscope.exporter.ledgers.presence import UNSAID
from stepscope.exporter.ledgers.reader import LedgerReader, open_ledgers
from stepscope.exporter.processes.tree import Namespaces
from stepscope.report.sentences import gaps
from stepscope.runs.recording.directory import RecordingDirectory
from stepscope.runs.recording.live import LiveRecording
from stepscope.training import layout
from stepscope.training.layout import LARGEST, LATEST, MOST
from stepscope.training.ledger_checks import LedgerError, checked_counters, checked_fetches
from stepscope.training.line_table import LineTable

from tests.exporter.collectors.test_training import Node
from tests.exporter.ledgers.test_folder import as_root, ended, neighbour
from tests.support.descriptors import open_below
from tests.support.training_process import RESNET, TrainingProcess, label
from tests.support.training_script import go_on, only_ledger, training, wait_for_line
from tests.support.waiting import SECONDS


@pytest.fixture(autouse=True)
def _others_reach_it(ledgers: Path) -> None:
    ledgers.parent.chmod(0o755)


@pytest.mark.parametrize("kind", ["directory", "fifo", "fifo that somebody writes"])
def test_an_ending_that_is_no_file_costs_its_run_its_reason_and_nothing_else(
    ledgers: Path, kind: str
) -> None:
    with TrainingProcess(ledgers) as victim, TrainingProcess(ledgers, "m") as other:
        other.steps(0.25)
        other.end()
        planted = ledgers / f"{label('m')}.ended"
        os.mkdir(planted) if kind == "directory" else os.mkfifo(planted)
        held = os.open(planted, os.O_RDWR) if "writes" in kind else None
        node = Node(ledgers)
        victim.steps(0.25)
        node.tick()
        before = open_below(ledgers)
        for steps in range(2, 6):
            victim.steps(0.25)
            node.tick()
            assert node.steps() == steps
        assert open_below(ledgers) == before
        assert node.values("run_ended_info") == {(label("m"), UNSAID): 1}
        if held is not None:
            os.close(held)


def test_directories_in_place_of_stacks_cost_nobody_a_tick_and_are_tried_once(ledgers: Path) -> None:
    content = ended(1001.0)
    with TrainingProcess(ledgers) as victim:
        victim.do("stepscope.start()")
        for number in range(20):
            name = ledgers / f"m.0.{number + 1}.{number:08x}.ledger"
            os.mkdir(f"{name}.stack")
            os.mkfifo(f"{name}.stack.request")
            if number % 2:
                (Path(f"{name}.stack") / "more").touch()
            name.write_bytes(content)
        node = Node(ledgers)
        for steps in range(1, 5):
            victim.steps(0.25)
            node.tick()
            assert node.steps() == steps
        left = sorted(path.name for path in ledgers.iterdir() if path.name.startswith("m."))
    assert left == sorted(f"m.0.{number + 1}.{number:08x}.ledger.stack" for number in range(1, 20, 2))
    assert not node.collector.folder._counted
    node.collector.close()


READ_LOCK = (
    "fcntl.lockf(os.open(sys.argv[1], os.O_RDONLY), fcntl.LOCK_SH, int(sys.argv[2]), int(sys.argv[3]))"
)


@as_root
def test_a_read_lock_of_another_user_keeps_no_dead_run_alive(ledgers: Path) -> None:
    node = Node(ledgers)
    with TrainingProcess(ledgers) as victim:
        victim.steps(0.25)
        node.tick()
        assert node.collector.active_runs == {RESNET}
        (ledger,) = open_ledgers(ledgers)
        inode = (ledger.stat().st_dev, ledger.stat().st_ino)
        assert Namespaces().lock_holders()[inode] == victim.process.pid
        victim.kill()
        with neighbour(READ_LOCK, str(ledger), "1", "0"):  # it gets the lock, for the process is gone
            assert inode not in Namespaces().lock_holders()
            node.tick()
            node.tick()
            assert node.collector.active_runs == set()
            assert [each.presence.state for each in node.collector.ledgers] == ["dead"]
            assert node.values("run_age_seconds") == {}
            assert list(node.values("run_end_time_seconds")) == [(RESNET,)]
            node.tick(301.0)
            node.tick(301.0)
            assert list(open_ledgers(ledgers)) == [], "the file is removed in the end"


@as_root
def test_a_read_lock_of_another_user_takes_no_slot_from_a_loader_worker(ledgers: Path) -> None:
    """The lock is there before the first worker, on every byte but the first, and beyond the file's end."""
    script = """
    import subprocess
    stepscope.start()
    hold()
    fetches = "import stepscope\\nfor _ in range(5):\\n    with stepscope.fetch: pass"
    forked = os.fork()
    if not forked:
        exec(fetches)
        os._exit(0)
    os.waitpid(forked, 0)
    subprocess.run([sys.executable, "-c", fetches], check=True)
    hold()
    """
    with training(script, ledgers) as victim:
        wait_for_line(victim)
        (ledger,) = open_ledgers(ledgers)
        with neighbour(READ_LOCK, str(ledger), "0", "1"):
            go_on(victim)
            wait_for_line(victim)
            with only_ledger(ledgers) as reader:
                assert sum(reader.totals().fetch_counts) == 10
            _, errors = victim.communicate("\n", timeout=SECONDS)
            assert errors == ""


@as_root
def test_the_lock_of_slots_is_on_a_file_that_others_can_neither_find_nor_open(ledgers: Path) -> None:
    with training("stepscope.start(); hold()", ledgers) as victim:
        wait_for_line(victim)
        (ledger,) = ledgers.iterdir()
        (number,) = layout.SLOTS_FD.unpack_from(ledger.read_bytes(), layout.SLOTS_FD_AT)
        slots = f"/proc/{victim.pid}/fd/{number}"
        assert os.readlink(slots).endswith(" (deleted)")
        attempt = "try: os.open(sys.argv[1], os.O_RDONLY)\nexcept PermissionError: print('refused')"
        with neighbour(attempt, slots) as printed:
            assert printed == ["refused\n"]


@as_root
def test_line_samples_of_another_user_are_not_read(ledgers: Path) -> None:
    ledgers.mkdir()
    table = LineTable()
    table.name_run(RESNET)
    table.publish(str(ledgers), time.time())
    os.mkfifo(ledgers / "1.00000000.lines")
    folder = LineFolder(ledgers)
    folder.read_all({(RESNET, 0)})
    assert [each.processes for each in folder.counts().values()] == [1]
    os.chown(table.path, 65534, 65534)
    with pytest.raises(LedgerError, match="belongs to user 65534, not 0"):
        read_line_file(Path(table.path), {0})
    folder = LineFolder(ledgers)
    folder.read_all({(RESNET, 0)})
    assert folder.counts() == {}


# -- numbers -------------------------------------------------------------------------------------------


def put(path: Path, counter: int, value: float) -> None:
    with path.open("r+b") as file:
        file.seek(layout.COUNTERS_AT + 8 * counter)
        file.write(struct.pack("<d", value))


def test_a_live_ledger_with_a_count_of_1e20_costs_its_own_rows_only_and_the_report_says_so(
    ledgers: Path, tmp_path: Path
) -> None:
    exporter = Exporter(
        [TrainingCollector(ledgers)], recording=LiveRecording(tmp_path / "recording"), node="n1", patience=60
    )
    with TrainingProcess(ledgers) as victim, TrainingProcess(ledgers, "m", rank=1) as other:
        victim.steps(0.25)
        other.do("stepscope.start()")
        for path in open_ledgers(ledgers):
            if path.name.startswith("m"):
                put(path, layout.COUNTER_PHASE_STEPS, 1e20)
        for _ in range(3):
            exporter.tick()
            time.sleep(0.01)
        exporter.close()
    recorded = RecordingDirectory(tmp_path / "recording")
    list(recorded.read())
    assert [(rank.rank, rank.steps["train"]) for rank in recorded.facts.ranks] == [(0, 1)]
    said = "\n".join(gaps([gap for gap in recorded.facts.gaps if "refused" in gap.reason]))
    assert f"the ledger of rank 1 of {label('m')} was refused" in said
    assert "its count of steps of a phase is 1e+20, it can be 0 to 9.0072e+15" in said
    assert b'ledgers_refused_total{reason="counter"} 1\n' in exporter.scrape("text")


def test_no_field_is_believed_above_what_its_column_can_hold() -> None:
    path = Path("x.ledger")
    for name, at, items, most, falls in layout.FIELDS:
        for place in (at, at + items - 1):
            for value in (most * 1.001, -most * 1.001 if falls else -1.0, float("nan"), float("inf")):
                counters = [0.0] * layout.COUNTER_DOUBLES
                counters[place] = value
                with pytest.raises(LedgerError, match=f"its {name} is ") as refused:
                    checked_counters(path, tuple(counters))
                assert refused.value.reason == "counter"
    for _, at, _, most, _ in layout.WORKER_FIELDS:
        slot = [0.0] * layout.WORKER_DOUBLES
        slot[at] = most
        assert checked_fetches(path, [slot])[at] == most
        with pytest.raises(LedgerError):  # each of the two could be, but not their sum
            checked_fetches(path, [slot, slot])


def test_the_most_that_a_ledger_can_hold_is_published_recorded_and_read_again(
    ledgers: Path, tmp_path: Path
) -> None:
    exporter = Exporter(
        [TrainingCollector(ledgers)], recording=LiveRecording(tmp_path / "recording"), node="n1", patience=60
    )
    with TrainingProcess(ledgers) as trainer:
        trainer.do("stepscope.start()")
        (path,) = open_ledgers(ledgers)
        own = {layout.COUNTER_RECORDED, layout.COUNTER_STEP_PHASE, layout.COUNTER_COMPONENT}
        own |= {layout.COUNTER_OPERATION, *range(layout.COUNTER_STEP_HISTOGRAM, layout.COUNTER_LOADERS)}
        for _, at, items, most, _ in layout.FIELDS:
            for counter in {*range(at, at + items)} - own:
                put(path, counter, most)
        with path.open("r+b") as file:
            for _, at, items, most, _ in layout.WORKER_FIELDS:
                file.seek(layout.WORKERS_AT + 8 * at)
                file.write(struct.pack(f"<{items}d", *[most] * items))
        with LedgerReader(path) as reader:
            totals = reader.totals()
        assert totals.steps["train"] == MOST
        assert totals.end == LATEST
        assert totals.fetch_sum == LARGEST
        for _ in range(3):
            exporter.tick()
        exporter.close()
    assert b"9007199254740992" in exporter.scrape("text")
    recorded = RecordingDirectory(tmp_path / "recording")
    list(recorded.read())
    (rank,) = recorded.facts.ranks
    assert (rank.steps["train"], rank.end) == (MOST, LATEST)
    assert not [gap for gap in recorded.facts.gaps if gap.what == "ranks"]
