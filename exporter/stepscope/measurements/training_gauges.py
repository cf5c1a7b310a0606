"""Finds what the gauges of a training mean by their usual names, and follows its loss."""

import re
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from stepscope.runs.gauge_history import GaugeHistory
from stepscope.runs.model import RankFacts, RunFacts, Times

# In the order of preference; Hugging Face's train_loss is the mean of a whole training.
LOSSES = ("loss", "train_loss", "training_loss", "loss_train", "train_loss_step", "loss_step")
RATES = ("learning_rate", "lr", "train_lr", "lr_adam", "lr_adamw", "lr_sgd")
PACES = (
    *("tokens_per_second", "samples_per_second", "train_tokens_per_second", "train_samples_per_second"),
    *("steps_per_second", "train_steps_per_second"),
)
# Losses of reinforcement and adversarial learning rise in healthy training.
NOT_MINIMISED = re.compile(
    "reward|advantage|policy|actor|critic|entropy|(^|_)kl($|_)|discriminator|generator"
)
SMOOTHED = 5, 50  # values in a running median: this minimum, and this part of all values


class Gauges(NamedTuple):
    """The gauges of the newest process of the lowest rank that publishes some."""

    histories: Sequence[GaugeHistory]
    process: RankFacts | None  # None: its totals are missing
    until: float  # when they were current last, since the epoch: at the end of its last step

    @property
    def is_minimised(self) -> bool:
        """Returns whether nothing says that the loss is one that may rise."""
        return not any(NOT_MINIMISED.search(plain_name(each.name)) for each in self.histories)


def newest_gauges(facts: RunFacts) -> Gauges | None:
    """Returns the gauges that tell how training goes; None if nothing publishes some."""
    known = histories_of_first_rank(facts)
    if not known:
        return None
    key = _process(known[-1])
    process = next((rank for rank in facts.ranks if _process(rank) == key), None)
    found = [each for each in known if _process(each) == key]
    until = [float(each.times[-1]) for each in found]
    if process is not None:
        until.append(process.last_step_end or process.end or process.last_alive or 0.0)
    return Gauges(found, process, max(until))


def histories_of_first_rank(facts: RunFacts) -> list[GaugeHistory]:
    """Returns the gauges of the lowest rank that publishes some, the oldest process first."""
    first = min((each.rank for each in facts.gauges), default=None)
    return sorted((each for each in facts.gauges if each.rank == first), key=lambda each: each.start)


def _process(of: GaugeHistory | RankFacts) -> tuple[str, int, int, float]:
    return of.node, of.rank, of.pid, of.start


def plain_name(name: str) -> str:
    """Returns a gauge's name in lower case, with `_` for what is neither a letter nor a digit."""
    return re.sub(r"[^a-z0-9]+", "_", name.lower()).strip("_")


def named_first(histories: Sequence[GaugeHistory], names: Sequence[str]) -> list[GaugeHistory]:
    """Returns the histories of the first of these names that there is, process by process."""
    found = ([each for each in histories if plain_name(each.name) == name] for name in names)
    return next((each for each in found if each), [])


def over_time(histories: Sequence[GaugeHistory], edges: Times) -> Times:
    """Returns (len(edges) - 1,) the mean of the values in each span, or the value that still holds.

    NaN before the first value, and where the values are not finite.
    """
    if not histories:
        return np.full(len(edges) - 1, np.nan)
    times, values = (np.concatenate([getattr(each, of) for each in histories]) for of in ("times", "values"))
    first = np.searchsorted(times, edges, side="right")
    sums = np.concatenate(([0.0], np.cumsum(np.where(np.isfinite(values), values, 0.0))))
    finite = np.concatenate(([0], np.cumsum(np.isfinite(values))))
    held = np.append(np.nan, np.where(np.isfinite(values), values, np.nan))[first[1:]]
    with np.errstate(invalid="ignore", divide="ignore"):
        mean = (sums[first[1:]] - sums[first[:-1]]) / (finite[first[1:]] - finite[first[:-1]])
    return np.where(np.isfinite(mean) & np.isfinite(held), mean, held)


class Level(NamedTuple):
    """The median of the last values of a loss; its error is half of a 95 % confidence interval."""

    level: float
    error: float  # NaN: of too few values


def last_level(histories: Sequence[GaugeHistory]) -> Level | None:
    """Returns the level of the last tenth of the training loss; None without one that is finite.

    The error is that of the notches of box plots (McGill, Tukey and Larsen, 1978).
    """
    losses = named_first(histories, LOSSES)
    if not losses or not np.isfinite(losses[-1].values[-1]):
        return None
    values = losses[-1].values
    last = values[-max(1, len(values) // 10) :]
    low, level, high = np.percentile(last[np.isfinite(last)], (25, 50, 75))
    error = 1.57 * (high - low) / np.sqrt(len(last)) if len(last) >= SMOOTHED[0] else np.nan
    return Level(float(level), float(error))


class NotFinite(NamedTuple):
    """How long losses have not been finite until now. (n,) each."""

    finite: NDArray[np.bool_]  # whether the last value is
    seconds: Times  # since the last finite value
    usual: Times  # seconds between two values before


def not_finite(loss: GaugeHistory, gauges: Gauges) -> NotFinite:
    """Returns the time since the last finite value, and the usual time between two values before (1,)."""
    finite = np.flatnonzero(np.isfinite(loss.values))
    row = int(finite[-1]) + 1 if len(finite) else 0
    if row == len(loss.values):
        return NotFinite(np.ones(1, bool), np.zeros(1), np.zeros(1))
    begin = gauges.process.first_step_start or gauges.process.start if gauges.process else loss.start
    between = np.diff(np.append(begin, loss.times[: row + 1]))
    usual = np.percentile(between[1:] if row else between, 90)
    return NotFinite(np.zeros(1, bool), np.array([gauges.until - loss.times[row]]), np.array([usual]))


class Course(NamedTuple):
    """The course of losses that are minimised, by their running medians. (n,) each; NaN: not known."""

    first: Times
    best: Times
    fall_seconds: Times  # until half of the way from the first to the best was done
    back_seconds: Times  # for which it has been back on its way to the first level
    back_values: Times  # in that time
    apart: Times  # the lower quartile of these, minus the upper one of those before

    @classmethod
    def unknown(cls) -> "Course":
        return cls(*np.full((len(cls._fields), 1), np.nan))


def course(loss: GaugeHistory, back: float, until: float) -> Course:
    """Returns the course; `back`, 0..1, is the part of its fall that is undone if the loss is back.

    One with values that are not above 0 has none: there is no scale to compare them on.
    """
    known = np.isfinite(loss.values)
    times, values = loss.times[known], loss.values[known]
    width = max(SMOOTHED[0], len(values) // SMOOTHED[1])
    if len(values) < 2 * width or values.min() <= 0:
        return Course.unknown()
    medians = np.median(np.lib.stride_tricks.sliding_window_view(values, width), axis=1)
    first, best = float(medians[0]), float(medians.min())
    below = np.flatnonzero(medians < (first + best) / 2)
    low = np.flatnonzero(medians < best + back * (first - best))
    if not len(below) or not len(low):  # it never fell
        return Course(*np.array([[first], [best], [0.0], [0.0], [0.0], [0.0]]))
    fell, since = int(below[0]) + width - 1, int(low[-1]) + width
    high, before = values[since:], values[fell:since]
    apart = np.percentile(high, 25) - np.percentile(before, 75) if len(high) else 0.0
    lasted = until - times[since] if len(high) else 0.0
    row = (first, best, times[fell] - times[0], lasted, len(high), apart)
    return Course(*np.array(row, np.float64)[:, None])
