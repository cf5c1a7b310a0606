"""When a rule held: windows are judged as if nothing else had been read, and bands say from when to when."""

from itertools import pairwise
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from stepscope.common.status import Status
from stepscope.evaluation import blocks
from stepscope.evaluation.analysis import Band, RuleResult
from stepscope.evaluation.blocks import Blocks
from stepscope.evaluation.engine import Evaluator, evaluate
from stepscope.measurements.load import LOAD
from stepscope.measurements.measure import Measure
from stepscope.measurements.starved import StarvedSamples
from stepscope.measurements.steps import STEP_DURATIONS, RankComponents
from stepscope.measurements.window import LiveWindow
from stepscope.rules import all_rules
from stepscope.rules.cpu_bottleneck import CPUBottleneck, CPUBottleneckParameters
from stepscope.rules.data_starved import DataStarved
from stepscope.rules.load_balancing import LoadBalancing, LoadBalancingParameters
from stepscope.rules.step_outlier import StepOutlier

from tests.support.few_rules import of_rule, only
from tests.support.source import INTERVAL, START, MemorySource, node_samples, node_steps, piece, run_facts

MINUTE = 60.0
PER_MINUTE = int(MINUTE / INTERVAL)
seeds = st.integers(0, 2**32 - 1)


def result(source: MemorySource, rule: str = "CPUBottleneck", *words: str) -> RuleResult:
    return of_rule(rule, evaluate(source, only(rule).parse(words)))


def faulty(minutes: float, *faults: tuple[float, float]) -> MemorySource:
    """A run whose cores are pinned, with idle GPUs, from one minute to another; healthy otherwise."""
    rows = int(minutes * PER_MINUTE)
    busy, gpu = np.full((rows, 2), 0.3), np.full((rows, 1), 0.95)
    for begin, end in faults:
        fault = slice(int(begin * PER_MINUTE), int(end * PER_MINUTE))
        busy[fault, 0], gpu[fault] = 1.0, 0.0
    return MemorySource(node_samples(busy, gpu))


def in_minutes(bands: list[Band]) -> list[tuple[float, float]]:
    return [((band.start - START) / MINUTE, (band.end - START) / MINUTE) for band in bands]


# ------------------------------------------------------------------------ windows, from scratch


def made_up(seed: int, rows: int) -> tuple[Any, Any]:
    random = np.random.default_rng(seed)
    samples = node_samples(random.random((rows, 2)), random.random((rows, 2)), interval=20.0)
    samples.times[:] += np.cumsum(random.choice([0, 0, 0, 300], rows))  # some gaps
    durations = random.random(rows) * 30 + 0.01
    return samples, node_steps(durations, data_wait=durations * random.random(rows))


CASES: dict[str, tuple[Any, Any, bool]] = {  # the rule, the measure, whether it reads steps
    "starved": (CPUBottleneck(), Measure(StarvedSamples, "cpu", 0.5, 0.5), False),
    "load": (LoadBalancing(LoadBalancingParameters(patience=3)), LOAD, False),
    "data wait": (DataStarved(), Measure(RankComponents, "data_wait"), True),
    "outliers": (StepOutlier(), STEP_DURATIONS, True),
}


@pytest.mark.parametrize("case", CASES)
@given(seeds, st.integers(1, 300), st.integers(1, 80), st.sampled_from([60.0, 180.0, 900.0]))
def test_a_window_is_judged_as_if_nothing_else_had_been_read(
    case: str, seed: int, rows: int, block_rows: int, seconds: float
) -> None:
    rule, measure, reads_steps = CASES[case]
    chunk = made_up(seed, rows)[reads_steps]
    stream: Blocks[Any] = Blocks(MINUTE)
    whole, window, ends, seen = measure.new(), LiveWindow[Any](seconds), [], []
    with patch.object(blocks, "BLOCK_ROWS", block_rows):
        found = [*stream.add(chunk), *stream.rest()]
    rows_before = 0
    moments = chunk.ends if reads_steps else chunk.times
    for block in found:
        observe = whole.observe_steps if reads_steps else whole.observe
        for _, view in observe(block.rows, block.scans):
            judged = rule.judge_live(window.views(view, block.times), INTERVAL)
        ends += [(rows_before + int(end), time) for end, time in zip(block.scans, block.times, strict=True)]
        seen += list(zip(judged.enough, judged.conditions[0].value, judged.fired, strict=True))
        rows_before += len(block.rows)
    assert len(seen) == len(ends)
    for (end, time), (enough, value, fired) in zip(ends, seen, strict=True):
        start = max((row for row, earlier in ends if earlier <= time - seconds), default=0)
        alone = measure.new()
        observe = alone.observe_steps if reads_steps else alone.observe
        views = list(observe(piece(chunk, start, end), np.array([end - start])))
        assert moments[start:end].size == end - start
        if not views or end == start:  # steps of no rank
            assert not np.any(fired)
            continue
        judged = rule.judge_live(views[0][1], INTERVAL)
        assert np.array_equal(enough, judged.enough[0])
        assert value == pytest.approx(judged.conditions[0].value[0], nan_ok=True)
        assert np.array_equal(fired, judged.fired[0])


@given(seeds, st.integers(1, 200))
def test_a_run_shorter_than_the_window_has_the_whole_runs_judgement(seed: int, rows: int) -> None:
    samples, _ = made_up(seed, rows)
    stream: Blocks[Any] = Blocks(MINUTE)
    [block] = [*stream.add(samples), *stream.rest()]
    [(_, view)] = Measure(StarvedSamples, "cpu", 0.5, 0.5).new().observe(block.rows, block.scans)
    window = LiveWindow[Any](float(samples.times[-1] - samples.times[0]) + 2 * MINUTE)
    assert np.array_equal(window.views(view, block.times).moments(), view.moments())


# --------------------------------------------------------------------------------------- bands


@given(
    seeds,
    st.integers(1, 60),
    st.floats(0, 59.5),
    st.integers(1, 500),
)
def test_bands_begin_and_end_at_scans_within_the_run_and_never_overlap(
    seed: int, minutes: int, offset: float, chunk_rows: int
) -> None:
    random = np.random.default_rng(seed)
    starved = np.repeat(random.random(minutes) < 0.5, PER_MINUTE)
    rows = len(starved) - int(random.integers(0, PER_MINUTE))
    gpu = np.where(starved[:rows], 0.0, 0.9)
    samples = node_samples(np.ones((rows, 1)), gpu[:, None], start=START + offset)
    parameters = CPUBottleneckParameters(patience=100)
    words = ["CPUBottleneck.patience=100"]
    found = result(MemorySource(samples, chunk_rows=chunk_rows), "CPUBottleneck", *words).bands
    [*inner] = np.arange(START + MINUTE, samples.times[-1] + 1e-6, MINUTE)
    scans = [*inner, float(samples.times[-1])]

    def fires(time: float) -> bool:
        """The rule, judged from the samples of the window before a scan."""
        start = max((scan for scan in [START, *scans] if scan <= time - 15 * MINUTE), default=START)
        its = (samples.times >= start) & ((samples.times < time) | (time == samples.times[-1]))
        [(_, view)] = (
            Measure(StarvedSamples, "cpu", 0.9, 0.1)
            .new()
            .observe(piece(samples, *np.flatnonzero(its)[[0, -1]] + [0, 1]), np.array([its.sum()]))
        )
        return bool(CPUBottleneck(parameters).judge_live(view, INTERVAL).fired[0])

    expected: list[list[float]] = []
    held = False
    for scan in scans:
        now = fires(scan)
        if now and not held:
            expected.append([scan, scan])
        elif held:
            expected[-1][1] = scan
        held = now
    assert [[band.start, band.end] for band in found] == expected
    assert [band.lasts for band in found] == [False] * len(found[:-1]) + [held] * len(found[-1:])
    assert all(one.end <= other.start for one, other in pairwise(found))


def test_a_fault_of_20_minutes_in_a_run_of_10_hours_is_a_band_and_not_a_finding() -> None:
    found = result(faulty(600, (300, 320)))
    assert (found.status, found.triggered) == (Status.HEALTHY, 0)
    # The window is more than half full of it from 7 and a half minutes on, and for as long after its end.
    assert in_minutes(found.bands) == [(308, 328)]
    [band] = found.bands
    assert (band.worst, band.words, band.lasts) == (1.0, "100 % of the samples", False)


@pytest.mark.parametrize(("samples", "holds"), [(899, False), (900, False), (901, True)])
def test_a_window_fires_above_its_threshold(samples: int, holds: bool) -> None:
    """Half of a window of 1,800 samples is 900."""
    found = result(faulty(60, (30, 30 + samples / PER_MINUTE)))
    assert bool(found.bands) == holds


def test_a_band_ends_before_a_gap_in_the_samples() -> None:
    before = faulty(20, (0, 20))
    after = node_samples(np.ones((20, 1)), np.zeros((20, 1)), start=START + 10 * 60 * MINUTE)
    samples = next(before.read())
    found = result(MemorySource(samples, after))
    assert in_minutes(found.bands)[0][1] == 20
    assert not found.bands[0].lasts


def test_each_rank_and_gpu_has_its_own_bands() -> None:
    quick, slow = np.full(3600, 0.5), np.where(np.arange(3600) % 3600 < 1200, 0.4, 0.0)
    source = MemorySource(
        node_steps(quick, data_wait=slow), node_steps(quick, rank=1), facts=run_facts(ranks=[])
    )
    found = result(source, "DataStarved")
    assert {band.subject for band in found.bands} == {"rank 0"}
    assert found.bands[0].words == "80 % of the step time"


def test_a_live_run_says_what_lasts() -> None:
    source = faulty(30, (0, 30))
    samples = next(source.read())
    evaluator = Evaluator(MemorySource(samples))
    evaluator.advance()
    [band] = of_rule("CPUBottleneck", evaluator.analysis(live=True)).bands
    assert band.lasts
    healthy = node_samples(np.full((3600, 1), 0.2), np.full((3600, 1), 0.9), start=START + 30 * MINUTE)
    found = result(MemorySource(samples, healthy))
    assert [band.lasts for band in found.bands] == [False]
    assert found.status is Status.FOUND  # over the run so far, as Debugger judges


# ------------------------------------------------------------------------------------- early


@pytest.mark.parametrize(
    ("samples", "share", "status"),
    [
        (239, 1.0, Status.NOT_ENOUGH_DATA),
        (240, 1.0, Status.FOUND),
        (240, 0.0, Status.HEALTHY),
        (240, 0.80, Status.NOT_ENOUGH_DATA),  # its margin is 30.6 points
        (240, 0.81, Status.FOUND),
        (600, 0.69, Status.NOT_ENOUGH_DATA),  # 19.4 points
        (600, 0.70, Status.FOUND),
        (600, 0.31, Status.NOT_ENOUGH_DATA),
        (600, 0.30, Status.HEALTHY),
        (1001, 0.51, Status.FOUND),
    ],
)
def test_a_short_run_is_judged_if_it_is_clear_cut(samples: int, share: float, status: Status) -> None:
    starved = np.arange(samples) < round(share * samples)
    found = result(MemorySource(node_samples(np.ones((samples, 1)), np.where(starved, 0.0, 0.9)[:, None])))
    assert found.status is status
    early = samples <= 1000 and status.judged
    assert found.finding.startswith("After ") == early
    assert found.triggered == (status is Status.FOUND)


def test_an_early_verdict_says_after_how_long() -> None:
    found = result(faulty(4, (0, 4)))
    assert found.finding.startswith("After 4 min of samples: On node-a, a core was above 90 %")


def test_an_early_verdict_does_not_change_a_longer_runs_counts() -> None:
    found = result(faulty(20, (0, 4)))
    assert (found.status, found.triggered, found.violations) == (Status.HEALTHY, 0, 480)
    # At 6 minutes two thirds are starved, which is not clear of half.
    assert in_minutes(found.bands) == [(2, 6)]


def test_an_error_of_a_gpu_holds_for_5_minutes() -> None:
    """As its alert: the whole run stays found."""
    rows = 30 * PER_MINUTE
    xids = (np.arange(rows) >= 600).astype(float)[:, None]  # from 5 minutes on
    of_gpus = {"gpu_xid_errors": xids, "gpu_last_xid": 79 * xids}
    found = result(
        MemorySource(node_samples(np.zeros((rows, 1)), np.ones((rows, 1)), of_gpus=of_gpus)), "GPUError"
    )
    assert in_minutes(found.bands) == [(6, 11)]
    assert (found.bands[0].words, found.bands[0].subject) == ("errors: 1", "GPU 0")
    assert found.status is Status.FOUND


def test_every_rule_whose_alert_judges_a_window_has_bands() -> None:
    """Some have bands of their own; the present of the others is not a window."""
    without = {name for name, rule in all_rules().items() if rule.bands is None}
    assert without == {
        "CollectiveHang",
        "Dataloader",
        "GradientsExploding",
        "GradientsVanishing",
        "HostBound",
        "LossDiverged",
        "LossNotFinite",
        "MaxInitializationTime",
        "OverallFrameworkMetrics",
        "OverallSystemUsage",
        "Overfitting",
        "Straggler",
        "TrainingStalled",
    }


def test_few_long_steps_without_samples_are_judged_early_too() -> None:
    """Five steps of 100 s are half of a window; the whole run needs more than 20."""
    found = result(MemorySource(node_steps(np.full(5, 100.0), data_wait=50.0)), "DataStarved")
    assert (found.status, found.triggered) == (Status.FOUND, 1)
    assert found.finding.startswith(
        "After few steps: The training process waited for data for 50 % of its step time"
    )
