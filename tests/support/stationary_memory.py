"""GPU memory that changes and does not grow: what healthy runs look like, for tests of false alarms."""

from collections.abc import Callable, Iterable

import numpy as np

HOURS = 2
ROWS = HOURS * 7200  # of half a second
SECONDS = np.arange(ROWS) / 2

Memory = np.ndarray  # (ROWS,) shares of a GPU's memory


def _autocorrelated(random: np.random.Generator, seconds: float) -> Memory:
    """Noise of deviation 1 whose correlation decays over so many seconds."""
    decay = np.exp(-0.5 / seconds)
    shocks = random.normal(0, np.sqrt(1 - decay**2), ROWS)
    values = np.empty(ROWS)
    value = random.normal()
    for row, shock in enumerate(shocks.tolist()):
        value = decay * value + shock
        values[row] = value
    return values


def _white_noise(random: np.random.Generator) -> Memory:
    """Activations that come and go within each step."""
    return 0.5 + random.uniform(0.005, 0.06) * random.normal(size=ROWS)


def _autocorrelated_noise(random: np.random.Generator) -> Memory:
    """Batches of varying length, by the hardness of what is read at the time."""
    deviation, seconds = random.uniform(0.005, 0.05), np.exp(random.uniform(np.log(2), np.log(300)))
    return 0.5 + deviation * _autocorrelated(random, seconds)


def _evaluations(random: np.random.Generator) -> Memory:
    """An evaluation every few minutes, with tensors of its own; the first one may come late."""
    every, lasts = 60 * random.uniform(2, 40), random.uniform(20, 170)
    evaluating = (SECONDS + random.uniform(0, every)) % every < min(lasts, every / 2)
    return 0.4 + random.uniform(0.06, 0.4) * evaluating + 0.01 * random.normal(size=ROWS)


def _warm_up(random: np.random.Generator) -> Memory:
    """The model is loaded, then the first steps compile and reserve; some spike before they settle."""
    ends = 60 * random.uniform(0.5, 8)
    stages = np.sort(random.uniform(0, ends, 4))
    filled = np.searchsorted(stages, SECONDS) / 4
    spike = random.uniform(0, 0.2) * ((ends - 30 < SECONDS) & (ends > SECONDS))
    return 0.6 * filled + spike + random.uniform(0.001, 0.01) * random.normal(size=ROWS)


def _plateaus(random: np.random.Generator) -> Memory:
    """A caching allocator keeps the most that any step needed, until an epoch ends and it gives all back.

    The records of a random sequence come ever more seldom: at times that are even in their logarithm.
    """
    epoch = 60 * random.uniform(3, 15)
    in_epoch = (SECONDS + random.uniform(0, epoch)) % epoch / epoch
    records = np.sort(np.exp(random.uniform(np.log(0.01), 0, random.integers(2, 8))))
    return 0.3 + random.uniform(0.1, 0.5) * np.searchsorted(records, in_epoch) / len(records)


KINDS: dict[str, Callable[[np.random.Generator], Memory]] = {
    "white noise": _white_noise,
    "autocorrelated noise": _autocorrelated_noise,
    "evaluations": _evaluations,
    "warm-up": _warm_up,
    "plateaus": _plateaus,
}


def stationary(seeds: Iterable[int]) -> np.ndarray:
    """Gives (ROWS, seeds) shares: the runs of these seeds, each of another kind than the one before."""
    kinds = list(KINDS.values())
    runs = [kinds[seed % len(kinds)](np.random.default_rng(seed)) for seed in seeds]
    shares: np.ndarray = np.clip(np.stack(runs, axis=1), 0, 1).astype(np.float32)
    return shares
