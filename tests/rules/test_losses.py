"""LossNotFinite and LossDiverged on losses whose course is known."""

from collections.abc import Callable

import numpy as np
import pytest
from numpy.typing import ArrayLike, NDArray
from stepscope.common.status import Status
from stepscope.evaluation.analysis import RuleResult
from stepscope.evaluation.engine import evaluate
from stepscope.runs.gauge_history import GaugeHistory

from tests.support.few_rules import only
from tests.support.source import START, MemorySource, rank_facts, run_facts

RULES = ("LossNotFinite", "LossDiverged")
Curve = NDArray[np.float64]


def published(name: str, values: ArrayLike, every: float = 1.0, rank: int = 0) -> GaugeHistory:
    known = np.asarray(values, np.float64)
    times: Curve = START + every * np.arange(1.0, len(known) + 1)
    return GaugeHistory("node-a", rank, 1000 + rank, START, name, times, known)


def judged(*histories: GaugeHistory, until: float | None = None, **settings: str) -> dict[str, RuleResult]:
    end = START + until if until is not None else max(each.times[-1] for each in histories)
    rank = rank_facts(first_step_start=START, last_step_end=end)
    facts = run_facts(ranks=[rank], gauges=histories)
    given = only(*RULES).parse([f"{name.replace('__', '.')}={value}" for name, value in settings.items()])
    found = {rule.rule: rule for rule in evaluate(MemorySource(facts=facts), given).rules}
    return {name: found[name] for name in RULES}


def states(found: dict[str, RuleResult]) -> tuple[Status, Status]:
    return found["LossNotFinite"].status, found["LossDiverged"].status


FOUND, HEALTHY, TOO_LITTLE = Status.FOUND, Status.HEALTHY, Status.NOT_ENOUGH_DATA


def falling(rows: int, first: float, last: float, noise: float, seed: int, halves: float = 8) -> Curve:
    """An exponential fall with log-normal noise; `halves`: how often the gap halves."""
    level = last + (first - last) * 0.5 ** (halves * np.arange(rows) / rows)
    return level * np.exp(noise * np.random.default_rng(seed).standard_normal(rows))


def test_a_run_without_a_loss_is_not_judged_and_no_list_names_the_rules() -> None:
    for histories in (
        (),
        (published("learning_rate", np.full(50, 0.1)),),
        (published("val_loss", np.ones(50)),),
    ):
        found = evaluate(MemorySource(facts=run_facts(gauges=histories)))
        of_loss = [rule for rule in found.rules if rule.rule in RULES]
        assert [(rule.status, rule.details) for rule in of_loss] == [(TOO_LITTLE, {})] * 2
        assert "No loss is published" in of_loss[0].finding


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_a_loss_that_stays_nan_or_infinite_is_found_with_its_last_value_before(bad: float) -> None:
    found = judged(published("train/loss", np.append(falling(60, 4.0, 0.5, 0.1, 1), bad)), until=100.0)
    rule = found["LossNotFinite"]
    assert rule.status is FOUND
    assert ("NaN" if np.isnan(bad) else "infinite") + " for 39.0 s" in rule.finding
    assert "since 08:01:01 UTC; the last finite value was 0." in rule.finding
    assert rule.seconds_lost == 0
    (band,) = rule.bands
    assert (band.subject, band.start, band.lasts) == ("rank 0", START + 61, True)


def test_one_bad_batch_is_no_finding_and_a_short_time_is_not_judged() -> None:
    values = falling(200, 4.0, 0.5, 0.1, 2)
    values[[20, 21, 150]] = np.nan
    assert judged(published("loss", values))["LossNotFinite"].status is HEALTHY
    just_now = judged(published("loss", np.append(values, np.nan)), until=208.0)["LossNotFinite"]
    assert just_now.status is TOO_LITTLE
    assert just_now.finding == "The loss has been NaN for 7.00 s: too short to know whether it stays so."


def test_a_loss_that_is_logged_rarely_must_be_bad_for_several_logs() -> None:
    """An average over ten minutes is NaN because of one batch in them."""
    values = np.append(falling(20, 4.0, 0.5, 0.1, 3), np.nan)
    rare = published("loss", values, every=600.0)
    assert judged(rare, until=21 * 600.0 + 1500)["LossNotFinite"].status is TOO_LITTLE
    assert judged(rare, until=21 * 600.0 + 1900)["LossNotFinite"].status is FOUND


def test_a_loss_that_was_never_finite_is_found_after_several_times_the_first_log() -> None:
    never = published("loss", np.array([np.nan]), every=20.0)
    assert judged(never, until=75.0)["LossNotFinite"].status is TOO_LITTLE
    found = judged(never, until=85.0)["LossNotFinite"]
    assert (found.status, "finite value" in found.finding) == (FOUND, False)


def test_only_the_newest_process_of_the_first_rank_counts() -> None:
    crashed = published("loss", np.array([1.0, np.nan]))
    later = GaugeHistory("node-a", 0, 2000, START + 50, "loss", START + np.arange(51.0, 90), np.ones(39))
    other = published("loss", np.array([np.nan]), rank=1)
    assert judged(crashed, other, until=100.0)["LossNotFinite"].status is FOUND
    assert judged(crashed, later, other, until=100.0)["LossNotFinite"].status is HEALTHY


def collapsed(rows: int = 600, at: int = 300, noise: float = 0.15, seed: int = 0) -> Curve:
    """It falls as usual, and then the model is as good as at its beginning."""
    values = falling(rows, 2.3, 0.4, noise, seed)
    values[at:] = 2.3 * np.exp(noise / 5 * np.random.default_rng(seed + 1).standard_normal(rows - at))
    return values


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize(("rows", "at", "every"), [(600, 300, 1.0), (4000, 2500, 20.0), (120, 60, 60.0)])
def test_a_loss_that_falls_and_goes_back_to_where_it_began_has_diverged(
    rows: int, at: int, every: float, seed: int
) -> None:
    found = judged(published("loss", collapsed(rows, at, seed=seed), every))["LossDiverged"]
    assert found.status is FOUND
    assert found.finding.startswith("The loss had fallen from ")
    (band,) = found.bands
    assert band.start == pytest.approx(START + every * at, abs=every * max(6, rows // 25))


def test_an_explosion_has_diverged_too() -> None:
    values = falling(600, 4.0, 0.5, 0.1, 4)
    values[400:] = np.geomspace(1.0, 1e8, 200)
    assert judged(published("loss", values))["LossDiverged"].status is FOUND


def warm_up(seed: int) -> Curve:
    return np.concatenate((falling(100, 7.0, 6.9, 0.01, seed), falling(900, 7.0, 2.0, 0.05, seed)))


def restarts(seed: int) -> Curve:
    """Three cycles of the learning rate: the loss jumps at each restart, and falls further."""
    starts, ends = (2.3, 1.2, 0.7), (0.5, 0.2, 0.1)
    return np.concatenate([falling(300, a, b, 0.2, seed) for a, b in zip(starts, ends, strict=True)])


def sawtooth(seed: int) -> Curve:
    """The running mean of each epoch, as Keras logs it."""
    epochs = [falling(100, 2.3 / (1 + epoch), 2.1 / (1 + epoch), 0.2, seed + epoch) for epoch in range(8)]
    return np.concatenate([np.cumsum(each) / np.arange(1, 101) for each in epochs])


def folds(seed: int) -> Curve:
    """Cross-validation: a new model begins in the same process, and has just begun."""
    return np.concatenate((falling(400, 2.3, 0.1, 0.2, seed), falling(60, 2.3, 1.5, 0.2, seed)))


HEALTHY_LOSSES: dict[str, Callable[[int], Curve]] = {
    "noisy": lambda seed: falling(1000, 2.5, 1.8, 0.5, seed),
    "very noisy, of single samples": lambda seed: falling(2000, 1.2, 1.0, 1.0, seed),
    "few values": lambda seed: falling(25, 2.5, 0.5, 0.3, seed),
    "warm-up": warm_up,
    "plateau at the end": lambda seed: falling(3000, 7.0, 3.0, 0.1, seed, halves=80),
    "flat from the start": lambda seed: falling(1000, 1.1, 1.1, 0.3, seed),
    "near 0": lambda seed: falling(1000, 1e-3, 1e-6, 1.5, seed),
    "fine-tuning that starts low": lambda seed: falling(300, 0.52, 0.48, 0.4, seed),
    "restarts of the learning rate": restarts,
    "running means of epochs": sawtooth,
    "a new model in the same process": folds,
    "spikes": lambda seed: falling(1000, 2.3, 0.4, 0.2, seed) * np.where(np.arange(1000) % 97 < 3, 30, 1),
}


@pytest.mark.parametrize("name", HEALTHY_LOSSES)
@pytest.mark.parametrize("every", [1.0, 90.0])
def test_healthy_training_is_never_accused(name: str, every: float) -> None:
    for seed in range(10):
        values = HEALTHY_LOSSES[name](seed)
        for rows in {len(values) // 4, len(values) // 2, len(values) - 40, len(values)}:
            if rows > 0:
                not_finite, diverged = states(judged(published("loss", values[:rows], every)))
                assert not_finite is HEALTHY
                assert diverged in (HEALTHY, TOO_LITTLE), (seed, rows)


@pytest.mark.parametrize(
    ("values", "others", "words"),
    [
        (collapsed(), ["rewards/mean"], "The loss of reinforcement or adversarial learning may rise."),
        (collapsed() - 1.5, [], "The loss is not above 0 all the time, so its fall has no scale."),
        (collapsed(20, 10), [], "Too few values of the loss: 20, and a decision needs more than 20."),
    ],
)
def test_a_loss_that_says_nothing_is_not_judged(values: Curve, others: list[str], words: str) -> None:
    found = judged(published("loss", values), *(published(name, values) for name in others))["LossDiverged"]
    assert (found.status, found.finding) == (TOO_LITTLE, words)


def test_parameters_decide() -> None:
    loss = published("loss", np.append(falling(60, 4.0, 0.5, 0.1, 1), np.nan))
    assert judged(loss, until=90.0)["LossNotFinite"].status is FOUND
    later = judged(loss, until=90.0, LossNotFinite__minimum="1")
    assert later["LossNotFinite"].status is TOO_LITTLE
    assert judged(published("loss", collapsed()), LossDiverged__fall="9")["LossDiverged"].status is HEALTHY
