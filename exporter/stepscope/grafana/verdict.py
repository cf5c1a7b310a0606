"""The verdict of a panel: one of the five states, after everything that it needs was checked.

Prometheus evaluates a chain of conditions: each gives its number if it holds and none before it does. Value
mappings turn the numbers into words. "Nothing found" comes last, so missing data never looks healthy.
"""

from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple

from stepscope.common.status import Status
from stepscope.grafana.looks import GREEN, GREY, VERMILION, words
from stepscope.grafana.queries import FIRING, OF_CLUSTER, THE_RUN, last
from stepscope.prometheus.rules.groups import FINDING, INFO, STATUS
from stepscope.prometheus.rules.meta import BUILD, KNOWN, NOT_FAILED, TARGET, UNFINISHED
from stepscope.rules.cpu_bottleneck import CPUBottleneck

COLOURS = {Status.FOUND: VERMILION, Status.FAILED: VERMILION, Status.HEALTHY: GREEN}
OF_THE_RUN = f"{{{THE_RUN}, {OF_CLUSTER}}}"  # on all of its nodes, whichever are chosen
SAMPLES = f"stepscope_samples_total{OF_THE_RUN}"
LEAN = f'{BUILD}{{{OF_CLUSTER}, profile="lean"}}'
# An exporter that is down has its own case.
OTHERS = f'ALERTS{{alertstate="firing", rule!~"|ExporterDown", severity=~"warning|critical", {OF_CLUSTER}}}'
ENOUGH = CPUBottleneck().parameters.patience  # samples, of most rules


class Case(NamedTuple):
    """A state, why, and the series that must exist for it, or must be `absent`."""

    status: Status
    reason: str
    series: str = ""
    absent: bool = False


_lacks = partial(Case, Status.NOT_ENOUGH_DATA, absent=True)
NO_EXPORTER = _lacks("Prometheus scrapes no exporter", last(f"{BUILD}{{{OF_CLUSTER}}}"))
OF_ONE_RUN = (
    NO_EXPORTER,
    _lacks("no such run in this time range", last(SAMPLES)),
    Case(
        Status.FAILED,
        "see how it ended",
        last(f'stepscope_run_ended_info{{{THE_RUN}, {OF_CLUSTER}, reason!~"{NOT_FAILED}"}}'),
    ),
    _lacks("the rules are not loaded, or were not while it ran", last(f"{STATUS}{OF_THE_RUN}")),
    Case(Status.FOUND, "see below", last(f"{FINDING}{OF_THE_RUN}")),
    Case(
        Status.NOT_ENOUGH_DATA,
        "an exporter of this run is down",
        f"{UNFINISHED}{OF_THE_RUN} unless {SAMPLES}",
    ),
    Case(Status.COLLECTING, "too few samples yet", f"{SAMPLES} < {ENOUGH}"),
    Case(Status.NOT_ENOUGH_DATA, "the run was too short", f"{last(SAMPLES)} < {ENOUGH}"),
    Case(Status.HEALTHY, "none of the evaluated rules fired"),
)
OF_THE_CLUSTER = (
    NO_EXPORTER,
    _lacks("Prometheus has not loaded the rules", last(f"{INFO}{{{OF_CLUSTER}}}")),
    Case(Status.FOUND, "see the alerts below", FIRING),
    Case(Status.FOUND, 'hardware, or Stepscope itself: see "Alerts by rule"', OTHERS),
    Case(Status.NOT_ENOUGH_DATA, "an exporter is down", f"{KNOWN}{{{OF_CLUSTER}}} and {TARGET} up == 0"),
    _lacks("no run is training", f"{UNFINISHED}{{{OF_CLUSTER}}}"),
    Case(Status.HEALTHY, "no warning fires; some nodes have only rules of the lean profile", LEAN),
    Case(Status.HEALTHY, "no warning fires"),
)


def chain(cases: Sequence[Case]) -> str:
    """Returns PromQL for the number of the first case that holds."""
    return " or ".join(_holds(number, case) for number, case in enumerate(cases))


def mappings(cases: Sequence[Case]) -> list[dict[str, Any]]:
    """Returns the words and colours of the cases."""
    return words(
        {
            str(number): (
                f"{case.status.icon} {case.status}: {case.reason}",
                COLOURS.get(case.status, GREY),
            )
            for number, case in enumerate(cases)
        }
    )


def _holds(number: int, case: Case) -> str:
    if not case.series:
        return f"vector({number})"
    if case.absent:
        return f"{number} * absent({case.series})"
    return f"{number - 1} + group({case.series})"  # both are 1, and have no labels
