"""What happens to a whole cluster, or on purpose: nobody must be flooded, and what is healthy not accused.

Each incident begins in the middle of the day.
"""

from collections.abc import Callable
from typing import NamedTuple

from trials.day.jobs import GPUS, KINDS, MINUTE, Day, Job, PlantedFault, pools
from trials.day.score import OWNER, PLATFORM, Result, audience_of

HEAD = ("incident", "what happens", "to the platform", "to owners", "critical", "rules")
SWEEP = 500  # runs


class Incident(NamedTuple):
    happens: str
    befall: Callable[[Day], None]


def _upgrade(day: Day) -> None:
    for place, node in enumerate(day.nodes):
        begin = day.seconds / 2 + 45 * place
        node.restarts, node.unscraped = [begin + 20], [(begin, begin + 40)]


def _unscraped(day: Day) -> None:
    for node in day.nodes:
        node.restarts, node.unscraped = [], [(day.seconds / 2, day.seconds / 2 + 200)]


def _drain(day: Day) -> None:
    begin, end = day.seconds / 2, day.seconds / 2 + 20 * MINUTE
    shared = pools(len([node for node in day.nodes if node.devices == "gpus"]))["shared"]
    for place in shared[:2]:
        day.jobs = [job for job in day.jobs if place not in job.parts or not begin <= job.begin < end + 30]
        for job in day.jobs:
            if place in job.parts and job.begin < begin < job.end:
                job.end, job.ended = begin, "signal SIGTERM"
        day.nodes[place].restarts, day.nodes[place].unscraped = [end], [(begin + 30, end + 30)]


def _preempt(day: Day) -> None:
    for number in range(4):
        moment = day.seconds / 2 + 15 * MINUTE * number
        for job in day.jobs:
            if job.kind.name == "fine-tuning" and job.begin + MINUTE < moment < job.end and job.number % 3:
                job.end, job.ended = moment, "signal SIGKILL" if job.number % 2 else "signal SIGTERM"


def _sweep(day: Day) -> None:
    kind = next(kind for kind in KINDS if kind.name == "short job")
    places = pools(len([node for node in day.nodes if node.devices == "gpus"]))["short"]
    begin, number = day.seconds / 2, len(day.jobs)
    day.jobs = [job for job in day.jobs if job.end < begin or not set(job.parts) & set(places)]
    for run in range(SWEEP):
        turn, gpu = divmod(run, GPUS * len(places))
        since = begin + 165 * turn + 3 * (gpu % GPUS)
        if since + 150 < day.seconds:
            parts = {places[gpu // GPUS]: [gpu % GPUS]}
            seed = f"day {day.seed} sweep {run}"
            job = Job(number + run, kind, "user00", since, since + 150, parts, seed, "exit status 1")
            day.jobs = [*day.jobs, job]


def _pause(day: Day, name: str, minutes: float, each: int) -> None:
    """Pauses one of `each` jobs, of those that last until after it."""
    begin, end = day.seconds / 2, day.seconds / 2 + minutes * MINUTE
    for job in day.jobs:
        lasts = job.begin + 5 * MINUTE < begin and end + 2 * MINUTE < job.end
        if job.run and lasts and not job.number % each:
            job.fault = PlantedFault(name, begin + job.number % 8, end)


INCIDENTS = {
    "upgrade": Incident("exporters restart one after another, each for 40 s", _upgrade),
    "Prometheus restarts": Incident("no node is scraped for 200 s", _unscraped),
    "drain": Incident("the jobs of two nodes are ended, and 30 s later the nodes are off for 20 min", _drain),
    "preemption": Incident("every 15 min, two of three fine-tunings end by SIGTERM or SIGKILL", _preempt),
    "sweep": Incident(f"one user's sweep of {SWEEP} runs, each of which fails after 150 s", _sweep),
    "suspension": Incident(
        "a third of the jobs are stopped for 8 min", lambda day: _pause(day, "suspension", 8, 3)
    ),
    "long suspension": Incident(
        "a third of the jobs are stopped for 30 min", lambda day: _pause(day, "suspension", 30, 3)
    ),
    "storage outage": Incident(
        "all jobs wait for data for 15 min", lambda day: _pause(day, "storage outage", 15, 1)
    ),
}


def row(name: str, result: Result) -> tuple[str, ...]:
    """Returns what was sent on a day with an incident."""
    firing = [each for each in result.notifications if each.firing]
    to = [audience_of(each.firing[0].labels) for each in firing]
    critical = sum(each.firing[0].labels["severity"] == "critical" for each in firing)
    rules = {alert.labels["rule"] for each in firing for alert in each.firing}
    counts = to.count(PLATFORM), to.count(OWNER), critical
    return (name, INCIDENTS[name].happens, *map(str, counts), ", ".join(sorted(rules)) or "none")
