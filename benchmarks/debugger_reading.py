"""Measures the reading of Debugger's system metrics: speed against json.loads per line, and memory."""

import json
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from stepscope.runs.debugger.source import DebuggerOutput
from stepscope.runs.model import NodeSamples

from benchmarks import Row

CORES, GPUS = 96, 8
OF_CORE, OF_GPU = ("CPUUtilization", "I/OWaitPercentage"), ("GPUUtilization", "GPUMemoryUtilization")
START = 1_600_000_020
MINUTES = 4  # of readings for the speed; memory is also measured with MORE times as many
MORE = 8

READ_ALL = """
import sys, resource
from pathlib import Path
from stepscope.runs.debugger.source import DebuggerOutput
for chunk in DebuggerOutput(Path(sys.argv[1])).read():
    pass
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024)
"""


def rows() -> list[Row]:
    with tempfile.TemporaryDirectory(prefix="stepscope-benchmark-") as directory:
        short, long = Path(directory) / "short", Path(directory) / "long"
        files = write(short, MINUTES)
        write(long, MINUTES * MORE)
        lines = sum(path.read_bytes().count(b"\n") for path in files)
        plain = min(_seconds(lambda: _plain(files)) for _ in range(3))
        ours = min(_seconds(lambda: _ours(short)) for _ in range(5))
        little, much = _peak_mebibytes(short), _peak_mebibytes(long)
    what = f"Debugger's readings of {CORES} cores and {GPUS} GPUs, one core"
    return [
        (f"reading {what}", lines / ours / 1e6, "million per second", ""),
        ("  only json.loads of each line", lines / plain / 1e6, "million per second", ""),
        ("  speed-up over json.loads", plain / ours, "", ">= 3"),
        (f"  memory for {MORE} times the files, minus memory for one", much - little, "MiB", "<= 16"),
    ]


def write(directory: Path, minutes: int) -> list[Path]:
    """Writes one file per minute, with two samples per second."""
    random.seed(1)
    folder = directory / "system" / "incremental"
    folder.mkdir(parents=True)
    files = []
    for minute in range(START, START + 60 * minutes, 60):
        path = folder / f"{minute}.algo-1.json"
        path.write_text("".join(_sample(minute + index / 2) for index in range(120)))
        files.append(path)
    return files


def _sample(time: float) -> str:
    metrics = [("cpu", f"cpu{core}", name) for core in range(CORES) for name in OF_CORE]
    metrics += [("gpu", f"gpu{gpu}", name) for gpu in range(GPUS) for name in OF_GPU]
    metrics += [("memory", "MemoryUsedPercent", "")]
    return "".join(
        f'{{"Type":"{kind}","Name":"{name}","Dimension":"{dimension}","Value":{random.uniform(0, 100):.2f},'
        f'"NodeId":"algo-1","Timestamp":{time + random.uniform(0, 0.01):.7f}}}\n'
        for kind, name, dimension in metrics
    )


def _plain(files: list[Path]) -> int:
    count = 0
    for path in files:
        with open(path) as file:
            for line in file:
                json.loads(line)
                count += 1
    return count


def _ours(directory: Path) -> int:
    return sum(len(chunk) for chunk in DebuggerOutput(directory).read() if isinstance(chunk, NodeSamples))


def _seconds(call: Callable[[], object]) -> float:
    begin = time.process_time()
    call()
    return time.process_time() - begin


def _peak_mebibytes(directory: Path) -> float:
    done = subprocess.run(
        [sys.executable, "-c", READ_ALL, str(directory)], capture_output=True, text=True, check=True
    )
    return float(done.stdout)
