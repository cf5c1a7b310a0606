"""Debugger's system metrics: every quirk of its files, with exact values."""

import json
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from stepscope.common.errors import UserError
from stepscope.runs.debugger import system
from stepscope.runs.debugger.source import DebuggerOutput
from stepscope.runs.debugger.system import HOLD_BACK
from stepscope.runs.model import NodeSamples, RunFacts

from tests.support.debugger_output import START, DebuggerDirectory, Reading, line, reading, snapshot


@pytest.fixture
def directory(tmp_path: Path) -> DebuggerDirectory:
    return DebuggerDirectory(tmp_path / "job" / "profiler-output")


def read(root: Path, block_bytes: int = 1 << 20) -> tuple[dict[str, NodeSamples], RunFacts]:
    """All samples of each node, joined, and the facts."""
    source = DebuggerOutput(root)
    chunks: dict[str, list[NodeSamples]] = {}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(system, "BLOCK_BYTES", block_bytes)
        for chunk in source.read():
            if isinstance(chunk, NodeSamples):
                chunks.setdefault(chunk.node, []).append(chunk)
    return {node: joined(pieces) for node, pieces in chunks.items()}, source.facts


def joined(pieces: list[NodeSamples]) -> NodeSamples:
    arrays = {}
    for name, value in vars(pieces[-1]).items():
        if isinstance(value, np.ndarray):
            columns = [getattr(piece, name) for piece in pieces]
            if value.ndim == 2:
                width = value.shape[1]
                columns = [
                    np.pad(one, ((0, 0), (0, width - one.shape[1])), constant_values=np.nan)
                    for one in columns
                ]
            arrays[name] = np.concatenate(columns)
    return NodeSamples(node=pieces[0].node, **arrays)


def test_a_snapshot_has_each_core_and_gpu_in_the_order_of_their_numbers(directory: DebuggerDirectory) -> None:
    rows = snapshot(START, range(12), (95.5, 0.0), io_wait=range(12, 24), gpu_memory=(40.0, 100.0))
    directory.write_readings(reversed(rows))
    samples, facts = read(directory.root)
    node = samples["algo-1"]
    np.testing.assert_array_equal(node.cpu, np.arange(12, dtype=np.float32)[None] / np.float32(100))
    np.testing.assert_array_equal(node.io_wait, (np.arange(12, 24) / 100).astype(np.float32)[None])
    np.testing.assert_array_equal(node.gpu, ratios([[0.955, 0.0]]))
    np.testing.assert_array_equal(node.gpu_memory, ratios([[0.4, 1.0]]))
    np.testing.assert_array_equal(node.memory, ratios([0.25]))
    assert node.times.tolist() == [START]
    assert facts.nodes[0].cpus == tuple(map(str, range(12)))
    assert [gpu.gpu for gpu in facts.nodes[0].gpus] == ["0", "1"]


def test_disk_and_network_are_bytes_per_second_of_the_job_alone(directory: DebuggerDirectory) -> None:
    directory.write_readings(snapshot(START, (5.0,)))
    node = read(directory.root)[0]["algo-1"]
    assert node.disk.tolist() == [1500.0]
    assert node.network.tolist() == [300.0]  # SageMaker's own ("Platform") is left out


def test_what_debugger_never_sampled_is_missing(directory: DebuggerDirectory) -> None:
    directory.write_readings(snapshot(START, (5.0,), (3.0,), memory=None))
    node = read(directory.root)[0]["algo-1"]
    for values in (
        node.memory,
        node.disk,
        node.network,
        node.gpu_power_watts,
        node.gpu_temperature_celsius,
    ):
        assert np.isnan(values).all()


@pytest.mark.parametrize(
    ("apart", "snapshots"), [(0.0, 1), (0.0199, 1), (0.020, 1), (0.0202, 2), (0.1, 2), (0.5, 2)]
)
def test_readings_within_20_ms_are_one_snapshot(
    directory: DebuggerDirectory, apart: float, snapshots: int
) -> None:
    directory.write_readings(
        [
            reading("CPUUtilization", "cpu0", 90.0, START),
            reading("GPUUtilization", "gpu0", 5.0, START + apart, kind="gpu"),
        ]
    )
    node = read(directory.root)[0]["algo-1"]
    assert len(node) == snapshots
    assert node.cpu[0, 0] == np.float32(0.9)
    assert node.gpu[-1, 0] == np.float32(0.05)
    if snapshots == 2:
        assert np.isnan(node.gpu[0, 0])
        assert np.isnan(node.cpu[1, 0])


def test_a_chain_of_close_readings_is_cut_each_20_ms_from_its_first(directory: DebuggerDirectory) -> None:
    directory.write_readings(
        [reading("CPUUtilization", f"cpu{index}", index, START + 0.015 * index) for index in range(5)]
    )
    node = read(directory.root)[0]["algo-1"]
    np.testing.assert_allclose(node.times - START, [0.0, 0.030, 0.060], atol=1e-6)


def test_nodes_are_never_mixed_into_one_snapshot(directory: DebuggerDirectory) -> None:
    for number in (1, 2, 10):
        node = f"algo-{number}"
        directory.write_readings(snapshot(START, (number,), (10.0 * number,), node=node), node)
    samples, facts = read(directory.root)
    assert {node: one.gpu.tolist() for node, one in samples.items()} == {
        f"algo-{number}": [[float(np.float32(number / 10))]] for number in (1, 2, 10)
    }
    assert [node.node for node in facts.nodes] == ["algo-1", "algo-2", "algo-10"]


def test_a_core_that_comes_later_is_missing_before(directory: DebuggerDirectory) -> None:
    directory.write_readings([*snapshot(START, (1.0,)), *snapshot(START + 0.5, (1.0, 2.0))])
    node = read(directory.root)[0]["algo-1"]
    np.testing.assert_array_equal(node.cpu, ratios([[0.01, np.nan], [0.01, 0.02]]))


def test_a_reading_that_is_there_twice_counts_once_with_its_last_value(directory: DebuggerDirectory) -> None:
    rows = [reading("CPUUtilization", "cpu0", value, START) for value in (10.0, 30.0)]
    directory.write_readings(rows)
    np.testing.assert_array_equal(read(directory.root)[0]["algo-1"].cpu, ratios([[0.3]]))


def test_a_file_copied_into_its_hour_and_beside_it_is_read_once(directory: DebuggerDirectory) -> None:
    directory.write_readings(snapshot(START, (5.0,)))
    flat = directory.root / "system/incremental" / directory.files[0].name
    flat.write_bytes(directory.files[0].read_bytes())
    samples, facts = read(directory.root)
    assert len(samples["algo-1"]) == 1
    assert any("twice" in sentence for sentence in facts.unknowns)


def test_spaces_and_another_order_of_fields_change_nothing(directory: DebuggerDirectory) -> None:
    rows = snapshot(START, (5.0, 7.5), (95.0,))
    directory.write_readings(rows)
    expected = read(directory.root)[0]["algo-1"]
    mixed = [json.dumps(dict(reversed(row.items())) if index % 2 else row) for index, row in enumerate(rows)]
    directory.files[0].write_text("\n".join(mixed) + "\n")
    assert_same(read(directory.root)[0]["algo-1"], expected)


def test_a_name_may_hold_what_a_table_cannot(directory: DebuggerDirectory) -> None:
    strange = [reading('odd "name", {really}: \\', "x", 1.0, START, kind="cpu")]
    directory.write_readings([*snapshot(START, (5.0,)), *strange])
    samples, facts = read(directory.root)
    np.testing.assert_array_equal(samples["algo-1"].cpu, ratios([[0.05]]))
    assert any('odd "name"' in sentence for sentence in facts.unknowns)


HALF_WRITTEN = ['{"Type":"cpu","Name":"cpu0","Dimen', '{"Type":"cpu","Name":"cpu0"}\n', "{", "[]\n"]


@pytest.mark.parametrize("tail", HALF_WRITTEN)
def test_a_half_written_last_line_is_skipped_and_said(directory: DebuggerDirectory, tail: str) -> None:
    directory.write_readings(snapshot(START, (5.0,)), tail=tail)
    samples, facts = read(directory.root)
    assert samples["algo-1"].cpu.tolist() == [[float(np.float32(0.05))]]
    assert [s for s in facts.unknowns if "middle of a line" in s and directory.files[0].name in s]


def test_a_last_line_without_its_end_of_line_is_read(directory: DebuggerDirectory) -> None:
    directory.write_readings(snapshot(START, (5.0,)))
    directory.files[0].write_text(directory.files[0].read_text().rstrip("\n"))
    samples, facts = read(directory.root)
    assert samples["algo-1"].network.tolist() == [300.0]
    assert not any("middle of a line" in sentence for sentence in facts.unknowns)


@pytest.mark.parametrize(
    ("wrong", "why"),
    [
        ('{"Type":"cpu","Na', "not JSON"),
        (
            '{"Type":"cpu","Name":"cpu0","Dimension":"CPUUtilization","Value":5}',
            "is missing",
        ),
        (line(reading("CPUUtilization", "cpu0", float("nan"), START)).strip(), "not finite"),
        ("[" * 5000, "recursion"),
        ("[1, 2]", "not a JSON object"),
    ],
)
@pytest.mark.parametrize("block_bytes", [300, 1 << 20])
def test_another_corrupt_line_is_named_with_its_file(
    directory: DebuggerDirectory, wrong: str, why: str, block_bytes: int
) -> None:
    rows = snapshot(START, (5.0,) * 10)
    directory.write_readings(rows)
    lines = directory.files[0].read_text().splitlines()
    directory.files[0].write_text("\n".join([*lines[:7], wrong, *lines[7:]]) + "\n")
    with pytest.raises(UserError, match=rf"{directory.files[0].name}, line 8: .*({why})"):
        read(directory.root, block_bytes)


def test_a_pipe_and_a_broken_link_are_left_out_and_named(directory: DebuggerDirectory) -> None:
    directory.write_readings(snapshot(START, (5.0,)))
    folder = directory.files[0].parent
    os.mkfifo(folder / "1600000080.algo-1.json")
    (folder / "1600000140.algo-1.json").symlink_to("1600000140.algo-1.json")
    samples, facts = read(directory.root)
    assert len(samples["algo-1"]) == 1
    for number in (1600000080, 1600000140):
        name = (folder / f"{number}.algo-1.json").relative_to(directory.root)
        assert f"{name} was not read: it is not a plain file." in facts.unknowns


@pytest.mark.parametrize("block_bytes", [300, 1 << 20])
def test_a_reading_of_another_node_than_its_file_is_named(
    directory: DebuggerDirectory, block_bytes: int
) -> None:
    rows = snapshot(START, (5.0,) * 10)
    directory.write_readings([*rows[:7], {**rows[7], "NodeId": "algo-2"}, *rows[8:]])
    with pytest.raises(UserError, match=r"algo-1.json, line 8: a reading of node algo-2 in a file .* algo-1"):
        read(directory.root, block_bytes)


def test_interval_and_missed_snapshots_are_told(directory: DebuggerDirectory) -> None:
    times = [START + 0.5 * index for index in range(100) if index not in (20, 21, 50)]
    directory.write_readings(row for time in times for row in snapshot(time, (5.0,)))
    facts = read(directory.root)[1]
    assert facts.interval == 0.5
    assert facts.samples_missed == 3
    assert facts.start == START


def test_the_job_has_an_end_only_where_debugger_wrote_so(directory: DebuggerDirectory) -> None:
    directory.write_readings([*snapshot(START, (5.0,)), *snapshot(START + 0.5, (5.0,))])
    facts = read(directory.root)[1]
    assert facts.end is None
    assert any("training_job_end.ts" in sentence for sentence in facts.unknowns)
    directory.write_end()
    facts = read(directory.root)[1]
    assert facts.end == START + 0.5
    assert facts.unknowns == ()
    assert facts.name == "job"


def test_lines_that_come_minutes_late_are_left_out_and_said(directory: DebuggerDirectory) -> None:
    late = START + 300
    rows = [*snapshot(late, (5.0,)), reading("CPUUtilization", "cpu0", 9.0, late - HOLD_BACK / 1e6 - 1)]
    directory.write(
        directory.root / "system/incremental/1600000320.algo-1.json", "".join(line(row) for row in rows)
    )
    samples, facts = read(directory.root)
    assert samples["algo-1"].times.tolist() == [late]
    assert any(sentence.startswith("1 readings of algo-1") for sentence in facts.unknowns)


def test_progress_ends_with_all_bytes_read(
    directory: DebuggerDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(system, "BLOCK_BYTES", 300)
    directory.write_readings(snapshot(START, (5.0,) * 20))
    size = directory.files[0].stat().st_size
    told: list[tuple[int, int]] = []
    list(DebuggerOutput(directory.root, lambda *bytes_: told.append(bytes_)).read())
    assert told == sorted(told)
    assert len(told) > 3
    assert told[-1] == (size, size)


@st.composite
def jobs(draw: st.DrawFn) -> list[Reading]:
    """Some minutes of a node's readings; snapshots miss some, and are not evenly apart."""
    rows: list[Reading] = []
    time = START
    for _ in range(draw(st.integers(1, 12))):
        time += draw(st.sampled_from([0.1, 0.5, 0.5, 30.0, 70.0]))
        cpu = draw(st.lists(st.integers(0, 100), min_size=0, max_size=3))
        gpu = draw(st.lists(st.integers(0, 100), min_size=0, max_size=2))
        memory = draw(st.sampled_from([None, 50.0]))
        rows += snapshot(time, cpu, gpu, memory=memory, spread=draw(st.sampled_from([0.0, 0.001, 0.019])))
    return rows or [reading("CPUUtilization", "cpu0", 1.0, START)]


@given(jobs(), st.integers(50, 3000), st.booleans(), st.randoms(use_true_random=False))
def test_neither_blocks_nor_folders_nor_the_order_in_a_file_matter(
    rows: list[Reading], block_bytes: int, hour_folder: bool, random: object
) -> None:
    for row in rows:
        row["Value"] = float(row["Value"])
    rows = rows or [reading("CPUUtilization", "cpu0", 1.0, START)]
    with tempfile.TemporaryDirectory() as folder:
        one, other = (DebuggerDirectory(Path(folder) / name, hour_folder) for name in ("one", "other"))
        other.hour_folder = not hour_folder
        one.write_readings(rows)
        shuffled = list(rows)
        random.shuffle(shuffled)  # type: ignore[attr-defined]
        other.write_readings(shuffled)
        samples, facts = read(one.root)
        same_samples, same_facts = read(other.root, block_bytes)
    assert list(samples) == list(same_samples)
    for node, expected in samples.items():
        assert_same(same_samples[node], expected)
    assert same_facts.nodes == facts.nodes
    assert same_facts.interval == facts.interval
    assert same_facts.samples_missed == facts.samples_missed
    assert_same(samples["algo-1"], one_by_one(rows))


def one_by_one(rows: list[Reading]) -> NodeSamples:
    """The same, reading by reading: each snapshot takes what lies within 20 ms of its first reading."""
    snapshots: list[list[Reading]] = []
    for row in sorted(rows, key=lambda row: float(row["Timestamp"])):
        if not snapshots or row["Timestamp"] - snapshots[-1][0]["Timestamp"] > 0.0200005:
            snapshots.append([])
        snapshots[-1].append(row)

    def devices(kind: str) -> list[str]:
        seen: list[str] = []
        for one in snapshots:
            names = {row["Name"] for row in one if row["Name"].startswith(kind)}
            seen += sorted(names - set(seen))
        return seen

    def column(dimension: str, name: str) -> Iterator[float]:
        for one in snapshots:
            found = [row["Value"] for row in one if (row["Dimension"], row["Name"]) == (dimension, name)]
            yield found[-1] if found else np.nan

    def table(dimension: str, kind: str) -> np.ndarray:
        columns = [list(column(dimension, name)) for name in devices(kind)]
        values: np.ndarray = (np.array(columns, float).reshape(-1, len(snapshots)).T / 100).astype(np.float32)
        return values

    gpu = table("GPUUtilization", "gpu")
    traffic = [
        *(("Algorithm", f"{name}BytesPerSecond") for name in ("Receive", "Transmit")),
        *(("", f"{name}ThroughputInBytesPerSecond") for name in ("Read", "Write")),
        ("", "IOPS"),
    ]
    return NodeSamples(
        node="algo-1",
        times=np.array([one[0]["Timestamp"] for one in snapshots]),
        cpu=table("CPUUtilization", "cpu"),
        io_wait=table("I/OWaitPercentage", "cpu"),
        gpu=gpu,
        gpu_memory=table("GPUMemoryUtilization", "gpu"),
        memory=(np.array(list(column("", "MemoryUsedPercent"))) / 100).astype(np.float32),
        traffic=np.column_stack([list(column(*metric)) for metric in traffic]),
        gpu_power_watts=np.full_like(gpu, np.nan),
        gpu_temperature_celsius=np.full_like(gpu, np.nan),
    )


def ratios(values: list[Any]) -> np.ndarray:
    return np.array(values, np.float32)


def assert_same(samples: NodeSamples, expected: NodeSamples) -> None:
    for name, value in vars(expected).items():
        if not isinstance(value, np.ndarray):
            continue
        if name == "times":
            np.testing.assert_allclose(samples.times, value, rtol=0, atol=2e-6)
        else:
            np.testing.assert_array_equal(getattr(samples, name), value, err_msg=name)
