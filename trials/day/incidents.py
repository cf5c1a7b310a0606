"""What happens to a whole cluster, or on purpose: nobody must be flooded, and what is healthy not accused.

Each incident begins in the middle of the day.
"""

from collections.abc import Callable
from dataclasses import replace
from math import inf
from random import Random
from typing import NamedTuple

from trials.day.jobs import GPUS, KINDS, MINUTE, Day, Devices, Job, PlantedFault, pools
from trials.day.score import OWNER, PLATFORM, Result, audience_of

HEAD = ("incident", "what happens", "to the platform", "to owners", "critical", "rules")
SWEEP, SHORT = 500, 2000  # runs
NOTEBOOKS = 100_000  # the number of the first one: no other job has it


class Incident(NamedTuple):
    happens: str
    befall: Callable[[Day], None]


def _upgrade(day: Day) -> None:
    for place, node in enumerate(day.nodes):
        begin = day.seconds / 2 + 45 * place
        node.restarts, node.unscraped = [begin + 20], [(begin, begin + 40)]
        node.upgraded = True


def _unscraped(day: Day) -> None:
    for node in day.nodes:
        node.restarts, node.unscraped = [], [(day.seconds / 2, day.seconds / 2 + 200)]


def _shared(day: Day) -> range:
    """Returns the nodes with GPUs that several jobs share."""
    return pools(len([node for node in day.nodes if node.devices == "gpus"]))["shared"]


def _free(day: Day, place: int, begin: float, end: float) -> None:
    """Ends the jobs of a node; none begins there before `end`."""
    day.jobs = [job for job in day.jobs if place not in job.parts or not begin <= job.begin < end]
    for job in day.jobs:
        if place in job.parts and job.begin < begin < job.end:
            job.end, job.ended = begin, "signal SIGTERM"


def _drain(day: Day) -> None:
    begin, end = day.seconds / 2, day.seconds / 2 + 20 * MINUTE
    for place in _shared(day)[:2]:
        _free(day, place, begin, end + 30)
        day.nodes[place].restarts, day.nodes[place].unscraped = [end], [(begin + 30, end + 30)]


def _update_drivers(day: Day) -> None:
    for number, place in enumerate(_shared(day)):
        begin = day.seconds / 2 + 8 * MINUTE * number
        _free(day, place, begin, begin + 8 * MINUTE)
        day.nodes[place].without_driver = (begin + MINUTE, begin + 6 * MINUTE)


def _reset_gpus(day: Day) -> None:
    begin = day.seconds / 2
    for place in _shared(day)[:2]:
        _free(day, place, begin, begin + 3 * MINUTE)
        day.nodes[place].lost = (begin + MINUTE, begin + 2 * MINUTE)


def _reboot_smaller(day: Day) -> None:
    """Two nodes are off for 5 minutes, and come back without their last GPU."""
    begin = day.seconds / 2
    for place in _shared(day)[:2]:
        _free(day, place, begin, begin + 5 * MINUTE)
        day.jobs = [job for job in day.jobs if job.begin < begin or GPUS - 1 not in job.parts.get(place, ())]
        node = day.nodes[place]
        node.smaller, node.restarts = begin, [begin + 5 * MINUTE]
        node.unscraped = [(begin, begin + 5 * MINUTE)]


def _restart_often(day: Day) -> None:
    first = int(day.seconds / 2)
    for place, node in enumerate(day.nodes):
        node.restarts = [*range(first + 7 * place, int(day.seconds), 300)]


def _open_notebooks(day: Day) -> None:
    """One user opens a notebook on each GPU, and thinks for most of the time."""
    kind = next(kind for kind in KINDS if kind.name == "notebook")
    begin, end = day.seconds / 2, day.seconds
    for place in [place for place, node in enumerate(day.nodes) if node.devices == "gpus"]:
        _free(day, place, begin, end)
        for gpu in range(GPUS):
            number, seed = NOTEBOOKS + GPUS * place + gpu, f"day {day.seed} notebook {place} {gpu}"
            day.jobs = [*day.jobs, Job(number, kind, "user00", begin + 5, end, {place: [gpu]}, seed)]


def _switch_off(day: Day) -> None:
    for node in day.nodes:
        node.unknown = (day.seconds / 2, day.seconds / 2 + 60 * MINUTE)


def _rename(day: Day) -> None:
    """Two nodes without jobs get another name, under which their exporters start again."""
    moment = day.seconds / 2
    for place in _shared(day)[:2]:
        _free(day, place, moment - MINUTE, moment + 2 * MINUTE)
        node = day.nodes[place]
        node.unknown, new = (moment, inf), len(day.nodes)
        renamed = replace(node, name=f"{node.name}-new", unknown=(-inf, moment + MINUTE))
        day.nodes = [*day.nodes, replace(renamed, restarts=[moment], unscraped=[])]
        for job in day.jobs:
            if place in job.parts and job.begin >= moment:
                job.parts = {new if node == place else node: gpus for node, gpus in job.parts.items()}


def _lose_node(day: Day) -> None:
    """The node of rank 0 breaks down and is no target any more: the run's other node hangs for an hour."""
    begin = day.seconds / 2
    job = next(job for job in day.jobs if len(job.parts) > 1 and job.begin + 5 * MINUTE < begin < job.end)
    job.end, job.ended = min(job.end, begin + 60 * MINUTE), "signal SIGKILL"
    job.fault = PlantedFault("hang", begin, job.end)
    day.nodes[min(job.parts)].unknown = (begin, inf)


def _lose_runs(day: Day) -> None:
    """Two nodes break down, and are no targets any more: their runs end with them."""
    begin = day.seconds / 2
    for place in _shared(day)[:2]:
        _free(day, place, begin, inf)
        day.nodes[place].unknown = (begin, inf)


def _divide(day: Day, devices: Devices) -> None:
    for node in day.nodes:
        node.devices = devices


def _preempt(day: Day) -> None:
    for number in range(4):
        moment = day.seconds / 2 + 15 * MINUTE * number
        for job in day.jobs:
            if job.kind.name == "fine-tuning" and job.begin + MINUTE < moment < job.end and job.number % 3:
                job.end, job.ended = moment, "signal SIGKILL" if job.number % 2 else "signal SIGTERM"


def _sweep(day: Day, runs: int, seconds: float, ended: str = "exit status 1") -> None:
    kind = next(kind for kind in KINDS if kind.name == "short job")
    places = pools(len([node for node in day.nodes if node.devices == "gpus"]))["short"]
    begin, number = day.seconds / 2, len(day.jobs)
    day.jobs = [job for job in day.jobs if job.end < begin or not set(job.parts) & set(places)]
    for run in range(runs):
        turn, gpu = divmod(run, GPUS * len(places))
        since = begin + 1.1 * seconds * turn + 0.02 * seconds * (gpu % GPUS)
        if since + seconds < day.seconds:
            parts = {places[gpu // GPUS]: [gpu % GPUS]}
            seed = f"day {day.seed} sweep {run}"
            job = Job(number + run, kind, "user00", since, since + seconds, parts, seed, ended)
            day.jobs = [*day.jobs, job]


def _pause(day: Day, name: str, minutes: float, each: int) -> None:
    """Pauses one of `each` jobs, of those that last until after it."""
    begin, end = day.seconds / 2, day.seconds / 2 + minutes * MINUTE
    for job in day.jobs:
        lasts = job.begin + 5 * MINUTE < begin and end + 2 * MINUTE < job.end
        if job.run and lasts and not job.number % each:
            job.fault = PlantedFault(name, begin + job.number % 8, end)


def _go_for_lunch(day: Day) -> None:
    """Half of the runs with one GPU are in notebooks, whose users are away for 50 minutes."""
    begin, end = day.seconds / 2, day.seconds / 2 + 50 * MINUTE
    for job in day.jobs:
        lasts = job.begin + 5 * MINUTE < begin and end + 2 * MINUTE < job.end
        if job.run and job.ranks == 1 and job.kind.phase == "train" and lasts and job.number % 2:
            job.fault = PlantedFault("lunch", begin, end)


def _save_slowly(day: Day) -> None:
    for job in day.jobs:
        if job.kind.checkpoint_lasts[1]:
            job.kind = replace(job.kind, checkpoint_lasts=(150.0, 420.0))


def _grow_and_shrink(day: Day) -> None:
    for job in day.jobs:
        if job.run and job.ranks > 1 and job.kind.phase == "train" and job.end - job.begin > 30 * MINUTE:
            job.fault = PlantedFault("elastic", max(job.begin + 5 * MINUTE, day.seconds / 2), job.end)


def _generate_often(day: Day) -> None:
    """Reinforcement learning: it trains for a minute, and generates text for five, in turns."""
    for job in day.jobs:
        if job.kind.name in ("fine-tuning", "training with generation"):
            job.kind = replace(job.kind, generation_every=(50.0, 60.0), generation_lasts=(240.0, 330.0))


def _resume(day: Day) -> None:
    """Long jobs are killed every half hour, and start again 90 seconds later."""
    turns = []
    for job in day.jobs:
        begin, turn, lasts = job.begin, 0, 30 * MINUTE
        while job.run and job.end - begin > lasts + 150.0:
            part = replace(job, number=job.number + NOTEBOOKS * turn, begin=begin, end=begin + lasts)
            part.seed, part.ended = f"{job.seed} turn {turn}", "signal SIGKILL"
            turns.append(part)
            begin, turn = part.end + 90.0, turn + 1
        turns.append(replace(job, number=job.number + NOTEBOOKS * turn, begin=begin))
    day.jobs = turns


def _scrape_seldom(day: Day) -> None:
    random = Random(f"{day.seed} scrapes")
    for node in day.nodes:
        every = range(int(day.seconds / 2), int(day.seconds), day.interval)
        node.unscraped = [(at, at + day.interval - 1) for at in every if random.random() < 0.1]


def _slow_clocks(day: Day) -> None:
    begin = day.seconds / 2
    jobs = [job for job in day.jobs if job.run and job.ranks >= 4 and job.kind.phase == "train"]
    job = max(jobs, key=lambda job: job.end - max(begin, job.begin + 20 * MINUTE))
    job.fault = PlantedFault("low clocks", max(begin, job.begin + 20 * MINUTE), job.end)


def _publish_less(day: Day) -> None:
    for node in day.nodes[::2]:
        node.restarts, node.lean = [day.seconds / 2], day.seconds / 2


INCIDENTS = {
    "upgrade": Incident("exporters restart one after another, each for 40 s", _upgrade),
    "Prometheus restarts": Incident("no node is scraped for 200 s", _unscraped),
    "drain": Incident("the jobs of two nodes are ended, and 30 s later the nodes are off for 20 min", _drain),
    "preemption": Incident("every 15 min, two of three fine-tunings end by SIGTERM or SIGKILL", _preempt),
    "sweep": Incident(
        f"one user's sweep of {SWEEP} runs, each of which fails after 150 s",
        lambda day: _sweep(day, SWEEP, 150),
    ),
    "short runs": Incident(
        f"{SHORT:,} runs of one user, each of which fails after 20 s", lambda day: _sweep(day, SHORT, 20)
    ),
    "GPU reset": Incident("all GPUs of two idle nodes do not answer for a minute", _reset_gpus),
    "fewer GPUs": Incident("two nodes are off for 5 min, and have one GPU less afterwards", _reboot_smaller),
    "restarts": Incident("every exporter restarts every 5 min", _restart_often),
    "notebooks": Incident("one user opens a notebook on each GPU", _open_notebooks),
    "new drivers": Incident(
        "each node gets a new driver: NVML fails for 5 min, without a job", _update_drivers
    ),
    "Prometheus off": Incident("Prometheus is off for an hour", _switch_off),
    "renamed nodes": Incident("two nodes get other names", _rename),
    "lost node": Incident("a node breaks down and leaves service discovery: its run hangs", _lose_node),
    "lost runs": Incident("two nodes break down and leave service discovery, with their runs", _lose_runs),
    "no GPUs": Incident("no node has a GPU", lambda day: _divide(day, "none")),
    "only MIG": Incident("all GPUs are divided into MIG devices", lambda day: _divide(day, "mig")),
    "suspension": Incident(
        "a third of the jobs are stopped for 8 min", lambda day: _pause(day, "suspension", 8, 3)
    ),
    "long suspension": Incident(
        "a third of the jobs are stopped for 30 min", lambda day: _pause(day, "suspension", 30, 3)
    ),
    "lunch": Incident("half of the runs on one GPU are notebooks, left alone for 50 min", _go_for_lunch),
    "slow checkpoints": Incident("each checkpoint takes 2.5 to 7 min", _save_slowly),
    "elastic jobs": Incident(
        "jobs on several GPUs restart every 5 min, in turns with half of their ranks", _grow_and_shrink
    ),
    "rollouts": Incident("jobs train for a minute and generate text for five, in turns", _generate_often),
    "resumed jobs": Incident("long jobs are killed every 30 min, and start again 90 s later", _resume),
    "failing scrapes": Incident("a tenth of all scrapes fail", _scrape_seldom),
    "low clocks": Incident(
        "a GPU of a job with several ranks has low clocks: it takes 1.25 times as long", _slow_clocks
    ),
    "lean profile": Incident("every other exporter restarts with the lean profile", _publish_less),
    "job array": Incident(
        f"{SWEEP} runs of one user with one name, each of 150 s",
        lambda day: _sweep(day, SWEEP, 150, "finished"),
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
