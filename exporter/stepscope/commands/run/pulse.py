"""The figures of the status line, from the exporter's metrics: rate, GPU, CPU and waiting."""

import re
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from stepscope.common.words import duration, number, pace, percent

WINDOW = 10.0  # seconds: long enough for a steady rate,
FEWEST_STEPS = 3  # or longer for slow steps, up to
LONGEST_WINDOW = 300.0
_SERIES = re.compile(
    r"^stepscope_(step_duration_seconds_count|step_duration_seconds_sum|step_component_seconds_total"
    r"|gpu_utilization_ratio|run_gpu_info|run_cpu_seconds_total|run_cpus|run_cpu_limit_cores)"
    r"\{([^\n]*)\} (\S+)$",
    re.MULTILINE,
)
_LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')


@dataclass(frozen=True)
class Look:
    """The totals of one scrape."""

    time: float
    ranks: int
    steps: float  # of training, of all ranks
    step_seconds: float  # of all phases
    waited: float  # for data
    cpu_seconds: float
    cores: float  # that the run may use; 0: not known
    gpu: float | None  # mean utilisation of the run's GPUs, 0..1


class Pulse:
    """Compares the last scrapes. `scrape` returns /metrics, or None; each rank makes `total` steps."""

    def __init__(
        self, scrape: Callable[[], bytes | None], clock: Callable[[], float], total: int | None = None
    ) -> None:
        self._scrape, self._clock, self._total = scrape, clock, total
        self._looks: deque[Look] = deque()

    def parts(self) -> list[str]:
        """Scrapes, and returns what is known: "step 1240", "12.3 steps/s", "GPU 43 %", ..."""
        text = self._scrape()
        if text is None:
            return ["no answer from the exporter"]
        now = look(text.decode(), self._clock())
        if self._looks and self._looks[-1].ranks != now.ranks:  # their totals cannot be compared
            self._looks.clear()
        self._looks.append(now)
        before = self._before(now)
        return [*self._steps(before, now), *_use(before, now)]

    def _before(self, now: Look) -> Look:
        """Returns the scrape that `now` is compared with, and forgets older ones."""
        while now.time - self._looks[0].time > LONGEST_WINDOW:
            self._looks.popleft()
        chosen = self._looks[0]
        for each in self._looks:
            steps = (now.steps - each.steps) / max(now.ranks, 1)
            if now.time - each.time >= WINDOW and steps >= FEWEST_STEPS:
                chosen = each
        while self._looks[0] is not chosen:
            self._looks.popleft()
        return chosen

    def _steps(self, before: Look, now: Look) -> Iterator[str]:
        if not now.ranks:
            yield "no step yet"
            return
        steps = now.steps / now.ranks
        yield f"step {number(round(steps))}" + (f" of {number(self._total)}" if self._total else "")
        seconds, done = now.time - before.time, (now.steps - before.steps) / now.ranks
        if done <= 0 or seconds <= 0:
            return
        yield pace(done / seconds)
        if self._total and steps < self._total:
            yield f"ETA {duration((self._total - steps) * seconds / done)}"


def _use(before: Look, now: Look) -> Iterator[str]:
    seconds, step_seconds = now.time - before.time, now.step_seconds - before.step_seconds
    if now.gpu is not None:
        yield f"GPU {percent(100 * now.gpu)}"
    if now.cores and seconds > 0:
        used = (now.cpu_seconds - before.cpu_seconds) / seconds / now.cores
        yield f"CPU {percent(100 * min(max(used, 0), 1))}"
    if now.waited and step_seconds > 0:
        yield f"waiting {percent(100 * min((now.waited - before.waited) / step_seconds, 1))}"


def look(text: str, time: float) -> Look:
    """Reads the metrics of one run."""
    totals: dict[str, float] = {}
    ranks, own, gpus = set(), set(), {}
    for match in _SERIES.finditer(text):
        name, value, labels = match[1], float(match[3]), dict(_LABEL.findall(match[2]))
        if name == "gpu_utilization_ratio":
            gpus[labels["gpu"]] = value
        elif name == "run_gpu_info":
            own.add(labels["gpu"])
        elif name == "step_duration_seconds_count" and labels["phase"] == "train":
            ranks.add(labels["rank"])
            totals["steps"] = totals.get("steps", 0.0) + value
        elif name != "step_component_seconds_total" or labels["component"] == "data_wait":
            totals[name] = totals.get(name, 0.0) + value
    used = [value for gpu, value in gpus.items() if gpu in own]
    cores = totals.get("run_cpus", 0.0)
    return Look(
        time=time,
        ranks=len(ranks),
        steps=totals.get("steps", 0.0),
        step_seconds=totals.get("step_duration_seconds_sum", 0.0),
        waited=totals.get("step_component_seconds_total", 0.0),
        cpu_seconds=totals.get("run_cpu_seconds_total", 0.0),
        cores=min(cores, totals.get("run_cpu_limit_cores", cores)),
        gpu=sum(used) / len(used) if used else None,
    )
