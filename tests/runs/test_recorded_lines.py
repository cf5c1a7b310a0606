"""Line samples in a recording: written whole, read back, continued by the next exporter, damaged."""

import json
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from stepscope.exporter.ledgers.line_files import MOST_LINES, MOST_STACKS, Line, LineCounts, Thread
from stepscope.exporter.sampling.sample import Sample
from stepscope.runs.malformed import DamageError
from stepscope.runs.recording.directory import RecordingDirectory
from stepscope.runs.recording.lines import NAME, continued, read_lines, write_lines
from stepscope.runs.recording.writer import RecordingWriter, folder_of
from stepscope.training.line_table import LineTable

LOADS = Line("train", "data_wait", "data.py:14", "load", "json.loads", "train.py:30", "main")
STACKS: dict[tuple[str, ...], float] = {
    ("train", "data_wait", "train.py:30", "load, data.py:14", "json.loads"): 180.0,
    ("train", "data_wait", "train.py:30"): 20.0,
}
READS = Line("other thread", "", "reader.py:3", "read")
TRACES = Line("other thread", "tool", library="tracemalloc")
LINES: dict[Line, tuple[float, ...]] = {
    LOADS: (180.0, 20, 0, 0, 0),
    READS: (20, 0, 0, 0, 0),
    TRACES: (160.0, 0, 0, 0, 0),
}
COUNTS = {Thread(3, "training"): LineCounts(1, 200, 10.0, 9.0, 0.5, 0.01, LINES, stacks=STACKS)}


def recorded(tmp_path: Path) -> RecordingDirectory:
    writer = RecordingWriter(tmp_path, "n1", 0.5, "lines-1")
    writer.sample(Sample(1e9))
    removed: list[object] = []
    writer.lines(COUNTS, {}, {"1.lines"}, removed.append)
    writer.close()
    assert removed == [{"1.lines"}]
    return RecordingDirectory(tmp_path)


def test_recorded_lines_are_facts_of_the_run(tmp_path: Path) -> None:
    source = recorded(tmp_path)
    list(source.read())
    (thread,) = source.facts.threads
    assert (thread.node, thread.rank, thread.role, thread.seconds) == ("n1", 3, "training", 10.0)
    (line,) = thread.lines
    assert (line.place, line.library, line.caller, line.component) == (
        "data.py:14",
        "json.loads",
        "main",
        "data_wait",
    )
    assert line.seconds == {"running": 9.0, "disk": 1.0, "lock": 0.0, "child": 0.0, "other": 0.0}
    assert [(other.place, other.total) for other in thread.others] == [("reader.py:3", 1.0)]
    half = replace(thread, processes=2).within(5.0)
    assert [(tool.library, tool.total) for tool in half.tools] == [("tracemalloc", 4.0)]
    assert [(stack.component, stack.functions, stack.seconds) for stack in thread.stacks] == [
        ("data_wait", ("train.py:30", "load, data.py:14", "json.loads"), 9.0),
        ("data_wait", ("train.py:30",), 1.0),
    ]


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ('"ticks":200', '"ticks":201'),
        ("{", "[{"),
        ('"format":1', '"format":2'),
        ("data.py", "data\\u001b"),
        ("[180.0", "[-1.0"),
    ],
)
def test_a_damaged_file_of_lines_is_left_out_and_said(tmp_path: Path, old: str, new: str) -> None:
    recorded(tmp_path)
    path = tmp_path / "n1" / NAME
    path.write_text(path.read_text().replace(old, new, 1))
    source = RecordingDirectory(tmp_path)
    assert sum(map(len, source.read())) == 1
    assert source.facts.threads == ()
    assert source.facts.unknowns[0].startswith(f"`n1/{NAME}` was left out: ")


def test_the_text_of_a_place_is_recorded_and_none_that_cannot_be_printed(tmp_path: Path) -> None:
    write_lines(tmp_path, COUNTS, {}, (), {LOADS.place: "json.loads(text)"})
    (thread,) = read_lines(tmp_path, "n1")
    assert [line.text for line in thread.lines] == ["json.loads(text)"]
    write_lines(tmp_path, COUNTS, {}, (), {LOADS.place: "\x1b[2J"})
    with pytest.raises(DamageError, match="makes no sense"):
        read_lines(tmp_path, "n1")


@pytest.mark.parametrize("value", [-1, "many", None, [], float("nan")])
def test_a_count_that_cannot_be_is_damage_although_its_checksum_holds(tmp_path: Path, value: object) -> None:
    counts: Any = LineCounts(1, 1.0, 1.0)
    counts.lines[LOADS] = (value, 0, 0, 0, 0)
    write_lines(tmp_path, {Thread(0, "script"): counts}, {}, ())
    with pytest.raises(DamageError, match=r"makes no sense|cannot be read"):
        read_lines(tmp_path, "n1")


def test_a_restarted_exporter_counts_no_ended_process_twice(tmp_path: Path, ledgers: Path) -> None:
    table = LineTable(slots=8)
    table.count(0, "slow.py:1\nmain\n\n\n", 0, 7)
    table.name_run("lines-1")
    table.publish(str(ledgers), 1e9)
    folder = folder_of(tmp_path, "n1")
    folder.mkdir()
    for _ in range(3):  # the file could not be removed: it is another user's, for example
        lines = continued(ledgers, folder)
        lines.read_all({("lines-1", os.geteuid())})
        write_lines(folder, lines.counts(), lines.retired, lines.removed)
    (thread,) = read_lines(folder, "n1")
    assert thread.lines[0].total == pytest.approx(7 * 0.05)


def test_many_lines_of_many_workers_take_a_bounded_file(tmp_path: Path) -> None:
    counts = LineCounts()
    for worker in range(100):
        places = [f"data.py:{worker * 100 + line}" for line in range(100)]
        lines: dict[Line, tuple[float, ...]] = {Line(place=place): (1.0, 0, 0, 0, 0) for place in places}
        stacks = {("train", "", f"data.py:{worker}", *place.split(":")): 1.0 for place in places}
        counts.add(LineCounts(1, 100.0, 5.0, lines=lines, stacks=stacks))
        counts = counts.shortened()
    write_lines(tmp_path, {Thread(0, "loader worker"): counts}, {}, ())
    (thread,) = read_lines(tmp_path, "n1")
    assert len(thread.lines) <= MOST_LINES + 1
    assert sum(line.total for line in thread.lines) == pytest.approx(10_000 * 0.05)
    assert (thread.processes, thread.lines[0].place) == (100, "")
    assert len(thread.stacks) <= MOST_STACKS
    assert {stack.phase for stack in thread.stacks} == {"train"}
    assert sum(stack.seconds for stack in thread.stacks) == pytest.approx(10_000 * 0.05)
    assert (tmp_path / NAME).stat().st_size < 100_000
    json.loads((tmp_path / NAME).read_text())
