"""Counters that continue when the exporter restarts: windows of rules are differences of their values."""

import json
import logging
from pathlib import Path

import pytest
from stepscope.exporter.sampling.families import Family
from stepscope.exporter.sampling.kept_counters import KeptCounters
from stepscope.exporter.sampling.sample import Sample
from stepscope.exporter.sampling.state_file import UNSAVED_SAMPLES, StateFile, boot_id

NAME = "run_cpu_seconds"


class Process:
    """An exporter's process that counts one thing."""

    def __init__(self, path: Path | None) -> None:
        self.family = Family(NAME, "counter", "CPU seconds.", ("run",))
        self.kept = KeptCounters([self.family])
        if path is not None:
            self.kept.keep_in(path)

    def tick(self, saves: bool = True, **runs: float) -> dict[str, float]:
        """Counts, and returns what a scrape then sees."""
        self.kept.publish({NAME: {(run,): seconds for run, seconds in runs.items()}})
        if saves:
            self.kept.save(Sample(time=0.0))
        return {run: seconds for (run,), seconds in self.family.samples.items()}


def test_counters_go_on_where_the_killed_exporter_was_seen_last(tmp_path: Path) -> None:
    before = Process(tmp_path / "run.kept")
    for seconds in (1.0, 2.0):
        seen = before.tick(a=seconds, b=10.0)
    assert seen == {"a": 2.0, "b": 10.0}
    before.kept.publish({NAME: {("a",): 3.0, ("b",): 10.0}})  # killed before this is written
    assert before.family.samples == {("a",): 2.0, ("b",): 10.0}
    after = Process(tmp_path / "run.kept")
    assert after.tick(a=0.0, c=5.0) == {"a": 2.0, "c": 5.0}
    assert after.tick(a=0.5, b=0.25, c=5.0) == {"a": 2.5, "b": 10.25, "c": 5.0}  # b had been out of sight


def test_without_a_file_the_counts_are_those_in_memory() -> None:
    process = Process(None)
    assert process.tick(a=1.0) == {"a": 1.0}
    assert process.tick(a=2.0) == {"a": 2.0}


def test_counts_are_published_while_the_disk_hangs(tmp_path: Path) -> None:
    process = Process(tmp_path / "run.kept")
    process.tick(a=1.0)
    seen = [process.tick(saves=False, a=float(number)) for number in range(2, 4 + UNSAVED_SAMPLES)]
    assert seen[0] == {"a": 1.0}
    assert seen[-1] == {"a": 3.0 + UNSAVED_SAMPLES}


def test_no_counter_falls_when_a_disk_answers_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    process = Process(tmp_path / "run.kept")
    process.tick(a=1.0)
    process.tick(saves=False, a=2.0)
    write = StateFile.write

    def hang(file: StateFile, state: bytes) -> None:
        for number in range(UNSAVED_SAMPLES):
            process.tick(saves=False, a=3.0 + number)
        write(file, state)

    with monkeypatch.context() as patched:
        patched.setattr(StateFile, "write", hang)
        process.kept.save(Sample(time=0.0))
    assert process.family.samples == {("a",): 2.0 + UNSAVED_SAMPLES}
    assert process.tick(a=20.0) == {"a": 20.0}


def test_counts_of_a_collector_that_fails_are_not_shown_again(tmp_path: Path) -> None:
    process = Process(tmp_path / "run.kept")
    process.tick(a=1.0)
    process.family.clear()  # by the registry
    process.kept.save(Sample(time=0.0))
    assert process.family.samples == {}
    assert process.tick(a=2.0) == {"a": 2.0}


def test_a_later_run_of_the_same_name_begins_at_0(tmp_path: Path) -> None:
    Process(tmp_path / "run.kept").tick(a=7.0, b=1.0)
    process = Process(tmp_path / "run.kept")
    assert process.tick(a=1.0, b=1.0) == {"a": 8.0, "b": 2.0}
    assert process.tick(b=2.0) == {"b": 3.0}
    assert not process.kept.continues("a")
    assert process.tick(a=0.5, b=2.0) == {"a": 0.5, "b": 3.0}


def test_a_full_disk_leaves_no_file_with_lower_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    process = Process(tmp_path / "run.kept")
    process.tick(a=1.0)

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(StateFile, "write", full)
        for seconds in (2.0, 3.0):
            process.tick(a=seconds)
    (message,) = caplog.messages
    assert message.startswith(f"{tmp_path}/run.kept: the counters cannot be kept: ")
    assert message.endswith("No space left on device")
    assert not (tmp_path / "run.kept").exists()
    assert process.tick(a=4.0) == {"a": 4.0}
    assert Process(tmp_path / "run.kept").tick(a=0.0) == {"a": 4.0}


@pytest.mark.parametrize(
    "state",
    [
        b"",
        b"[]",
        b'{"boot": "x"',
        json.dumps({"boot": boot_id(), "counters": {NAME: [[["a"], float("nan")]]}}).encode(),
        json.dumps({"boot": boot_id(), "counters": {NAME: [[["a"], -1]]}}).encode(),
        json.dumps({"boot": boot_id(), "counters": {NAME: [[["a"], "many"]]}}).encode(),
    ],
)
def test_a_file_that_cannot_be_read_counts_from_0_and_says_so(
    tmp_path: Path, state: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    StateFile(tmp_path / "run.kept").write(state)
    with caplog.at_level(logging.WARNING):
        process = Process(tmp_path / "run.kept")
    assert len(caplog.messages) == 1
    assert caplog.messages[0].endswith("counting from 0")
    assert process.tick(a=1.0) == {"a": 1.0}


def test_counts_of_another_boot_are_not_continued(tmp_path: Path) -> None:
    state = {"boot": "another", "counters": {NAME: [[["a"], 7.0]]}}
    StateFile(tmp_path / "run.kept").write(json.dumps(state).encode())
    assert Process(tmp_path / "run.kept").tick(a=1.0) == {"a": 1.0}
