"""Distributed training under the hooks: who waits, who works, and in which component."""

from pathlib import Path

import pytest

from tests.support.pytorch import needs_torch
from tests.support.torch_script import Trained, train

pytestmark = needs_torch

SLOW = 0.1  # seconds that rank 1 sleeps in a pass; what delays single steps on a busy machine does no harm
STEPS = 6
ACCUMULATED = 3  # batches per step of the loops that accumulate

# Each loop is a run of its own, in the same two processes.
SCRIPT = f"""
from contextlib import nullcontext
from torch.distributed import checkpoint as distributed_checkpoint
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from torch.distributed.fsdp.wrap import ModuleWrapPolicy
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.utils.checkpoint import checkpoint
import stepscope

class SlowForward(torch.autograd.Function):
    @staticmethod
    def forward(context, x): time.sleep({SLOW} * rank); return x.clone()
    @staticmethod
    def backward(context, gradient): return gradient
class SlowBackward(torch.autograd.Function):
    @staticmethod
    def forward(context, x): return x.clone()
    @staticmethod
    def backward(context, gradient): time.sleep({SLOW} * rank); return gradient
class Model(nn.Module):
    def __init__(self, slow, recomputes=None):
        super().__init__()
        self.slow, self.recomputes = slow, recomputes
        self.enter, self.leave = nn.Linear(16, 32), nn.Linear(32, 4)
        self.inner = nn.Sequential(nn.Linear(32, 32), nn.ReLU())
    def last(self, hidden):
        return self.leave(self.slow.apply(hidden))
    def forward(self, x):
        hidden = self.inner(self.enter(x))
        if self.recomputes is None: return self.last(hidden)
        return checkpoint(self.last, hidden, use_reentrant=self.recomputes)

def one(model):
    return [torch.optim.SGD(model.parameters(), lr=0.01)]
def one_per_layer(model):
    return [torch.optim.Adam(layer.parameters()) for layer in model.module.children()]
def sharded_states(model):
    return [ZeroRedundancyOptimizer(model.parameters(), torch.optim.Adam, lr=0.01)]
def loop(name, model, batches=1, make_optimizers=one):
    stepscope.start(run=name)
    optimizers = make_optimizers(model)
    for i, (x, y) in enumerate(DataLoader(data, batch_size=len(data) // {STEPS} // batches), 1):
        is_last = i % batches == 0
        with nullcontext() if is_last else model.no_sync():
            loss_of(model(x), y).backward()
        if is_last:
            for optimizer in optimizers: optimizer.step(); optimizer.zero_grad()
    stepscope.finish()
stepscope.finish()  # of the run that began with the process group

def fsdp1(model):
    return FSDP(model, device_id=torch.device("cpu"), auto_wrap_policy=ModuleWrapPolicy({{nn.Sequential}}))
def fsdp2(model):
    from torch.distributed.fsdp import fully_shard
    fully_shard(model.inner)
    return fully_shard(model)

loop("DDP", DDP(Model(SlowForward)))
loop("DDP, find_unused_parameters", DDP(Model(SlowBackward), find_unused_parameters=True))
loop("DDP, static_graph", DDP(Model(SlowBackward), static_graph=True))
loop("DDP, no_sync", DDP(Model(SlowBackward)), {ACCUMULATED})
loop("DDP, several optimizers", DDP(Model(SlowForward)), make_optimizers=one_per_layer)
loop("DDP, an optimizer that communicates", DDP(Model(SlowForward)), make_optimizers=sharded_states)
loop("DDP, recomputed", DDP(Model(SlowForward, recomputes=False)))
loop("DDP, recomputed by autograd", DDP(Model(SlowForward, recomputes=True)))
if hasattr(torch.distributed.fsdp, "fully_shard"):  # FSDP1 of PyTorch 2.0 needs a GPU
    loop("FSDP1, forward", fsdp1(Model(SlowForward)))
    loop("FSDP1, backward", fsdp1(Model(SlowBackward)))
    loop("FSDP1, no_sync", fsdp1(Model(SlowBackward)), {ACCUMULATED})
    loop("FSDP1, recomputed", fsdp1(Model(SlowForward, recomputes=False)))
    loop("FSDP2, forward", fsdp2(Model(SlowForward)))
    loop("FSDP2, backward", fsdp2(Model(SlowBackward)))
    loop("FSDP2, recomputed", fsdp2(Model(SlowForward, recomputes=False)))

class SlowDisk(distributed_checkpoint.FileSystemWriter):
    def write_data(self, *arguments):
        time.sleep({SLOW} * rank)
        return super().write_data(*arguments)
model = Model(SlowForward)
save = getattr(distributed_checkpoint, "save", None) or distributed_checkpoint.save_state_dict  # before 2.2
stepscope.start(run="distributed checkpoint")
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for x, y in DataLoader(data, batch_size=len(data) // {STEPS}):
    loss_of(model(x), y).backward(); optimizer.step(); optimizer.zero_grad()
    save(model.state_dict(), storage_writer=SlowDisk(sys.argv[0] + ".checkpoint"))
stepscope.finish()
"""

# How often rank 1 sleeps per step, in the forward and in the backward pass.
SLEEPS = {
    "DDP": (1, 0),
    "DDP, find_unused_parameters": (0, 1),
    "DDP, static_graph": (0, 1),
    "DDP, no_sync": (0, ACCUMULATED),
    "DDP, several optimizers": (1, 0),
    "DDP, an optimizer that communicates": (1, 0),
    "DDP, recomputed": (1, 1),
    "DDP, recomputed by autograd": (1, 1),
    "FSDP1, forward": (1, 0),
    "FSDP1, backward": (0, 1),
    "FSDP1, no_sync": (0, ACCUMULATED),
    "FSDP1, recomputed": (1, 1),
    "FSDP2, forward": (1, 0),
    "FSDP2, backward": (0, 1),
    "FSDP2, recomputed": (1, 1),
}


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Trained:
    return train(SCRIPT, folder=tmp_path_factory.mktemp("distributed"), ranks=2)


@pytest.mark.parametrize("loop", SLEEPS)
def test_the_slow_rank_works_in_the_pass_where_it_sleeps_and_the_other_one_waits(
    trained: Trained, loop: str
) -> None:
    if not trained.of(loop):
        pytest.skip("this torch has no fully_shard")
    waiting, slow = trained.of(loop)
    assert (waiting.header.rank, slow.header.rank, slow.header.world_size) == (0, 1, 2)
    assert waiting.header.run == slow.header.run
    assert waiting.totals.steps == slow.totals.steps == {"train": STEPS}
    # Each pass has what sleeps in it: so the other one has not, because no second counts twice.
    for component, sleeps in zip(("forward", "backward"), SLEEPS[loop], strict=True):
        assert min(slow.all_seconds(component)) >= sleeps * SLOW
    # The other rank has done as much by itself, and waits in collectives for the rest of the time.
    slept = SLOW * sum(SLEEPS[loop])
    assert min(slow.own_seconds()) - min(waiting.own_seconds()) > 0.5 * slept
    assert max(waiting.all_seconds("communication")) - min(slow.all_seconds("communication")) > 0.5 * slept
    for step in (*waiting.steps, *slow.steps):
        assert sum(step.components) <= step.duration + 1e-9


def test_a_rank_waits_for_one_that_writes_its_part_of_a_distributed_checkpoint(trained: Trained) -> None:
    waiting, writing = trained.of("distributed checkpoint")
    # The first checkpoint is written after the first step.
    assert min(writing.all_seconds("checkpoint")[1:]) > SLOW
    assert min(writing.own_seconds()[1:]) - min(waiting.own_seconds()[1:]) > 0.5 * SLOW
    assert max(waiting.all_seconds("communication")) - min(writing.all_seconds("communication")) > 0.5 * SLOW


EXCHANGES = f"""
from contextlib import nullcontext
from torch.utils.checkpoint import checkpoint
import stepscope
from stepscope.training.layout import FIRST_LOOK

class Recomputing(nn.Module):
    def __init__(self):
        super().__init__()
        self.enter, self.leave = nn.Linear(16, 32), nn.Linear(32, 4)
    def forward(self, x):
        return checkpoint(self.leave, self.enter(x), use_reentrant=True)  # its backward pass calls another
dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
stepscope.finish()  # of the run that began with it
model = DDP(Recomputing())
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
x, y = data[:8]
for name, synchronises in (("each", True), ("last", False)):
    stepscope.start(run=name)
    for batch in range({ACCUMULATED} * FIRST_LOOK):
        is_last = batch % {ACCUMULATED} == {ACCUMULATED - 1}
        with nullcontext() if is_last or synchronises else model.no_sync():
            loss_of(model(x), y).backward()
        if is_last:
            optimizer.step(); optimizer.zero_grad()
    stepscope.finish()
del model
dist.destroy_process_group()
"""


def test_backward_passes_in_which_ranks_exchange_gradients_are_counted_per_step(tmp_path: Path) -> None:
    imports = (
        "import torch.distributed as dist\nfrom torch.nn.parallel import DistributedDataParallel as DDP\n"
    )
    trained = train(imports, EXCHANGES, folder=tmp_path)
    passes = {
        name: trained.of(name)[0].totals.gauges["synchronised_backward_passes"] for name in ("each", "last")
    }
    assert passes == {"each": ACCUMULATED, "last": 1}
