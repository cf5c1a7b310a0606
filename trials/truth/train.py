"""Trains on the CPU, as any script of PyTorch does: `torchrun --nproc-per-node 4 train.py`.

It knows nothing of Stepscope. PLANTED=forward:2:0.05:wait delays rank 2 by 50 ms in each step: it sleeps.
With `compute` it uses a core instead.
"""

# mypy: allow-subclassing-any

import argparse
import gc
import hashlib
import io
import os
import time
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader, Dataset, DistributedSampler, TensorDataset

PLACE, RANK, SECONDS, WAY = os.environ.get("PLANTED", "nowhere:-1:0:wait").split(":")
WIDTH = 64
MICRO_BATCHES = 3  # per step of the variant that accumulates


def delay(place: str, seconds: float = float(SECONDS)) -> None:
    """Delays this rank if the fault is planted here."""
    if place != PLACE or os.environ.get("RANK", "0") != RANK:
        return
    if WAY == "wait":
        time.sleep(seconds)
        return
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        pass


class Samples(Dataset[tuple[Tensor, Tensor]]):
    """Random numbers; each batch is fetched as a whole."""

    def __init__(self, batches: int, size: int) -> None:
        self.batches, self.size = batches, size

    def __len__(self) -> int:
        return self.batches

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        delay("data")
        numbers = torch.Generator().manual_seed(index)
        return torch.randn(self.size, WIDTH, generator=numbers), torch.randn(self.size, 1, generator=numbers)


class Pace(torch.autograd.Function):
    """Takes some time in both passes, on all ranks, as layers on a GPU do."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, seconds: float) -> Tensor:
        ctx.seconds = seconds
        time.sleep(seconds)
        delay("forward")
        return x.clone()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        time.sleep(ctx.seconds)
        delay("backward")
        return gradient, None


class Network(nn.Module):
    """Two layers with a normalisation, whose buffers DistributedDataParallel broadcasts at each step."""

    def __init__(self, width: int, pace: float, recomputes: bool) -> None:
        super().__init__()
        self.pace, self.recomputes = pace, recomputes
        self.enter = nn.Linear(WIDTH, width)
        self.normalise = nn.BatchNorm1d(width)
        self.leave = nn.Linear(width, 1)

    def forward(self, x: Tensor) -> Tensor:
        hidden = torch.relu(self.normalise(self.enter(x)))
        hidden = Pace.apply(hidden, self.pace)
        return checkpoint(self.leave, hidden, use_reentrant=False) if self.recomputes else self.leave(hidden)


class Descent(torch.optim.SGD):
    """An optimizer of one's own."""

    def step(self, closure: Any = None) -> Any:
        delay("optimizer")
        return super().step(closure)


class Garbage:
    """A reference cycle whose finalizer is slow."""

    def __init__(self) -> None:
        self.cycle = self

    def __del__(self) -> None:
        delay("gc")


class SlowDisk(io.BytesIO):
    """A file that takes its time when it is written."""

    def flush(self) -> None:
        delay("checkpoint")


def after_step(network: nn.Module) -> None:
    """Does what users do at the end of a step."""
    delay("host after")
    if PLACE == "gc":
        Garbage()
        gc.collect()
    if PLACE == "checkpoint":
        torch.save(network.state_dict(), SlowDisk())


def epoch(loader: DataLoader[tuple[Tensor, Tensor]], number: int) -> Iterator[tuple[Tensor, Tensor]]:
    assert isinstance(loader.sampler, DistributedSampler)
    loader.sampler.set_epoch(number)
    yield from loader


def train(arguments: argparse.Namespace) -> None:
    torch.manual_seed(arguments.seed)
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank, ranks = dist.get_rank(), dist.get_world_size()
    variant = arguments.variant
    network = Network(arguments.width, arguments.pace, recomputes=variant == "checkpointing")
    options = {variant: True} if variant in ("static_graph", "find_unused_parameters") else {}
    if arguments.fsdp == 2:
        model: Any = fully_shard(network)
    elif arguments.fsdp == 1:
        model = FullyShardedDataParallel(network, device_id=torch.device("cpu"))
    else:
        model = DistributedDataParallel(network, **options)
    micro_batches = MICRO_BATCHES if variant == "no_sync" else 1
    groups = [[each] for each in model.parameters()] if variant == "optimizers" else [model.parameters()]
    optimizers = [Descent(group, lr=0.01, momentum=0.9) for group in groups]
    samples = Samples(ranks * micro_batches * arguments.steps // arguments.epochs, arguments.batch)
    loader = DataLoader(
        samples,
        batch_size=None,
        num_workers=arguments.workers,
        sampler=DistributedSampler(samples),
        multiprocessing_context="spawn" if variant == "spawn" else None,
    )
    unseen = TensorDataset(torch.ones(2 * arguments.batch, WIDTH), torch.zeros(2 * arguments.batch, 1))
    gc.freeze()  # what is there already is never collected: collections are short
    for number in range(arguments.epochs):
        model.train()
        for index, (x, y) in enumerate(epoch(loader, number), 1):
            delay("host before")
            is_last = index % micro_batches == 0
            with nullcontext() if is_last else model.no_sync():
                nn.functional.mse_loss(model(x), y).backward()
            if not is_last:
                continue
            for optimizer in optimizers:
                optimizer.step()
                optimizer.zero_grad()
            after_step(network)
        model.eval()
        with torch.no_grad():
            for x, y in DataLoader(unseen, arguments.batch):
                nn.functional.mse_loss(model(x), y)
        if rank == 0 and arguments.out:
            torch.save({"epoch": number}, arguments.out / "checkpoint.pt")
    digest = hashlib.sha256()
    for parameter in model.parameters():
        digest.update(parameter.detach().flatten().cpu().numpy().tobytes())
    print(f"parameters of rank {rank}: {digest.hexdigest()}\n", end="", flush=True)  # one write
    del model  # holds the group's threads, which otherwise sometimes abort the process at its end
    gc.collect()
    dist.destroy_process_group()


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the arguments that all these scripts have."""
    parser.add_argument("--steps", type=int, default=60, help="in all (default: %(default)s)")
    parser.add_argument("--workers", type=int, default=0, help="of the data loader (default: %(default)s)")
    parser.add_argument("--batch", type=int, default=32, help="samples per batch (default: %(default)s)")
    parser.add_argument(
        "--pace", type=float, default=0.01, help="seconds in both passes (default: %(default)s)"
    )
    parser.add_argument("--seed", type=int, default=1, help="of the parameters (default: %(default)s)")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    add_arguments(parser)
    parser.add_argument(
        "--fsdp", type=int, choices=(1, 2), help="use FSDP in place of DistributedDataParallel"
    )
    variants = ("no_sync", "static_graph", "find_unused_parameters", "checkpointing", "spawn", "optimizers")
    parser.add_argument("--variant", choices=variants, help="of the loop (default: none)")
    parser.add_argument("--epochs", type=int, default=2, help="default: %(default)s")
    parser.add_argument("--width", type=int, default=64, help="of the hidden layer (default: %(default)s)")
    parser.add_argument("--out", type=Path, help="folder of the checkpoints (default: none are written)")
    train(parser.parse_args())
