"""`stepscope timeline` of two real ranks of PyTorch."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from stepscope.commands.cli import main

from tests.support.chrome_trace import Slice, read_chrome_trace
from tests.support.observing import PATIENCE, RUN
from tests.support.pytorch import needs_torch
from tests.support.torch_script import DISTRIBUTED, LEAVE, PREAMBLE

TRAINING = """
model = DDP(Net())
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for epoch in range(2):
    for x, y in DataLoader(data, batch_size=8):
        optimizer.zero_grad()
        loss_of(model(x), y).backward()
        optimizer.step()
        time.sleep(0.05)
"""


def overlap(one: Slice, other: Slice) -> float:
    return min(one.end, other.end) - max(one.start, other.start)


@needs_torch
def test_steps_of_samples_and_of_traces_of_two_ranks_are_aligned(tmp_path: Path) -> None:
    script, recording = tmp_path / "train.py", tmp_path / "recording"
    script.write_text(PREAMBLE + DISTRIBUTED + TRAINING + LEAVE)
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    flags = ["--interval", "100ms", "--listen", "127.0.0.1:0", "--out", str(recording), "--profile", "4:7"]
    clean = {name: value for name, value in os.environ.items() if not name.startswith("STEPSCOPE")}
    ended = subprocess.run(
        [*RUN, *flags, "--", *torchrun, str(script)],
        env={**clean, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    assert main(["timeline", str(recording), "-o", str(tmp_path / "timeline.json.gz")]) == 0
    read = read_chrome_trace(tmp_path / "timeline.json.gz")
    ranks = sorted({each.process for each in read.slices if each.process.startswith("Rank ")})
    assert len(ranks) == 2
    sixth = []
    for rank in ranks:
        of_rank = [each for each in read.slices if each.process == rank]
        (counted,) = [each for each in of_rank if each.name == "train 6"]
        (marked,) = [each for each in of_rank if each.name == "ProfilerStep#6"]
        assert overlap(counted, marked) > 0.8 * (counted.end - counted.start)
        inside = [each.name for each in of_rank if overlap(marked, each) > 0]
        assert "aten::addmm" in inside
        sixth.append(marked)
    assert overlap(*sixth) > 0.5 * (sixth[0].end - sixth[0].start)
    cpu = [values for (_, name), values in read.counters.items() if name == "CPU, mean of cores (%)"]
    assert len(cpu[0]) > 3
