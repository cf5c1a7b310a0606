"""Traces that processes of their own read: progress, interruption, and a file that cannot be read."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from stepscope.commands.cli import main
from stepscope.common import fresh_python
from stepscope.common.errors import UserError
from stepscope.runs.traces import events, json_stream, reading
from stepscope.runs.traces.json_stream import JsonTrace
from stepscope.runs.traces.reading import read_files
from stepscope.runs.traces.source import KinetoTraces, trace_files

from tests.runs.test_kineto import marked, row, write
from tests.support.rank_traces import Job
from tests.support.waiting import SECONDS


@pytest.fixture
def large(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lets every trace count as large."""
    monkeypatch.setattr(reading, "WORTHWHILE", 0)


def write_ranks(directory: Path, ranks: int) -> None:
    for rank in range(ranks):
        rows = [marked(step, 10 * step, 10 * step + 9 + rank) for step in range(20)]
        write(directory / f"{rank}.json", rows, distributedInfo={"rank": rank, "world_size": ranks})


@pytest.mark.usefixtures("large")
def test_ranks_that_processes_read_are_those_that_one_process_reads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    Job(ranks=3).write(tmp_path)
    facts = []
    for worthwhile in (0, 1 << 40):
        monkeypatch.setattr(reading, "WORTHWHILE", worthwhile)
        source = KinetoTraces(tmp_path)
        list(source.read())
        facts.append(source.facts)
    assert repr(facts[0]) == repr(facts[1])
    assert len(facts[0].ranks) == 3


@pytest.mark.usefixtures("large")
def test_progress_rises_to_the_bytes_of_all_files(tmp_path: Path) -> None:
    write_ranks(tmp_path, 3)
    shown: list[tuple[int, int]] = []
    read_files(trace_files(tmp_path), lambda done, total: shown.append((done, total)))
    size = sum(path.stat().st_size for path in tmp_path.iterdir())
    assert shown == sorted(shown)
    assert shown[-1] == (size, size)


@pytest.mark.parametrize("worthwhile", [0, 1 << 40])
def test_a_damaged_file_costs_its_rank_only_and_that_is_printed(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    worthwhile: int,
) -> None:
    monkeypatch.setattr(reading, "WORTHWHILE", worthwhile)
    write_ranks(tmp_path, 3)
    damaged = tmp_path / "1.json"
    damaged.write_bytes(damaged.read_bytes()[:-40])
    assert main(["report", str(tmp_path), "--out", str(tmp_path / "out")]) == 0
    printed = capsys.readouterr().err
    assert "This run is incomplete" in printed
    assert "1.json, line 1: not JSON" in printed
    source = KinetoTraces(tmp_path)
    list(source.read())
    assert [rank.rank for rank in source.facts.ranks] == [0, 2]


@pytest.mark.usefixtures("large")
@pytest.mark.parametrize(
    ("limits", "readers"),
    [
        ({}, 4),
        ({"cpu.max": "250000 100000"}, 2),
        ({"cpu.max": "50000 100000"}, 1),
        ({"memory.max": "70000", "memory.current": "5000"}, 3),
        ({"memory.max": "70000", "memory.current": "65000"}, 1),
    ],
)
def test_as_many_processes_read_as_the_cgroup_has_cores_and_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, limits: dict[str, str], readers: int
) -> None:
    procfs, group = tmp_path / "proc", tmp_path / "cgroup" / "job"
    for folder in (procfs / "self", procfs / str(os.getpid()), group):
        folder.mkdir(parents=True)
    (procfs / "self" / "mountinfo").write_text("")
    (procfs / str(os.getpid()) / "cgroup").write_text("0::/job\n")
    (group.parent / "cgroup.controllers").touch()
    for name, limit in {"cgroup.events": "populated 1", **limits}.items():
        (group / name).write_text(limit)
    monkeypatch.setattr(reading, "PROCFS", procfs)
    monkeypatch.setattr(reading, "CGROUPS", group.parent)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(4)))
    together: list[int] = []

    class Counted(reading._Reader):
        def __init__(self, path: Path) -> None:
            together.append(together[-1] + 1 if together else 1)
            super().__init__(path)

        def end(self) -> None:
            together.append(together[-1] - 1)
            super().end()

    monkeypatch.setattr(reading, "_Reader", Counted)
    for number in range(5):
        path = tmp_path / f"{number}.json"
        write(path, [marked(1, 0, 9)])
        path.write_text(path.read_text().ljust(40_000))
    assert len(read_files(trace_files(tmp_path))) == 5
    assert max(together) == readers


@pytest.mark.parametrize("ending", [".json", ".json.gz"])
@pytest.mark.parametrize("content", [b"", bytes(100), b"{}"])
def test_a_damaged_file_among_the_traces_of_other_ranks_is_a_gap(
    tmp_path: Path, ending: str, content: bytes
) -> None:
    for rank in range(3):
        write(tmp_path / f"rank{rank}{ending}", [marked(1, 0, 9)], distributedInfo={"rank": rank})
    (tmp_path / f"rank1{ending}").write_bytes(content)
    (tmp_path / f"settings{ending}").write_bytes(content)
    source = KinetoTraces(tmp_path)
    list(source.read())
    assert [rank.rank for rank in source.facts.ranks] == [0, 2]
    (gap,) = source.facts.gaps
    assert f"rank1{ending}" in gap.reason


class Unread(JsonTrace):
    """Counts what was decoded."""

    def rows(self) -> Iterator[Any]:
        for event in super().rows():
            DECODED.append(event)
            yield event


DECODED: list[Any] = []


@pytest.mark.parametrize(
    ("document", "reason", "most"),
    [
        ('{"traceEvents": [EVENTS, {"ph": "X", "name": "a", "ts": 1', "the trace is cut off", 0),
        ('{"rows": [EVENTS]}', "is no trace: it begins with other data", 0),
        ('{"traceEvents": [STEP1, STEP2, EVENTS]}', "the steps of several processes", 2),
        ('{"traceEvents": [LATE, EVENTS]}', "not in microseconds", 1),
    ],
)
def test_a_large_file_that_is_refused_is_not_read_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, document: str, reason: str, most: int
) -> None:
    """The file has 120,000 events, 12 MB."""
    monkeypatch.setattr(events, "JsonTrace", Unread)
    DECODED.clear()
    words = {
        "EVENTS": ", ".join([json.dumps(row("cpu_op", "aten::mm", 0, 1))] * 120_000),
        "STEP1": json.dumps(row("user_annotation", "ProfilerStep#1", 0, 1)),
        "STEP2": json.dumps({**row("user_annotation", "ProfilerStep#1", 0, 1), "pid": 7}),
        "LATE": json.dumps({**row("cpu_op", "aten::mm", 0, 1), "ts": 1.7e18}),
    }
    for word, text in words.items():
        document = document.replace(word, text)
    (tmp_path / "t.json").write_text(document)
    with pytest.raises(UserError, match=reason):
        list(KinetoTraces(tmp_path / "t.json").read())
    assert len(DECODED) == most


@pytest.mark.usefixtures("large")
def test_a_file_whose_reader_is_killed_costs_its_rank_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_ranks(tmp_path, 2)
    suicide = "import os, sys; sys.argv[4].endswith('0.json') and os.kill(os.getpid(), 9)\n"
    monkeypatch.setattr(fresh_python, "PROGRAM", suicide + fresh_python.PROGRAM)
    killed, healthy = read_files(trace_files(tmp_path))
    assert isinstance(killed, UserError)
    assert "0.json: the process that reads it ended with status -9" in str(killed)
    assert not isinstance(healthy, UserError)
    assert healthy[0].rank == 1


def test_a_report_on_nothing_but_damaged_files_is_refused(tmp_path: Path) -> None:
    for name in ("a.pt.trace.json", "b.pt.trace.json"):
        (tmp_path / name).write_text("[")
    with pytest.raises(UserError, match=r"a\.pt\.trace\.json, line 1: not JSON"):
        list(KinetoTraces(tmp_path).read())


def test_files_without_a_rank_are_numbered_as_their_names_are(tmp_path: Path) -> None:
    for number in range(12):
        step = {**row("user_annotation", "ProfilerStep#1", 0, 9), "pid": 100 + number}
        write(tmp_path / f"rank{number}.json", [step])
    source = KinetoTraces(tmp_path)
    list(source.read())
    assert [(rank.rank, rank.pid) for rank in source.facts.ranks] == [(n, 100 + n) for n in range(12)]


def test_a_number_may_be_cut_anywhere_between_two_pieces(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "0.json"
    path.write_text('{"traceEvents": [], "a": 12.25, "b": -1.5e-3, "c": [2e+1]}')
    for piece in range(1, path.stat().st_size):
        monkeypatch.setattr(json_stream, "PIECE", piece)
        trace = JsonTrace(path)
        assert list(trace.rows()) == []
        assert trace.about == {"a": 12.25, "b": -0.0015, "c": [20.0]}


def children_of(pid: int) -> set[int]:
    return {int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()}


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_an_interrupted_report_leaves_no_process_and_no_file(tmp_path: Path, number: signal.Signals) -> None:
    rows = ", ".join(json.dumps(row("cpu_op", f"aten::op{index}", index, index + 0.5)) for index in range(50))
    path = write(tmp_path / "traces" / "large.json", [])
    path.write_text(path.read_text().replace("[]", f"[{', '.join([rows] * 8000)}]"))
    assert path.stat().st_size > reading.WORTHWHILE
    command = ["-m", "stepscope", "report", str(path), "--out", str(tmp_path / "out")]
    report = subprocess.Popen([sys.executable, *command], stderr=subprocess.PIPE, text=True)
    until = time.monotonic() + SECONDS
    while not (readers := children_of(report.pid)) and time.monotonic() < until:
        time.sleep(0.01)
    assert len(readers) == 1
    report.send_signal(number)
    assert report.communicate(timeout=SECONDS)[1] == ""
    assert report.returncode == (130 if number == signal.SIGINT else -number)
    while any(map(_runs, readers)) and time.monotonic() < until:
        time.sleep(0.01)
    assert not any(map(_runs, readers))
    assert not (tmp_path / "out").exists()


def _runs(pid: int) -> bool:
    try:
        os.kill(pid, 0)
        return "Z" not in Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (ProcessLookupError, FileNotFoundError):
        return False


def test_memory_grows_by_less_than_half_of_what_a_trace_grows(tmp_path: Path) -> None:
    measure = (
        "import resource, sys; from pathlib import Path; "
        "from stepscope.runs.traces.capture import captures_of; captures_of(Path(sys.argv[1])); "
        "print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)"
    )
    peaks, sizes = [], []
    for steps in (50, 400):
        path = Job(ranks=1, steps=steps).write(tmp_path / str(steps)) / "rank-0.pt.trace.json"
        sizes.append(path.stat().st_size)
        peak = subprocess.run([sys.executable, "-c", measure, str(path)], capture_output=True, check=True)
        peaks.append(1024 * int(peak.stdout))
    assert peaks[1] - peaks[0] < 0.5 * (sizes[1] - sizes[0])
