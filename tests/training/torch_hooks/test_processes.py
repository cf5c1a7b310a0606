"""Processes of unmodified scripts: ranks without numbers in the environment, and loader workers."""

import textwrap
from pathlib import Path
from typing import NamedTuple

import pytest
from stepscope.exporter.ledgers.line_files import LineFile, read_line_file
from stepscope.training import line_layout

from tests.support.pytorch import needs_torch
from tests.support.smallest import smallest
from tests.support.torch_script import LEAVE, Trained, train

pytestmark = needs_torch

RANKS = """
import subprocess
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP

def work(rank):
    place = "file://" + os.path.abspath(sys.argv[0]) + ".store"
    dist.init_process_group("gloo", place, None, 2, rank) if rank else (
        dist.init_process_group("gloo", init_method=place, rank=rank, world_size=2))
    model = DDP(Net())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for x, y in DataLoader(data, batch_size=8):
        loss_of(model(x), y).backward()
        optimizer.step()
        optimizer.zero_grad()
    dist.barrier()
""" + textwrap.indent(LEAVE, "    ")

# As Lightning does: the script starts itself again, and says to the children which local rank they are.
STARTED_AGAIN = """
local_rank = int(os.environ.get("LOCAL_RANK", 0))
if local_rank == 0:
    child = subprocess.Popen([sys.executable, *sys.argv], env={**os.environ, "LOCAL_RANK": "1"})
work(local_rank)
if local_rank == 0:
    sys.exit(child.wait())
"""
STARTED = """
if __name__ == "__main__":
    torch.multiprocessing.start_processes(work, nprocs=2, start_method={!r})
"""
LAUNCHES = {
    "started again": STARTED_AGAIN,
    "forked": f"import torch._dynamo  # once for both\n{STARTED.format('fork')}",
    "spawned": STARTED.format("spawn"),
}


@pytest.mark.parametrize("launch", smallest(LAUNCHES.values(), {0, 1}), ids=LAUNCHES)
def test_ranks_are_those_of_the_process_group_if_the_environment_has_none(
    launch: str, tmp_path: Path
) -> None:
    trained = train(RANKS, launch, folder=tmp_path)
    assert [(rank.header.rank, rank.header.world_size) for rank in trained.ranks] == [(0, 2), (1, 2)]
    assert len({rank.header.run for rank in trained.ranks}) == 1, "all ranks are one run"
    for rank in trained.ranks:
        assert rank.totals.steps == {"train": 12}
        assert min(rank.all_seconds("communication")) > 0.0
        assert rank.totals.end is not None
    assert trained.errors == ""


WORKERS = """
import stepscope
def decode(i):
    time.sleep(0.02)
    return data[i]
class Quick(torch.utils.data.Dataset):
    def __len__(self): return 24
    def __getitem__(self, i): return data[i]
class Slow(Quick):
    def __getitem__(self, i): return decode(i)

if __name__ == "__main__":
    def loader_of(dataset, method, workers):
        return DataLoader(dataset, batch_size=4, num_workers=workers,
                          multiprocessing_context=method, persistent_workers=True)
    def train(run, loader, epochs):
        stepscope.start(run=run)
        model = Net()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        for epoch in range(epochs):
            for x, y in loader:
                loss_of(model(x), y).backward(); optimizer.step(); optimizer.zero_grad()
    for method, workers in (("fork", 2), ("spawn", 1)):  # a spawned one imports torch
        loader = loader_of(Slow(), method, workers)
        train(method, loader, 4 * workers)  # 1.9 s per worker: files are written after one
        del loader
        stepscope.finish()
        loader = loader_of(Quick(), method, 1)
        for number, epochs in enumerate((2, 3)):
            train(f"{method}-{number}", loader, epochs)
            stepscope.finish()
        del loader
"""


class Workers(NamedTuple):
    trained: Trained
    files: list[LineFile]


@pytest.fixture(scope="module")
def workers(tmp_path_factory: pytest.TempPathFactory) -> Workers:
    """Runs with loaders of their own, and runs that share one, all in one process."""
    folder = tmp_path_factory.mktemp("workers")
    trained = train(WORKERS, folder=folder, STEPSCOPE_LINES="1")
    assert trained.errors == ""
    assert len(trained.ranks) == 2 * (1 + 2), "no worker has a ledger of its own"
    return Workers(trained, [read_line_file(path) for path in (folder / "ledgers").glob("*.lines")])


def test_workers_that_outlive_a_run_count_in_the_next_one(workers: Workers) -> None:
    for method in ("fork", "spawn"):
        for number, epochs in enumerate((2, 3)):
            (rank,) = workers.trained.of(f"{method}-{number}")
            assert rank.totals.steps == {"train": 6 * epochs}
            assert sum(rank.totals.fetch_counts) == 6 * epochs


def test_forked_and_spawned_workers_count_their_fetches_and_have_the_lines_that_load_the_data(
    workers: Workers,
) -> None:
    (training,) = (file for file in workers.files if file.thread.role == "training")
    for method, count in (("fork", 2), ("spawn", 1)):
        (rank,) = workers.trained.of(method)
        steps = 4 * count * 6
        assert rank.totals.steps == {"train": steps}
        (loader,) = rank.totals.loaders
        assert (loader.workers, loader.batch_size, sum(loader.wait_counts)) == (count, 4, steps)
        assert sum(rank.totals.fetch_counts) == steps
        assert rank.totals.fetch_sum > 4 * steps * 0.02
        files = [file for file in workers.files if file is not training and file.run == rank.header.run]
        assert [(file.thread.role, file.thread.rank) for file in files] == [("loader worker", 0)] * count
        for worker in files:
            waited = sum(
                counts[line_layout.STATES.index("other")]  # for its timer
                for line, counts in worker.counts.lines.items()
                if line.function == "decode" and line.caller.endswith("__getitem__")
            )
            assert waited > 13  # ticks; of 38
