"""Traces that PyTorch's profiler writes for two ranks of gloo, and who comes late at their collectives."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from stepscope.evaluation.engine import evaluate
from stepscope.evaluation.settings import Settings
from stepscope.runs.traces.source import KinetoTraces

from tests.support.pytorch import needs_torch
from tests.support.torch_script import LEAVE

SCRIPT = (
    """
import sys, time, torch, torch.distributed as dist
from torch.profiler import ProfilerActivity, profile, schedule

rank, world, store, out = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3], sys.argv[4]
torch.set_num_threads(1)
dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=world)
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(64, 64))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
export = lambda p: p.export_chrome_trace(f"{out}/rank-{rank}.pt.trace.json")
with profile(activities=[ProfilerActivity.CPU], schedule=schedule(wait=0, warmup=2, active=4),
             on_trace_ready=export) as profiler:
    for _ in range(6):
        if rank == 1:
            time.sleep(0.2)
        model(torch.randn(16, 64)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        profiler.step()
"""
    + LEAVE
)


@needs_torch
def test_the_late_rank_of_two_real_gloo_ranks_is_named(tmp_path: Path) -> None:
    command = [sys.executable, "-c", SCRIPT]
    arguments = ["2", str(tmp_path / "store"), str(tmp_path)]
    ranks = [subprocess.Popen([*command, str(rank), *arguments]) for rank in range(2)]
    assert [rank.wait(timeout=300) for rank in ranks] == [0, 0]
    results = {result.rule: result for result in evaluate(KinetoTraces(tmp_path), Settings()).rules}
    found = results["Straggler"]
    assert (found.status, found.details["rank"], found.details["component"]) == ("found", 1, "host")
    assert found.details["excess_seconds"] > 0.1
    assert found.details["ranks"][0]["waited_seconds"] > found.details["ranks"][1]["waited_seconds"]
