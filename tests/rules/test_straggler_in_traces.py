"""Straggler among traces of all ranks: who comes last at collectives and why, in simulated jobs."""

import json
import random
import shutil
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
from stepscope.evaluation.analysis import RuleResult
from stepscope.evaluation.engine import evaluate
from stepscope.evaluation.settings import Settings
from stepscope.measurements.arrivals import Arrivals, arrivals
from stepscope.measurements.measure import RunMeasurements
from stepscope.rules.parts.base import Verdict
from stepscope.rules.parts.judgement import Tallies
from stepscope.rules.parts.last_rank import LastRank
from stepscope.rules.straggler import Straggler, StragglerParameters
from stepscope.runs.model import WORK, RankTrace, RunFacts
from stepscope.runs.traces.source import KinetoTraces

from tests.support.rank_traces import COMPONENTS, LAYERS, Job, one_slow
from tests.support.smallest import smallest
from tests.support.source import run_facts


def facts_of(directory: Path) -> RunFacts:
    source = KinetoTraces(directory)
    list(source.read())
    return source.facts


def conclude(facts: RunFacts, parameters: StragglerParameters | None = None) -> Verdict:
    return Straggler(parameters).conclude(RunMeasurements(facts, {}), Tallies({}))


def verdict(job: Job, directory: Path) -> Verdict:
    return conclude(facts_of(job.write(directory)))


@pytest.mark.parametrize("seed", smallest(range(100), range(2)))
def test_the_slow_rank_of_8_is_named_with_its_cause(seed: int, tmp_path: Path) -> None:
    job = one_slow(seed)
    found = verdict(job, tmp_path)
    named = found.details.get("rank"), found.details.get("component")
    assert (found.status, *named) == ("found", job.slow[0], COMPONENTS[job.cause]), found.finding
    assert found.details["excess_seconds"] == pytest.approx(0.05, rel=0.25)
    assert [row["rank"] for row in found.details["ranks"] if row["triggered"]] == [job.slow[0]]


def test_work_that_is_launched_after_the_last_step_hides_no_slow_rank(tmp_path: Path) -> None:
    """As an evaluation in a trace whose steps are those of the training."""
    for path in replace(QUIET, delay=0.02).write(tmp_path).iterdir():
        document = json.loads(path.read_text())
        rows = document["traceEvents"]
        end = max(row["ts"] + row["dur"] for row in rows)
        launch = next(row for row in rows if row["name"] == "cudaLaunchKernel")
        kernel = next(row for row in rows if row["cat"] == "kernel")
        for row, start, seconds in ((launch, end + 100, 0.0), (kernel, end + 200, 60.0)):
            args = {**row["args"], "correlation": 1 << 20}
            rows.append({**row, "name": "evaluation", "ts": start, "dur": seconds * 1e6, "args": args})
        path.write_text(json.dumps(document))
    assert verdict_of(tmp_path).details["rank"] == 2


@pytest.mark.parametrize("when", [-2.0, 2.0])
def test_a_rank_that_is_late_at_a_barrier_outside_all_steps_is_late_in_none(
    when: float, tmp_path: Path
) -> None:
    """As after a checkpoint that one rank writes before the first step, or after the last."""
    for path in replace(QUIET, slow=(), clocks=0.0).write(tmp_path).iterdir():
        document = json.loads(path.read_text())
        rows = document["traceEvents"]
        late = 1.0 if "rank-2" in path.name else 0.0
        barrier = next(row for row in rows if "world" in str(row["args"].get("Process Group Name")))
        launch = next(row for row in rows if row["name"] == "cudaLaunchKernel")
        for row, seconds in ((launch, 0.0), (barrier, 1.01 - late)):
            args = {**row["args"], "correlation": 1 << 20, **({"Seq": 2} if "Seq" in row["args"] else {})}
            rows.append({**row, "ts": (when + late) * 1e6, "dur": seconds * 1e6, "args": args})
        path.write_text(json.dumps(document))
    found = arrivals(facts_of(tmp_path).traces)
    assert found is not None
    for of_steps in (found.late, found.behind, found.waited):
        assert of_steps.max() < 0.1
    assert conclude(facts_of(tmp_path)).status == "healthy"


@pytest.mark.parametrize("seed", smallest(range(100), range(2)))
def test_nobody_is_named_among_8_healthy_ranks(seed: int, tmp_path: Path) -> None:
    found = verdict(Job.random(seed), tmp_path)
    assert found.status == "healthy", found.finding
    assert "rank" not in found.details


QUIET = Job(ranks=4, noise=0.0, clocks=0.0, synchronised=True, slow=(2,), steps=4)


@pytest.mark.parametrize(("share", "status"), [(4.9, "found"), (5.1, "healthy")])
def test_the_lateness_is_above_a_share_of_the_step(share: float, status: str, tmp_path: Path) -> None:
    facts = facts_of(replace(QUIET, delay=0.005).write(tmp_path))
    step = np.mean([trace.durations.mean() for trace in facts.traces])
    excess = conclude(facts, StragglerParameters(threshold=0)).details["excess_seconds"]
    parameters = StragglerParameters(threshold=100 * excess / step * share / 5)
    assert conclude(facts, parameters).status == status


@pytest.mark.parametrize(("milliseconds", "status"), [(4.9, "found"), (5.1, "healthy")])
def test_the_lateness_is_above_some_milliseconds(milliseconds: float, status: str, tmp_path: Path) -> None:
    facts = facts_of(replace(QUIET, delay=0.005).write(tmp_path))
    assert conclude(facts, StragglerParameters(threshold=0, minimum=milliseconds)).status == status


def test_one_step_is_enough_and_cannot_show_whether_it_is_always_that_rank(tmp_path: Path) -> None:
    found = verdict(Job(seed=2, steps=1, slow=(3,)), tmp_path)
    assert (found.details["rank"], found.details["component"]) == (3, "compute")
    assert [row["rank"] for row in found.details["ranks"] for _ in range(row["last_steps"])] == [3]
    assert "1 step cannot show whether it is always this rank" in found.finding
    assert verdict(Job(seed=2, steps=1), tmp_path / "healthy").status == "healthy"


@pytest.mark.parametrize("ranks", [2, 8])
@pytest.mark.parametrize("seed", smallest(range(5), {0}))
def test_sequences_of_uneven_length_are_no_slow_rank(ranks: int, seed: int, tmp_path: Path) -> None:
    found = verdict(Job(seed=seed, steps=6, ranks=ranks, uneven=0.1), tmp_path)
    assert "rank" not in found.details, found.finding
    assert (found.details["kind"], found.details["component"]) == ("changing", "compute")
    assert "the last one changes from step to step" in found.finding
    assert found.recommendation is not None
    assert "tokens" in found.recommendation


def test_all_ranks_of_a_slow_machine_are_named(tmp_path: Path) -> None:
    found = verdict(Job(ranks=12, nodes=3, slow=(4, 5, 6, 7)), tmp_path)
    assert found.details["node"] == "node-1"
    assert [row["rank"] for row in found.details["ranks"] if row["triggered"]] == [4, 5, 6, 7]
    assert "come late, too" in found.finding


@pytest.mark.parametrize("cause", ["compute", "host"])
def test_a_rank_that_waits_in_its_tensor_group_is_the_victim_not_the_culprit(
    cause: str, tmp_path: Path
) -> None:
    """Rank 4 arrives late in its data group, because it waits for rank 5 in the tensor group."""
    found = verdict(Job(tensor=2, slow=(5,), cause=cause, synchronised=True), tmp_path)
    rows = {row["rank"]: row for row in found.details["ranks"]}
    assert rows[4]["late_seconds"] > 0.02
    assert [rank for rank, row in rows.items() if row["triggered"]] == [5]
    assert found.details["group"] == "tensor"
    assert set(found.details["groups"]) == {"all ranks", "data", "tensor"}


@pytest.mark.parametrize("sends", ["in their group", "in the world", "alone"])
@pytest.mark.parametrize("slow", [None, 0, 2, 3])
def test_a_slow_stage_is_found_if_stages_only_send(slow: int | None, sends: str, tmp_path: Path) -> None:
    """Four stages, one rank each: no two ranks have a collective in common."""
    slow_ranks = () if slow is None else (slow,)
    found = verdict(Job(ranks=4, pipeline=4, slow=slow_ranks, world=False, sends=sends), tmp_path)
    if slow is None:
        assert found.status == "healthy", found.finding
        assert found.finding.startswith("No stage of the pipeline is so slow")
        return
    assert found.details["kind"] == "stage", found.finding
    assert found.details["excess_seconds"] == pytest.approx(0.05, rel=0.2)
    assert found.details["stage"] == (None if sends == "alone" else slow)
    assert f"ank {slow}" in found.finding


@pytest.mark.parametrize("sends", ["in their group", "in the world", "alone"])
def test_sends_do_not_disturb_the_collectives_of_their_group(sends: str, tmp_path: Path) -> None:
    """Stages differ in how many sends they have: collectives are not counted together with them."""
    found = verdict(Job(ranks=8, pipeline=4, slow=(0, 4), numbered=False, sends=sends), tmp_path)
    assert found.details["kind"] == "stage", found.finding
    assert found.details["clock_residual_seconds"] < 1e-4


def test_a_slow_stage_is_named_before_a_rank_that_is_a_little_slower_than_its_own_stage(
    tmp_path: Path,
) -> None:
    job = Job(ranks=8, pipeline=4, slow=(4,), delay=0.03)
    assert verdict(job, tmp_path / "little").details["rank"] == 4
    found = verdict(replace(job, slow=(4, *(2, 6) * 5)), tmp_path / "much")
    assert (found.details["kind"], found.details["stage"]) == ("stage", 2), found.finding


@pytest.mark.parametrize("slow", [None, 0, 2, 3])
def test_a_slow_stage_of_a_pipeline_is_named_as_a_stage(slow: int | None, tmp_path: Path) -> None:
    found = verdict(Job(ranks=8, pipeline=4, slow=() if slow is None else (slow, slow + 4)), tmp_path)
    assert "rank" not in found.details
    if slow is None:
        assert found.status == "healthy", found.finding
        return
    assert (found.details["kind"], found.details["stage"]) == ("stage", slow)
    assert ("the last," in found.finding) == (slow == 3)
    assert f"ranks {slow} and {slow + 4}" in found.finding


@pytest.mark.parametrize(("waits_less", "slow"), [(0.0, False), (0.02, False), (0.03, True)])
def test_a_stage_that_computes_longer_is_slow_if_it_waits_less_by_more_than_half_of_that(
    waits_less: float, slow: bool
) -> None:
    computes, waits = np.array([[0.10], [0.15]]), np.array([[0.1], [0.1 - waits_less]])
    arrivals = SimpleNamespace(
        stages=[SimpleNamespace(rows=[row]) for row in range(2)],
        work=np.stack([computes * (kind == "compute") for kind in WORK], axis=2),
        communicated=waits,
        durations=computes + waits,
        residual=0.0,
    )
    found = LastRank(cast(Arrivals, arrivals), StragglerParameters()).slow_stage
    assert (found is not None) == slow


def test_a_slow_rank_of_a_stage_is_compared_with_its_own_stage(tmp_path: Path) -> None:
    found = verdict(Job(ranks=12, pipeline=4, slow=(5,)), tmp_path)
    assert found.details["rank"] == 5


@pytest.mark.parametrize("tensor", [1, 2])
@pytest.mark.parametrize("seed", smallest(range(5), {0}))
def test_groups_are_found_from_who_communicates_with_whom(seed: int, tensor: int, tmp_path: Path) -> None:
    job = Job(seed=seed, described=False, tensor=tensor)
    assert verdict(job, tmp_path).status == "healthy"
    assert verdict(replace(job, slow=(6,)), tmp_path / "slow").details["rank"] == 6


def told(found: Verdict) -> tuple[Any, ...]:
    """Returns what a verdict says but for rounding; in seconds to the microsecond."""
    details = found.details
    seconds = [round(row["own_seconds"], 6) for row in details["ranks"]]
    named = tuple(details.get(name) for name in ("kind", "rank", "component", "group"))
    return (found.status, *named, round(details.get("excess_seconds", 0.0), 6), seconds)


@pytest.mark.parametrize("seed", smallest(range(6), {0}))
def test_the_order_of_files_and_ranks_changes_nothing(seed: int, tmp_path: Path) -> None:
    facts = facts_of(one_slow(seed).write(tmp_path / "first"))
    names = [f"{index}-of-a-capture.pt.trace.json" for index in range(8)]
    random.Random(seed).shuffle(names)
    (tmp_path / "other").mkdir()
    for path, name in zip(sorted((tmp_path / "first").iterdir()), names, strict=True):
        shutil.copy(path, tmp_path / "other" / name)
    assert conclude(facts_of(tmp_path / "other")) == conclude(facts)
    assert conclude(replace(facts, traces=facts.traces[::-1])) == conclude(facts)


@pytest.mark.parametrize("seed", smallest(range(6), {0}))
@pytest.mark.parametrize("make", [one_slow, Job.random])
def test_a_shifted_clock_changes_nothing(seed: int, make: Any, tmp_path: Path) -> None:
    facts = facts_of(make(seed).write(tmp_path))
    shifted = [shift(trace, (-1) ** trace.rank * trace.rank * 0.7) for trace in facts.traces]
    assert told(conclude(replace(facts, traces=tuple(shifted)))) == told(conclude(facts))


def shift(trace: RankTrace, seconds: float) -> RankTrace:
    moved = {name: getattr(trace, name) + seconds for name in ("starts", "ends", "exposed")}
    return replace(trace, **moved)


@pytest.mark.parametrize("seed", smallest(range(6), {0}))
def test_doubled_times_double_the_seconds_and_accuse_the_same_rank(seed: int, tmp_path: Path) -> None:
    facts = facts_of(one_slow(seed).write(tmp_path))
    names = ("starts", "ends", "exposed", "durations", "communicated", "work")
    slower = [replace(one, **{name: 2 * getattr(one, name) for name in names}) for one in facts.traces]
    before, after = conclude(facts), conclude(replace(facts, traces=tuple(slower)))
    assert (after.details["rank"], after.details["component"]) == (
        before.details["rank"],
        before.details["component"],
    )
    assert after.details["excess_seconds"] == pytest.approx(2 * before.details["excess_seconds"])


def test_captures_that_begin_later_are_matched_by_what_they_have_in_common(tmp_path: Path) -> None:
    """Without numbers: some ranks lack the first collectives, and one the last ones."""
    directory = Job(seed=8, slow=(6,), numbered=False).write(tmp_path)
    for rank, (first, last) in {1: (1, None), 3: (2, None), 4: (0, -2)}.items():
        path = directory / f"rank-{rank}.pt.trace.json"
        document = json.loads(path.read_text())
        calls = [
            row for row in document["traceEvents"] if row["name"].startswith("nccl") and row["tid"] == 24
        ]
        kept = {id(row) for row in calls[first:last]}
        document["traceEvents"] = [
            row for row in document["traceEvents"] if row not in calls or id(row) in kept
        ]
        path.write_text(json.dumps(document))
    found = verdict_of(directory)
    assert (found.details["rank"], found.details["component"]) == (6, "compute")
    assert found.details["clock_residual_seconds"] < 1e-4


def verdict_of(directory: Path) -> Verdict:
    return conclude(facts_of(directory))


def test_steps_of_later_captures_count_although_the_profiler_numbers_them_again(
    tmp_path: Path,
) -> None:
    healthy = replace(QUIET, numbered=False, slow=())
    slow = replace(healthy, slow=(2,))
    for minutes, job in enumerate((healthy, slow, slow)):
        for path in job.write(tmp_path / str(minutes)).iterdir():
            document = json.loads(path.read_text())
            document["baseTimeNanoseconds"] += minutes * 60 * 10**9
            path.write_text(json.dumps(document))
    found = verdict_of(tmp_path)
    assert found.details["rank"] == 2
    assert (found.details["steps"], found.details["windows"]) == (8, 12)


def test_traces_without_a_common_collective_are_not_judged() -> None:
    assert conclude(run_facts()).status == "not enough data"


@pytest.mark.parametrize("seed", smallest(range(10), range(2)))
def test_communication_is_at_most_the_step_and_a_balanced_job_could_save_no_more(
    seed: int, tmp_path: Path
) -> None:
    found = all_rules(Job.random(seed, exchange=0.05).write(tmp_path))["CommunicationBound"]
    rows = found.details["ranks"]
    assert all(0 < row["percent"] <= 100 for row in rows)
    assert found.seconds_lost <= min(row["exposed_seconds"] for row in rows)


@pytest.mark.parametrize("seed", smallest(range(5), {0}))
@pytest.mark.parametrize("make", [Job.random, one_slow])
def test_less_communication_could_save_no_more_than_the_transfers_took(
    seed: int, make: Any, tmp_path: Path
) -> None:
    """What ranks wait for a slow one is not theirs to save, however large it is."""
    job = make(seed, exchange=0.02, tensor=1, layer=0.001, clocks=0.0)
    found = all_rules(job.write(tmp_path))["CommunicationBound"]
    transfers = job.steps * LAYERS * job.exchange * (1 + 4 * job.noise)
    assert found.status == "found"
    assert 0 < found.seconds_lost <= transfers


def all_rules(directory: Path) -> dict[str, RuleResult]:
    return {result.rule: result for result in evaluate(KinetoTraces(directory), Settings()).rules}
