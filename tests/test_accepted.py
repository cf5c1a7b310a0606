"""The file of accepted findings: what it may hold, when an entry ends, and what each mistake is called."""

from __future__ import annotations

import os
from datetime import UTC, datetime
from pathlib import Path

import pytest
from trainwatch.accepted import Acceptance, AcceptedFile, of_run, read_accepted, write_accepted
from trainwatch.errors import UserError

WHOLE = "- rule: CPUBottleneck\n  run: resnet\n  reason: new loader in January\n  until: {}\n"


def time(text: str) -> float:
    return datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp()


def written(folder: Path, text: str) -> Path:
    file = folder / "accepted.yml"
    file.write_text(text)
    return file


@pytest.mark.parametrize(
    ("until", "end"),
    [
        ("2026-12-31", "2027-01-01T00:00:00"),  # with the whole day
        ("2026-12-31T18:00:00Z", "2026-12-31T18:00:00"),
        ("'2026-12-31 18:00:00+01:00'", "2026-12-31T17:00:00"),
    ],
)
def test_an_entry_ends_after_its_day_or_at_its_time(tmp_path: Path, until: str, end: str) -> None:
    (entry,) = read_accepted(written(tmp_path, WHOLE.format(until)))
    assert entry.end == time(end)


def test_a_number_is_the_name_of_a_run_too(tmp_path: Path) -> None:
    (entry,) = read_accepted(written(tmp_path, WHOLE.replace("resnet", "007").format("2026-12-31")))
    assert entry.run == "007"


def test_what_is_written_is_read_back(tmp_path: Path) -> None:
    entries = [
        Acceptance("CPUBottleneck", "7", "new loader: “fast”, # 3", "2026-12-31", "alice"),
        Acceptance("IdleGPU", "train-7f3a", "yes", "2026-12-31T18:00:00Z"),
    ]
    file = tmp_path / "new" / "accepted.yml"
    write_accepted(file, entries)
    assert read_accepted(file) == entries
    write_accepted(file, [])
    assert read_accepted(file) == []


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("rule: CPUBottleneck", "is not a list; begin each entry with `- rule: ...`"),
        ("- rule: {", ", line 1: is not YAML"),
        ("- CPUBottleneck", "entry 1: write `field: text` lines"),
        ("- rule: [a, b]", "entry 1: write `field: text` lines"),
        (
            WHOLE.format("2026-12-31") + WHOLE.replace("reason", "raeson").format("2026-12-31"),
            "entry 2: has no",
        ),
        (WHOLE.replace("reason", "raeson").format("2026-12-31"), "did you mean reason?"),
        (WHOLE.replace("new loader in January", "").format("2026-12-31"), "entry 1: reason is missing"),
        (WHOLE.replace("  until: {}\n", ""), "entry 1: until is missing"),
        (WHOLE.replace("new loader", "x" * 201).format("2026-12-31"), "more than 200 characters"),
        (
            WHOLE.replace("new loader", r'"\e[31m"').replace(" in January", "").format("2026-12-31"),
            "printable",
        ),
        (WHOLE.format("2026-02-30"), "until '2026-02-30' is not a date or time; write a date such as"),
        (WHOLE.format("soon"), "until 'soon' is not a date or time"),
        (WHOLE.format("2026-12-31T18:00:00"), "a time with its zone"),
        (WHOLE.format("9999-12-31"), "is not a date or time"),
        (
            WHOLE.replace("CPUB", "CpuB").format("2026-12-31"),
            "there is no rule 'CpuBottleneck'; did you mean",
        ),
    ],
)
def test_a_mistake_is_one_line_that_names_the_entry_and_the_fix(
    tmp_path: Path, text: str, words: str
) -> None:
    file = written(tmp_path, text)
    with pytest.raises(UserError) as caught:
        read_accepted(file, ["CPUBottleneck"])
    assert str(caught.value).startswith(str(file))
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


def test_of_two_entries_about_a_run_the_later_end_counts() -> None:
    by_name, by_label = (
        Acceptance("IdleGPU", run, "why", until)
        for run, until in (("resnet", "2026-12-31"), ("resnet-7f3a", "2026-11-30"))
    )
    for entries in ([by_name, by_label], [by_label, by_name]):
        assert of_run(entries, {"resnet", "resnet-7f3a"}) == {"IdleGPU": by_name}
    assert of_run([by_name, by_label], {"bert"}) == {}


def test_a_changed_file_is_read_again_and_no_file_is_no_entry(tmp_path: Path) -> None:
    file = AcceptedFile(tmp_path / "accepted.yml")
    assert file.entries() == ()
    written(tmp_path, WHOLE.format("2026-12-31"))
    first = file.entries()
    assert [entry.run for entry in first] == ["resnet"]
    assert file.entries() is first, "it was not read again"
    os.utime(written(tmp_path, WHOLE.replace("resnet", "sesame").format("2026-12-31")), (1, 1))
    assert [entry.run for entry in file.entries()] == ["sesame"]
    written(tmp_path, "- broken")
    for _ in range(2):
        with pytest.raises(UserError):
            file.entries()
    file.path.unlink()
    assert file.entries() == ()
