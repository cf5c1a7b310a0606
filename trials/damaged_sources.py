"""Damaged Debugger output and traces: a report, or one line that says what is wrong."""

import gzip
import json
import os
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from random import Random

from tests.runs.test_kineto import marked, on_gpu, row, write
from tests.support.debugger_output import write_training_job
from trials import Attempt, trial
from trials.commands import Commands

_ODD_VALUES = (
    "NaN", "-Infinity", "1e999", "-1", "1e300", "9" * 400, "null", "true", '""', '"x"', "[]", "{}",
    "[[" * 5000, '"\\ud800"', "0.5", "1600000020", "-9223372036854775809",
)  # fmt: skip
_VALUE = re.compile(rb'(?<=:)\s*("[^"]*"|[-+\w.]+)')


@trial(
    "Damaged output of SageMaker Debugger gives a report, or one line that says what is wrong.",
    count=1000,
    short=10,
    of="damaged directories",
)
def damaged_debugger_output(attempt: Attempt) -> str:
    write_training_job(attempt.folder / "original", nodes=1, seconds=65.0)
    return report_damaged(attempt, attempt.folder / "original")


@trial(
    "Damaged traces of the PyTorch profiler give a report, or one line that says what is wrong.",
    count=1000,
    short=10,
    of="damaged directories",
)
def damaged_traces(attempt: Attempt) -> str:
    original = attempt.folder / "original"
    for rank in range(2):
        rows = [marked(step, 100.0 * step, 100.0 * step + 90) for step in range(5)]
        rows += [row("cpu_op", "aten::conv2d", 100.0 * step + 5, 100.0 * step + 40) for step in range(5)]
        rows += [on_gpu("kernel", "sgemm", 100.0 * step + 10, 100.0 * step + 60) for step in range(5)]
        rows += [
            on_gpu("kernel", "ncclDevKernel_AllReduce", 100.0 * step + 60, 100.0 * step + 80)
            for step in range(5)
        ]
        more = {"distributedInfo": {"rank": rank, "world_size": 2}}
        write(original / f"node-a_{100 + rank}.1.pt.trace.json{'.gz' * rank}", rows, **more)
    return report_damaged(attempt, original)


def report_damaged(attempt: Attempt, *originals: Path) -> str:
    """Reports copies of the originals in turn, each damaged at random. Returns what was seen."""
    reported = 0
    lines: dict[str, int] = {}
    with Commands(attempt.folder) as commands:
        for number in attempt.rounds():
            source = attempt.folder / f"source-{number}"
            shutil.copytree(originals[number % len(originals)], source)
            damage = _damage(source, attempt.random)
            out = attempt.folder / f"report-{number}"
            form = "json" if number % 4 else "html"  # the page takes most of the time
            report = commands.run("report", str(source), "--out", str(out), "--format", form)
            status, printed = report.status(), report.log.read_text()
            case = f"damage {number + 1} ({damage}): exit status {status}: {printed[-700:]}"
            assert status in (0, 2), case
            if status == 0:
                json.loads((out / "report.json").read_text())
                reported += 1
            else:
                assert re.fullmatch(r"stepscope: [^\n]+\n", printed), case
                lines[printed] = lines.get(printed, 0) + 1
            shutil.rmtree(source)
            shutil.rmtree(out, ignore_errors=True)
    return f"{reported:,} reports, {sum(lines.values()):,} refusals in one line; no traceback, no signal"


def _damage(source: Path, random: Random) -> str:
    """Damages one to three files. Returns how, in words."""
    files = sorted(path for path in source.rglob("*") if path.is_file())
    words = []
    for path in random.sample(files, random.randint(1, min(3, len(files)))):
        name = random.choice(list(_DAMAGES))
        _DAMAGES[name](path, random)
        words.append(f"{name} in {path.name}")
    return ", ".join(words)


def _change(path: Path, change: Callable[[bytes], bytes]) -> None:
    """Changes the content of a file; of a compressed one, what is compressed."""
    content = path.read_bytes()
    if path.suffix == ".gz":
        path.write_bytes(gzip.compress(change(gzip.decompress(content)), 1))
    else:
        path.write_bytes(change(content))


def _flip_bits(path: Path, random: Random) -> None:
    content = bytearray(path.read_bytes())
    for _ in range(random.randint(1, 20) if content else 0):
        content[random.randrange(len(content))] ^= 1 << random.randrange(8)
    path.write_bytes(content)


def _odd_values(path: Path, random: Random) -> None:
    def change(content: bytes) -> bytes:
        values = list(_VALUE.finditer(content))
        for match in sorted(
            random.sample(values, min(len(values), random.randint(1, 5))), key=lambda m: -m.start()
        ):
            content = content[: match.start()] + random.choice(_ODD_VALUES).encode() + content[match.end() :]
        return content

    _change(path, change)


def _shuffle_lines(path: Path, random: Random) -> None:
    """Removes, repeats and swaps lines."""

    def change(content: bytes) -> bytes:
        lines = content.splitlines(keepends=True)
        return b"".join(random.choices(lines, k=random.randint(0, 2 * len(lines)))) if lines else b""

    _change(path, change)


def _replace(path: Path, make: Callable[[Path], object]) -> None:
    path.unlink()
    make(path)


_DAMAGES: dict[str, Callable[[Path, Random], object]] = {
    "flipped bits": _flip_bits,
    "odd values": _odd_values,
    "shuffled lines": _shuffle_lines,
    "cut off": lambda path, random: os.truncate(path, random.randrange(path.stat().st_size + 1)),
    "cut off inside": lambda path, random: _change(
        path, lambda content: content[: random.randrange(len(content) + 1)]
    ),
    "random bytes": lambda path, random: path.write_bytes(random.randbytes(random.randrange(4096))),
    "zeros": lambda path, random: path.write_bytes(bytes(random.randrange(4096))),
    "text": lambda path, random: _change(path, lambda _: random.choice(_ODD_VALUES).encode()),
    "empty": lambda path, _: os.truncate(path, 0),
    "fifo": lambda path, _: _replace(path, os.mkfifo),
    "directory": lambda path, _: _replace(path, os.mkdir),
    "link to itself": lambda path, _: _replace(path, lambda link: link.symlink_to(link.name)),
}
