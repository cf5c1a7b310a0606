"""Finds the large parts of the account that could be avoided and that no rule has judged."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from statistics import fmean
from typing import NamedTuple

from stepscope.common.status import Status
from stepscope.common.words import duration, share
from stepscope.evaluation.account import BEFORE, BETWEEN, HOST, UNKNOWN, USEFUL, Account, Key, name_of
from stepscope.evaluation.analysis import Analysis, RuleResult
from stepscope.rules.max_initialization_time import MaxInitializationTime
from stepscope.rules.parts.topics import About
from stepscope.runs.model import PHASES
from stepscope.training.layout import ANOMALY_DETECTION

ACCOUNT = "Account"  # instead of a rule's name
LARGE = 0.1  # of the run: a smaller part is no finding
LARGE_OUTSIDE = 1 / 3  # of the run, for the steps of phases that it is not for, and before the first step
MOST = 0.5  # of the time before the first step, in one line
IMPORT = "import"  # the library function of lines that import, as in training/line_names.py
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
SET_UP_LESS = "Cache what this line computes, or load only what the first steps need."
SWITCH_OFF = "Switch it off once the error is found: it keeps a stack trace of every operation."
EVALUATE_LESS = "Evaluate less often or on fewer batches, without gradients and in larger batches."


class _Found(NamedTuple):
    key: Key
    share: float  # of the run
    remedy: str
    evidence: str


def unexplained(analysis: Analysis) -> list[RuleResult]:
    """Returns a finding for each large part that no rule has judged, the largest first."""
    account, run_seconds = analysis.account, analysis.run_seconds
    if account is None or run_seconds is None:
        return []
    large = (*_before(account, analysis), *_components(account, analysis), *_evaluation(account))
    found = [_large(one, run_seconds) for one in sorted(large, key=lambda one: -one.share)]
    return [*found, *_anomaly_detection(account, analysis)]


def is_accounted(account: Account | None) -> bool:
    """Returns whether it is known where the time of steps went."""
    return account is not None and bool(account.useful_share) and account.share(UNKNOWN) < KNOWN


def _before(account: Account, analysis: Analysis) -> Iterator[_Found]:
    """Yields the time before the first step, if most of it is one line of the script: imports are usual."""
    leaf = next((leaf for leaf in account.leaves if leaf.key.part == BEFORE), None)
    if leaf is None or leaf.share < LARGE_OUTSIDE or analysis.found(MaxInitializationTime):
        return
    most = next(iter(leaf.places), None)
    if most is not None and most.line.place and most.line.library != IMPORT and most.share > MOST:
        yield _Found(leaf.key, leaf.share, SET_UP_LESS, f"{share(most.share, 1.0)} of it is one line")


def _anomaly_detection(account: Account, analysis: Analysis) -> Iterator[RuleResult]:
    if analysis.gauges.get(ANOMALY_DETECTION):
        passes = share(account.share("train", "forward") + account.share("train", "backward"), 1.0)
        said = (
            f"`torch.autograd.set_detect_anomaly` is on. Forward and backward pass took {passes} of the run"
        )
        yield _finding("Anomaly detection", f"{said}; how much of that it costs is not known.", SWITCH_OFF)


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
            yield _Found(leaf.key, leaf.share, REMEDIES[component], evidence)
        elif part == BETWEEN:
            yield _Found(leaf.key, leaf.share, REMEDIES[BETWEEN], "No step was running")


def _evaluation(account: Account) -> Iterator[_Found]:
    for phase in PHASES:
        part = account.share(phase)
        if phase not in (account.main_phase, "global") and part >= LARGE_OUTSIDE:
            training = account.share(account.main_phase)
            evidence = f"Steps of training took {share(training, 1.0)} of the run"
            yield _Found(Key(phase), part, EVALUATE_LESS, evidence)


def _large(found: _Found, run_seconds: float) -> RuleResult:
    title, seconds = name_of(found.key), found.share * run_seconds
    said = f"{title}: {share(found.share, 1.0)} of the run, {duration(seconds)}. {found.evidence}."
    details = {"part": found.key.part, "component": found.key.component}
    return replace(_finding(title, said, found.remedy), seconds_lost=seconds, details=details)


def _finding(title: str, finding: str, remedy: str) -> RuleResult:
    return RuleResult(
        rule=ACCOUNT,
        question="Where did the time go?",
        description="A large part of the run's time that no rule explains.",
        recommendation=remedy,
        status=Status.FOUND,
        finding=finding,
        triggered=1,
        violations=0,
        datapoints=0,
        parameters={},
        about=About(title, topic=f"account: {title}"),
    )
