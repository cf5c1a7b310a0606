"""GradientsExploding, GradientsVanishing and Overfitting on known courses of gauges, and on healthy twins."""

from collections.abc import Callable, Mapping

import numpy as np
import pytest
from numpy.typing import ArrayLike
from stepscope.common.status import Status
from stepscope.evaluation.analysis import RuleResult
from stepscope.evaluation.engine import evaluate
from stepscope.runs.gauge_history import GaugeHistory

from tests.rules.test_losses import Curve, collapsed, falling, published, restarts, warm_up
from tests.support.few_rules import only
from tests.support.source import START, MemorySource, rank_facts, run_facts

RULES = ("GradientsExploding", "GradientsVanishing", "Overfitting")
FOUND, HEALTHY, TOO_LITTLE = Status.FOUND, Status.HEALTHY, Status.NOT_ENOUGH_DATA

Named = Mapping[str, ArrayLike]


def judged(
    named: Named, every: float = 1.0, until: float | None = None, **settings: str
) -> dict[str, RuleResult]:
    """The gauges end together, so one of fewer values is published more rarely."""
    curves = {name: np.atleast_1d(np.asarray(values, np.float64)) for name, values in named.items()}
    most = max(map(len, curves.values()))
    histories = [published(name, values, every * most / len(values)) for name, values in curves.items()]
    return concluded(histories, START + (until if until is not None else every * most), **settings)


def concluded(histories: list[GaugeHistory], end: float, **settings: str) -> dict[str, RuleResult]:
    facts = run_facts(ranks=[rank_facts(first_step_start=START, last_step_end=end)], gauges=histories)
    given = only(*RULES).parse([f"{name.replace('__', '.')}={value}" for name, value in settings.items()])
    return {
        rule.rule: rule for rule in evaluate(MemorySource(facts=facts), given).rules if rule.rule in RULES
    }


def noisy(values: ArrayLike, noise: float, seed: int) -> Curve:
    known = np.asarray(values, np.float64)
    return known * np.exp(noise * np.random.default_rng(seed).standard_normal(known.shape))


# ------------------------------------------------------------------------- without gauges, and what is said


def test_runs_without_their_gauges_do_not_list_the_rules() -> None:
    found = judged({"loss": falling(100, 4.0, 0.5, 0.1, 1)})
    assert [(rule.status, rule.details) for rule in found.values()] == [(TOO_LITTLE, {})] * 3
    assert found["GradientsExploding"].finding == (
        'No gradient norm is published: stepscope.gauge("grad_norm", grad_norm) does, and hooks do if the '
        "framework logs it."
    )
    assert found["Overfitting"].finding.startswith("No validation loss is published: ")


def test_the_gauges_alone_judge_what_needs_no_loss() -> None:
    found = judged({"grad_norm": np.ones(50), "val_loss": np.ones(20)})
    assert [found[name].status for name in RULES] == [HEALTHY, HEALTHY, TOO_LITTLE]
    assert found["Overfitting"].finding == "No training loss is published: it is not known whether it falls."


# ------------------------------------------------------------------------- exploding


@pytest.mark.parametrize("bad", [np.nan, np.inf])
@pytest.mark.parametrize("name", ["grad_norm", "train/grad_norm", "grad_2.0_norm_total", "global_grad_norm"])
def test_a_norm_that_stays_not_finite_explodes_with_and_without_a_loss(name: str, bad: float) -> None:
    norms = np.append(noisy(np.full(60, 0.8), 0.3, 1), bad)
    assert judged({name: norms}, until=115.0)["GradientsExploding"].status is TOO_LITTLE
    rule = judged({name: norms}, until=130.0)["GradientsExploding"]
    assert rule.status is FOUND
    said = "NaN" if np.isnan(bad) else "infinite"
    assert f"{said} for 1 min 09 s, since 08:01:01 UTC; its median before was 0." in rule.finding
    assert (rule.bands[0].start, rule.seconds_lost) == (START + 61, 0)


def exploded(rows: int = 600, at: int = 400, times: float = 50, seed: int = 0) -> dict[str, Curve]:
    norms = noisy(np.where(np.arange(rows) < at, 0.8, 0.8 * times), 0.4, seed)
    return {"loss": collapsed(rows, at, seed=seed), "grad_norm": norms}


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize(("rows", "at", "every"), [(600, 400, 1.0), (3000, 800, 5.0), (120, 80, 60.0)])
def test_a_norm_far_above_its_usual_with_a_higher_loss_explodes(
    rows: int, at: int, every: float, seed: int
) -> None:
    """Also if it has lasted for most of the run."""
    rule = judged(exploded(rows, at, seed=seed), every)["GradientsExploding"]
    assert rule.status is FOUND
    assert "above 10 times its usual" in rule.finding
    assert rule.bands[0].start == pytest.approx(START + every * (at + 1), abs=2 * every)


def skipped_at_first(seed: int) -> dict[str, Curve]:
    """Loss scaling begins with a scale that is too large, and later tries a larger one now and then."""
    norms = noisy(np.full(400, 0.8), 0.3, seed)
    norms[:16] = np.inf
    norms[100::97] = np.inf
    return {"loss": falling(400, 4.0, 1.0, 0.1, seed), "grad_norm": norms}


def after_plateau(seed: int) -> dict[str, Curve]:
    norms = np.concatenate((np.full(200, 1e-3), np.full(200, 2.0)))
    loss = np.concatenate((falling(200, 2.3, 2.3, 0.05, seed), falling(200, 2.3, 0.5, 0.1, seed)))
    return {"loss": loss, "grad_norm": noisy(norms, 0.4, seed)}


def new_model(seed: int) -> dict[str, Curve]:
    norms = np.concatenate((np.geomspace(2, 0.01, 300), np.geomspace(2, 0.3, 100)))
    loss = np.concatenate((falling(300, 2.3, 0.05, 0.1, seed), falling(100, 2.3, 0.5, 0.1, seed)))
    return {"loss": loss, "grad_norm": noisy(norms, 0.4, seed)}


HEALTHY_NORMS: dict[str, Callable[[int], dict[str, Curve]]] = {
    "heavy tails": lambda seed: {
        "loss": falling(500, 4, 1, 0.1, seed),
        "grad_norm": noisy(np.ones(500), 1.5, seed),
    },
    "skipped steps of loss scaling": skipped_at_first,
    "clipped before logging": lambda seed: {"loss": falling(500, 4, 1, 0.1, seed), "grad_norm": np.ones(500)},
    "warm-up": lambda seed: {
        "loss": warm_up(seed),
        "grad_norm": noisy(np.geomspace(0.01, 5, 1000), 0.3, seed),
    },
    "the end of a plateau": after_plateau,
    "a new model in the same process": new_model,
    "restarts of the learning rate": lambda seed: {
        "loss": restarts(seed),
        "grad_norm": noisy(np.tile(np.geomspace(8, 0.3, 300), 3), 0.3, seed),
    },
    "norms that grow while the loss falls": lambda seed: {
        "loss": falling(800, 4, 1, 0.1, seed),
        "grad_norm": noisy(np.geomspace(0.1, 50, 800), 0.3, seed),
    },
    "few": lambda seed: {"loss": falling(15, 4, 1, 0.1, seed), "grad_norm": noisy(np.ones(15), 0.3, seed)},
    "converged": lambda seed: {
        "loss": falling(400, 4, 1e-6, 0.1, seed, 30),
        "grad_norm": np.geomspace(5, 1e-12, 400),
    },
    "converged to a loss that stays": lambda seed: {
        "loss": falling(400, 4.0, 3.5, 0.01, seed),
        "grad_norm": np.geomspace(5, 1e-12, 400),
    },
    "one spike of loss and norm": lambda seed: {
        "loss": falling(500, 4, 1, 0.1, seed) * np.where(abs(np.arange(500) - 300) < 8, 5, 1),
        "grad_norm": noisy(np.where(abs(np.arange(500) - 300) < 8, 80.0, 1.0), 0.3, seed),
    },
}


@pytest.mark.parametrize("name", HEALTHY_NORMS)
@pytest.mark.parametrize("every", [1.0, 90.0])
def test_healthy_gradients_are_never_accused(name: str, every: float) -> None:
    for seed in range(10):
        curves = HEALTHY_NORMS[name](seed)
        rows = len(curves["loss"])
        for until in {rows // 4, rows // 2, rows // 2 + 25, rows - 40, rows}:
            if until > 0:
                found = judged({each: values[:until] for each, values in curves.items()}, every)
                assert found["GradientsExploding"].status in (HEALTHY, TOO_LITTLE), (seed, until)
                assert found["GradientsVanishing"].status is HEALTHY, (seed, until)


def test_norms_of_adversarial_losses_explode_only_if_they_are_not_finite() -> None:
    others = {"d_loss": np.ones(600)}
    assert judged(exploded())["GradientsExploding"].status is FOUND
    assert judged(exploded() | others)["GradientsExploding"].status is HEALTHY
    infinite = np.append(np.ones(599), np.nan)
    assert judged({"grad_norm": infinite} | others, until=700.0)["GradientsExploding"].status is FOUND


def test_one_process_after_another_is_judged_by_itself() -> None:
    """A run that was restarted after an explosion begins with large norms, and a loss that is high."""
    crashed = [published(name, values) for name, values in exploded().items()]
    again = [
        GaugeHistory("node-a", 0, 2000, START + 700, name, START + 700 + np.arange(1.0, 101), values)
        for name, values in {
            "loss": falling(100, 2.3, 1, 0.1, 1),
            "grad_norm": np.geomspace(40, 1, 100),
        }.items()
    ]
    assert concluded(crashed, START + 600)["GradientsExploding"].status is FOUND
    assert concluded([*crashed, *again], START + 800)["GradientsExploding"].status is HEALTHY


# ------------------------------------------------------------------------- vanishing


def vanished(seed: int = 0) -> dict[str, Curve]:
    norms = np.concatenate((np.geomspace(1e-2, 1e-9, 100), np.full(200, 1e-9)))
    return {"loss": falling(300, 2.3, 2.3, 0.05, seed), "grad_norm": noisy(norms, 0.3, seed)}


@pytest.mark.parametrize("seed", range(5))
def test_norms_near_0_vanish_if_the_loss_never_fell(seed: int) -> None:
    rule = judged(vanished(seed))["GradientsVanishing"]
    assert rule.status is FOUND
    assert rule.finding.startswith("The gradient norm has been at or below 1e-07 for 3 min ")
    assert rule.finding.endswith(" UTC, and the loss is not below its first level.")


def test_gradients_of_exactly_0_from_the_beginning_vanish() -> None:
    """A value that is published again is not repeated."""
    zero = [published("loss", falling(300, 2.3, 2.3, 0.05, 1)), published("grad_norm", [0.0])]
    assert concluded(zero, START + 300)["GradientsVanishing"].status is FOUND


def test_it_is_not_known_whether_a_run_without_a_loss_has_converged() -> None:
    norms = vanished()["grad_norm"]
    alone = judged({"grad_norm": norms})["GradientsVanishing"]
    assert (alone.status, alone.finding) == (
        TOO_LITTLE,
        "The gradient norm is near 0, and no loss is published: the run may have converged.",
    )
    critic = judged(vanished() | {"critic_loss": np.ones(300)})["GradientsVanishing"]
    assert critic.status is TOO_LITTLE


# ------------------------------------------------------------------------- overfitting


def overfitted(
    evaluations: int = 30, noise: float = 0.01, seed: int = 0, name: str = "val_loss"
) -> dict[str, Curve]:
    """The validation loss falls for a third of the evaluations, then rises to 1.5 times its lowest level."""
    third = evaluations // 3
    curve = np.concatenate((np.geomspace(2.3, 0.8, third), np.linspace(0.8, 1.2, evaluations - third)))
    return {"loss": falling(20 * evaluations, 2.3, 0.05, 0.2, seed), name: noisy(curve, noise, seed)}


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("name", ["val_loss", "eval_loss", "eval/loss", "Validation Loss"])
def test_a_validation_loss_that_rises_while_the_training_loss_falls_is_overfitting(
    name: str, seed: int
) -> None:
    rule = judged(overfitted(seed=seed, name=name), 30.0)["Overfitting"]
    assert rule.status is FOUND
    assert "above its lowest level, 0.8" in rule.finding or "above its lowest level, 0.7" in rule.finding
    assert "while the training loss has fallen since " in rule.finding


def test_one_loss_per_epoch_is_enough() -> None:
    curves = overfitted(noise=0.0)
    epochs = {"loss": np.geomspace(2.3, 0.1, 30), "val_loss": curves["val_loss"]}
    assert judged(epochs, 60.0)["Overfitting"].status is FOUND
    assert judged({name: values[:10] for name, values in epochs.items()})["Overfitting"].status is TOO_LITTLE
    lenient = judged(epochs, 60.0, Overfitting__threshold="60")
    assert lenient["Overfitting"].status is HEALTHY
    patient = judged(epochs, 60.0, Overfitting__patience="14")
    assert patient["Overfitting"].status is HEALTHY


def gap(seed: int) -> dict[str, Curve]:
    """The training loss is far lower than that of validation, which stays: a plateau is no rise."""
    return {"loss": falling(800, 2.3, 0.01, 0.2, seed), "val_loss": falling(40, 2.3, 0.9, 0.02, seed)}


HEALTHY_EVALUATIONS: dict[str, Callable[[int], dict[str, Curve]]] = {
    "a gap that stays": gap,
    "small validation sets": lambda seed: gap(seed) | {"val_loss": falling(60, 2.3, 0.9, 0.25, seed)},
    "tiny validation sets": lambda seed: gap(seed) | {"val_loss": falling(200, 1.2, 0.9, 0.7, seed)},
    "a rise below the threshold": lambda seed: (
        gap(seed) | {"val_loss": np.append(np.geomspace(2, 0.8, 20), np.linspace(0.8, 0.86, 20))}
    ),
    "one bad evaluation": lambda seed: (
        gap(seed) | {"val_loss": np.append(falling(40, 2.3, 0.9, 0.02, seed), 3.0)}
    ),
    "a run that diverges, and learns nothing by heart": lambda seed: {
        "loss": collapsed(800, 400, seed=seed),
        "val_loss": collapsed(40, 20, 0.02, seed),
    },
    "restarts of the learning rate": lambda seed: {
        "loss": restarts(seed),
        "val_loss": restarts(seed)[::20] + 0.3,
    },
    "a training loss that stays": lambda seed: {
        "loss": falling(800, 2.3, 0.5, 0.2, seed, halves=80),
        "val_loss": np.append(np.geomspace(2, 0.8, 20), np.linspace(0.8, 1.2, 20)),
    },
    "a new model in the same process": lambda seed: {
        "loss": np.concatenate((falling(400, 2.3, 0.1, 0.1, seed), falling(400, 2.3, 0.1, 0.1, seed + 1))),
        "val_loss": np.concatenate(
            (falling(20, 2.3, 0.8, 0.02, seed), falling(20, 2.3, 0.82, 0.02, seed + 1))
        ),
    },
}


@pytest.mark.parametrize("name", HEALTHY_EVALUATIONS)
def test_healthy_evaluations_are_never_accused(name: str) -> None:
    for seed in range(20):
        curves = HEALTHY_EVALUATIONS[name](seed)
        for part in (0.3, 0.5, 0.6, 0.8, 1.0):
            cut = {each: values[: max(1, round(part * len(values)))] for each, values in curves.items()}
            assert judged(cut, 30.0)["Overfitting"].status in (HEALTHY, TOO_LITTLE), (seed, part)


@pytest.mark.parametrize(
    ("others", "words"),
    [
        ({"rewards/mean": np.ones(600)}, "The loss of reinforcement or adversarial learning may rise."),
        (
            {"val_loss": np.linspace(-1, 1, 30)},
            "The validation loss is not above 0 all the time, so its rise has no scale.",
        ),
        (
            {"val_loss": np.ones(10)},
            "Too few values of the validation loss: 10, and a decision needs more than 10.",
        ),
    ],
)
def test_evaluations_that_say_nothing_are_not_judged(others: Named, words: str) -> None:
    rule = judged({**overfitted(), **others})["Overfitting"]
    assert (rule.status, rule.finding) == (TOO_LITTLE, words)
