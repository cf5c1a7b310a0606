"""The nodes of one run, each recorded apart, are one run."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import stepscope.analysis
from stepscope.commands.cli import main
from stepscope.common.errors import UserError
from stepscope.runs.model import Gap, NodeFacts, NodeSamples, RankStack, Source, Span, Steps
from stepscope.runs.open import merged

from tests.support.scenarios import WrittenScenarios
from tests.support.source import START, MemorySource, node_samples, node_steps, rank_facts, run_facts


def node(name: str, rank: int, **facts: Any) -> MemorySource:
    known = {
        "run": "train-1",
        "nodes": (NodeFacts(name, ("0",), ()),),
        "ranks": (rank_facts(rank, node=name),),
    }
    return MemorySource(
        node_samples(np.full((20, 1), 0.5), node=name, start=START + rank),
        node_steps([0.5] * 10, node=name, rank=rank, start=START + rank),
        facts=run_facts(**{**known, **facts}),
        chunk_rows=4,
    )


def trained(
    name: str, rank: int, communicates: float = 0.1, pace: float = 0.5, start: float = START, **facts: Any
) -> MemorySource:
    """A node with 40 steps, and samples that begin 10 s before them, on a clock of its own."""
    return MemorySource(
        node_samples(np.full((60, 1), 0.5), node=name, start=start - 10),
        node_steps([pace] * 40, node=name, rank=rank, start=start, communication=communicates),
        facts=run_facts(
            run="train-1",
            start=start,
            nodes=(NodeFacts(name),),
            ranks=(rank_facts(rank, node=name, start=start),),
            **facts,
        ),
        chunk_rows=4,
    )


def both(**of_second: Any) -> Source:
    return merged(
        {"a": node("node-a", 0, start=START + 5, end=START + 60), "b": node("node-b", 1, **of_second)}
    )


def test_nodes_have_all_samples_steps_and_ranks_in_the_order_of_time() -> None:
    source = both(
        start=START, end=START + 90, gaps=(Gap("run", "x"),), stacks=(RankStack("node-b", 1, 2.0, ""),)
    )
    chunks = list(source.read())
    firsts = [float(each.times[0]) for each in chunks if isinstance(each, NodeSamples)]
    assert firsts == sorted(firsts)
    assert sum(len(each) for each in chunks if isinstance(each, NodeSamples)) == 2 * 20
    assert sum(len(each) for each in chunks if isinstance(each, Steps)) == 2 * 10
    facts = source.facts
    assert [each.node for each in facts.nodes] == ["node-a", "node-b"]
    assert [each.rank for each in facts.ranks] == [0, 1]
    assert (facts.start, facts.end) == (START, START + 90)
    assert (len(facts.gaps), len(facts.stacks)) == (1, 1)


def test_the_run_ended_as_the_node_did_that_failed_first_and_not_before_all_have() -> None:
    failed = both(end=START + 50, exit_status=1, ended="exit status 1", exception={"type": "OSError"}).facts
    assert (failed.exit_status, failed.ended, failed.exception) == (1, "exit status 1", {"type": "OSError"})
    assert failed.end == START + 60
    assert both(end=None).facts.end is None


def test_a_node_without_steps_is_unknown_and_a_run_without_says_why() -> None:
    one = both(no_steps="No hooks.").facts
    assert (one.no_steps, one.unknowns) == ("", ("No hooks.",))
    none = merged({name: node(name, 0, no_steps="No hooks.") for name in ("node-a", "node-b")}).facts
    assert (none.no_steps, none.unknowns) == ("No hooks.", ())


@pytest.mark.parametrize("ahead", [30.0, -7200.0])
def test_a_clock_that_differs_is_corrected_by_the_ends_of_steps_that_wait_for_each_other(
    ahead: float,
) -> None:
    source = merged(
        {
            "a": trained("node-a", 0),
            "b": trained("node-b", 1, start=START + ahead, gaps=(Gap("samples", "x", start=START + ahead),)),
        }
    )
    chunks = list(source.read())
    by_node = {
        node: np.concatenate([each.ends for each in chunks if isinstance(each, Steps) and each.node == node])
        for node in ("node-a", "node-b")
    }
    assert by_node["node-b"] == pytest.approx(by_node["node-a"])
    facts = source.facts
    assert facts.start == facts.gaps[0].start == pytest.approx(START)
    assert {each.start for each in facts.ranks} == {facts.ranks[0].start}
    (said,) = facts.unknowns
    assert f"ended {'30.0 s later' if ahead > 0 else '2 h 00 min earlier'} on node-b than on node-a: " in said


@pytest.mark.parametrize(
    ("communicates", "pace", "ahead", "says"),
    [(0.0, 0.5, 30.0, "is not known"), (0.1, 2.0, 30.0, "is not known"), (0.1, 0.5, 0.4, "")],
    ids=["ranks that do not communicate", "ranks that drift apart", "clocks that agree"],
)
def test_no_time_is_changed_without_steps_that_show_by_how_much(
    communicates: float, pace: float, ahead: float, says: str
) -> None:
    source = merged(
        {
            "a": trained("node-a", 0, communicates),
            "b": trained("node-b", 1, communicates, pace, start=START + ahead),
        }
    )
    of_other = [each for each in source.read() if isinstance(each, Steps) and each.node == "node-b"]
    assert of_other[0].starts[0] == START + ahead
    assert says in "".join(source.facts.unknowns)
    assert len(source.facts.unknowns) == bool(says)


@pytest.mark.parametrize(
    ("other", "message"),
    [
        ({"run": "train-2"}, "^b: is of run train-2, and a of train-1; give the nodes of one run"),
        ({"interval": 0.1}, "^b: has a sample every 0.1 s, and a every 0.5 s"),
        (
            {"nodes": (NodeFacts("node-a", ("0",), ()),)},
            "^b: is of node node-a, as a is; give each node once",
        ),
    ],
)
def test_what_is_no_other_node_of_the_run_is_refused(other: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        both(**other)


def test_the_traces_of_nodes_add_what_nobody_knows_and_were_not_taken_when_none_of_them_was() -> None:
    first = {"captures": (Span(0.0, 10.0), Span(60.0, 70.0)), "unrecognised": 2}
    second = {"captures": (Span(5.0, 30.0), Span(65.0, 66.0), Span(90.0, 95.0)), "unrecognised": 3}
    facts = merged({"a": node("node-a", 0, **first), "b": node("node-b", 1, **second)}).facts
    assert (facts.unrecognised, facts.unobserved_seconds) == (5, 30.0 + 20.0)


def test_a_single_source_is_read_as_it_is() -> None:
    source = node("node-a", 0)
    assert merged({"a": source}) is source


def test_report_and_open_say_what_does_not_belong_together(
    scenarios: WrittenScenarios, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    a, b = (str(scenarios.written(name).recording_directory) for name in ("few-dataloaders", "healthy"))
    assert main(["report", a, b, "--out", str(tmp_path / "out")]) == 2
    assert "give the nodes of one run" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()
    with pytest.raises(UserError, match="give the nodes of one run"):
        stepscope.analysis.open([a, b])
