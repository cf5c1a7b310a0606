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
VALIDATION_LOSSES = ("val_loss", "eval_loss", "validation_loss", "valid_loss", "val_loss_epoch", "loss_val")
# Hugging Face, DeepSpeed, Megatron and Lightning's `grad_norm(module, norm_type=2)`
GRADIENT_NORMS = (
    *("grad_norm", "train_grad_norm", "gradient_norm", "train_gradient_norm", "global_grad_norm"),
    *("train_global_grad_norm", "grad_2_0_norm_total"),
)
RATES = ("learning_rate", "lr", "train_lr", "lr_adam", "lr_adamw", "lr_sgd")
PACES = (
    *("tokens_per_second", "samples_per_second", "train_tokens_per_second", "train_samples_per_second"),
    *("steps_per_second", "train_steps_per_second"),
)
# Losses of reinforcement and adversarial learning rise in healthy training.
NOT_MINIMISED = re.compile(
    "reward|advantage|policy|actor|critic|entropy|(^|_)kl($|_)|discriminator|generator|adversarial"
    "|(^|_)(gan|[dg]_loss|loss_[dg])($|_)"
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
    level, error = _level(last[np.isfinite(last)])
    return Level(level, error if len(last) >= SMOOTHED[0] else np.nan)


def _level(values: Times) -> Level:
    low, level, high = np.percentile(values, (25, 50, 75))
    return Level(float(level), float(1.57 * (high - low) / np.sqrt(len(values))))


class Lasting(NamedTuple):
    """How long gauges have not been fine until now. (n,) each."""

    fine: NDArray[np.bool_]  # whether the last value is
    seconds: Times  # since the last fine value; NaN: not known
    usual: Times  # seconds between two values before

    @classmethod
    def unknown(cls) -> "Lasting":
        return cls(np.zeros(1, bool), *np.full((2, 1), np.nan))


def lasting(history: GaugeHistory, gauges: Gauges, fine: NDArray[np.bool_]) -> Lasting:
    """Returns the time since the last fine value, and the usual time between two values before (1,)."""
    known = np.flatnonzero(fine)
    row = int(known[-1]) + 1 if len(known) else 0
    if row == len(fine):
        return Lasting(np.ones(1, bool), np.zeros(1), np.zeros(1))
    begin = gauges.process.first_step_start or gauges.process.start if gauges.process else history.start
    between = np.diff(np.append(begin, history.times[: row + 1]))
    usual = np.percentile(between[1:] if row else between, 90)
    return Lasting(np.zeros(1, bool), np.array([gauges.until - history.times[row]]), np.array([usual]))


def first_above(values: Times, factor: float, patience: int) -> int:
    """Returns the row since which every level is above `factor` times the median of those before.

    A level is a median of consecutive values. Returns the number of values if there is none. At least
    `patience` levels are above, and as many before.
    """
    width = SMOOTHED[0]
    if len(values) < width + 2 * patience:
        return len(values)
    levels = np.median(np.lib.stride_tricks.sliding_window_view(values, width), axis=1)
    above = patience
    while len(levels) - above >= patience:
        limit = factor * np.median(levels[:-above])
        since = int(np.append(-1, np.flatnonzero(levels <= limit))[-1]) + 1
        if limit > 0 and patience <= since <= len(levels) - patience:
            return since + width // 2
        above *= 2  # what is above may be most of the run by now
    return len(values)


def has_risen(loss: GaugeHistory, since: float) -> bool:
    """Returns whether a loss has been higher since a time than just before, and does not fall again."""
    known = np.isfinite(loss.values)
    times, values = loss.times[known], loss.values[known]
    after = values[times >= since]
    before = values[times < since][-len(after) :]
    if min(len(after), len(before)) < SMOOTHED[0]:
        return False
    half = len(after) // 2
    falls = np.median(after[half:]) < np.percentile(after[:half], 25)
    return bool(np.median(after) > np.percentile(before, 75) and not falls)


def has_fallen(loss: GaugeHistory) -> bool:
    """Returns whether the last level of a loss is below its first one by more than noise, or may be."""
    values = loss.values[np.isfinite(loss.values)]
    width = max(SMOOTHED[0], len(values) // SMOOTHED[1])
    return len(values) < 2 * width or _is_below(values[-width:], values[:width], 1)


def _is_below(values: Times, others: Times, errors: float) -> bool:
    one, other = _level(values), _level(others)
    return one.level + errors * one.error < other.level - errors * other.error


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


class Overfit(NamedTuple):
    """How losses of evaluations have risen from their best levels. (n,) each; NaN: not known."""

    best: Times
    rise: Times  # of the lowest of the last ones, from the best: 0.1 is 10 % above
    clear: Times  # the rise of their level in standard errors
    falls: NDArray[np.bool_]  # whether the training loss is below its level at the best
    since: Times  # the end of the best evaluations, in epoch seconds

    @classmethod
    def unknown(cls) -> "Overfit":
        nothing = np.full((5, 1), np.nan)
        return cls(nothing[0], nothing[1], nothing[2], np.zeros(1, bool), nothing[4])


def overfit(validation: GaugeHistory, training: GaugeHistory, width: int) -> Overfit:
    """Returns the rise of the last `width` evaluations from the `width` best ones in a row.

    The standard error is that of two medians of normal noise. The median difference of two evaluations in a
    row estimates the size of the noise. Values that are not above 0 have no scale.
    """
    known = np.isfinite(validation.values)
    times, values = validation.times[known], validation.values[known]
    if len(values) < 2 * width + 1 or values.min() <= 0:
        return Overfit.unknown()
    medians = np.median(np.lib.stride_tricks.sliding_window_view(values, width), axis=1)
    row = int(np.argmin(medians[:-width]))
    best, last = float(medians[row]), values[-width:]
    noise = 1.4826 * float(np.median(np.abs(np.diff(np.log(values))))) / np.sqrt(2)
    error = 1.2533 * noise * np.sqrt(2 / width)
    rise = float(np.log(np.median(last) / best))
    begin = times[row - 1] if row else -np.inf
    of = training.times, training.values
    then = _between(*of, begin, times[row + width - 1])
    now = _between(*of, times[-width - 1], np.inf)
    falls = bool(len(then) and len(now) and _is_below(now, then, 2))
    clear = rise / error if error else np.inf * np.sign(rise)
    row_of = (best, float(last.min()) / best - 1, clear, falls, times[row + width - 1])
    one, two, three, four, five = (np.array([each]) for each in row_of)
    return Overfit(one, two, three, four.astype(bool), five)


def _between(times: Times, values: Times, after: float, until: float) -> Times:
    return values[(times > after) & (times <= until) & np.isfinite(values)]
