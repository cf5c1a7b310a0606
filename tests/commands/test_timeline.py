"""`stepscope timeline` of two real ranks of PyTorch."""

from __future__ import annotations

from pathlib import Path

from stepscope.commands.cli import main

from tests.support.chrome_trace import Slice, read_chrome_trace
from tests.support.observing import two_ranks
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
    two_ranks(script, recording, "--interval", "100ms", "--profile", "4:7")
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
