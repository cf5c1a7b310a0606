"""Damaged recordings: figures of what is intact, the gap named, or one line that says what is wrong."""

import json
import re
import shutil
from pathlib import Path
from typing import Any

from stepscope.runs.recording.files import RunFile
from stepscope.runs.recording.writer import RecordingWriter

from tests.support.damage import flipped
from tests.support.recording import START, header, sample, step, totals
from trials import Attempt, trial
from trials.commands import Commands
from trials.damaged_sources import report_damaged

TICKS = 300  # two minutes and a half: two parts of each table, and journals


@trial(
    "A bit that flips in a recording changes no figure silently, and ends in no traceback or signal.",
    count=2000,
    short=20,
    of="flipped bits",
)
def flipped_bits(attempt: Attempt) -> str:
    recording = attempt.folder / "recording"
    record(recording)
    files = sorted(path for path in recording.rglob("[a-z]*.*") if path.is_file())
    named = same = refused = 0
    with Commands(attempt.folder) as commands:
        status, printed, intact = _report(commands, recording)
        assert (status, intact["gaps"]) == (0, []), printed
        for _ in attempt.rounds():
            file = attempt.random.choice(files)  # each as often, whatever its size
            whole = file.read_bytes()
            bit = attempt.random.randrange(8 * len(whole))
            file.write_bytes(flipped(whole, bit))
            status, printed, seen = _report(commands, recording)
            file.write_bytes(whole)
            case = f"bit {bit % 8} of byte {bit // 8} of {file.name}: exit status {status}: {printed[-700:]}"
            if status == 0:
                is_named = any(file.name.removesuffix(".journal") in gap["reason"] for gap in seen["gaps"])
                assert is_named or seen == intact, f"figures changed without a gap that names it; {case}"
                named, same = named + is_named, same + (not is_named)
            else:
                assert status == 2, case
                assert re.fullmatch(r"stepscope: [^\n]+\n", printed), case
                refused += 1
    return f"{named:,} named as gaps, {same:,} without effect, {refused:,} refused in one line"


@trial(
    "Damaged recordings give a report or one line that says what is wrong.",
    count=1000,
    short=10,
    of="damaged recordings",
)
def damaged_recordings(attempt: Attempt) -> str:
    record(attempt.folder / "recording")
    return report_damaged(attempt, attempt.folder / "recording")


def _report(commands: Commands, recording: Path) -> tuple[int | None, str, dict[str, Any]]:
    """Returns the exit status, what was printed, and report.json, which is {} without a report."""
    out = recording.with_name("report")
    command = commands.run("report", str(recording), "--out", str(out), "--format", "json")
    status = command.status()
    document = json.loads((out / "report.json").read_text()) if status == 0 else {}
    shutil.rmtree(out, ignore_errors=True)
    return status, command.log.read_text(), document


def record(directory: Path) -> None:
    """Writes a recording with parts and, as after `kill -9`, with open journals."""
    writing = directory.with_name(f"{directory.name}.writing")
    writer = RecordingWriter(writing, "n1", 0.5, "resnet")
    for tick in range(TICKS):
        writer.sample(sample(tick))
        ranks = [header(rank, pid=100 + rank) for rank in range(2)]
        for rank in ranks:
            writer.steps(rank, [step(tick)])
        writer.ranks([(rank, totals(tick + 1), True) for rank in ranks], now=START + tick * 0.5)
        writer.catch_up()
    writer._parts.submit(int).result()  # all parts so far are made
    shutil.copytree(writing, directory)
    writer.close()
    RunFile("resnet", START, START + TICKS / 2, "python train.py", 0).write(directory)
    assert {path.suffix for path in directory.glob("n1/[a-z]*")} == {".parquet", ".journal"}
