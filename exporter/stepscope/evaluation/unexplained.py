"""Finds the large parts of the account that could be avoided and that no rule has judged."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from statistics import fmean
from typing import NamedTuple

from stepscope.common.status import Status
from stepscope.common.words import duration, share
from stepscope.evaluation.account import BETWEEN, HOST, UNKNOWN, USEFUL, Account, Key, name_of
from stepscope.evaluation.analysis import Analysis, RuleResult
from stepscope.evaluation.places import Place
from stepscope.rules.parts.topics import About
from stepscope.runs.model import PHASES

ACCOUNT = "Account"  # instead of a rule's name
LARGE = 0.1  # of the run: a smaller part is no finding
LARGE_EVALUATION = 1 / 3  # of the run, for all steps of phases that it is not for
KNOWN = 0.05  # of the run: with more unknown, nobody knows whether it was healthy
BUSY_GPU = 70.0  # percent, on average: the host waits for it, whatever line it is in
REMEDIES = {
    HOST: "Make this code cheaper, or run it less often: vectorise it, do it every N steps, or move it out "
    "of the loop. Values that stay on the device need no `.item()`, `.cpu()` or `print` in every step.",
    "data_wait": "Make the next batch ready while the step computes: DataLoader workers, a cheaper "
    "transform, or data that is decoded once and cached.",
    "communication": "Let communication overlap with the backward pass, or send less: larger buckets, half "
    "precision, gradient accumulation.",
    "host_to_device": "Use pinned memory and copy with `non_blocking=True`, or keep the data on the device.",
    "checkpoint": "Save less often, or asynchronously: `torch.distributed.checkpoint.async_save`.",
    "compile": "Let shapes repeat: pad to a few sizes, or compile with `dynamic=True`. "
    "`TORCH_LOGS=recompiles` gives the reason of each compilation.",
    "gc": "Call `gc.freeze()` after the set-up, and collect garbage every N steps instead of inside them.",
    BETWEEN: "Look at what runs between steps: logging, saving, evaluation without steps of its own, or a "
    "loader that starts its workers again at each epoch.",
}
EVALUATE_LESS = "Evaluate less often or on fewer batches, without gradients and in larger batches."


class _Found(NamedTuple):
    key: Key
    share: float  # of the run
    remedy: str
    evidence: str
    places: Sequence[Place] = ()


def unexplained(analysis: Analysis) -> list[RuleResult]:
    """Returns a finding for each large part that no rule has judged, the largest first."""
    account, run_seconds = analysis.account, analysis.run_seconds
    if account is None or run_seconds is None:
        return []
    found = sorted((*_components(account, analysis), *_evaluation(account)), key=lambda one: -one.share)
    return [_finding(one, run_seconds) for one in found]


def is_accounted(account: Account | None) -> bool:
    """Returns whether it is known where the time of steps went."""
    return account is not None and bool(account.useful_share) and account.share(UNKNOWN) < KNOWN


def _components(account: Account, analysis: Analysis) -> Iterator[_Found]:
    judged = {each for rule in analysis.rules if rule.status.judged for each in rule.about.judges}
    if analysis.gpu_use and fmean(use.mean for use in analysis.gpu_use) >= BUSY_GPU:
        judged.add(HOST)
    main = account.main_phase
    of_main = sum(leaf.share for leaf in account.leaves if leaf.key.part == main)
    for leaf in account.leaves:
        part, component = leaf.key
        if component in USEFUL or leaf.share < LARGE or component in judged:
            continue
        if part == main and component in REMEDIES:
            evidence = f"{share(leaf.share, of_main)} of the time of steps"
            yield _Found(leaf.key, leaf.share, REMEDIES[component], evidence, leaf.places)
        elif part == BETWEEN:
            yield _Found(leaf.key, leaf.share, REMEDIES[BETWEEN], "No step was running")


def _evaluation(account: Account) -> Iterator[_Found]:
    for phase in PHASES:
        part = account.share(phase)
        if phase not in (account.main_phase, "global") and part >= LARGE_EVALUATION:
            training = account.share(account.main_phase)
            evidence = f"Steps of training took {share(training, 1.0)} of the run"
            yield _Found(Key(phase), part, EVALUATE_LESS, evidence)


def _finding(found: _Found, run_seconds: float) -> RuleResult:
    title, seconds = name_of(found.key), found.share * run_seconds
    shown = [place for place in found.places[:2] if place.share >= LARGE]
    places = " and ".join(f"{share(place.share, 1.0)} of it in {place.words}" for place in shown)
    return RuleResult(
        rule=ACCOUNT,
        question="Where did the time go?",
        description="A large part of the run's time that no rule explains.",
        recommendation=found.remedy,
        status=Status.FOUND,
        finding=f"{title}: {share(found.share, 1.0)} of the run, {duration(seconds)}. {found.evidence}"
        f"{f': {places}' if places else ''}.",
        triggered=1,
        violations=0,
        datapoints=0,
        parameters={},
        about=About(title, topic=f"account: {title}"),
        seconds_lost=seconds,
        details={"place": shown[0].words if shown else ""},
    )
