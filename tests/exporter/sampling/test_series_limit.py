"""The limit of series: the node's own first, then live runs, and no part of a run."""

from collections.abc import Mapping

from stepscope.exporter.sampling.exposition import Exposition
from stepscope.exporter.sampling.families import Family, HistogramValue
from stepscope.exporter.sampling.limits import Limits, ReachedLimits
from stepscope.exporter.sampling.series_limit import SeriesLimit, series_of


class Node:
    """A node whose runs have one counter per rank and one histogram (5 lines) each."""

    def __init__(self, series: int) -> None:
        self.reached = ReachedLimits(Limits(series=series))
        self.limit = SeriesLimit(self.reached)
        self.exposition = Exposition(self.reached)
        self.memory = Family("memory_bytes", "gauge", "Memory.", ("kind",))
        self.memory.publish({("used",): 1, ("total",): 2})
        self.ranks = Family("steps_total", "counter", "Steps.", ("run", "rank"))
        self.steps = Family("step_seconds", "histogram", "Steps.", ("run",), (0.1, 1.0))
        self.families = [self.memory, self.ranks, self.steps]

    def scrape(self, ranks: Mapping[str, int], live: Mapping[str, bool]) -> list[str]:
        self.ranks.publish({(run, str(rank)): 1 for run, count in ranks.items() for rank in range(count)})
        self.steps.publish_histograms({(run,): HistogramValue((1, 2, 3), 4.0) for run in ranks})
        families, without = self.limit.apply(self.families, live, taken=0)
        text = self.exposition.write(families, "text", self.reached.families, without).decode()
        return [line for line in text.splitlines() if not line.startswith(("#", "stepscope_exporter"))]

    def left_out(self) -> dict[str, float]:
        return {
            run: count
            for (limit, run, _), count in self.reached.families[1].samples.items()
            if limit == "series"
        }


def runs_in(lines: list[str]) -> set[str]:
    return {line.split('run="')[1].split('"')[0] for line in lines if 'run="' in line}


def test_lines_are_counted_as_they_are_written() -> None:
    node = Node(series=1000)
    lines = node.scrape({"a": 3, "b": 4}, {})
    assert len(lines) == series_of(node.families) == 2 + 3 + 4 + 2 * 5


def test_at_the_limit_nothing_is_left_out_and_above_it_whole_runs_are() -> None:
    node = Node(series=18)
    assert runs_in(node.scrape({"a": 3, "b": 3}, {"a": True, "b": True})) == {"a", "b"}
    assert node.left_out() == {}
    lines = node.scrape({"a": 3, "b": 4}, {"a": True, "b": True})
    assert runs_in(lines) == {"a"}
    assert len(lines) == 2 + 8
    assert node.left_out() == {"b": 9}


def test_live_runs_go_before_ended_ones_and_a_run_that_is_shown_stays() -> None:
    node = Node(series=2 + 2 * 8)
    ranks = dict.fromkeys("abc", 3)
    assert runs_in(node.scrape(ranks, {"a": False, "b": True, "c": True})) == {"b", "c"}
    assert runs_in(node.scrape(ranks, {"a": True, "b": True, "c": True})) == {"b", "c"}
    assert runs_in(node.scrape(ranks, {"a": True, "b": False, "c": True})) == {"a", "c"}


def test_a_run_that_nobody_knows_comes_last() -> None:
    node = Node(series=2 + 8)
    assert runs_in(node.scrape({"0-unknown": 3, "b": 3}, {"b": False})) == {"b"}


def test_a_run_that_is_too_large_costs_itself_alone() -> None:
    node = Node(series=100)
    assert runs_in(node.scrape({"huge": 1000, "b": 3}, {"huge": True, "b": True})) == {"b"}
    assert node.left_out() == {"huge": 1005}


def test_the_node_goes_before_every_run_and_a_family_is_whole_or_absent() -> None:
    node = Node(series=3)
    node.memory.publish({(str(kind),): 1 for kind in range(4)})
    up = Family("up", "gauge", "Up.")
    up.publish({(): 1})
    node.families.append(up)
    assert node.scrape({"a": 1}, {"a": True}) == ["up 1"]
    assert node.left_out() == {"a": 6, "": 4}
