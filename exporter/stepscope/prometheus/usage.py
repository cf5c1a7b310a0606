"""Adds up the GPU hours of each user and namespace, from what rules/owners.py records.

A point every two minutes stands for two minutes. Time without a point is not observed: it is no idle time.
Days are read one by one, so that a server with limits answers, too.
"""

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from math import isclose

from stepscope.prometheus.rules.meta import NOT_FAILED
from stepscope.prometheus.rules.owners import (
    GPUS_ALLOCATED,
    GPUS_HELD,
    GPUS_OBSERVED,
    GPUS_USED,
    GPUS_USEFUL,
    GPUS_WITHOUT_PROCESS,
    HELD_POWER,
    IDLE_POWER,
    USEFUL_POWER,
    WITHOUT_PROCESS_POWER,
)
from stepscope.prometheus.rules.usage import GPUS
from stepscope.runs.prometheus.api import Api

STEP = 120  # seconds; no longer than the 5 minutes for which Prometheus keeps a value
HOUR, DAY = 3600, 86_400
KILO = 1000
OVER_A_DAY = f"[{DAY}s:{STEP}s]"
TOLERANCE = 0.02  # of hours that are counted twice, or of which the power is known
STATES = ("allocated", "without_process", "held", "used", "useful", "idle", "failed")

Owner = tuple[str, str]  # user and namespace; "": not known, or any
Labels = tuple[str, ...]
Sums = dict[Labels, float]


@dataclass(frozen=True)
class Amount:
    """GPU hours and their energy in kWh; None: not known."""

    hours: float | None
    kwh: float | None = None


@dataclass(frozen=True)
class OwnerUsage:
    """The usage of one user in one namespace, by state (STATES)."""

    user: str  # "": not known, or any user of the namespace
    namespace: str  # "": not known, or none
    amounts: Mapping[str, Amount]


@dataclass(frozen=True)
class Usage:
    """The usage of GPUs in a time range. Times are seconds since the epoch, amounts are GPU hours."""

    start: float
    end: float
    owners: list[OwnerUsage]  # those with most GPU hours first
    observed: float
    not_observed: float  # of as many GPUs as the cluster had at any time
    without_account: float  # held by processes whose steps are not measured
    without_power: float  # held, or allocated without a process, while GPUs published no power
    not_compared: float | None  # allocated, but not compared with processes; None: no allocation is known
    hours_without_allocation: float  # of the time range, not of GPUs


def read_usage(api: Api, end: float, days: int, progress: Callable[[int], None]) -> Usage:
    """Reads the last `days` days before `end`; calls `progress` with the number of days read.

    Raises UserError if the server does not answer, or refuses.
    """
    # Half a step after a point: versions differ in whether a range includes its ends.
    end = end // STEP * STEP + STEP / 2
    sums: dict[str, Sums] = defaultdict(lambda: defaultdict(float))
    failed, most = set[Labels](), dict[Labels, float]()
    for day in range(days):
        time = end - (days - 1 - day) * DAY
        _read_day(api, time, sums)
        failed |= {labels for labels, _ in _grouped(api, "cluster, run", _failures(), time)}
        at_once = f"max_over_time((sum by (cluster) ({GPUS})){OVER_A_DAY})"  # a node may get another name
        for labels, value in _grouped(api, "cluster", at_once, time):
            most[labels] = max(value, most.get(labels, 0.0))
        progress(day + 1)
    return _usage(end, days, sums, failed, most)


def _read_day(api: Api, time: float, sums: Mapping[str, Sums]) -> None:
    """Adds the GPU hours and watt hours of a day. Keys are the values of the labels that a query keeps."""
    of_runs, of_owners = "cluster, run, user, namespace", "user, namespace"
    held = (GPUS_HELD, GPUS_USED, GPUS_USEFUL, HELD_POWER, USEFUL_POWER, IDLE_POWER)
    allocated = (GPUS_ALLOCATED, GPUS_WITHOUT_PROCESS, WITHOUT_PROCESS_POWER)
    for name, labels, expression in (
        *((series, of_runs, series) for series in held),
        *((series, of_owners, series) for series in allocated),
        ("held, with power", of_runs, f"{GPUS_HELD} and {HELD_POWER}"),
        ("without process, with power", of_owners, f"{GPUS_WITHOUT_PROCESS} and {WITHOUT_PROCESS_POWER}"),
        ("compared", of_owners, f"{GPUS_ALLOCATED} and {GPUS_WITHOUT_PROCESS}"),
        ("with allocation", "", f"count({GPUS_ALLOCATED}) ^ 0"),
        (GPUS_OBSERVED, "cluster", GPUS_OBSERVED),
    ):
        integral = f"sum_over_time(({expression}){OVER_A_DAY})"
        for key, value in _grouped(api, labels, integral, time):
            sums[name][key] += value * STEP / HOUR


def _grouped(api: Api, labels: str, expression: str, time: float) -> Iterable[tuple[Labels, float]]:
    names = labels.split(", ")
    for series in api.values(f"sum by ({labels}) ({expression})", time):
        yield tuple(series.labels.get(name, "") for name in names), float(series.values[0])


def _failures() -> str:
    return f'last_over_time(stepscope_run_ended_info{{reason!~"{NOT_FAILED}"}}[{DAY}s])'


def _usage(
    end: float, days: int, sums: Mapping[str, Sums], failed: Collection[Labels], most: Mapping[Labels, float]
) -> Usage:
    held, useful = sums[GPUS_HELD], sums[GPUS_USEFUL]
    of_failed = {labels: hours for labels, hours in held.items() if labels[:2] in failed}
    by_state = {
        "held": _of_owners(held),
        "used": _of_owners(sums[GPUS_USED]),
        "useful": _of_owners(useful),
        "failed": _of_owners(of_failed),
    }
    with_power = sums["held, with power"]
    energy = {
        state: _known_energy(_of_owners(watt_hours), _of_owners(with_power), by_state["held"])
        for state, watt_hours in (
            ("held", sums[HELD_POWER]),
            ("useful", sums[USEFUL_POWER]),
            ("idle", sums[IDLE_POWER]),
        )
    }
    of_failed_with_power, failed_power = (
        _of_owners({labels: amount for labels, amount in each.items() if labels in of_failed})
        for each in (with_power, sums[HELD_POWER])
    )
    energy["failed"] = _known_energy(failed_power, of_failed_with_power, by_state["failed"])
    allocated, without, compared = (
        _of_owners(sums[name]) for name in (GPUS_ALLOCATED, GPUS_WITHOUT_PROCESS, "compared")
    )
    owners = {*by_state["held"]}
    scheduled = {owner: _holder(owner, owners) for owner in allocated | without}
    owners |= {*scheduled.values()}
    by_state["allocated"] = _of_owners(allocated, scheduled)
    by_state["without_process"] = _of_owners(without, scheduled)
    free_power, free_with_power = (
        _of_owners(sums[name], scheduled) for name in (WITHOUT_PROCESS_POWER, "without process, with power")
    )
    energy["without_process"] = _known_energy(free_power, free_with_power, by_state["without_process"])
    observed = sum(sums[GPUS_OBSERVED].values())
    hours = days * DAY / HOUR
    last = end - STEP / 2
    return Usage(
        last - days * DAY,
        last,
        sorted(
            (_of_owner(owner, by_state, energy) for owner in owners),
            key=lambda each: (-_most(each), each.user, each.namespace),
        ),
        observed,
        max(sum(most.values()) * hours - observed, 0.0),
        sum(amount for labels, amount in held.items() if labels not in useful),
        sum(held.values())
        - sum(with_power.values())
        + sum(without.values())
        - sum(sums["without process, with power"].values()),
        sum(allocated.values()) - sum(compared.values()) if allocated else None,
        hours - sum(sums["with allocation"].values()),
    )


def _most(owner: OwnerUsage) -> float:
    return max(amount.hours or 0.0 for amount in owner.amounts.values())


def _of_owners(
    sums: Mapping[Labels, float] | Mapping[Owner, float], names: Mapping[Owner, Owner] | None = None
) -> dict[Owner, float]:
    """Returns the sums of owners, with those that have other `names` under these."""
    found: dict[Owner, float] = defaultdict(float)
    for (*_, user, namespace), amount in sums.items():
        owner = user, namespace
        found[names[owner] if names else owner] += amount
    return dict(found)


def _holder(owner: Owner, holders: Collection[Owner]) -> Owner:
    """Returns the only holder in the namespace of a scheduler, or of its user; otherwise `owner`."""
    user, namespace = owner
    fitting = [each for each in holders if (each[1] == namespace if namespace else each[0] == user)]
    return fitting[0] if len(fitting) == 1 else owner


def _of_owner(
    owner: Owner, by_state: Mapping[str, Mapping[Owner, float]], energy: Mapping[str, Mapping[Owner, float]]
) -> OwnerUsage:
    known = {state: sums[owner] for state, sums in by_state.items() if owner in sums}
    known.setdefault("held", 0.0)
    known["idle"] = max(known["held"] - known.setdefault("used", 0.0), 0.0)
    known.setdefault("failed", 0.0)
    if not known["held"]:
        known["useful"] = 0.0
    kwh = {state: sums[owner] for state, sums in energy.items() if owner in sums}
    if (allocated := _of_allocated(known, kwh)) is not None:
        kwh["allocated"] = allocated
    return OwnerUsage(*owner, {state: Amount(known.get(state), kwh.get(state)) for state in STATES})


def _known_energy(
    watt_hours: Mapping[Owner, float], with_power: Mapping[Owner, float], hours: Mapping[Owner, float]
) -> dict[Owner, float]:
    """Returns kWh of those owners of whose hours the power is known, except for a few."""
    return {
        owner: amount / KILO
        for owner, amount in watt_hours.items()
        if with_power.get(owner, 0.0) >= (1 - TOLERANCE) * hours.get(owner, 0.0)
    }


def _of_allocated(hours: Mapping[str, float], kwh: Mapping[str, float]) -> float | None:
    """Returns the energy of what is allocated: with and without a process, if these are all of it."""
    parts = ("held", "without_process")
    if "allocated" not in hours or any(hours.get(part, 1.0) and part not in kwh for part in parts):
        return None
    whole = sum(hours.get(part, 0.0) for part in parts)
    if not isclose(whole, hours["allocated"], rel_tol=TOLERANCE):
        return None
    return sum(kwh.get(part, 0.0) for part in parts)
