"""What is recorded can be read, by us and by others, while it is written and whatever ended the writer."""

import errno
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from math import nan
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
from stepscope.common.errors import UserError
from stepscope.common.shared_files import entries
from stepscope.exporter.ledgers.ages import Place
from stepscope.exporter.ledgers.presence import Presence
from stepscope.exporter.sampling.sample import GpuUse, HostUse, RunSample
from stepscope.runs.model import COMPONENTS, RUN_USE, Gap
from stepscope.runs.open import open_source
from stepscope.runs.recording import directory
from stepscope.runs.recording import files as files_module
from stepscope.runs.recording import writer as writer_module
from stepscope.runs.recording.directory import RecordingDirectory
from stepscope.runs.recording.files import RunFile, journal_path
from stepscope.runs.recording.journal import JournalWriter
from stepscope.runs.recording.schema import metadata_of
from stepscope.runs.recording.writer import RecordingWriter

from tests.support.damage import flipped
from tests.support.recording import (
    START,
    Seen,
    header,
    rewrite,
    sample,
    step,
    the_part,
    totals,
)
from tests.support.waiting import SECONDS, wait_until

MINUTE = 120  # ticks


def record(folder: Path, ticks: range, node: str = "n1") -> RecordingWriter:
    """A writer that has been given these ticks, each with a step of rank 0."""
    writer = RecordingWriter(folder, node, 0.5, "resnet")
    for tick in ticks:
        writer.sample(sample(tick))
        writer.steps(header(), [step(tick)])
        writer.ranks([(header(), totals(tick + 1), True)], now=START + tick * 0.5)
        if tick % 100 == 0:
            wait_until(writer._queue.empty)  # faster than any sampler: let the disk keep up
    return writer


def files(folder: Path, pattern: str) -> list[str]:
    return sorted(path.name for path in folder.glob(pattern))


def test_what_was_sampled_comes_back_with_rates_instead_of_counters(tmp_path: Path) -> None:
    record(tmp_path, range(2 * MINUTE + 10)).close()
    seen = Seen(tmp_path).read()
    assert seen.ticks() == list(range(2 * MINUTE + 10))
    assert seen.column("cpu")[7] == pytest.approx([0.07, 0.071])
    assert seen.column("gpu")[49:51, 0] == pytest.approx([0.98, 0.0])
    assert seen.column("gpu_memory")[0] == pytest.approx([0.125, 0.125])
    assert seen.column("memory")[0] == pytest.approx(0.25)
    assert seen.column("gpu_power_watts")[0].tolist() == [300, 301]
    network, disk = seen.column("network"), seen.column("disk")
    assert np.isnan(network[0])
    assert network[1:] == pytest.approx(np.full(len(network) - 1, 300.0)), "also where a new part begins"
    assert disk[1:] == pytest.approx(np.full(len(disk) - 1, 3000.0))
    assert seen.column("gpu_thermal_throttle_seconds")[8].tolist() == [2.0, 2.0]
    assert seen.column("gpu_power_throttle_seconds")[8].tolist() == [1.0, 1.0]
    assert seen.column("gpu_ecc_uncorrected_errors")[0].tolist() == [2, 2]
    assert seen.column("gpu_xid_errors")[0].tolist() == [1, 2]
    assert seen.column("gpu_last_xid")[0].tolist() == [63, 63]
    assert seen.column("gpu_clock_hertz")[0].tolist() == [1.98e9, 1.98e9]
    (rank,) = seen.source.facts.ranks
    steps = 2 * MINUTE + 10
    assert rank.gauges == {"loss": pytest.approx(1 / (steps + 1)), "global_step": steps}
    assert rank.counts == {"tokens": 4096 * steps}


def test_gauges_have_a_history_of_their_changes_and_at_most_one_value_per_second(tmp_path: Path) -> None:
    writer = RecordingWriter(tmp_path, "n1", 0.5, "resnet")
    for tick in range(2 * MINUTE):
        writer.sample(sample(tick))
        loss = nan if tick >= MINUTE else 1 / (tick + 1)
        of_loss = replace(totals(tick), gauges={"loss": loss, "torch_threads": 2.0})
        others = replace(totals(tick), gauges={"loss": 7.0})
        writer.ranks([(header(1), others, True), (header(), of_loss, True)], now=sample(tick).time)
    writer.close()
    seen = Seen(tmp_path).read()
    (loss_of_first,) = seen.source.facts.gauges
    assert (loss_of_first.node, loss_of_first.rank, loss_of_first.name) == ("n1", 0, "loss")
    assert len(loss_of_first.times) <= MINUTE // 2 + 2, "the last moment of a part has one, too"
    assert loss_of_first.values[:2].tolist() == [1.0, 1 / 3]
    assert np.isnan(loss_of_first.values).tolist() == [False] * (len(loss_of_first.times) - 1) + [True]
    assert gaps(seen) == []


def test_a_history_of_gauges_outlives_its_writer_and_loses_only_what_is_damaged(tmp_path: Path) -> None:
    def publish(writer: RecordingWriter, tick: int, loss: float) -> None:
        writer.sample(sample(tick))
        gauges = {"loss": loss}
        writer.ranks([(header(), replace(totals(tick), gauges=gauges), True)], now=sample(tick).time)

    for minute in range(3):
        writer = RecordingWriter(tmp_path, "n1", 0.5, "resnet")
        publish(writer, minute * MINUTE, 3.0 - minute)
        writer.close()
    whole = Seen(tmp_path).read()
    assert whole.source.facts.gauges[0].values.tolist() == [3.0, 2.0, 1.0]
    assert Seen(tmp_path).read().read().source.facts.gauges[0].values.tolist() == [3.0, 2.0, 1.0]
    the_part(tmp_path / "n1", "gauges", 2).write_bytes(b"PAR1")
    damaged = Seen(tmp_path).read()
    assert damaged.source.facts.gauges[0].values.tolist() == [3.0, 1.0]
    assert "gauges" in [gap.what for gap in gaps(damaged)]


def test_what_steps_took_comes_back_with_their_components(tmp_path: Path) -> None:
    writer = RecordingWriter(tmp_path, "n1", 0.5, "resnet")
    writer.sample(sample(0))
    writer.steps(header(0), [step(0), step(1), step(0, "eval")])
    writer.steps(header(1), [step(0)])
    writer.close()
    first, second = sorted(Seen(tmp_path).read().steps, key=lambda steps: steps.rank)
    assert (first.rank, second.rank) == (0, 1)
    assert first.phases.tolist() == [0, 0, 1]
    assert first.numbers.tolist() == [0, 1, 0]
    assert first.starts.tolist() == [START, START + 0.5, START]
    assert first.durations[1] == pytest.approx(0.400001)
    assert first.components[0] == pytest.approx([0.01 * (index + 1) for index in range(len(COMPONENTS))])


def test_facts_say_what_the_run_its_node_and_its_ranks_are(tmp_path: Path) -> None:
    writer = record(tmp_path, range(10))
    writer.ranks(
        [
            (header(), totals(10, end=START + 6), False),
            (replace(header(1, pid=101), attempt=2), totals(9), False),
        ]
    )
    writer.close()
    RunFile("resnet", START, START + 6, "python train.py", 3, 0.5, {"stepscope": "1"}).write(tmp_path)
    source = Seen(tmp_path).read().source
    facts = source.facts
    assert (facts.name, facts.command, facts.exit_status, facts.end) == (
        "resnet",
        "python train.py",
        3,
        START + 6,
    )
    (node,) = facts.nodes
    assert (node.node, node.cpus, node.driver_version) == ("n1", ("0", "1"), "550.54")
    assert [gpu.model for gpu in node.gpus] == ["NVIDIA H100"] * 2
    assert node.gpus[0].power_limit_watts == 700
    good, killed = facts.ranks
    assert (good.rank, good.pid, good.end, good.killed) == (0, 100, START + 6, False)
    assert (killed.rank, killed.end, killed.killed) == (1, None, True)
    assert (good.attempt, killed.attempt) == (0, 2)
    assert good.steps["train"] == 10
    assert good.phase_seconds["train"] == pytest.approx(4.0)
    assert good.component_seconds["forward"] == pytest.approx(1.0)
    train, evaluation = good.loaders
    assert (train.workers, train.pin_memory, train.prefetch_factor, train.batch_size) == (4, True, 2, 32)
    assert (train.fetches, train.fetch_seconds, train.fetch_cpu_seconds) == (11, 3.0, 2.5)
    assert (sum(train.fetch_counts), evaluation.fetch_counts) == (11, ())
    assert (evaluation.workers, evaluation.pin_memory, evaluation.fetches) == (None, None, 0)
    assert evaluation.batch_size is None
    assert facts.unknowns == ()


def test_facts_say_when_a_process_that_was_killed_was_last_seen_alive(tmp_path: Path) -> None:
    before = time.time()
    writer = RecordingWriter(tmp_path, "n1", 0.5, "resnet")
    writer.sample(sample(0))
    writer.ranks([(header(), totals(9), True), (header(1, pid=101), totals(9), True)])
    writer.sample(sample(MINUTE))
    killed = time.time()
    writer.ranks([(header(), totals(9), True), (header(1, pid=101), totals(9), False)])
    writer.close()
    alive, dead = Seen(tmp_path).read().source.facts.ranks
    assert (alive.killed, dead.killed) == (False, True)
    assert alive.last_alive is not None
    assert alive.last_alive >= killed
    assert dead.last_alive is not None
    assert before <= dead.last_alive <= killed


def test_pauses_of_ranks_are_kept_and_unknown_if_nobody_measured_them(tmp_path: Path) -> None:
    paused = {"stopped": 1.5, "no_core": 0.25, "throttled": 0.0}
    writer = RecordingWriter(tmp_path, "n1", 0.5, "resnet")
    ranks = [(header(), totals(9), True), (header(1, pid=101), totals(9), True)]
    writer.ranks(ranks, START, paused={(header().run, 0): paused})
    writer.close()
    known, unknown = Seen(tmp_path).read().source.facts.ranks
    assert (known.paused_seconds, unknown.paused_seconds) == (paused, {})


def test_where_a_rank_was_for_long_is_kept_to_the_second_and_once_per_stay(tmp_path: Path) -> None:
    writer = RecordingWriter(tmp_path, "n1", 0.5, "resnet")
    loading, waiting = Place("data_wait", "", START), Place("communication", "gradients", START + 200.25)
    for tick in range(300):
        writer.sample(sample(2 * tick))
        elapsed = float(tick)
        present = Presence("running")
        if 10 <= tick < 200:
            present = Presence("stopped" if tick > 150 else "waiting", loading, elapsed)
        elif tick >= 211:
            present = Presence("waiting", waiting, elapsed - 200.25)
        writer.ranks([(header(), totals(9), tick < 299)], START + elapsed, [present])
    writer.close()
    (rank,) = Seen(tmp_path).read().source.facts.ranks
    first, second = rank.stays
    assert (first.component, first.operation, first.state) == ("data_wait", "", "stopped")
    assert (first.start, first.end) == (START, START + 199)
    assert (second.component, second.operation, second.state) == ("communication", "gradients", "waiting")
    assert (second.start, second.end) == (START + 200.25, START + 299)
    rows = sum(len(pq.read_table(part)) for part in (tmp_path / "n1").glob("ranks-*"))
    assert rows <= 14, "not one per second"


def test_pauses_are_known_although_the_last_row_of_a_rank_does_not_say_them(tmp_path: Path) -> None:
    writer = RecordingWriter(tmp_path, "n1", 0.5, "resnet")
    writer.sample(sample(0))
    paused = {"stopped": 0.0, "no_core": 2.5, "throttled": 0.0}
    writer.ranks([(header(), totals(9), True)], now=START, paused={("resnet", 0): paused})
    writer.ranks(
        [(header(), totals(9), False)], now=START + 2
    )  # by `stepscope run`, after the exporter's end
    writer.close()
    (rank,) = Seen(tmp_path).read().source.facts.ranks
    assert rank.paused_seconds == paused


def test_a_reader_knows_the_last_pauses_of_a_journal_that_a_shorter_part_replaced(tmp_path: Path) -> None:
    writer = RecordingWriter(tmp_path, "n1", 0.5, "resnet")
    writer.sample(sample(0))
    for tick in range(5):
        paused = {"stopped": float(tick), "no_core": 0.0, "throttled": 0.0}
        writer.ranks([(header(), totals(9), True)], START + tick, paused={("resnet", 0): paused})
    wait_until(lambda: bool(Seen(tmp_path).read().source.facts.ranks))
    seen = Seen(tmp_path).read()
    writer.ranks([(header(), totals(9), True)], START + 9, paused={("resnet", 0): {**paused, "stopped": 7.5}})
    writer.close()
    (rank,) = seen.read().source.facts.ranks
    assert rank.paused_seconds["stopped"] == 7.5


@pytest.mark.parametrize("apart", [0.5, 0.75, 1, 10])  # seconds; totals are recorded once a second
def test_a_process_that_is_killed_within_a_minute_was_alive_until_then(tmp_path: Path, apart: float) -> None:
    writer = RecordingWriter(tmp_path, "n1", 0.5, "resnet")
    writer.sample(sample(0))
    for tick, alive in enumerate((True, True, False, False)):
        writer.ranks([(header(), totals(9), alive)], now=START + apart * tick)
    writer.close()
    assert len(files(tmp_path, "n1/ranks-*")) == 1
    (rank,) = Seen(tmp_path).read().source.facts.ranks
    assert rank.killed
    assert rank.last_alive == START + apart


def test_each_minute_becomes_one_part_that_pyarrow_reads_without_us(tmp_path: Path) -> None:
    record(tmp_path, range(3 * MINUTE)).close()
    assert len(files(tmp_path, "n1/samples-*")) == 3
    table = pq.read_table(the_part(tmp_path / "n1", "samples", 2))
    assert table.num_rows == MINUTE
    assert table.column("cpu_utilization_ratio")[7].as_py() == pytest.approx([0.27, 0.271])
    steps = pq.read_table(the_part(tmp_path / "n1", "steps", 2))
    assert steps.column("phase")[0].as_py() == "train"
    ranks = pq.read_table(the_part(tmp_path / "n1", "ranks", 3))
    assert ranks.num_rows == 1, "of totals, only the last of a minute are kept"
    assert ranks.column("train_steps")[0].as_py() == 3 * MINUTE
    assert files(tmp_path, "**/*.journal") == files(tmp_path, "**/*.unfinished") == []


def test_a_new_part_looks_at_none_of_those_before_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    removed: list[str] = []

    def note(path: Path) -> None:
        removed.append(path.name)
        path.unlink(missing_ok=True)

    for module in (writer_module, files_module):
        monkeypatch.setattr(module, "remove", note)
    writer = record(tmp_path, range(1))
    monkeypatch.setattr(files_module, "_listed", lambda *_: pytest.fail("the folder was listed"))
    for tick in range(1, 5):
        writer.sample(sample(tick * MINUTE))
    writer.close()
    of_samples = [name for name in removed if name.startswith("samples")]
    assert of_samples == [f"samples-{number:06d}.journal" for number in range(1, 6)]


def test_a_part_that_cannot_be_made_is_said_whatever_the_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(*_: object) -> None:
        raise ValueError("of another schema")

    monkeypatch.setattr(writer_module, "journal_to_part", fail)
    record(tmp_path, range(1)).close()
    (said,) = {record.getMessage() for record in caplog.records if record.levelname == "WARNING"}
    assert "cannot make a part" in said
    assert "of another schema; its journal stays" in said


def test_a_journal_that_never_becomes_a_part_keeps_no_later_one_from_it(tmp_path: Path) -> None:
    record(tmp_path, range(3)).close()
    (broken,) = (tmp_path / "n1").glob("samples-*")
    broken.unlink()
    journal_path(tmp_path / "n1", "samples", 1).mkdir()
    record(tmp_path, range(3, 2 * MINUTE)).close()
    assert [path.name for path in (tmp_path / "n1").glob("samples-*.journal")] == ["samples-000001.journal"]
    assert len(list((tmp_path / "n1").glob("samples-*.parquet"))) == 2


def test_a_reader_sees_each_row_once_while_journals_become_parts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writer_module, "PART_SECONDS", 7.0)
    ticks = 1500
    writer = RecordingWriter(tmp_path, "n1", 0.5, "resnet")
    seen = Seen(tmp_path)
    done = threading.Event()

    def write() -> None:
        for tick in range(ticks):
            writer.sample(sample(tick))
            writer.steps(header(), [step(tick)])
            if tick % 10 == 0:
                wait_until(writer._queue.empty)
        writer.close()
        done.set()

    thread = threading.Thread(target=write)
    thread.start()
    reads = 0
    while not done.is_set():
        seen.read()
        reads += 1
    thread.join()
    seen.read()
    assert seen.ticks() == list(range(ticks))
    assert seen.numbers() == list(range(ticks))
    assert reads > 5, "the reader did read while the writer wrote"
    assert seen.source.facts.samples_missed == 0


def test_a_part_that_replaces_a_journal_already_read_gives_no_row_again(tmp_path: Path) -> None:
    writer = record(tmp_path, range(10))
    wait_until(lambda: len(Seen(tmp_path).read().ticks()) == 10)
    seen = Seen(tmp_path).read()
    writer.sample(sample(10))
    writer.close()
    seen.read().read()
    assert seen.ticks() == list(range(11))


def test_missed_ticks_are_counted_from_the_gaps(tmp_path: Path) -> None:
    writer = record(tmp_path, range(10))
    for tick in range(14, 20):
        writer.sample(sample(tick))
    writer.close()
    assert Seen(tmp_path).read().source.facts.samples_missed == 4


def test_steps_that_nobody_recorded_are_counted_as_lost(tmp_path: Path) -> None:
    writer = record(tmp_path, range(5))
    writer.steps(header(), [step(8), step(9)])
    writer.close()
    (rank,) = Seen(tmp_path).read().source.facts.ranks
    assert rank.records_lost == 3
    (gap,) = gaps(Seen(tmp_path).read())
    assert (gap.what, gap.count) == ("steps", 3)
    assert gap.reason.startswith("their records were not read from the ledger in time")


def test_a_gpu_that_vanishes_leaves_nan_and_comes_back_to_its_own_column(tmp_path: Path) -> None:
    writer = RecordingWriter(tmp_path, "n1", 0.5, "resnet")
    for tick, gpus in enumerate((["1"], ["1"], [], ["0", "1"], ["0"])):
        writer.sample(sample(tick + 1, gpus=gpus))
    writer.close()
    assert len(files(tmp_path, "n1/samples-*")) == 2, "only a GPU not seen before begins a new part"
    seen = Seen(tmp_path).read()
    powers = [chunk.gpu_power_watts.tolist() for chunk in seen.samples]
    assert str(powers) == str([[[301.0], [301.0], [float("nan")]], [[301.0, 300.0], [float("nan"), 300.0]]])
    assert [gpu.gpu for gpu in seen.source.facts.nodes[0].gpus] == ["1", "0"]


def test_a_node_without_gpus_or_whose_cores_could_not_be_read_is_recorded(tmp_path: Path) -> None:
    writer = RecordingWriter(tmp_path, "n1", 0.5, "resnet")
    writer.sample(sample(0, cores=0, gpus=()))
    writer.sample(sample(1, cores=3, gpus=()))
    writer.sample(sample(2, cores=0, gpus=()))
    writer.close()
    seen = Seen(tmp_path).read()
    assert [chunk.cpu.shape for chunk in seen.samples] == [(1, 0), (2, 3)]
    assert np.isnan(seen.samples[1].cpu[1]).all()
    assert seen.samples[1].gpu.shape == (2, 0)


def test_a_recording_at_the_root_of_a_volume_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "lost+found").mkdir()

    def refuse(folder: Path, *most: int) -> Iterator[os.DirEntry[str]]:  # as for any user but root
        if folder.name == "lost+found":
            raise PermissionError(errno.EACCES, "Permission denied", str(folder))
        return entries(folder, *most)

    monkeypatch.setattr(files_module, "entries", refuse)
    record(tmp_path, range(3)).close()
    assert Seen(tmp_path).read().ticks() == [0, 1, 2]


def test_samples_of_several_nodes_are_not_mixed(tmp_path: Path) -> None:
    for node in ("n1", "n2"):
        record(tmp_path, range(5), node=node).close()
    samples = Seen(tmp_path).read().samples
    assert sorted((chunk.node, len(chunk)) for chunk in samples) == [("n1", 5), ("n2", 5)]


def test_samples_and_steps_of_the_same_time_come_near_each_other(tmp_path: Path) -> None:
    record(tmp_path, range(0, 11 * MINUTE, 20)).close()
    kinds = [type(chunk).__name__ for chunk in RecordingDirectory(tmp_path).read()]
    assert kinds == ["NodeSamples", "Steps"] * 2, "10 minutes at a time"


KILLED_WRITER = """
import os, signal, sys, time
from dataclasses import replace
from math import nan
from pathlib import Path
from tests.support.recording import Seen, header, sample, step, totals
from stepscope.runs.recording.writer import RecordingWriter
from stepscope.exporter.sampling.sample import HostUse, RunSample
writer = RecordingWriter(Path(sys.argv[1]), "n1", 0.5, "resnet")
for tick in range(130):
    writer.sample(sample(tick))
    writer.steps(header(), [step(tick)])
    writer.ranks([(header(), totals(tick + 1), True)])
while not writer._queue.empty() or len(Seen(Path(sys.argv[1])).read().numbers()) < 130:
    time.sleep(0.01)
os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.fixture
def left_by_killed_writer(tmp_path: Path) -> Path:
    ended = subprocess.run([sys.executable, "-c", KILLED_WRITER, str(tmp_path)], check=False, timeout=SECONDS)
    assert ended.returncode == -signal.SIGKILL
    return tmp_path


def test_kill_9_of_the_writer_loses_nothing_that_it_was_given(left_by_killed_writer: Path) -> None:
    assert files(left_by_killed_writer, "n1/*.journal") != []
    seen = Seen(left_by_killed_writer).read()
    assert seen.ticks() == list(range(130))
    assert seen.numbers() == list(range(130))
    assert seen.source.facts.unknowns == ()


def test_the_next_writer_takes_over_and_records_no_step_twice(left_by_killed_writer: Path) -> None:
    seen = Seen(left_by_killed_writer).read()
    writer = RecordingWriter(left_by_killed_writer, "n1", 0.5, "resnet")
    writer.steps(header(), [step(number) for number in range(100, 133)])  # what is still in the ledger's ring
    writer.steps(header(), [step(133)])
    writer.steps(header(0, pid=999), [step(0)])  # a new process of the same rank begins again,
    writer.steps(header(0, pid=999, start=START + 9), [step(0)])  # and so does a new run in that process
    for tick in range(131, 135):
        writer.sample(sample(tick))
    writer.close()
    assert files(left_by_killed_writer, "n1/*.journal") == []
    for reader in (seen.read(), Seen(left_by_killed_writer).read()):
        assert reader.numbers() == [*range(134), 0, 0]
        assert reader.ticks() == [*range(130), *range(131, 135)]
        assert reader.source.facts.samples_missed == 1


def test_a_writer_that_takes_over_again_still_knows_the_steps_of_long_ago(tmp_path: Path) -> None:
    record(tmp_path, range(5)).close()
    for round_ in range(1, 4):
        writer = RecordingWriter(tmp_path, "n1", 0.5, "resnet")
        writer.steps(header(1, pid=round_), [step(0)])
        writer.steps(header(), [step(4)])
        writer.close()
    assert Seen(tmp_path).read().numbers() == [0, 1, 2, 3, 4]


def test_a_recording_of_weeks_forgets_the_steps_of_processes_that_are_gone(tmp_path: Path) -> None:
    writer = RecordingWriter(tmp_path, "n1", 0.5, "resnet")
    for minute in range(4):
        own = header(pid=minute)
        writer.sample(sample(minute * MINUTE))
        writer.steps(own, [step(0)])
        writer.ranks([(own, totals(1), True)], now=START + minute * 60)
    writer.close()
    known = metadata_of(pq.read_schema(the_part(tmp_path / "n1", "steps", 4)))["recorded"]
    assert list(known) == [f"0/2/{START}"]
    writer = RecordingWriter(tmp_path, "n1", 0.5, "resnet")
    writer.steps(header(pid=3), [step(0), step(1)])
    writer.close()
    assert Seen(tmp_path).read().numbers() == [0, 0, 0, 0, 1]


def test_another_users_recording_that_changes_meanwhile_is_recorded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    record(tmp_path, range(3)).close()

    def refuse(path: Path) -> int:  # as for any user but root and its own
        raise PermissionError(errno.EACCES, "Permission denied", str(path))

    def listed(folder: Path, *most: int) -> Iterator[os.DirEntry[str]]:
        found = list(entries(folder, *most))
        the_part(folder, "samples").unlink()
        return iter(found)

    monkeypatch.setattr(files_module, "open_file", refuse)
    monkeypatch.setattr(files_module, "entries", listed)
    assert files_module.is_recorded_now(tmp_path / "n1")


def test_two_writers_of_one_node_are_refused(tmp_path: Path) -> None:
    writer = record(tmp_path, range(1))
    with pytest.raises(UserError, match="is being recorded by another exporter"):
        RecordingWriter(tmp_path, "n1", 0.5, "resnet")
    writer.close()


FULL_DISK = """
import logging, resource, sys, time
from dataclasses import replace
from math import nan
from pathlib import Path
from tests.support.recording import header, sample, step
from stepscope.runs.recording import writer as module
module.RETRY_SECONDS = 0.2
logging.basicConfig(level="INFO", stream=sys.stdout, format="%(message)s")
writer = module.RecordingWriter(Path(sys.argv[1]), "n1", 0.5, "resnet")
def give(ticks):
    for tick in ticks:
        writer.sample(sample(tick))
    writer._queue.join()
give(range(20))
soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
resource.setrlimit(resource.RLIMIT_FSIZE, (30_000, hard))
give(range(20, 60))
time.sleep(0.3)
give(range(60, 61))  # tried again, and refused again: a new journal is still small enough
resource.setrlimit(resource.RLIMIT_FSIZE, (0, hard))
time.sleep(0.3)
give(range(61, 100))
resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
time.sleep(0.3)
give(range(100, 110))
writer.close()
"""


def test_a_full_disk_stops_the_recording_with_one_message_until_there_is_room(tmp_path: Path) -> None:
    ended = subprocess.run(
        [sys.executable, "-c", FULL_DISK, str(tmp_path)],
        check=True,
        timeout=SECONDS,
        capture_output=True,
        text=True,
    )
    lines = ended.stdout.splitlines()
    stopped = [line for line in lines if "stopped: File too large" in line]
    went_on = [line for line in lines if line.endswith("continues")]
    assert len(stopped) == len(went_on) in (1, 2), ended.stdout
    seen = Seen(tmp_path).read()
    ticks = seen.ticks()
    assert ticks[:20] == list(range(20)), "what was written stays"
    assert ticks[-10:] == list(range(100, 110)), "and it goes on"
    assert ticks == sorted(set(ticks))
    assert 61 not in ticks
    lost = [gap for gap in gaps(seen) if gap.what == "samples"]
    assert sum(gap.count or 0 for gap in lost) == 110 - len(ticks)
    assert {gap.reason for gap in lost} == {"they were not recorded: File too large"}
    assert lost[-1].end == sample(100).time


def test_a_disk_that_reports_its_failure_only_when_a_file_is_closed_does_not_end_the_recording(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    close = JournalWriter.close

    def refuse(journal: JournalWriter) -> None:  # as NFS does
        close(journal)
        raise OSError(errno.EDQUOT, "Disk quota exceeded")

    monkeypatch.setattr(JournalWriter, "close", refuse)
    writer = RecordingWriter(tmp_path, "n1", 0.5, "resnet")
    for minute in range(3):
        writer.sample(sample(minute * MINUTE))
        writer.steps(header(), [step(minute)])
    writer.close()
    seen = Seen(tmp_path).read()
    assert seen.ticks() == [0, MINUTE, 2 * MINUTE]
    assert seen.numbers() == [0, 1, 2]


def test_a_number_that_cannot_be_recorded_costs_its_own_step_and_says_so(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    writer = RecordingWriter(tmp_path, "n1", 0.5, "resnet")
    ticks = [*range(3), *range(MINUTE, MINUTE + 3)]  # the second part notes what the first one lacks
    for number, tick in enumerate(ticks):
        writer.sample(sample(tick))
        writer.steps(header(0), [step(number)])
        writer.steps(header(1), [step(number if number >= 3 else 2**70)])
    writer.close()
    seen = Seen(tmp_path).read()
    assert seen.ticks() == ticks
    numbers = [number for steps in seen.steps if steps.rank == 0 for number in steps.numbers.tolist()]
    assert numbers == list(range(6))
    assert [gap.count for gap in gaps(seen) if gap.what == "steps"] == [3]
    assert len(caplog.messages) == 1


def test_samples_of_a_restarted_exporter_whose_clock_was_set_back_are_a_chunk_of_their_own(
    tmp_path: Path,
) -> None:
    for first in (0, 10):  # 20 ticks each
        record(tmp_path, range(first, first + 20)).close()
    seen = Seen(tmp_path).read()
    assert seen.ticks() == [*range(20), *range(10, 30)]
    assert all(np.all(np.diff(chunk.times) > 0) for chunk in seen.samples)


def test_a_read_only_directory_is_named_in_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match=r"cannot record in .*/file/n1: Not a directory; choose another"):
        RecordingWriter(tmp_path / "file", "n1", 0.5, "resnet")


def gaps(seen: Seen) -> list[Gap]:
    return list(seen.source.facts.gaps)


def test_a_damaged_part_is_left_out_and_the_gap_is_named_with_its_time(tmp_path: Path) -> None:
    record(tmp_path, range(3 * MINUTE)).close()
    part = the_part(tmp_path / "n1", "samples", 2)
    whole = part.read_bytes()
    gap = Gap(
        "samples",
        f"`n1/{part.name}` was left out: its checksum does not match",
        "n1",
        start=sample(MINUTE - 1).time,
        end=sample(2 * MINUTE).time,
        count=MINUTE,
    )
    cut = [whole[:size] for size in (0, 3, 100, len(whole) // 2, len(whole) - 1)]
    bits = [flipped(whole, bit) for bit in (0, 31, 4 * len(whole), 8 * len(whole) - 1)]
    for damaged in (*cut, *bits, whole + b"x"):
        part.write_bytes(damaged)
        seen = Seen(tmp_path).read()
        assert seen.ticks() == [*range(MINUTE), *range(2 * MINUTE, 3 * MINUTE)]
        assert gaps(seen) == [gap]
        assert seen.source.facts.samples_missed == MINUTE


def test_a_damaged_part_of_steps_costs_its_steps(tmp_path: Path) -> None:
    record(tmp_path, range(3 * MINUTE)).close()
    the_part(tmp_path / "n1", "steps", 2).write_bytes(b"")
    seen = Seen(tmp_path).read()
    assert seen.numbers() == [*range(MINUTE), *range(2 * MINUTE, 3 * MINUTE)]
    (gap,) = gaps(seen)
    assert (gap.what, gap.node, gap.count) == ("steps", "n1", MINUTE)
    assert gap.end == START + MINUTE
    (rank,) = seen.source.facts.ranks
    assert (rank.records_lost, rank.steps["train"]) == (MINUTE, 3 * MINUTE), "the totals have all"


def test_damage_at_the_end_is_named_with_the_steps_that_the_totals_have(tmp_path: Path) -> None:
    writer = record(tmp_path, range(2 * MINUTE))
    writer.ranks([(header(), totals(2 * MINUTE), False)], now=START + MINUTE)
    writer.close()
    for table in ("samples", "steps", "ranks"):
        the_part(tmp_path / "n1", table, 1).write_bytes(b"PAR1")
    first = {gap.what: (gap.start, gap.end, gap.count) for gap in gaps(Seen(tmp_path).read())}
    assert first["samples"] == (None, sample(MINUTE).time, None)
    assert first["steps"] == (None, START + MINUTE / 2, MINUTE)
    assert first["ranks"][1] is not None
    the_part(tmp_path / "n1", "samples", 2).write_bytes(b"")
    the_part(tmp_path / "n1", "steps", 2).write_bytes(b"")
    all_gone = {gap.what: (gap.start, gap.end, gap.count) for gap in gaps(Seen(tmp_path).read())}
    assert all_gone["samples"] == (None, None, None)
    assert all_gone["steps"] == (None, None, 2 * MINUTE)


@pytest.fixture(scope="module")
def five_minutes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A recording of five parts. Do not change it."""
    folder = tmp_path_factory.mktemp("recorded")
    record(folder, range(5 * MINUTE)).close()
    return folder


@pytest.mark.parametrize("table", ["samples", "steps", "ranks"])
def test_a_part_that_is_gone_is_named(tmp_path: Path, five_minutes: Path, table: str) -> None:
    shutil.copytree(five_minutes, tmp_path, dirs_exist_ok=True)
    for number in (2, 3, 4):
        the_part(tmp_path / "n1", table, number).unlink()
    (gap,) = gaps(Seen(tmp_path).read())
    assert (gap.what, gap.reason) == (table, f"`n1/{table}-000002` to `n1/{table}-000004` are missing")


def test_a_folder_may_hold_more_parts_than_others_that_anybody_can_write_to(
    tmp_path: Path, five_minutes: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(five_minutes, tmp_path, dirs_exist_ok=True)
    monkeypatch.setattr(entries, "__defaults__", (3,))
    seen = Seen(tmp_path).read()
    assert (seen.ticks(), gaps(seen)) == (list(range(5 * MINUTE)), [])
    record(tmp_path, range(5 * MINUTE, 5 * MINUTE + 1)).close()
    the_part(tmp_path / "n1", "samples", 6)


def test_the_last_parts_are_missed_by_the_end_of_the_run(tmp_path: Path) -> None:
    record(tmp_path, range(2 * MINUTE)).close()
    RunFile("resnet", START, START + MINUTE).write(tmp_path)
    assert gaps(Seen(tmp_path).read()) == []
    the_part(tmp_path / "n1", "samples", 2).unlink()
    (gap,) = gaps(Seen(tmp_path).read())
    assert (gap.start, gap.end, gap.count) == (sample(MINUTE - 1).time, None, MINUTE + 1)


def test_a_number_without_a_row_is_no_gap(tmp_path: Path) -> None:
    """A journal that was cut off before its first row leaves no part."""
    record(tmp_path, range(MINUTE)).close()
    node = tmp_path / "n1"
    for table in ("samples", "steps", "ranks"):
        journal_path(node, table, 2).write_bytes(b"")
    record(tmp_path, range(MINUTE, 2 * MINUTE)).close()
    for table in ("samples", "steps", "ranks"):
        part = the_part(node, table, 2)
        part.rename(part.with_name(part.name.replace("000002", "000003")))
    seen = Seen(tmp_path).read()
    assert (seen.ticks(), gaps(seen)) == (list(range(2 * MINUTE)), [])


def test_a_part_that_somebody_else_wrote_is_left_out(tmp_path: Path) -> None:
    record(tmp_path, range(5)).close()
    part = the_part(tmp_path / "n1", "samples")
    rewrite(part, pq.read_table(part).replace_schema_metadata(None))
    (gap,) = gaps(Seen(tmp_path).read())
    assert gap.reason.endswith(".parquet` was left out: Stepscope did not write it")


def test_a_writer_takes_over_from_a_damaged_recording_and_leaves_the_damage_in_place(tmp_path: Path) -> None:
    record(tmp_path, range(5)).close()
    damaged = [tmp_path / "run.json", *(tmp_path / "n1").glob("*.parquet")]
    for path in damaged:
        path.write_bytes(flipped(path.read_bytes(), 77))
    contents = [path.read_bytes() for path in damaged]
    record(tmp_path, range(5, 10)).close()
    assert [path.read_bytes() for path in damaged] == contents
    seen = Seen(tmp_path).read()
    assert (seen.ticks(), seen.numbers()) == (list(range(5, 10)), list(range(5, 10)))
    assert [gap.what for gap in gaps(seen)] == ["run", "samples", "steps", "ranks", "gauges"]


def test_a_run_file_of_which_any_bit_is_flipped_is_left_out_or_says_the_same(tmp_path: Path) -> None:
    record(tmp_path, range(5)).close()
    intact = Seen(tmp_path).read().source.facts
    whole = (tmp_path / "run.json").read_bytes()
    for bit in range(8 * len(whole)):
        (tmp_path / "run.json").write_bytes(flipped(whole, bit))
        facts = Seen(tmp_path).source.facts
        if not facts.gaps:
            assert (facts.name, facts.start, facts.interval) == (intact.name, intact.start, intact.interval)
            assert (facts.command, facts.end, facts.versions) == (intact.command, None, intact.versions)
        else:
            assert facts.gaps[0].reason.startswith("`run.json` was left out: it")


def test_a_run_file_that_was_edited_is_left_out_with_the_fix(tmp_path: Path) -> None:
    record(tmp_path, range(5)).close()
    text = (tmp_path / "run.json").read_text()
    (tmp_path / "run.json").write_text(text.replace('"resnet"', '"bert"'))
    (gap,) = gaps(Seen(tmp_path).read())
    assert "if you edited it, remove `checksum` from it" in gap.reason
    values = json.loads(text)
    del values["checksum"]
    (tmp_path / "run.json").write_text(json.dumps({**values, "name": "bert"}))
    assert Seen(tmp_path).read().source.facts.name == "bert"


@pytest.mark.parametrize("content", [None, {"notes.txt": ""}])
def test_a_directory_without_a_recording_is_refused_in_one_line(
    tmp_path: Path, content: dict[str, str] | None
) -> None:
    for name, text in (content or {}).items():
        (tmp_path / name).write_text(text)
    with pytest.raises(UserError, match="is not a recording"):
        RecordingDirectory(tmp_path)
    with pytest.raises(UserError, match="is not a directory"):
        RecordingDirectory(tmp_path / "nothing")


def test_what_is_inside_or_around_recordings_is_refused_with_their_paths(tmp_path: Path) -> None:
    made = tmp_path / "run"
    record(made, range(5)).close()
    for part in (made / "run.json", made / "n1"):
        with pytest.raises(UserError, match=f"^{part} is a part of the recording {made}: give {made}$"):
            open_source(str(part))
    with pytest.raises(UserError, match=f"^{tmp_path} holds 1 recording: give one, as {made}$"):
        open_source(str(tmp_path))


@pytest.mark.parametrize(
    "text", ["", "{", "[]", '{"name": "x", "format": 1, "colour": "red"}', '{"format": 99}']
)
def test_a_run_file_that_cannot_be_used_is_named(tmp_path: Path, text: str) -> None:
    (tmp_path / "run.json").write_text(text)
    with pytest.raises(UserError, match=r"run\.json") as caught:
        RecordingDirectory(tmp_path)
    assert "\n" not in str(caught.value)


def test_a_recording_of_another_format_is_refused(tmp_path: Path) -> None:
    record(tmp_path, range(2)).close()
    values = json.loads((tmp_path / "run.json").read_text())
    (tmp_path / "run.json").write_text(json.dumps({**values, "format": 2}).replace("checksum", "signature"))
    with pytest.raises(UserError, match="has format 2, this Stepscope reads 1: use the one that wrote it"):
        RecordingDirectory(tmp_path)


def test_a_recording_whose_run_file_is_gone_can_be_read(tmp_path: Path) -> None:
    record(tmp_path, range(5)).close()
    (tmp_path / "run.json").unlink()
    seen = Seen(tmp_path).read()
    assert seen.source.facts.name == "resnet"
    assert seen.ticks() == list(range(5))
    assert gaps(seen) == [Gap("run", "`run.json` is missing")]


def test_a_run_of_which_nothing_is_recorded_yet_has_facts_and_no_rows(tmp_path: Path) -> None:
    RunFile("resnet", START).write(tmp_path)
    seen = Seen(tmp_path).read()
    assert seen.samples == []
    assert seen.source.facts.start == START
    record(tmp_path, range(3)).close()
    assert seen.read().ticks() == [0, 1, 2], "and a reader that came first sees what comes"


def test_a_counter_that_begins_anew_gives_no_rate(tmp_path: Path) -> None:
    writer = RecordingWriter(tmp_path, "n1", 0.5, "resnet")
    for tick in (10, 11):
        writer.sample(sample(tick))
    after_reboot = sample(12)
    after_reboot.network_receive_bytes = 0.0
    writer.sample(after_reboot)
    writer.close()
    network = Seen(tmp_path).read().column("network")
    assert network[1] == pytest.approx(300.0)
    assert np.isnan(network[2])


def test_a_chunk_is_bounded_however_wide_the_machine_and_however_many_the_steps(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(directory, "CHUNK_VALUES", 200_000)
    monkeypatch.setattr(directory, "CHUNK_STEPS", 500)
    writer = RecordingWriter(tmp_path, "n1", 0.5, "resnet")
    for tick in range(6 * MINUTE):
        writer.sample(sample(tick, cores=192, gpus=[str(gpu) for gpu in range(8)]))
        writer.steps(header(), [step(2 * tick), step(2 * tick + 1)])
        if tick % 100 == 0:
            wait_until(writer._queue.empty)
    writer.close()
    seen = Seen(tmp_path).read()
    assert [len(chunk) for chunk in seen.samples] == [3 * MINUTE, 3 * MINUTE], (
        "360 of 416 values and more each"
    )
    assert [len(chunk) for chunk in seen.steps] == [4 * MINUTE] * 3


def test_the_writer_hands_over_without_waiting_for_a_disk_that_hangs(tmp_path: Path) -> None:
    writer = record(tmp_path, range(3))
    wait_until(writer._queue.empty)
    begun, hanging = threading.Event(), threading.Event()

    def hang() -> None:
        begun.set()
        hanging.wait(SECONDS)

    writer._hand_over(hang)
    assert begun.wait(SECONDS)
    for tick in range(3, 3 + 2000):
        writer.sample(sample(tick))
    assert writer._queue.full(), "what is kept waiting is bounded"
    hanging.set()
    writer.catch_up()
    writer.steps(header(), [step(2000)])
    writer.sample(sample(2003))
    writer.close()
    seen = Seen(tmp_path).read()
    ticks = seen.ticks()
    assert ticks[:500] == list(range(500))
    gap, of_steps = gaps(seen)
    assert gap.reason == "they were not recorded: the disk did not keep up"
    assert (gap.start, gap.end) == (sample(ticks[-2]).time, sample(2003).time)
    assert gap.count == 2004 - len(ticks)
    assert of_steps.what == "steps"


def test_rows_that_are_dropped_while_a_new_journal_is_made_have_their_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writer_module, "QUEUE_LENGTH", 5)
    writer = record(tmp_path, range(3))
    create = JournalWriter._create
    for first in (3, 14):
        begun, hanging = threading.Event(), threading.Event()

        def hang(*arguments: object, begun: threading.Event = begun, end: threading.Event = hanging) -> None:
            begun.set()
            end.wait(SECONDS)
            if arguments:
                create(*arguments)  # type: ignore[arg-type]

        writer.catch_up()
        if first == 3:
            writer._hand_over(hang)
        else:
            monkeypatch.setattr(JournalWriter, "_create", hang)
            writer.sample(sample(13))
        assert begun.wait(SECONDS)
        for tick in range(first, first + 10):  # 5 of them wait
            writer.sample(sample(tick))
        hanging.set()
    writer.catch_up()
    writer.sample(sample(24))
    writer.close()
    disk = "they were not recorded: the disk did not keep up"
    assert [(gap.count, gap.reason) for gap in gaps(Seen(tmp_path).read())] == [(5, disk), (5, disk)]


def recorded_use(folder: Path, ticks: int, host: HostUse, before: int = 0) -> Seen:
    """Records some samples of a run whose use of the host is known after `before` samples."""
    writer = RecordingWriter(folder, "n1", 0.5, "resnet")
    for tick in range(ticks):
        tick_sample = sample(tick)
        if tick >= before:
            tick_sample.runs = {"resnet": RunSample(host=host), "other": RunSample()}
        writer.sample(tick_sample)
    writer.close()
    return Seen(folder).read()


def test_what_a_run_uses_of_the_host_comes_back(tmp_path: Path) -> None:
    host = HostUse(("1",), allowed_cores=0.5, cpu_seconds=7.0, cpu_throttled_seconds=2.5)
    host.neighbour_cpu_seconds = {"bob": 3.0}
    seen = recorded_use(tmp_path, 4, host)
    use = dict(zip(RUN_USE, seen.column("run_use")[3].tolist(), strict=True))
    assert (use["cpu_seconds"], use["cpu_throttled_seconds"], use["allowed_cores"]) == (7.0, 2.5, 0.5)
    assert np.isnan(use["other_cpu_seconds"])
    (node,) = seen.source.facts.nodes
    assert node.run_cpus == ("1",)
    assert node.neighbours == (("bob", 3.0),)


def test_cores_that_the_run_may_not_use_are_not_read_again(tmp_path: Path) -> None:
    cpu = recorded_use(tmp_path, 6, HostUse(("1",)), before=2).column("cpu")
    assert np.isnan(cpu[2:, 0]).all()
    assert cpu[2:, 1] == pytest.approx([0.021, 0.031, 0.041, 0.051])


def record_gpus(folder: Path, *ticks: dict[str, dict[str, str]]) -> Seen:
    """A recording of `resnet` in which each tick has the evidence by GPU of each run."""
    writer = RecordingWriter(folder, "n1", 0.5, "resnet")
    for tick, runs in enumerate(ticks):
        taken = sample(tick)
        taken.runs = {
            run: RunSample(gpus={gpu: GpuUse(by) for gpu, by in gpus.items()}) for run, gpus in runs.items()
        }
        writer.sample(taken)
    writer.close()
    return Seen(folder).read()


def evidence(seen: Seen) -> list[str | None]:
    return [gpu.by for gpu in seen.source.facts.nodes[0].gpus]


def test_only_the_gpus_of_the_run_are_read_from_the_moment_it_has_them(tmp_path: Path) -> None:
    neighbour = {"bert": {"0": "processes"}}
    seen = record_gpus(
        tmp_path,
        {**neighbour, "resnet": {}},
        {**neighbour, "resnet": {"1": "environment"}},
        {**neighbour, "resnet": {"1": "processes"}},
    )
    assert np.isnan(seen.column("gpu")).tolist() == [[True, True], [True, False], [True, False]]
    assert np.isnan(seen.column("gpu_power_watts")[:, 0]).all()
    assert evidence(seen) == ["", "processes"]


def test_a_lone_run_has_the_node_until_its_processes_are_on_a_gpu(tmp_path: Path) -> None:
    lone = {"0": "node", "1": "node"}
    whole = record_gpus(tmp_path / "whole", *[{"resnet": lone}] * 3)
    assert not np.isnan(whole.column("gpu")).any()
    assert evidence(whole) == ["node", "node"]
    later = record_gpus(tmp_path / "later", {"resnet": lone}, {"resnet": {"1": "processes"}})
    assert np.isnan(later.column("gpu")).tolist() == [[True, False], [True, False]]
    assert evidence(later) == ["", "processes"]


def test_a_run_keeps_its_gpus_when_it_has_ended_and_without_ledgers_has_all(tmp_path: Path) -> None:
    ended = record_gpus(tmp_path / "ended", {"resnet": {"1": "devices"}}, {})
    assert np.isnan(ended.column("gpu")).tolist() == [[True, False], [True, False]]
    assert evidence(record_gpus(tmp_path / "none", {}, {})) == ["node", "node"]


def test_a_row_that_no_column_can_hold_costs_itself_and_is_said(tmp_path: Path) -> None:
    writer = record(tmp_path, range(3))
    writer.ranks([(header(), totals(4), True), (header(1), totals(10**20), True)], now=START + 2)
    for tick in range(3, 6):
        writer.sample(sample(tick))
    writer.close()
    recorded = Seen(tmp_path).read().source
    assert [(rank.rank, rank.steps["train"]) for rank in recorded.facts.ranks] == [(0, 4)]
    (gap,) = (gap for gap in recorded.facts.gaps if gap.what == "ranks")
    assert gap.reason.startswith("the ledger of rank 1 of resnet was refused: ")
    RecordingWriter(tmp_path, "n1", 0.5, "resnet").close()
    record(tmp_path, range(6, 8)).close()  # a later writer
    assert gap in Seen(tmp_path).read().source.facts.gaps
