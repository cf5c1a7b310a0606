"""A training of two ranks with an operator that is slow on one of them, until both have a profile window.

Then it continues to STEPS steps, so that any report of it has enough of them to compare the ranks.
"""

import json
import re
from pathlib import Path

from tests.support.torch_script import DISTRIBUTED, LEAVE, PREAMBLE

STEPS = 300
SLEEPS = "    time.sleep(0.05)"
TRAINING = f"""
import glob
model = DDP(Net())
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
done, end, steps = torch.zeros(1), time.monotonic() + 200, 0
library = torch.library.Library("planted", "DEF")
library.define("look_up(Tensor batch) -> Tensor")
def look_up(batch):  # without a core: on a crowded machine, waiting for one would explain a slow rank
{SLEEPS}
    return batch.clone()
library.impl("look_up", look_up, "CPU")
while not done.item():
    optimizer.zero_grad()
    batch = torch.randn(8, 16)
    if rank == 1:
        batch = torch.ops.planted.look_up(batch)
    model(batch).sum().backward()
    optimizer.step()
    traces = glob.glob(os.environ["STEPSCOPE_PROFILE_DIR"] + "/*.gz")
    steps += 1
    done.fill_(float(len(traces) == 2 and steps >= {STEPS} or time.monotonic() > end))
    dist.all_reduce(done)
"""


def write_script(folder: Path) -> Path:
    script = folder / "train.py"
    script.write_text(PREAMBLE + DISTRIBUTED + TRAINING + LEAVE)
    return script


def assert_it_is_named_with_its_line(recording: Path) -> None:
    """Checks the traces of both ranks, and the finding in the report of the recording."""
    traces = sorted(path.name.split(".")[:2] for path in recording.glob("profiles/*.gz"))
    assert [rank for rank, _ in traces] == ["rank-0", "rank-1"]
    assert len({steps for _, steps in traces}) == 1
    report = json.loads((recording / "report.json").read_text())
    assert sorted((each["rank"], each["state"]) for each in report["windows"]) == [
        (0, "written"),
        (1, "written"),
    ]
    (finding,) = [each["finding"] for each in report["rules"] if each["rule"] == "Straggler"]
    script = (PREAMBLE + DISTRIBUTED + TRAINING).splitlines()
    place = rf"called from \S*train\.py:{script.index(SLEEPS) + 1}; its peers"
    said = rf"In profile windows, it spends \S+ ms per step in planted::look_up, {place}"
    assert re.search(said, finding), finding
