"""Reads the recordings of several nodes, each with its own `stepscope run`, as one run."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields, replace
from typing import Any

from stepscope.common.errors import UserError
from stepscope.runs.model import NodeSamples, PythonWindow, RunFacts, Source, Steps, in_time_order

# What all nodes have together: everything that is a tuple of nodes, ranks, gaps and so on.
TOGETHER = tuple(item.name for item in fields(RunFacts) if item.default == ())


def merged(sources: Mapping[str, Source]) -> Source:
    """Returns the sources as one, by the places that they are from; a single one as it is.

    Raises UserError if they are not different nodes of one run.
    """
    first, *others = sources
    facts = sources[first].facts
    seen = {node.node: first for node in facts.nodes}
    for place in others:
        other = sources[place].facts
        if other.label != facts.label:
            raise UserError(
                f"{place}: is of run {other.label}, and {first} of {facts.label}; give the nodes of one run"
            )
        if other.interval != facts.interval:
            raise UserError(
                f"{place}: has a sample every {other.interval:g} s, and {first} every {facts.interval:g} s; "
                "report them one by one"
            )
        for node in other.nodes:
            if node.node in seen:
                raise UserError(
                    f"{place}: is of node {node.node}, as {seen[node.node]} is; give each node once"
                )
            seen[node.node] = place
    return _Merged(list(sources.values())) if others else sources[first]


class _Merged(Source):
    def __init__(self, sources: Sequence[Source]) -> None:
        self._sources = sources
        self.judged_whole = sources[0].judged_whole

    @property
    def facts(self) -> RunFacts:
        every = [source.facts for source in self._sources]
        together: dict[str, Any] = {
            name: tuple(each for facts in every for each in getattr(facts, name)) for name in TOGETHER
        }
        starts = [facts.start for facts in every if facts.start is not None]
        ends = [facts.end for facts in every if facts.end is not None]
        silent = [facts.no_steps for facts in every]
        if not all(silent):  # then the run had steps: it is a gap of these nodes only
            together["unknowns"] += tuple(sentence for sentence in silent if sentence)
        return replace(
            min(every, key=_order_of_ends),
            start=min(starts, default=None),
            end=max(ends) if len(ends) == len(every) else None,
            no_steps=silent[0] if all(silent) else "",
            **together,
        )

    def read(self) -> Iterator[NodeSamples | Steps]:
        yield from in_time_order(source.read() for source in self._sources)

    def traces(self) -> Source | None:
        found = [traces for source in self._sources if (traces := source.traces()) is not None]
        return _Merged(found) if len(found) > 1 else next(iter(found), None)

    def python_windows(self) -> Iterator[PythonWindow | UserError]:
        for source in self._sources:
            yield from source.python_windows()


def _order_of_ends(facts: RunFacts) -> tuple[bool, float]:
    """Sorts the node first that failed first, otherwise the first of all."""
    failed = facts.exit_status not in (None, 0)
    return not failed, (facts.end or 0.0) if failed else 0.0
