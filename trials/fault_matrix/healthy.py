"""Healthy runs of different shapes, in which nobody may be accused.

A shape may cost time that training needs, or less than anybody would change a script for.
"""

from collections.abc import Sequence
from dataclasses import replace
from random import Random

from stepscope.demo.scenario import Work

from trials.fault_matrix.training import Training

EVALUATION = 20  # steps, after each 200 of training
WARM = 20  # steps


class Even(Training):
    """All steps take equally long."""

    name = "even steps"


class Bursts(Training):
    """The cores are busy in bursts of 20 s, because the loader fills its queue; no step waits."""

    name = "bursts of the loader"

    def at(self, elapsed: float) -> Training:
        self.cpu = (0.8, 0.98) if elapsed % 60 < 20 else (0.1, 0.2)
        return self


class Evaluation(Training):
    """20 steps of evaluation follow 200 of training, again and again, with a third of their time."""

    name = "evaluation phases"

    def work(self, rank: int, number: int, random: Random) -> Work:
        work = super().work(rank, number, random)
        if number % (200 + EVALUATION) < 200:
            return work
        short = replace(work, backward=0.0, optimizer=0.0, communication=0.0)
        return replace(short, phase="eval")


class Growing(Training):
    """Sequences grow: the last steps take twice as long as the first ones, on all ranks."""

    name = "growing sequences"

    def work(self, rank: int, number: int, random: Random) -> Work:
        steps = self.length / (1.5 * self.step)
        return super().work(rank, number, random).slower(1 + min(1.0, number / steps))


class WarmUp(Training):
    """The first 20 steps take five times as long."""

    name = "warm-up"

    def work(self, rank: int, number: int, random: Random) -> Work:
        return super().work(rank, number, random).slower(5.0 if number < WARM else 1.0)


class Accumulation(Training):
    """Gradients are exchanged and applied in every fourth step only."""

    name = "gradient accumulation"

    def work(self, rank: int, number: int, random: Random) -> Work:
        work = super().work(rank, number, random)
        return work if number % 4 == 3 else replace(work, communication=0.0, optimizer=0.0)


class Communication(Training):
    """All ranks communicate for 40 % of their steps."""

    name = "balanced communication"

    def work(self, rank: int, number: int, random: Random) -> Work:
        work = super().work(rank, number, random).slower(0.6)
        return replace(work, communication=(0.4 if self.ranks > 1 else 0.0) * self.step)


class Lengths(Training):
    """Batches have different lengths: steps take half to one and a half times as long, on all ranks."""

    name = "batches of different lengths"

    def work(self, rank: int, number: int, random: Random) -> Work:
        factor = Random(number).uniform(0.5, 1.5)
        return super().work(rank, number, random).slower(factor)


class Jitter(Training):
    """Ranks take up to 10 % longer or shorter, at random in each step."""

    name = "jitter of ranks"

    def work(self, rank: int, number: int, random: Random) -> Work:
        return super().work(rank, number, random).slower(random.uniform(0.9, 1.1))


class Prefetched(Training):
    """Fetching takes nearly as long as the steps: prefetching hides it."""

    name = "hidden loading"
    cpu = (0.7, 0.85)

    def prepare(self) -> None:
        self.fetch_seconds = 0.9 * self.workers * self.step


class ShortCheckpoints(Training):
    """Every 200th step writes a checkpoint that costs 0.5 % of the time."""

    name = "short checkpoints"

    def work(self, rank: int, number: int, random: Random) -> Work:
        work = super().work(rank, number, random)
        return replace(work, checkpoint=self.step if number % 200 == 199 else 0.0)


class Filling(Training):
    """The allocator of PyTorch fills GPU memory in the first two minutes, and keeps it."""

    name = "memory that fills at first"

    def gpu_memory(self, gpu: int, elapsed: float) -> float:
        return 0.4 + 0.4 * min(1.0, elapsed / 120)


HEALTHY: Sequence[type[Training]] = (
    Even, Bursts, Evaluation, Growing, WarmUp, Accumulation, Communication, Lengths, Jitter, Prefetched,
    ShortCheckpoints, Filling,
)  # fmt: skip
