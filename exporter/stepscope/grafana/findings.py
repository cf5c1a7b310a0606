"""The table of a run's findings: one row per problem, with where, how much, since when and what to do.

Hidden variables hold what all of its queries need: the rules that report a problem, and the component
 in which the slowest rank is slow.
"""

from typing import Any

from stepscope.common import PUBLIC_DOCS
from stepscope.common.status import Status
from stepscope.grafana.looks import SEVERITY, VERMILION, words
from stepscope.grafana.page import Dashboard, panel_id
from stepscope.grafana.panels import Panel, column, stat, table, unshown
from stepscope.grafana.queries import OF_CLUSTER, OF_RUN, in_range, last, now, rows
from stepscope.grafana.variables import Variable, hidden, named, priced
from stepscope.prometheus.rules.groups import DISTANCE, FINDING, INFO, LOST
from stepscope.prometheus.rules.usage import ADVICE, FREE_CORES, FULL_CORES
from stepscope.rules.cpu_bottleneck import CPUBottleneck
from stepscope.rules.parts.data_loading import CORES_FULL
from stepscope.rules.parts.topics import ANY_TOPIC

OF_PROBLEMS = 'rule=~"$problems"'
FOUND = f"{FINDING}{{{OF_PROBLEMS}, {OF_RUN}}}"
COST_SHARE = f"{LOST}{{{OF_PROBLEMS}, {OF_RUN}}}"
NODES = (
    f"scalar(count(count by (cluster, instance) ({last(f'stepscope_run_start_time_seconds{{{OF_RUN}}}')})))"
)
# Windows of rules outlive the run, which costs nothing any more.
LIVING = (
    f"(stepscope_run_age_seconds{{{OF_RUN}}}"
    f" unless on (cluster, instance) stepscope_run_end_time_seconds{{{OF_RUN}}})"
)
SECONDS_LOST = (
    f"max by (rule) (sum_over_time(({COST_SHARE} and on () {LIVING})[$__range:$__interval]))"
    " * $__interval_ms / 1000"
)
SINCE = f"1000 * min by (rule) (min_over_time(timestamp({FOUND})[$__range:$__interval]))"
# Without a series, the panel would show no words at all.
NO_ADVICE = (
    'label_replace(label_replace(vector(0), "rule", "No advice", "", ""), '
    '"recommendation", "the verdict says whether the run is healthy", "", "")'
)
ALL_RULES = 61  # the panel of Run overview that explains each rule
PROFILE = "See inside its steps: stepscope profile ${run}"
REPORT = "Its report: in the folder ${run}-TIME"
BEFORE = 10 * 60 * 1000  # milliseconds; the link to a panel shows so much before a problem began
NOW_AND_BEFORE = words(
    {
        "1": (f"{Status.FOUND} before", "text"),
        "2": (f"{Status.FOUND.icon} {Status.FOUND}", VERMILION),
    }
)


def problems() -> Variable:
    """Returns the rules that report a problem: of those with the same topic, the closest to the cause.

    Idle GPUs count as another problem only if nothing found explains the time.
    """
    found = last(f"{FINDING}{{{OF_RUN}}}")
    every = f"max by (rule, topic) ({DISTANCE}{{{OF_CLUSTER}}}) and on (rule) {found}"
    effects = f'{DISTANCE}{{topic="{ANY_TOPIC}"}} and on () {last(f"{LOST}{{{OF_RUN}}}")}'
    closest = f"({every}) <= on (topic) group_left () min by (topic) ({every})"
    return hidden(
        named("problems", "Problems", f"{closest} unless on (rule) ({effects})", "rule", several=True)
    )


def busy_cores() -> Variable:
    """Returns whether the run's cores are full, if CPUBottleneck fires; nothing if that is not measured."""
    total, count = (
        f"sum({in_range(f'stepscope_cpu_utilization_samples_{part}{{{OF_RUN}}}')})"
        for part in ("sum", "count")
    )
    choice = " or ".join(
        f'label_replace({total} / {count} {comparison} {CORES_FULL}, "cores", "{name}", "", "")'
        for comparison, name in ((">", FULL_CORES), ("<=", FREE_CORES))
    )
    fires = last(f'{FINDING}{{rule="{CPUBottleneck.__name__}", {OF_RUN}}}')
    return hidden(named("cores", "Busy cores", f"({choice}) and on () {fires}", "cores"))


def what_is_wrong(system: Dashboard, histograms: Dashboard, steps: Dashboard) -> Panel:
    """Returns the table; its rows link to panels of the other dashboards."""
    each = f"max by (rule, instance, gpu, rank) ({last(FOUND)})"
    worst = f"topk by (rule) (1, {each})"
    cost = priced(f"{SECONDS_LOST} / 3600 * {NODES}")
    words_of = f"max by (rule, severity, runbook) ({INFO}{{{OF_PROBLEMS}, {OF_CLUSTER}}})"
    run = "${run:percentencode}"
    explained = f"/d/stepscope-run?viewPanel={ALL_RULES}&var-run={run}"  # for rules without a runbook
    with_runbook = f'label_replace({words_of}, "runbook", "{explained}", "runbook", "")'
    at_reports = f'label_replace({with_runbook}, "report", "$reports/", "", "")'
    is_found = f"group by (rule) ({last(FOUND)})"
    state = f"{is_found} + (group by (rule) ({FOUND}) or 0 * {is_found})"
    return table(
        "What is wrong",
        """One row per problem that was found in the time range. Rules that see the same problem are one
        row. Node, GPU and rank are the worst ones. "How many" counts the nodes, GPUs or ranks.
        "Share" is the share of the time that it costs now, and "Lost" the time that it has cost, at best
        what fixing it saves. Click the rule to see it in a panel. Follow the first row, then check
        again.""",
        column("State", rows(state), width=110, mappings=NOW_AND_BEFORE, mode="color-text"),
        unshown(rows(worst)),
        column("Rule", "rule", width=190, links=_links()),
        column("Node", "instance", least_width=220),
        column("GPU", "gpu", width=50),
        column("Rank", "rank", width=55),
        column("How many", rows(f"count by (rule) ({each})"), width=95, decimals=0),
        column(
            "Share", rows(f"max by (rule) ({last(COST_SHARE)})"), width=70, unit="percentunit", decimals=0
        ),
        column("Lost", rows(SECONDS_LOST), width=90, unit="s"),
        column("Cost", rows(cost), width=80, unit="currencyUSD", decimals=2),
        column("Since", rows(SINCE), width=165, unit="dateTimeAsIsoNoDateIfToday"),
        unshown(rows(f'label_replace({at_reports}, "report", "{PUBLIC_DOCS}/report.md", "report", "/.*")')),
        unshown(rows(_where_to_see_it(system, histograms, steps))),
        column(
            "Severity",
            "severity",
            width=90,
            mappings=words({name: (name, colour) for name, colour in SEVERITY.items()}),
            mode="color-text",
        ),
        *(column(name.capitalize(), name, custom__hidden=True) for name in ("panel", "runbook", "report")),
        column("From", rows(f"{SINCE} - {BEFORE}"), custom__hidden=True),
        height=6,
        sort_by=("Lost", True),
        nothing="no finding; the verdict says whether anything was judged",
    )


def what_to_do() -> Panel:
    return stat(
        "What to do",
        """The most specific advice that the measurements support, per problem, those that cost most first.
        Follow the first one, then check again. The report of `stepscope report` knows more.""",
        now(f"topk(3, {_advice()}) or on () {NO_ADVICE}", "{{rule}}: {{recommendation}}"),
        width=24,
        height=4,
        show="name",
        sideways=True,
        size=18,
    )


def _advice() -> str:
    """Returns the most specific advice whose evidence exists, otherwise the rule's own.

    Its value is the share of the time that the problem costs, 0 if that is not known.
    """
    others = f'label_replace({last(f"{FINDING}{{{OF_RUN}}}")}, "of", "$1", "rule", "(.+)")'
    component = 'label_replace(vector(1), "of", "$part", "", "")'
    cores = 'label_replace(vector(1), "of", "$cores", "", "")'
    specific = f"{ADVICE}{{{OF_PROBLEMS}, {OF_CLUSTER}}} and on (of) ({others} or {component} or {cores})"
    texts = f"topk by (rule) (1, {specific} or 0 * {INFO}{{{OF_PROBLEMS}, {OF_CLUSTER}}})"
    costs = f"max by (rule) ({last(COST_SHARE)})"
    return f"0 * ({texts}) + on (rule) group_left () ({costs} or 0 * group by (rule) ({last(FOUND)}))"


def _where_to_see_it(system: Dashboard, histograms: Dashboard, steps: Dashboard) -> str:
    """Returns the dashboard and panel of each rule, as the end of an address."""
    places: tuple[tuple[str, Dashboard, str], ...] = (
        ("GPUM.*", system, "GPU memory"),
        ("GPUE.*", system, "GPU errors"),
        ("Th.*", system, "Throttling"),
        ("CPUT.*|No.*", system, "CPU"),
        ("CPUB.*|IO.*", histograms, "Starved samples by cause"),
        ("Load.*", histograms, "Distance between GPUs"),
        ("Data.*", steps, "Share of step time that waits for data"),
        ("Step.*", steps, "Time lost to outliers"),
        ("Str.*", steps, "Own time of each rank"),
        ("Comm.*", steps, "Share of step time in communication"),
        ("Tr.*|Coll.*", steps, "Time since the last step"),
    )
    expression = f"group by (rule) ({last(FOUND)})"
    for rule, board, title in ((".*", system, "GPU utilisation"), *places):
        place = f"{board['uid'].removeprefix('stepscope-')}?viewPanel={panel_id(board, title)}"
        expression = f'label_replace({expression}, "panel", "{place}", "rule", "{rule}")'
    return expression


def _links() -> list[dict[str, Any]]:
    names = ("datasource", "cluster", "job", "run", "instance")
    chosen = "".join(f"&${{{name}:queryparam}}" for name in names)
    since = "&from=${__data.fields.From.numeric}&to=${__to}"
    place = "/d/stepscope-${__data.fields.Panel}"
    worst = "&var-rank=$__all&var-gpu=$__all"
    return [
        {"title": "Show it", "url": f"{place}{chosen}{worst}{since}", "targetBlank": False},
        {"title": "What the rule means", "url": "${__data.fields.Runbook}", "targetBlank": True},
        {"title": PROFILE, "url": f"{PUBLIC_DOCS}/profile.md", "targetBlank": True},
        {"title": REPORT, "url": "${__data.fields.Report}", "targetBlank": True},
    ]
