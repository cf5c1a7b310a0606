"""The ledger of the account: no second is explained twice, whatever was found."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from stepscope.common.status import Status
from stepscope.evaluation.account import HOST, INTERPRETER_LOCK, Account, Key, Leaf
from stepscope.evaluation.analysis import RuleResult
from stepscope.evaluation.claims import ranks_of
from stepscope.evaluation.problems import problems
from stepscope.evaluation.unexplained import LargePart, of_part

from tests.support.analysis import rule

STEPS = [Key("train", name) for name in ("forward", "backward", HOST, "data_wait", "communication", "gc")]
PARTS = [*STEPS, Key("eval", "forward"), Key("eval", HOST), Key("between_steps"), Key("before_first_step")]
COMPONENTS = [key.component for key in STEPS]
RULES = ("DataStarved", "CommunicationBound", "HostBound", "StepOutlier", "Straggler")
CUT_ACROSS = ("NoisyNeighbour", "CPUBottleneck", "ThermalThrottling", "MemoryPressure", "LoadBalancing")


def found(name: str, seconds: float, **changes: Any) -> RuleResult:
    return rule(name, Status.FOUND, seconds_lost=seconds, triggered=1, **changes)


def account_of(*ranks: dict[Key, float]) -> Account:
    whole = sum(sum(rank.values()) for rank in ranks)
    leaves = []
    for key in PARTS:
        of_ranks: dict[int | None, float] = {number: each.get(key, 0.0) for number, each in enumerate(ranks)}
        if spent := sum(of_ranks.values()):
            leaves.append(Leaf(key, spent / whole, of_ranks))
    return Account(whole, len(ranks), tuple(leaves))


@st.composite
def documents(draw: st.DrawFn) -> tuple[Account, list[RuleResult]]:
    """An account of up to three ranks of a run of 100 s, and findings that cost at most these."""
    shares = st.dictionaries(st.sampled_from(PARTS), st.floats(0.1, 1.0), min_size=1)
    ranks = [
        {key: 100 * share / sum(rank.values()) for key, share in rank.items()}
        for rank in draw(st.lists(shares, min_size=1, max_size=3))
    ]
    results = []
    for name in draw(st.lists(st.sampled_from([*RULES, *CUT_ACROSS, "Account", "Tool"]), max_size=8)):
        of_ranks = draw(st.sets(st.sampled_from(range(len(ranks)))))
        lost = draw(st.floats(0.0, 100.0))
        component = draw(st.sampled_from([*COMPONENTS, INTERPRETER_LOCK]))
        other, part = draw(st.sampled_from(COMPONENTS)), draw(st.floats(0.0, 2.0)) * lost
        rows = [{"rank": rank, "triggered": int(rank in of_ranks)} for rank in range(len(ranks))]
        details: dict[str, Any] = {"ranks": rows} if of_ranks else {}
        if name == "Account":
            key = draw(st.sampled_from([*PARTS, Key("train"), Key("eval"), Key("train", INTERPRETER_LOCK)]))
            explains = draw(st.sampled_from(["", "communication"]))
            large = LargePart(key, lost, "", "", rank=min(of_ranks, default=None), explains=explains)
            results.append(of_part(large._replace(brings={other: part / 2}), 1.0))
            continue
        if name in RULES:
            details |= {"component": component} if draw(st.booleans()) else {}
            details |= draw(st.sampled_from([{}, {"brings": {other: part}}, {"explains": other}]))
        if name == "Tool":
            details |= {"brings": {other: lost / 2}, "may_cost": draw(st.sampled_from([0.0, 300.0]))}
        if name == "Straggler" and of_ranks:
            details |= {"rank": min(of_ranks)}
        unknown = draw(st.booleans())
        results.append(found(name, lost, details=details, cause_known=unknown))
    return account_of(*ranks), results


@given(documents())
def test_what_is_found_about_a_rank_is_never_more_than_its_time(
    document: tuple[Account, list[RuleResult]],
) -> None:
    account, results = document
    every = problems(results, account)
    for rank in range(account.ranks):
        about = [each for each in every if rank in (ranks_of(each.estimate) or {rank})]
        spent = sum(leaf.by_rank[rank] for leaf in account.leaves)
        assert sum(each.seconds_lost for each in about) <= spent * (1 + 1e-6)
    assert all(each.seconds_lost >= -1e-9 for each in every)
    shown = sorted(id(rule) for each in every for rule in (each.rule, *each.also))
    assert shown == sorted(map(id, results)), "each finding is shown, once"


def left(account: Account | None, *results: RuleResult) -> dict[str, float]:
    return {each.title: round(each.seconds_lost, 6) for each in problems(results, account)}


def own_code(seconds: float) -> RuleResult:
    return of_part(LargePart(Key("train", HOST), seconds, "", ""), 1.0)


LOCK = of_part(LargePart(Key("train", INTERPRETER_LOCK), 50.0, "", "", rank=1), 1.0)
LOCK_TITLE, OWN_CODE, SLOW_RANK = LOCK.about.subject, "Your own code", "Waiting for a slow rank"


@pytest.mark.parametrize(("hot", "rest"), [(40.0, 40.0), (50.0, 40.0), (41.0, 40.0), (390.0, 390.0)])
def test_what_passes_anywhere_in_a_run_has_what_the_findings_about_its_parts_leave(
    hot: float, rest: float
) -> None:
    """Seconds of all GPUs together are no seconds of the run."""
    account = account_of({Key("train", HOST): 60.0, Key("train", "forward"): 40.0})
    throttled = found("ThermalThrottling", hot)
    assert left(account, own_code(60.0), throttled) == {OWN_CODE: 60.0, throttled.about.subject: rest}


def test_a_phase_and_its_components_explain_each_other_whichever_is_larger() -> None:
    phase = of_part(LargePart(Key("train"), 30.0, "", ""), 1.0)
    assert left(None, own_code(20.0), phase) == {"Training steps": 30.0}
    assert left(None, own_code(40.0), phase) == {OWN_CODE: 40.0}


@pytest.mark.parametrize(
    ("lost", "of_lock", "expected"),
    [
        (40.0, 0.0, {LOCK_TITLE: 50.0, SLOW_RANK: 40.0}),  # which it spends elsewhere
        (40.0, 15.0, {LOCK_TITLE: 50.0, SLOW_RANK: 25.0}),
        (40.0, 30.0, {LOCK_TITLE: 50.0}),
        (90.0, 20.0, {SLOW_RANK: 90.0, LOCK_TITLE: 30.0}),
        (90.0, 30.0, {SLOW_RANK: 90.0}),
    ],
)
def test_a_rank_that_is_slow_because_it_waits_for_the_interpreter_lock_costs_that_once(
    lost: float, of_lock: float, expected: dict[str, float]
) -> None:
    rows = [{"rank": rank, "triggered": int(rank == 1)} for rank in range(2)]
    details = {"rank": 1, "component": HOST, "ranks": rows, "brings": {INTERPRETER_LOCK: of_lock}}
    assert left(None, LOCK, found("Straggler", lost, details=details)) == expected
