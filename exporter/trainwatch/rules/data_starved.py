"""DataStarved: training waits for its data.

Source: our own. A step's data wait is the time from requesting a batch until the loader returns it. It is
close to 0 if the loader keeps up, so a fifth of the step time is well above noise.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any

from trainwatch.measurements.component_time import RankComponent
from trainwatch.measurements.measure import RunMeasurements
from trainwatch.measurements.usage import Usage
from trainwatch.rules.base import Verdict, status_of
from trainwatch.rules.component_share import ComponentShare, ShareParameters
from trainwatch.rules.data_loading import Loading
from trainwatch.rules.judgement import Tallies
from trainwatch.rules.parameters import Percent, StepCount
from trainwatch.rules.registry import rule
from trainwatch.rules.topics import IDLE_GPUS
from trainwatch.runs.model import ranks_of, workers_of
from trainwatch.status import Status
from trainwatch.words import duration, percent, too_few


@dataclass(frozen=True)
class DataStarvedParameters(ShareParameters):
    threshold: Annotated[Percent, "the rule fires above this share of the step time of a rank"] = 20
    patience: Annotated[StepCount, "decisions begin after this many steps of a rank"] = 20


@rule
class DataStarved(ComponentShare[DataStarvedParameters]):
    """Seconds lost: the data wait of the rank that waited longest, of those that fired."""

    parameters_type = DataStarvedParameters
    subject = "Waiting for data"
    question = "Does training wait for its data, and why does the data come too late?"
    description = (
        "Compares the time that steps wait for the data loader with their whole duration. The workers' CPU "
        "time and the use of the node's cores show the cause."
    )
    recommendation = "Find out why the data loader does not keep ahead of the training loop."
    topic = "data loading"
    view = "loading"
    symptom = IDLE_GPUS

    component = "data_wait"
    summary = "Rank {{ $labels.rank }} of run {{ $labels.run }} waits for its data"
    verb = "waited for data"

    @property
    def details_of(self) -> tuple[Usage]:
        return (Usage(),)

    def conclude(self, run: RunMeasurements, tallies: Tallies) -> Verdict:
        waits = {
            (name, rank): wait
            for name, node in run.of(self.measure).items()
            for rank, wait in sorted(node.ranks.items())
        }
        status = status_of(tallies.triggered, tallies.judged)
        if status is Status.NOT_ENOUGH_DATA:
            return Verdict(status, self._why_not(list(waits.values())))
        fired = {key: wait for key, wait in waits.items() if tallies.of(*key).triggered}
        (name, rank), worst = max(
            (fired or waits).items(), key=lambda item: (item[1].seconds, item[1].percent)
        )
        loading = _loading(run, name, rank, worst)
        clause, remedy = loading.words()
        waited = duration(worst.seconds)
        share = f"Rank {rank} waited for data for {percent(worst.percent)} of its step time ({waited})"
        return Verdict(
            status,
            f"{share}; {clause}." if fired else f"{share}.",
            tallies.triggered,
            tallies.triggered,
            sum(wait.steps for wait in waits.values()),
            worst.seconds if fired else 0.0,
            remedy if fired else None,
            {
                "cause": loading.cause() if fired else None,
                "ranks": [
                    _details(
                        name, rank, wait, tallies.of(name, rank).triggered, _loading(run, name, rank, wait)
                    )
                    for (name, rank), wait in waits.items()
                ],
            },
        )

    def _why_not(self, waits: list[RankComponent]) -> str:
        most = max((wait.steps for wait in waits), default=0)
        if not most:
            return "No step was recorded: mark steps with trainwatch.step and loaders with trainwatch.watch."
        return too_few("steps of a rank", most, self.parameters.patience)


def _loading(run: RunMeasurements, node: str, rank: int, wait: RankComponent) -> Loading:
    usage = run.nodes[node][Usage()]
    ranks = ranks_of(run.facts, node)
    processes = ranks.get(rank, [])
    loaders = [loader for process in processes for loader in process.loaders]
    cores = usage.cores or next((len(facts.cpus) for facts in run.facts.nodes if facts.node == node), 0) or 1
    return Loading(
        workers=workers_of(processes[-1]) if processes else None,
        fetch_seconds=sum(loader.fetch_seconds for loader in loaders),
        fetch_cpu_seconds=sum(loader.fetch_cpu_seconds for loader in loaders),
        fetch_core_wait_seconds=sum(loader.fetch_core_wait_seconds for loader in loaders),
        step_seconds=wait.step_seconds,
        wait_seconds=wait.seconds,
        cores=round(cores / max(len(ranks), 1), 1),
        cpu_busy=usage.cpu.mean if usage.cpu.count else 0.0,
        io_wait=usage.io_wait.mean if usage.io_wait.count else 0.0,
    )


def _details(node: str, rank: int, wait: RankComponent, triggered: int, loading: Loading) -> dict[str, Any]:
    timed = bool(loading.fetch_seconds)
    return {
        "node": node,
        "rank": rank,
        "steps": wait.steps,
        "step_seconds": wait.step_seconds,
        "data_wait_seconds": wait.seconds,
        "percent": wait.percent,
        "triggered": triggered,
        "cause": loading.cause() if triggered else None,
        "workers": loading.workers,
        "cores": loading.cores,
        "fetch_cpu_percent": 100 * loading.cpu_share if timed else None,
        "fetch_waiting_percent": 100 * loading.waiting_share if timed else None,
        "workers_needed": loading.workers_needed if timed else None,
    }
