"""Usage: GPU hours of each user and namespace, of a week: what they have, use and waste.

The words are those of `stepscope usage` (docs/usage.md). It reads only what rules/owners.py records.
"""

from stepscope.grafana import variables
from stepscope.grafana.looks import GPU_HOURS, by_pattern
from stepscope.grafana.page import Dashboard, alerts, of_all_runs
from stepscope.grafana.panels import EMPTY_CELL, Panel, column, section, stat, table, time_series
from stepscope.grafana.queries import OF_CLUSTER, OF_JOB, integral, lines, now, or_zero, rows
from stepscope.grafana.variables import priced
from stepscope.prometheus.rules import owners
from stepscope.prometheus.rules.meta import NOT_FAILED

UID = "stepscope-usage"
OWNER = 'user=~"$user", namespace=~"$namespace"'
NOT_PUBLISHED = "unknown: see docs/usage.md"
NO_PRICE = "enter the price of a GPU at the top"
BY_OWNER = "cluster, user, namespace"


def dashboard() -> Dashboard:
    names = f"{owners.GPUS_HELD}{{{OF_JOB}}}"
    board = of_all_runs(
        UID,
        "Usage",
        "GPU hours by user and namespace: allocated, without a process, held, used, useful, idle, failed.",
        [_numbers(), _owners(), _over_time()],
        owners.GPUS_OBSERVED,
        [
            variables.job(owners.GPUS_HELD),
            variables.query("user", "User", f"label_values({names}, user)"),
            variables.query("namespace", "Namespace", f"label_values({names}, namespace)"),
            variables.price("a GPU"),
        ],
        [alerts(f'rule!="", severity="critical", {OF_CLUSTER}')],
    )
    return {**board, "time": {"from": "now-7d", "to": "now"}, "refresh": ""}


def held(series: str) -> str:
    """Returns a series of what processes hold."""
    return f"{series}{{{OF_JOB}, {OWNER}}}"


def of_scheduler(series: str) -> str:
    """Returns a series of what a scheduler allocates; it has no job, and a user or a namespace."""
    return f"{series}{{{OF_CLUSTER}, {OWNER}}}"


def failed() -> str:
    """Returns the GPUs held by runs that failed in the time range, which is known only at their end."""
    of_failures = f'stepscope_run_ended_info{{reason!~"{NOT_FAILED}", {OF_JOB}}}'
    ended = f"last_over_time({of_failures}[$__range] @ end())"
    return f"{held(owners.GPUS_HELD)} and on (cluster, run) {ended}"


def with_both_labels(expression: str) -> str:
    """Returns series of which every one has a user and a namespace: Grafana merges rows that lack a label."""
    for label in ("user", "namespace"):
        expression = f'label_replace({expression}, "{label}", "{EMPTY_CELL}", "{label}", "")'
    return expression


def idle() -> str:
    return f"{held(owners.GPUS_HELD)} - {held(owners.GPUS_USED)}"


def _numbers() -> list[Panel]:
    return [
        stat(
            "Observed",
            """GPU hours in which an exporter read the GPUs and their processes. What is held is a part of
            it.""",
            now(f"sum({integral(f'{owners.GPUS_OBSERVED}{{{OF_JOB}}}')})"),
            unit=GPU_HOURS,
        ),
        stat(
            "Allocated",
            """GPU hours that Kubernetes or Slurm allocated, as kube-state-metrics or slurm_exporter publish
            them. Unknown without them.""",
            now(f"sum({integral(of_scheduler(owners.GPUS_ALLOCATED))})"),
            unit=GPU_HOURS,
            nothing=NOT_PUBLISHED,
        ),
        stat(
            "Allocated without a process",
            """GPU hours that were allocated while no process held the GPU. Nobody else could use it. Unknown
            on nodes without an exporter.""",
            now(f"sum({integral(of_scheduler(owners.GPUS_WITHOUT_PROCESS))})"),
            unit=GPU_HOURS,
            nothing=NOT_PUBLISHED,
        ),
        stat(
            "Held",
            """GPU hours in which a process held memory of the GPU, whether or not it used it.""",
            now(f"sum({integral(held(owners.GPUS_HELD))})"),
            unit=GPU_HOURS,
        ),
        stat(
            "Idle",
            """GPU hours that were held, less the utilisation of these GPUs.""",
            now(f"sum({integral(idle())})"),
            unit=GPU_HOURS,
        ),
        stat(
            "Failed",
            """GPU hours held by runs that ended with an error in the time range. A checkpoint may have saved
            a part of them.""",
            now(or_zero(f"sum({integral(failed())})", integral(held(owners.GPUS_HELD)))),
            unit=GPU_HOURS,
        ),
    ]


def _owners() -> list[Panel]:
    without_process_power = of_scheduler(owners.WITHOUT_PROCESS_POWER)
    values = {
        "Allocated": integral(of_scheduler(owners.GPUS_ALLOCATED)),
        "Without process": integral(of_scheduler(owners.GPUS_WITHOUT_PROCESS)),
        "Held": integral(held(owners.GPUS_HELD)),
        "Used": integral(held(owners.GPUS_USED)),
        "Useful": integral(held(owners.GPUS_USEFUL)),
        "Idle": integral(idle()),
        "Failed": integral(failed()),
        "Energy (kWh)": f"{integral(held(owners.HELD_POWER))} / 1000",
        "Idle energy (kWh)": f"({_either(held(owners.IDLE_POWER), without_process_power)}) / 1000",
        "Cost": priced(integral(held(owners.GPUS_HELD))),
        "Cost of idle": priced(f"({_either(idle(), of_scheduler(owners.GPUS_WITHOUT_PROCESS))})"),
    }
    return [
        section("Users and namespaces"),
        table(
            "GPU hours by user and namespace",
            """Held is Used and Idle. Useful and Failed are parts of Held. Energy and Cost are of held GPUs,
            those of idle GPUs of Idle and Without process. Kubernetes allocates to a namespace, Slurm to a
            user: such rows may have no other column. A dash is not known, or nothing.""",
            *(column(name.capitalize(), name) for name in ("cluster", "user", "namespace")),
            *(
                column(title, rows(with_both_labels(f"sum by ({BY_OWNER}) ({value})")))
                for title, value in values.items()
            ),
            height=12,
            sort_by=("Held", True),
            overrides=[
                by_pattern(
                    "^(Allocated|Without process|Held|Used|Useful|Idle|Failed)$", unit=GPU_HOURS, decimals=1
                ),
                by_pattern("kWh", decimals=1),
                by_pattern("^Cost", unit="currencyUSD", decimals=2),
            ],
        ),
    ]


def _either(held_series: str, of_allocated: str) -> str:
    """Returns amounts of what is held, and of what is allocated without a process: they never overlap."""
    return f"{integral(held_series)} or {integral(of_allocated)}"


def _over_time() -> list[Panel]:
    return [
        section("Over time"),
        time_series(
            "Held GPUs by user",
            """How many GPUs each user's processes hold, with the namespace if that is known.""",
            lines(f"sum by (user, namespace) ({held(owners.GPUS_HELD)})", "{{user}} {{namespace}}"),
            stacked=True,
        ),
        time_series(
            "GPUs: allocated, held, used, useful",
            """What happens to GPUs. The distance of two lines is what is lost between them: without a
            process, idle, or waiting.""",
            lines(f"sum({of_scheduler(owners.GPUS_ALLOCATED)})", "allocated"),
            lines(f"sum({held(owners.GPUS_HELD)})", "held"),
            lines(f"sum({held(owners.GPUS_USED)})", "used"),
            lines(f"sum({held(owners.GPUS_USEFUL)})", "useful"),
        ),
        time_series(
            "Allocated GPUs without a process",
            """By namespace on Kubernetes, by user on Slurm. End these pods or jobs, or ask their owners.""",
            lines(
                f"sum by (user, namespace) ({of_scheduler(owners.GPUS_WITHOUT_PROCESS)} > 0)",
                "{{user}} {{namespace}}",
            ),
            stacked=True,
            nothing="none, or unknown: see Allocated without a process",
        ),
        time_series(
            "Cost per hour of held GPUs",
            """Held GPUs by user, times the price of a GPU per hour, which you enter at the top.""",
            lines(priced(f"sum by (user) ({held(owners.GPUS_HELD)})"), "{{user}}"),
            unit="currencyUSD",
            stacked=True,
            nothing=NO_PRICE,
        ),
    ]
