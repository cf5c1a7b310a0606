"""Simulates one node of the plan, and scrapes its exporter as Prometheus would."""

import re
from collections.abc import Collection, Iterable, Iterator
from pathlib import Path
from random import Random
from typing import Any

from stepscope.commands.demo import simulated_directory
from stepscope.demo.node import INTERVAL, SimulatedClock, SimulatedGpus, make_exporter
from stepscope.demo.runs import SimulatedRun
from stepscope.exporter.exporter import Exporter
from stepscope.exporter.nvidia.session import Reading
from stepscope.exporter.sampling.sample import Sample
from stepscope.prometheus.crosscheck.server import Series

from trials.shared_cluster.plan import MIG_DEVICES, START, Plan, PlannedRun
from trials.simulated_node import FailingNode, GroupedPlace

_LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')


class Machine:
    """A node of the plan with its exporter."""

    def __init__(self, plan: Plan, number: int, directory: Path) -> None:
        self._plan, self._node = plan, plan.nodes[number]
        self._number = number
        self._directory = directory
        self._clock = SimulatedClock(START + self._node.skew)
        self._simulated = FailingNode("shared cluster", self._clock.time(), directory)
        if self._node.divided is not None:
            self._simulated.nvml.divide(self._node.divided, MIG_DEVICES)
        self._exporter = self._start()
        self._coming = sorted(
            (run for run in plan.runs if any(part.node == number for part in run.parts)),
            key=lambda run: run.begin,
        )
        self._running: list[tuple[PlannedRun, SimulatedRun]] = []
        self._scrapes = Scrapes({"cluster": self._node.cluster, "instance": self._node.instance})

    def play(self, read: Collection[str]) -> Iterator[Series]:
        """Plays the node, and yields the series that a Prometheus scrapes, of the metrics in `read`."""
        node, interval = self._node, self._plan.scrape_interval
        due = Random(f"{self._plan.seed} {node.cluster} {node.instance}").uniform(0, interval)
        for tick in range(int(self._plan.seconds / INTERVAL)):
            now = tick * INTERVAL
            self._act(now)
            down = node.down[0] <= now < node.down[1]
            if down:  # the runs go on
                self._simulated.collect(Sample(self._clock.time()))
            else:
                self._exporter.tick()
            if now >= due:
                reachable = not down and not node.unscraped[0] <= now < node.unscraped[1]
                text = self._exporter.scrape("text").decode() if reachable else None
                self._scrapes.add(round(1000 * (START + due)), text, read)
                due += interval
            self._clock.advance(INTERVAL)
        self._exporter.close()
        yield from self._scrapes.series()

    def _start(self) -> Exporter:
        exporter = make_exporter(self._simulated, self._clock, self._directory, name=self._node.instance)
        use_this_thread(exporter)
        return exporter

    def _act(self, now: float) -> None:
        """Does what is due: runs begin and end, the clock is set, the exporter restarts, a GPU fails."""
        node, nvml = self._node, self._simulated.nvml
        while self._coming and self._coming[0].begin <= now:
            self._launch(self._coming.pop(0), now)
        for planned, run in list(self._running):
            if run.alive and planned.end <= now:
                self._simulated.end(run, now - run.start, well=not planned.killed)
            elif run.alive and run.start < planned.restarts_at <= now:
                self._simulated.end(run, now - run.start, well=False)
                self._launch(planned, now, attempt=1)
        if node.steps_at <= now < node.steps_at + INTERVAL:
            self._clock.step(node.step)
            self._simulated.start += node.step
        if any(at <= now < at + INTERVAL for at in (node.restarts_at, node.down[1])):
            self._exporter.close()
            self._exporter = self._start()
        lost, faulty = node.gpus
        nvml.lost = {lost} if node.lost[0] <= now < node.lost[1] else set()
        nvml.gpus[faulty].uncorrected_errors = int(now >= node.faulty_at)

    def _launch(self, planned: PlannedRun, now: float, attempt: int = 0) -> None:
        part = next(part for part in planned.parts if part.node == self._number)
        place = GroupedPlace(
            part.ranks,
            part.cores,
            part.gpus,
            planned.first_pid + 50 * attempt,
            planned.uid,
            planned.launch,
            attempt,
            planned.cpu_limit,
        )
        run = SimulatedRun(
            planned.job,
            planned.number + 100 * self._plan.seed,
            planned.name,
            self._directory,
            self._clock.time(),
            now,
            place=place,
        )
        self._simulated.add(run)
        self._running.append((planned, run))


def use_this_thread(exporter: Any) -> None:
    """Performs readings in this thread: nothing hangs here, and waking other threads takes long."""
    exporter._registry._crew = _ThisThread()
    for collector in exporter._registry._collectors:
        if isinstance(collector, SimulatedGpus):
            vars(collector)["_thread"] = _NvmlInThisThread(collector._thread)


class _ThisThread:
    """Performs the tasks of a tick."""

    def run(self, tasks: Iterable[Any], sample: Sample, hurried: bool) -> None:
        for task in tasks:
            task.call(sample)

    def dismiss(self) -> None:
        pass


class _NvmlInThisThread:
    """Reads the GPUs."""

    def __init__(self, thread: Any) -> None:
        self._session = thread._session

    def read(self, interval: float, patience: float) -> Reading:
        reading: Reading = self._session.read(interval)
        self._session.work_between_ticks(interval)
        return reading

    def close(self) -> None:
        self._session.close()


class Scrapes:
    """The samples of a target, by series."""

    def __init__(self, target: dict[str, str]) -> None:
        self._target = {"job": "stepscope", **target}
        self._points: dict[str, list[tuple[int, float | None]]] = {}
        self._read: dict[str, bool] = {}
        self._present: set[str] = set()

    def add(self, time: int, text: str | None, read: Collection[str]) -> None:
        """Adds a scrape, or one that failed: series that are no longer there end."""
        lines = [] if text is None else text.splitlines()
        lines.append(f"up {int(text is not None)}")
        present = set()
        for line in lines:
            if line[0] == "#":
                continue
            key, _, value = line.rpartition(" ")
            wanted = self._read.get(key)
            if wanted is None:
                wanted = self._read[key] = key.partition("{")[0] in read
            if wanted:
                present.add(key)
                self._points.setdefault(key, []).append((time, float(value)))
        for key in self._present - present:
            self._points[key].append((time, None))
        self._present = present

    def series(self) -> Iterator[Series]:
        for key, points in self._points.items():
            name, _, rest = key.partition("{")
            labels = {label: _unescaped(value) for label, value in _LABEL.findall(rest)}
            yield {"__name__": name, **self._target, **labels}, points


def _unescaped(value: str) -> str:
    return re.sub(r"\\(.)", lambda match: "\n" if match[1] == "n" else match[1], value)


def play(plan: Plan, number: int, read: Collection[str]) -> list[Series]:
    """Returns the series of a node of the plan."""
    with simulated_directory() as directory:
        return list(Machine(plan, number, directory).play(read))
