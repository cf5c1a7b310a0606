"""Exporter health: whether Stepscope itself works, and what it costs the nodes."""

from stepscope.grafana import variables
from stepscope.grafana.looks import GREY, VERMILION, by_pattern, coloured, steps, words
from stepscope.grafana.page import Dashboard, alerts, of_all_runs
from stepscope.grafana.panels import Panel, column, section, stat, table, time_series, unshown
from stepscope.grafana.queries import (
    OF_CLUSTER,
    OF_JOB,
    OF_NODE,
    Target,
    last,
    lines,
    now,
    or_zero,
    per_second,
    rows,
)

UID = "stepscope-exporter"
METRIC = "stepscope_exporter_build_info"
BUILD = f"{METRIC}{{{OF_NODE}}}"
# Limits `up` and the metrics of scrapes to exporters, including those that are down.
OF_EXPORTERS = f"and on (cluster, job, instance) {last(BUILD)}"
UP = f"(up{{{OF_NODE}}} {OF_EXPORTERS})"
TICKS = f"stepscope_sampler_ticks_total{{{OF_NODE}}}"
MISSED = per_second(f"stepscope_sampler_ticks_missed_total{{{OF_NODE}}}")
MISSED_SHARE = f"({MISSED} / ({MISSED} + {per_second(TICKS)}))"
COLLECTORS = f"stepscope_collector_success{{{OF_NODE}}}"
FAILED = f"{COLLECTORS} == 0"
CPU = f"(rate(process_cpu_seconds_total{{{OF_NODE}}}[$__rate_interval]) {OF_EXPORTERS})"
RULES = 'rule_group=~".*;stepscope-.*"'
TAKEN = f"prometheus_rule_group_last_duration_seconds{{{RULES}}}"
INTERVAL = f"prometheus_rule_group_interval_seconds{{{RULES}}}"
NOT_SCRAPED = "Prometheus does not scrape itself, or the rules are not loaded"
FAILURES = "prometheus_rule_evaluation_failures_total"


def dashboard() -> Dashboard:
    return of_all_runs(
        UID,
        "Exporter health",
        "Whether Stepscope itself works, and what it costs the nodes.",
        [_numbers(), _exporters(), _sampling(), _scrapes(), _rules()],
        METRIC,
        [variables.query("instance", "Node", f"label_values({METRIC}{{{OF_JOB}}}, instance)")],
        [alerts(f'rule!="", kind!~"cause|symptom", severity!="none", {OF_CLUSTER}')],
    )


def of_group(expression: str) -> str:
    """Sets the label `group` to the name of a rule group without the path of its file."""
    return f'label_replace({expression}, "group", "$1", "rule_group", ".*;(.*)")'


def _numbers() -> list[Panel]:
    return [
        stat(
            "Exporters up",
            """Exporters that Prometheus scrapes. An exporter that is missing here is missing on all
            dashboards.""",
            now(or_zero(f"count({UP} == 1)", UP)),
            nothing="no exporter was scraped",
        ),
        stat(
            "Exporters down",
            """Exporters that were up in the time range, but not at the last scrape. Check the node first,
            then the exporter's log (ExporterDown).""",
            now(or_zero(f"count({UP} == 0)", UP)),
            thresholds=steps("text", (1, VERMILION)),
        ),
        stat(
            "Failing collectors",
            """Collectors whose last reading failed: their metrics are missing, and rules that need them
            cannot fire (CollectorFailing). On nodes without GPUs the collector gpu fails unless
            it is turned off.""",
            now(or_zero(f"count({FAILED})", COLLECTORS)),
            thresholds=steps("text", (1, VERMILION)),
        ),
        stat(
            "Samples missed",
            """The worst node's share of missed samples in the last five minutes. Up to 5 % is harmless
            (SamplesMissed).""",
            now(f"max({MISSED_SHARE})"),
            unit="percentunit",
            decimals=1,
            thresholds=steps("text", (0.05, VERMILION)),
        ),
        stat(
            "Step records lost",
            """Records of single steps that were overwritten before the exporter read them, in the time
            range. Counters and histograms are still complete, but outliers may be missing in a
            recording.""",
            now(f"sum(increase(stepscope_ledger_records_lost_total{{{OF_NODE}}}[$__range]))"),
            decimals=0,
            thresholds=steps("text", (1, VERMILION)),
        ),
        stat(
            "Versions",
            """Number of different exporter versions. More than one is normal only during an upgrade.""",
            now(f"count(count by (version) ({BUILD}))"),
        ),
    ]


def _of_each(expression: str) -> Target:
    return rows(f"max by (cluster, instance) ({expression})")


def _exporters() -> list[Panel]:
    running = f"time() - process_start_time_seconds{{{OF_NODE}}} {OF_EXPORTERS}"
    series, memory = (
        _of_each(f"{metric}{{{OF_NODE}}} {OF_EXPORTERS}")
        for metric in ("scrape_samples_scraped", "process_resident_memory_bytes")
    )
    return [
        section("Exporters"),
        table(
            "Each exporter",
            """One row per node. "Samples/s" is 2 with the default interval. "Simulated" is the scenario of
            a `stepscope demo`.""",
            unshown(rows(f"max by (cluster, instance, version, python_version, simulated) ({last(BUILD)})")),
            column("Cluster", "cluster"),
            column("Node", "instance", least_width=240),
            column(
                "State",
                _of_each(UP),
                width=80,
                mode="color-text",
                mappings=words({"0": ("down", VERMILION), "1": ("up", GREY)}),
            ),
            column("Version", "version"),
            column("Python", "python_version"),
            column("Simulated", "simulated", width=130),
            column("Samples/s", _of_each(per_second(TICKS)), width=100, decimals=2),
            column("Missed", _of_each(MISSED_SHARE), unit="percentunit", decimals=1),
            column("Series", series, unit="locale", decimals=0),
            column("Memory", memory, width=110, unit="bytes"),
            column("Running for", _of_each(running), width=120, unit="s"),
            height=10,
            sort_by=("State", False),
            overrides=[by_pattern("^(Version|Python|Series|Missed)$", width=80)],
        ),
    ]


def _sampling() -> list[Panel]:
    duration = f"stepscope_collector_duration_seconds{{{OF_NODE}}}"
    return [
        section("Samples and ledgers"),
        time_series(
            "Samples missed",
            """Share of samples that were due but not taken. Either the exporter gets no core in time, or a
            driver call is slow: compare the duration of its collectors.""",
            lines(f"max({MISSED_SHARE})", "worst node"),
            lines(f"quantile(0.5, {MISSED_SHARE})", "median"),
            unit="percentunit",
            overrides=coloured(("worst node", "median")),
            at_least=0.1,
        ),
        time_series(
            "Step records lost",
            """Records per second that were overwritten before the exporter read them. This happens with
            steps below a millisecond if the exporter gets no core. Counters and histograms are still
            complete.""",
            lines(f"sum({per_second(f'stepscope_ledger_records_lost_total{{{OF_NODE}}}')})", "all nodes"),
            at_least=1,
        ),
        time_series(
            "Collector duration",
            """Duration of each collector's last reading, on the slowest node. Their sum must be well below
            the sample interval (500 ms). If `gpu` is slow, the driver is; if `training` is slow, the node
            has many ranks.""",
            lines(f"max by (collector) ({duration})", "{{collector}}"),
            unit="s",
        ),
        time_series(
            "Failing collectors",
            """Number of nodes on which each collector fails. The exporter's log has the reason. Turn off
            a collector that cannot work on a node with --no-collector.NAME.""",
            lines(f"sum by (collector) ({COLLECTORS} == bool 0)", "{{collector}}"),
            at_least=1,
        ),
        time_series(
            "Ledgers",
            """Number of ranks whose ledgers are read, by run. If it is less than the world size, a rank has
            not started, has another STEPSCOPE_LEDGER_DIR, or its container does not share the
            directory.""",
            lines(
                f"count by (cluster, run) (sum without (phase) (stepscope_phase_seconds_total{{{OF_NODE}}}))",
                "{{run}} {{cluster}}",
            ),
            width=24,
        ),
    ]


def _scrapes() -> list[Panel]:
    scraped = f"{{{OF_NODE}}} {OF_EXPORTERS}"
    return [
        section("Scrapes and the cost of the exporter", collapsed=True),
        time_series(
            "Scrape time",
            """Duration of a scrape on the slowest node, and the median. The exporter itself takes
            milliseconds: above a second, check the network and the load of the node.""",
            lines(f"max(scrape_duration_seconds{scraped})", "slowest"),
            lines(f"quantile(0.5, scrape_duration_seconds{scraped})", "median"),
            unit="s",
            width=8,
            overrides=coloured(("slowest", "median")),
        ),
        time_series(
            "New series per minute",
            """Series that are new to Prometheus. It is high when a run starts. If it stays high, runs or
            names of devices change all the time.""",
            lines(f"sum(sum_over_time(scrape_series_added{{{OF_NODE}}}[1m]) {OF_EXPORTERS})", "all nodes"),
            unit="short",
            width=8,
            overrides=coloured(("all nodes",)),
        ),
        time_series(
            "CPU of exporters",
            """Share of one core that the exporter uses: the worst node, and the median.""",
            lines(f"max({CPU})", "worst"),
            lines(f"quantile(0.5, {CPU})", "median"),
            unit="percentunit",
            width=8,
            overrides=coloured(("worst", "median")),
        ),
        time_series(
            "Series per scrape",
            """Number of series in a scrape of each node. It grows with cores, GPUs, ranks and runs.
            Investigate a jump at equal load, because Prometheus stores all of them.""",
            lines(f"scrape_samples_scraped{scraped}", "{{instance}} {{cluster}}"),
            unit="short",
        ),
        time_series(
            "Memory of exporters",
            """Resident memory of each exporter. It should be flat; --recording.dir needs more.""",
            lines(f"process_resident_memory_bytes{scraped}", "{{instance}} {{cluster}}"),
            unit="bytes",
        ),
    ]


def _rules() -> list[Panel]:
    return [
        section("Rules in Prometheus (if Prometheus scrapes itself)", collapsed=True),
        time_series(
            "Rule evaluation time",
            """Duration of the last evaluation of each rule group, as a share of its interval. Above 100 %
            Prometheus skips evaluations: render the rules with a longer --scrape-interval, or give
            Prometheus more cores.""",
            lines(f"max by (group) ({of_group(f'{TAKEN} / {INTERVAL}')})", "{{group}}"),
            unit="percentunit",
            at_least=0.1,
            nothing=NOT_SCRAPED,
        ),
        time_series(
            "Failed rule evaluations",
            """Failed evaluations per second. Above 0, some rule cannot fire
            (RuleEvaluationFailing); Prometheus's page /rules has the reason.""",
            lines(f"sum by (group) ({of_group(per_second(f'{FAILURES}{{{RULES}}}'))})", "{{group}}"),
            at_least=1,
            nothing=NOT_SCRAPED,
        ),
    ]
