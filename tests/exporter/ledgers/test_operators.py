"""Operators of profile windows, from the traces that running jobs write."""

import gzip
import json
import os
import re
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from stepscope.exporter.ledgers import operators
from stepscope.exporter.ledgers.reader import open_ledgers
from stepscope.exporter.ledgers.run_totals import KNOWN, NAME_BYTES, OTHER_OPERATORS, SHOWN, OperatorSeconds

from tests.exporter.collectors.test_training import Node
from tests.exporter.ledgers.test_folder import NOBODY, as_root
from tests.support.processes import ran
from tests.support.profile_windows import event
from tests.support.training_process import RESNET, TrainingProcess
from tests.support.waiting import wait_until

REST = operators.REST


@pytest.fixture(autouse=True)
def _no_rest(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(operators, "REST", 0.0)


@pytest.fixture
def ledgers(tmp_path: Path) -> Path:
    return tmp_path / "ledgers"


@pytest.fixture
def trainer(ledgers: Path, tmp_path: Path) -> Iterator[TrainingProcess]:
    """A process that trains, and whose windows the test writes."""
    (tmp_path / "profiles").mkdir()
    with TrainingProcess(ledgers) as process:
        process.do("stepscope.start()")
        process.do("from stepscope.training.session import session")
        yield process


class Case(Node):
    def write(self, trainer: TrainingProcess, folder: Path, first: int, content: bytes) -> Path:
        """Writes the trace of steps `first` and `first` + 1, and says so in the ledger."""
        name = f"rank-0.steps-{first}-{first + 1}.{trainer.process.pid}-0.pt.trace.json.gz"
        (folder / name).write_bytes(content)
        trainer.do(f"session.ledger.name_traces({str(folder)!r}, {first + 2})")
        return folder / name

    def read(self, seconds: float = 0.0) -> dict[str, float]:
        """Returns the seconds by operator on the CPU, once all windows have been read.

        `seconds` pass from look to look.
        """
        self.wait(seconds)
        found = self.values("operator_seconds_total")
        assert {labels[:3] for labels in found} <= {(RESNET, "0", "cpu")}
        return {labels[3]: seconds for labels, seconds in found.items()}

    def wait(self, seconds: float = 0.0) -> None:
        self.tick()
        wait_until(lambda: self._has_read(seconds))
        self.tick()

    def _has_read(self, seconds: float) -> bool:
        self.tick(seconds)
        return all(each.traced_steps == each.totals.traced_steps for each in self.collector.ledgers)


def of_operators(**seconds: float) -> bytes:
    """Returns a trace with these operators, one after the other."""
    begin, events = 0.0, []
    for name, length in seconds.items():
        events.append(event(name, begin, length))
        begin += length
    return gzip.compress(json.dumps({"traceEvents": events}).encode())


def test_windows_add_up(ledgers: Path, tmp_path: Path, trainer: TrainingProcess) -> None:
    case, folder = Case(ledgers), tmp_path / "profiles"
    case.write(trainer, folder, 2, of_operators(mm=0.5, add=0.25))
    assert case.read() == pytest.approx({"mm": 0.5, "add": 0.25})
    case.write(trainer, folder, 8, of_operators(mm=0.5, copy=2.0))
    case.write(trainer, folder, 20, of_operators(add=1.0))  # before the one of step 8 is read
    assert case.read() == pytest.approx({"mm": 1.0, "add": 1.25, "copy": 2.0})


def test_operations_that_the_first_window_measured_count_in_all_training_steps(
    ledgers: Path, tmp_path: Path, trainer: TrainingProcess
) -> None:
    case, folder = Case(ledgers), tmp_path / "profiles"
    for first, columns in ((2, 2), (8, 200)):
        products = [event("aten::mm", each + 0.1, 0.5) for each in (0.0, 1.0)]
        for product in products:
            product["args"] = {"Input Dims": [[4, 8], [8, columns]]}
        steps = [event(f"ProfilerStep#{each}", each, 1.0, "user_annotation") for each in (0, 1)]
        content = gzip.compress(json.dumps({"traceEvents": [*steps, *products]}).encode())
        case.write(trainer, folder, first, content)
        case.wait()
    trainer.steps(*[0.5] * 7)
    case.tick()
    assert case.values("run_counted_total") == {(RESNET, "0", "flops"): 7 * 2 * 4 * 8 * 2}
    trainer.do("stepscope.count('flops', 5.0)")
    case.tick()
    assert case.values("run_counted_total") == {(RESNET, "0", "flops"): 5.0}


def test_operators_of_later_windows_take_the_place_of_those_without_time_and_no_counter_falls(
    ledgers: Path, tmp_path: Path, trainer: TrainingProcess
) -> None:
    case, folder = Case(ledgers), tmp_path / "profiles"
    many = {f"op_{number}": 0.001 * (200 - number) for number in range(150)}
    case.write(trainer, folder, 2, of_operators(**many))
    before = case.read()
    assert set(before) == {*(f"op_{number}" for number in range(SHOWN)), OTHER_OPERATORS}
    assert sum(before.values()) == pytest.approx(sum(many.values()))
    case.write(trainer, folder, 8, of_operators(late=9.0, op_3=0.5, op_20=0.01))
    after = case.read()
    gone = before.pop("op_19")  # had least seconds; op_20 has more now, but not twice as many
    changed = {"late": 9.0, "op_3": before["op_3"] + 0.5, OTHER_OPERATORS: before[OTHER_OPERATORS] + 0.01}
    assert after == pytest.approx(before | changed)
    case.write(trainer, folder, 14, of_operators(op_19=1.0))
    assert case.read()["op_19"] == pytest.approx(gone + 1.0)  # it continues


def test_the_latest_operators_are_shown_in_any_window_and_few_are_kept() -> None:
    seconds, total = OperatorSeconds(), 0.0
    for window in range(20):
        seconds.add({"always": 4.0**window} | {f"op_{window}_{at}": 4.0**window for at in range(30)})
        values = seconds.values()
        assert len([name for name in values if name.startswith(f"op_{window}_")]) == SHOWN - 1
        assert values["always"] == total + 4.0**window
        total = values["always"]
    assert len(seconds._counted) == KNOWN + 1


@pytest.mark.parametrize("content", [b"not gzip", gzip.compress(b"[" * 10**7), of_operators()[:-20]])
def test_a_trace_that_cannot_be_read_costs_only_itself(
    ledgers: Path, tmp_path: Path, trainer: TrainingProcess, content: bytes
) -> None:
    case, folder = Case(ledgers), tmp_path / "profiles"
    case.write(trainer, folder, 2, content)
    case.write(trainer, folder, 8, of_operators(mm=0.5))
    assert case.read() == pytest.approx({"mm": 0.5})


def test_a_trace_that_is_a_pipe_or_a_link_is_not_read(
    ledgers: Path, tmp_path: Path, trainer: TrainingProcess
) -> None:
    case, folder = Case(ledgers), tmp_path / "profiles"
    trace = case.write(trainer, folder, 2, of_operators(mm=0.5))
    other = trace.rename(tmp_path / "elsewhere.gz")
    trace.symlink_to(other)
    assert case.read() == {}
    pipe = case.write(trainer, folder, 8, b"")
    pipe.unlink()
    os.mkfifo(pipe)
    case.write(trainer, folder, 16, of_operators(add=0.5))
    assert case.read() == pytest.approx({"add": 0.5})


def test_a_trace_of_an_earlier_process_with_the_same_names_is_not_counted(
    ledgers: Path, tmp_path: Path, trainer: TrainingProcess
) -> None:
    case, folder = Case(ledgers), tmp_path / "profiles"
    os.utime(case.write(trainer, folder, 2, of_operators(mm=0.5)), (time.time() - 3600,) * 2)
    case.write(trainer, folder, 8, of_operators(add=0.5))
    assert case.read() == pytest.approx({"add": 0.5})


PRINTED = [
    "4",
    "4\n[]",
    "4\n[[[",
    '4\n{"cpu": {"mm": 1}}',
    '4\n[{"cpu": {"mm": 1}}]',
    '4\n[{"cpu": {"mm": 1}}, -1]',
    '4\n[{"cpu": {"mm": 1}}, true]',
    '4\n[{"cpu": []}, null]',
    '4\n[{"cpu": {"mm": NaN}}, null]',
    '4\n[{"cpu": {"mm": -1}}, null]',
    '4\n[{"cpu": {"mm": 1e999}}, null]',
    '4\n[{"cpu": {"mm": true}}, null]',
    f'4\n[{{"cpu": {{"mm": {10**4000}}}}}, null]',
    '4\n[{"cpu 0": {"mm": 1}}, null]',
    "4\n" + "[" * 100_000,
    "9" * 5000,
    "-3\n{}",
    "x" * (operators.MOST_BYTES + 1),
]


def test_nothing_that_the_reader_prints_is_trusted(
    ledgers: Path, tmp_path: Path, trainer: TrainingProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "printed"
    program = f"import sys; sys.stdout.write(open({str(file)!r}).read())"
    monkeypatch.setattr(operators, "fresh_python", lambda *_: [sys.executable, "-c", program])
    case = Case(ledgers)
    for first, printed in enumerate([*PRINTED, '4\n[{"cpu": {"mm": 1}}, null]'], 2):
        file.write_text(re.sub("^4", str(3 * first + 2), printed))  # so many steps were traced
        case.write(trainer, tmp_path / "profiles", 3 * first, b"")
        assert case.read() == ({} if printed in PRINTED else {"mm": 1.0}), printed[:80]
    assert case.collector.apart.lost == 0


def test_long_names_and_many_devices_are_cut(
    ledgers: Path, tmp_path: Path, trainer: TrainingProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = {device * 3: {"k" * 5000: 1.0, "\ud800": 2.0} for device in "abcdefgh"}
    (tmp_path / "printed").write_text(f"4\n{json.dumps([found, 0.5])}")
    program = f"import sys; sys.stdout.write(open({str(tmp_path / 'printed')!r}).read())"
    monkeypatch.setattr(operators, "fresh_python", lambda *_: [sys.executable, "-c", program])
    case = Case(ledgers)
    case.write(trainer, tmp_path / "profiles", 2, b"")
    case.wait()
    values = case.values("operator_seconds_total")
    assert sorted({labels[2] for labels in values}) == ["aaa", "bbb", "ccc", "ddd"]
    assert {len(labels[3].encode()) <= NAME_BYTES for labels in values} == {True}
    assert Counter(values.values()) == {1.0: 4, 2.0: 4}


def test_a_reader_that_never_ends_is_killed(
    ledgers: Path, tmp_path: Path, trainer: TrainingProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    endless = "import time; print(4, flush=True); time.sleep(1e6)"
    monkeypatch.setattr(operators, "fresh_python", lambda *_: [sys.executable, "-c", endless])
    case = Case(ledgers)
    case.write(trainer, tmp_path / "profiles", 2, b"")
    assert case.read(seconds=60.0) == {}
    case.collector.close()


def test_one_trace_is_read_at_a_time_and_then_there_is_a_rest(
    ledgers: Path, tmp_path: Path, trainer: TrainingProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(operators, "REST", REST)
    started: list[str] = []

    def sleep(module: str, *_: str) -> list[str]:
        started.append(module)
        return ["sleep", "1e6"]

    monkeypatch.setattr(operators, "fresh_python", sleep)
    case = Case(ledgers)
    case.write(trainer, tmp_path / "profiles", 2, b"")
    case.tick()
    case.write(trainer, tmp_path / "profiles", 8, b"")
    case.tick(operators.MOST_SECONDS - 1)
    assert len(started) == 1
    case.tick(2)  # it is killed
    case.tick(REST * operators.MOST_SECONDS - 1)
    assert len(started) == 1
    case.tick(10)
    assert len(started) == 2
    case.collector.close()


def test_without_numpy_there_are_no_operators_and_one_line_says_so(
    ledgers: Path,
    tmp_path: Path,
    trainer: TrainingProcess,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(operators, "find_spec", lambda _: None)
    case = Case(ledgers)
    for first in (2, 8):
        case.write(trainer, tmp_path / "profiles", first, of_operators(mm=0.5))
        assert case.read() == {}
    assert [record.message for record in caplog.records if "operators" in record.message] == [
        "operators of a profile window are not counted: ModuleNotFoundError: numpy is missing"
    ]


@as_root
def test_another_users_trace_is_read_with_that_users_rights(
    ledgers: Path, open_path: Path, trainer: TrainingProcess
) -> None:
    case, folder = Case(ledgers), open_path / "profiles"
    folder.mkdir()
    case.write(trainer, folder, 2, of_operators(mm=0.5))
    (ledger,) = open_ledgers(ledgers)
    os.chown(ledger, NOBODY, NOBODY)
    case.wait()  # nobody says that root's file is a trace of nobody's run
    assert case.values("operator_seconds_total") == {}
    os.chown(case.write(trainer, folder, 8, of_operators(add=0.5)), NOBODY, NOBODY)
    os.chown(folder, NOBODY, NOBODY)
    folder.chmod(0o700)
    assert case.read() == pytest.approx({"add": 0.5})


def test_the_reader_has_little_memory_and_time_and_goes_first_if_memory_is_short() -> None:
    program = (
        "import resource; from stepscope.runs import window_operators; window_operators._limit();"
        "print(resource.getrlimit(resource.RLIMIT_AS)[1], resource.getrlimit(resource.RLIMIT_CPU)[1],"
        "open('/proc/self/oom_score_adj').read())"
    )
    said = ran([sys.executable, "-c", program], check=True).stdout
    assert said.split() == [str(1 << 30), "60", "1000"]
