"""Replays a recorded run node by node."""

import re
import tempfile
from collections.abc import Callable, Iterator, Sequence, Set
from contextlib import ExitStack, contextmanager
from pathlib import Path

from stepscope.common.errors import UserError
from stepscope.exporter.sampling.exposition import Exposition
from stepscope.exporter.sampling.families import Family
from stepscope.prometheus.crosscheck.replay.node import ReplayedNode
from stepscope.prometheus.crosscheck.server import Milliseconds, Series
from stepscope.runs.model import NodeSamples, RunFacts, Steps
from stepscope.runs.recording.directory import RecordingDirectory

JOB = "stepscope"
SCRAPES_IN_A_PIECE = 240  # limits memory for long runs
_LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')
_ESCAPED = re.compile(r"\\(.)")


class RecordedRun:
    """The rows of a recording. Raises UserError if it cannot be read, or has no samples."""

    def __init__(self, directory: Path) -> None:
        source = RecordingDirectory(directory)
        chunks = list(source.read())
        self.facts: RunFacts = source.facts
        self.samples = [chunk for chunk in chunks if isinstance(chunk, NodeSamples) and len(chunk)]
        self.steps = [chunk for chunk in chunks if isinstance(chunk, Steps)]
        if not self.samples:
            raise UserError(f"--recording {directory}: has no samples; give the recording of a run")

    @property
    def name(self) -> str:
        """Returns the label of the run."""
        return self.facts.label

    @property
    def nodes(self) -> list[str]:
        return [node.node for node in self.facts.nodes]

    @property
    def start(self) -> float:
        """Returns the time of the first sample, in seconds since the epoch."""
        return min(float(samples.times[0]) for samples in self.samples)

    @property
    def end(self) -> float:
        """Returns the time of the last sample."""
        return max(float(samples.times[-1]) for samples in self.samples)

    @contextmanager
    def replay(self) -> Iterator[list[ReplayedNode]]:
        """Yields the nodes, each as it was before the first sample."""
        with ExitStack() as stack:
            nodes = []
            for facts in self.facts.nodes:
                directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="stepscope-")))
                samples = [chunk for chunk in self.samples if chunk.node == facts.node]
                steps = [chunk for chunk in self.steps if chunk.node == facts.node]
                nodes.append(ReplayedNode(facts, self.facts, samples, steps, directory))
                stack.callback(nodes[-1].close)
            yield nodes

    def scraped(
        self, moments: Sequence[Milliseconds], names: Set[str], progress: Callable[[int], None]
    ) -> Iterator[Series]:
        """Yields what Prometheus would have stored of these series, scraping at these moments.

        A series ends at the first scrape without it. Calls `progress` with the number of scrapes done.
        """
        done = 0
        with self.replay() as nodes:
            for node in nodes:
                exposition = Exposition()
                target = {"job": JOB, "instance": node.name}
                before: set[str] = set()
                for first in range(0, len(moments), SCRAPES_IN_A_PIECE):
                    points: dict[str, list[tuple[Milliseconds, float | None]]] = {}
                    for time in moments[first : first + SCRAPES_IN_A_PIECE]:
                        values = dict(values_of(exposition, node.families(time / 1000), names))
                        for series, value in values.items():
                            points.setdefault(series, []).append((time, float(value)))
                        for ended in before - values.keys():
                            points.setdefault(ended, []).append((time, None))
                        before = set(values)
                        done += 1
                        progress(done)
                    for series, stored in points.items():
                        name, labels = name_and_labels(series)
                        yield {"__name__": name, **target, **labels}, stored


def values_of(
    exposition: Exposition, families: Sequence[Family], names: Set[str]
) -> Iterator[tuple[str, str]]:
    """Yields each series of these names as `name{labels}`, and its value."""
    chosen = [family for family in families if not names.isdisjoint(_series_of(family))]
    for line in exposition.write(chosen, "text").decode().splitlines():
        if not line.startswith("#"):
            series, _, value = line.rpartition(" ")
            yield series, value


def name_and_labels(series: str) -> tuple[str, dict[str, str]]:
    """Splits `name{label="value"}` into the name and the labels. Prometheus drops empty labels."""
    name, _, labels = series.partition("{")
    return name, {
        label: _ESCAPED.sub(lambda match: "\n" if match[1] == "n" else match[1], value)
        for label, value in _LABEL.findall(labels)
        if value
    }


def _series_of(family: Family) -> tuple[str, ...]:
    """Returns the names under which Prometheus stores a family."""
    suffixes = ("_bucket", "_sum", "_count") if family.kind == "histogram" else ("",)
    return tuple(f"{family.name}{suffix}" for suffix in suffixes)
