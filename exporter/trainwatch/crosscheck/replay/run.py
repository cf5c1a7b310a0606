"""A recorded run, played back node by node."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

from trainwatch.crosscheck.replay.node import ReplayedNode
from trainwatch.errors import UserError
from trainwatch.runs.model import NodeSamples, RunFacts, Steps
from trainwatch.runs.recording.directory import RecordingDirectory
from trainwatch.runs.recording.writer import RANKS_SECONDS
from trainwatch.sampling.families import Family


class RecordedRun:
    """The rows of a recording. Raises UserError where it cannot be read, or has no snapshot."""

    def __init__(self, directory: Path) -> None:
        source = RecordingDirectory(directory)
        chunks = list(source.read())
        self.facts: RunFacts = source.facts
        self.samples = [chunk for chunk in chunks if isinstance(chunk, NodeSamples) and len(chunk)]
        self.steps = [chunk for chunk in chunks if isinstance(chunk, Steps)]
        if not self.samples:
            raise UserError(f"--recording {directory}: has no snapshot; give the recording of a run")

    @property
    def name(self) -> str:
        return self.facts.name

    @property
    def nodes(self) -> list[str]:
        return [node.node for node in self.facts.nodes]

    @property
    def start(self) -> float:
        """The first snapshot, in seconds since the epoch."""
        return min(float(samples.times[0]) for samples in self.samples)

    @property
    def end(self) -> float:
        """The last one."""
        return max(float(samples.times[-1]) for samples in self.samples)

    @property
    def known_until(self) -> float:
        """The end, unless a process was killed: that it lived was recorded once a second."""
        last = (rank.last_alive for rank in self.facts.ranks if rank.killed)
        return min([self.end, *(moment - RANKS_SECONDS for moment in last if moment is not None)])

    def times(self, node: str) -> list[float]:
        """Of all snapshots of a node."""
        return [time for samples in self.samples if samples.node == node for time in samples.times.tolist()]

    @contextmanager
    def replay(self) -> Iterator[list[ReplayedNode]]:
        """Its nodes, each as it was before its first snapshot."""
        with ExitStack() as stack:
            nodes = []
            for facts in self.facts.nodes:
                directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="trainwatch-")))
                samples = [chunk for chunk in self.samples if chunk.node == facts.node]
                steps = [chunk for chunk in self.steps if chunk.node == facts.node]
                nodes.append(ReplayedNode(facts, self.facts, samples, steps, directory))
                stack.callback(nodes[-1].close)
            yield nodes

    def scrapes(self, moments: Sequence[float]) -> Iterator[tuple[float, str, list[Family]]]:
        """Moment, node and what a scrape of it had seen then; the moments are in order."""
        with self.replay() as nodes:
            for moment in moments:
                for node in nodes:
                    yield moment, node.name, node.families(moment)
