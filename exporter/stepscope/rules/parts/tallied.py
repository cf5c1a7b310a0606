"""Concludes from the tally of each node, or of each GPU, with the words and details of a rule."""

from abc import abstractmethod
from typing import Any, ClassVar, Generic, TypeVar

from stepscope.common.words import too_few
from stepscope.measurements.measure import RunMeasurements
from stepscope.rules.parts.base import P, Rule, V, Verdict, status_of
from stepscope.rules.parts.gpus import Every, Judged, judged_gpus
from stepscope.rules.parts.judgement import Tallies
from stepscope.runs.model import RunFacts

M = TypeVar("M")


class Patient(Rule[P, V]):
    """A rule that may have seen nothing, or not more than `patience` samples."""

    unseen: ClassVar[str]  # the finding if nothing was read
    counted: ClassVar[str] = "samples"

    def why_not(self, most: int) -> str:
        """Returns why nothing was judged, with at most so many samples."""
        patience = getattr(self.parameters, "patience", None)
        return self.unseen if not most or patience is None else too_few(self.counted, most, patience)


class Tallied(Patient[P, V], Generic[P, V, M]):
    """A rule on GPUs if it is `about_gpus`, or on nodes: M is the measurement of one."""

    def conclude(self, run: RunMeasurements, tallies: Tallies) -> Verdict:
        nodes: dict[str, Any] = run.of(self.measure)
        judged: list[Judged[M]] = (
            judged_gpus(run.facts, nodes, tallies)
            if self.about_gpus
            else [Judged(name, 0, "", node, tallies.of(name)) for name, node in nodes.items()]
        )
        fired = [one for one in judged if one.tally.triggered]
        most = max((self.seen(one.measured) for one in judged), default=0)
        read = [node.gpus if self.about_gpus else (node,) for node in nodes.values()]
        return Verdict(
            status_of(tallies.triggered, tallies.judged),
            self.finding(run.facts, judged, fired)
            if tallies.judged and (most or fired)
            else self.why_not(most),
            tallies.triggered,
            tallies.triggered,
            sum(max(map(self.seen, of_node), default=0) for of_node in read),
            max((self.lost(run.facts, one) for one in fired), default=0.0),
            details=self._details(run.facts, judged),
        )

    def _details(self, facts: RunFacts, judged: Every[M]) -> dict[str, Any]:
        rows = [(one, self.details(facts, one)) for one in judged]
        if self.about_gpus:
            return {
                "gpus": [
                    {"node": gpu.node, "gpu": gpu.label, "triggered": gpu.tally.triggered, **row}
                    for gpu, row in rows
                ]
            }
        seen = [(node, row) for node, row in rows if row and self.seen(node.measured)]
        return {"nodes": {node.node: {"triggered": node.tally.triggered, **row} for node, row in seen}}

    @abstractmethod
    def seen(self, measured: M) -> int:
        """Returns the samples or readings that count."""

    @abstractmethod
    def finding(self, facts: RunFacts, judged: Every[M], fired: Every[M]) -> str:
        """Returns the finding on all of them; some may have fired."""

    def lost(self, facts: RunFacts, fired: Judged[M]) -> float:
        """Returns the seconds that were lost."""
        return 0.0

    @abstractmethod
    def details(self, facts: RunFacts, one: Judged[M]) -> dict[str, Any]:
        """Returns the details; empty for a node without any."""
