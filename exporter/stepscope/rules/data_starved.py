"""DataStarved: training waits for its data.

Source: our own. A step's data wait is the time from requesting a batch until the loader returns it. It is
close to 0 if the loader keeps up, so a fifth of the step time is well above noise. The share of a whole run
is steadier than that of a quarter of an hour: there, a tenth is.
"""

from collections.abc import Mapping, Sequence
from itertools import zip_longest
from typing import Any

from stepscope.common.status import Status
from stepscope.common.words import ranks_spent, too_few
from stepscope.measurements.measure import PortionSoFar, RunMeasurements
from stepscope.measurements.own_cores import OWN_CORES, OwnCores
from stepscope.measurements.usage import USAGE
from stepscope.rules.parts.base import Verdict, status_of
from stepscope.rules.parts.component_share import ComponentShare
from stepscope.rules.parts.data_loading import CoresInUse, Loading, PyDataset
from stepscope.rules.parts.judgement import Tallies, Tally
from stepscope.rules.parts.registry import rule
from stepscope.rules.parts.remedies import HOOKS, no_steps
from stepscope.rules.parts.topics import IDLE_GPUS
from stepscope.runs.model import RankFacts, RunFacts, ranks_of, workers_of
from stepscope.training.layout import PIPELINE_PYTHON, PY_PROCESSES, PY_QUEUE, PY_WORKERS, SEQUENTIAL_MAPS
from stepscope.training.line_layout import STATES

CONCLUDED = ("hand-over", "not known")  # causes of which no time was measured
WHOLE_RUN = 0.5  # of the threshold is enough for the report, over the whole run
OF_NUMBERS = {f"torch.utils.data._utils.collate.collate_{kind}_fn" for kind in ("int", "float")}
HOW_TO_TIME = f"{HOOKS} time loaders of PyTorch, tf.data and Keras. Pass others through `stepscope.watch`."


@rule
class DataStarved(ComponentShare):
    """Seconds lost: the data wait of the rank that waited longest, of those that fired."""

    subject = "Waiting for data"
    question = "Does training wait for its data, and why does the data come too late?"
    description = (
        "Compares the time that steps wait for the data loader with their whole duration. The timed fetches "
        "of its workers, and the use of the run's cores, show the cause."
    )
    recommendation = "Find out why the data loader does not keep ahead of the training loop."
    topic = "data loading"
    view = "loading"
    waits_for_data = True
    symptom = IDLE_GPUS

    component = "data_wait"
    judges = (component,)
    summary = "Run {{ $labels.run }} waits for its data"
    verb = "waited for data"

    details_of = (USAGE, OWN_CORES)

    def conclude(self, run: RunMeasurements, tallies: Tallies) -> Verdict:
        waits = {
            (name, rank): wait
            for name, node in run.of(self.measure).items()
            for rank, wait in sorted(node.ranks.items())
        }
        fired = {key: wait for key, wait in waits.items() if self._fires(wait, tallies.of(*key))}
        status = status_of(len(fired), tallies.judged)
        if status is Status.NOT_ENOUGH_DATA:
            return Verdict(status, self._why_not(run, list(waits.values())))
        timed = any(rank.loaders for rank in run.facts.ranks) or (run.whole and run.facts.activities)
        if not timed and not any(wait.part for wait in waits.values()):
            return Verdict(Status.NOT_ENOUGH_DATA, f"No wait for data was timed. {HOW_TO_TIME}")
        (name, rank), worst = max((fired or waits).items(), key=lambda item: (item[1].part, item[1].percent))
        loading = _loading(run, name, rank, worst)
        clause, remedy = loading.words()
        peers = [wait.percent for key, wait in waits.items() if key != (name, rank)]
        triggered = tallies.triggered or len(fired)  # the last scan, if only the whole run is above
        share = ranks_spent(rank, worst.percent, peers, self.verb, "step time", worst.part)
        return Verdict(
            status,
            f"{share}; {clause}." if fired else f"{share}.",
            triggered,
            triggered,
            sum(wait.seen for wait in waits.values()),
            worst.part if fired else 0.0,
            remedy if fired else None,
            {
                "cause": loading.cause() if fired else None,
                "ranks": [
                    _details(
                        name,
                        rank,
                        wait,
                        tallies.of(name, rank).triggered or int((name, rank) in fired),
                        _loading(run, name, rank, wait),
                    )
                    for (name, rank), wait in waits.items()
                ],
            },
            cause_known=loading.cause() not in CONCLUDED,
        )

    def _fires(self, wait: PortionSoFar, tally: Tally) -> bool:
        """Returns whether a scan fired, or the whole run waited for half as much."""
        judged = tally.judged and wait.percent > WHOLE_RUN * self.parameters.threshold
        return bool(tally.triggered or judged)

    def _why_not(self, run: RunMeasurements, waits: list[PortionSoFar]) -> str:
        most = max((wait.seen for wait in waits), default=0)
        if not most:
            return no_steps(run.facts)
        return too_few("steps of a rank", most, self.parameters.patience)


def _loading(run: RunMeasurements, node: str, rank: int, wait: PortionSoFar) -> Loading:
    usage = run.nodes[node][USAGE]
    ranks = ranks_of(run.facts, node)
    processes = ranks.get(rank, [])
    loaders = [loader for process in processes for loader in process.loaders]
    settings = next((each.gauges for each in reversed(run.facts.ranks) if not each.rank), {})
    gauges = settings | (processes[-1].gauges if processes else {})  # frameworks publish those of rank 0
    maps = gauges.get(SEQUENTIAL_MAPS)
    own = run.nodes[node][OWN_CORES]
    of_node = usage.cores or next((len(facts.cpus) for facts in run.facts.nodes if facts.node == node), 0)
    cores = own.allowed if own.allowed > 0 else of_node
    workers = workers_of(processes[-1]) if processes else None
    return Loading(
        workers=workers,
        fetches=sum(loader.fetches for loader in loaders),
        fetch_seconds=sum(loader.fetch_seconds for loader in loaders),
        fetch_cpu_seconds=sum(loader.fetch_cpu_seconds for loader in loaders),
        fetch_core_wait_seconds=sum(loader.fetch_core_wait_seconds for loader in loaders),
        step_seconds=wait.whole,
        wait_seconds=wait.part,
        cores=round(cores / max(len(ranks), 1), 1),
        cpu_busy=usage.cpu.mean if usage.cpu.count else 0.0,
        io_wait=usage.io_wait.mean if usage.io_wait.count else 0.0,
        in_use=_cores_in_use(own, ranks),
        waits=_waits(run.facts, node, rank, workers),
        busiest_fetch_seconds=sum(loader.busiest_fetch_seconds or 0.0 for loader in loaders),
        restart_seconds=sum(loader.restart_seconds or 0.0 for loader in loaders if loader.phase == "train"),
        worker_threads=max((loader.worker_threads or 0 for loader in loaders), default=0),
        sequential_maps=None if maps is None else int(maps),
        pipeline_python_seconds=gauges.get(PIPELINE_PYTHON, 0.0),
        prefetch=next((loader.prefetch_factor for loader in loaders if loader.phase == "train"), None),
        fetch_counts=list(map(sum, zip_longest(*(each.fetch_counts for each in loaders), fillvalue=0))),
        py_dataset=_py_dataset(gauges),
        lists_share=_lists_share(run.facts, node, rank),
        persistent_workers=next((loader.persistent_workers for loader in reversed(loaders)), None),
        step_core_wait_seconds=sum(
            thread.train_core_wait_seconds
            for thread in run.facts.threads
            if (thread.node, thread.rank, thread.role) == (node, rank, "training")
        ),
    )


def _py_dataset(gauges: Mapping[str, float]) -> PyDataset | None:
    """Returns how Keras makes batches of its PyDataset, if it trains on one."""
    if PY_WORKERS not in gauges:
        return None
    workers, processes, queue = (gauges.get(name, 0.0) for name in (PY_WORKERS, PY_PROCESSES, PY_QUEUE))
    return PyDataset(int(workers), bool(processes), int(queue))


def _lists_share(facts: RunFacts, node: str, rank: int) -> float:
    """Returns the share of the rank's waits for data in which PyTorch makes tensors of numbers."""
    waits = [
        stack
        for thread in facts.threads
        for stack in thread.stacks
        if (thread.node, thread.rank) == (node, rank) and stack.component == "data_wait"
    ]
    made = sum(stack.seconds for stack in waits if OF_NUMBERS.intersection(stack.functions))
    return made / sum(stack.seconds for stack in waits) if made else 0.0


def _waits(facts: RunFacts, node: str, rank: int, workers: int | None) -> dict[str, float]:
    """Returns what the rank's workers wait for in the user's lines, as shares by state; {}: no wait was seen.

    Without workers, it is what the training process waits for in its fetches.
    """
    waits, role = dict.fromkeys(STATES, 0.0), "loader worker" if workers else "training"
    for thread in facts.threads:
        if (thread.node, thread.rank, thread.role) == (node, rank, role):
            for line in thread.lines:
                of_fetches = workers or line.component == "data_wait"
                for state, seconds in line.seconds.items() if line.place and of_fetches else ():
                    waits[state] += seconds
    waits.pop("running")
    total = sum(waits.values())
    return {state: seconds / total for state, seconds in waits.items()} if total else {}


def _cores_in_use(own: OwnCores, ranks: Mapping[int, Sequence[RankFacts]]) -> CoresInUse | None:
    if not own.seconds:
        return None
    loaders = (loader for rank in ranks.values() for process in rank for loader in process.loaders)
    loading = min(sum(loader.fetch_cpu_seconds for loader in loaders) / own.seconds, own.own_cores)
    return CoresInUse(own.allowed, loading, own.own_cores - loading, own.others_cores)


def _details(node: str, rank: int, wait: PortionSoFar, triggered: int, loading: Loading) -> dict[str, Any]:
    timed = bool(loading.fetch_seconds)
    return {
        "node": node,
        "rank": rank,
        "steps": wait.seen,
        "step_seconds": wait.whole,
        "data_wait_seconds": wait.part,
        "percent": wait.percent,
        "triggered": triggered,
        "cause": loading.cause() if triggered else None,
        "workers": loading.workers,
        "cores": loading.cores or None,
        "fetch_cpu_percent": 100 * loading.cpu_share if timed else None,
        "fetch_waiting_percent": 100 * loading.waiting_share if timed else None,
        "workers_needed": loading.workers_needed if timed else None,
        "workers_suggested": loading.workers_suggested,
    }
