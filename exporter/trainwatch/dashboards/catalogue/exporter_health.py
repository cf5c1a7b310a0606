"""Exporter health: whether Trainwatch itself sees what it should, and what it costs the nodes."""

from __future__ import annotations

from trainwatch.dashboards import variables
from trainwatch.dashboards.looks import GREY, VERMILION, by_name, coloured, steps, words
from trainwatch.dashboards.page import Dashboard, alerts
from trainwatch.dashboards.page import dashboard as page
from trainwatch.dashboards.panels import Panel, section, stat, table, time_series
from trainwatch.dashboards.queries import OF_NODE, last, lines, now, per_second, rows

UID = "trainwatch-exporter"
BUILD = f"trainwatch_exporter_build_info{{{OF_NODE}}}"
# `up` and what Prometheus says of scrapes, of exporters alone: also of those that it has lost.
OF_EXPORTERS = f"and on (job, instance) {last(BUILD)}"
UP = f"(up{{{OF_NODE}}} {OF_EXPORTERS})"
TICKS = f"trainwatch_sampler_ticks_total{{{OF_NODE}}}"
MISSED = f"trainwatch_sampler_ticks_missed_total{{{OF_NODE}}}"
FAILED = f"trainwatch_collector_success{{{OF_NODE}}} == 0"
CPU = f"(rate(process_cpu_seconds_total{{{OF_NODE}}}[$__rate_interval]) {OF_EXPORTERS})"
NO_COLLECTOR = 'label_replace(vector(0), "collector", "none", "", "")'
RULES = 'rule_group=~".*;trainwatch-.*"'
TAKEN = f"prometheus_rule_group_last_duration_seconds{{{RULES}}}"
INTERVAL = f"prometheus_rule_group_interval_seconds{{{RULES}}}"
FAILURES = "prometheus_rule_evaluation_failures_total"


def dashboard() -> Dashboard:
    return page(
        UID,
        "Exporter health",
        "Whether Trainwatch itself sees what it should, and what that costs the nodes.",
        [*_numbers(), *_exporters(), *_sampling(), *_scrapes(), *_rules()],
        [
            variables.data_source(),
            variables.query(
                "instance", "Node", "label_values(trainwatch_exporter_build_info, instance)", several=True
            ),
        ],
        [alerts(f'rule=~"Trainwatch.+", {OF_NODE}')],
    )


def missed_share(window: str) -> str:
    """The share of its samples that an exporter did not take."""
    missed, taken = f"rate({MISSED}[{window}])", f"rate({TICKS}[{window}])"
    return f"({missed} / ({missed} + {taken}))"


def of_group(expression: str) -> str:
    """With the label `group`: the name alone, without the path of the file that it is in."""
    return f'label_replace({expression}, "group", "$1", "rule_group", ".*;(.*)")'


def _numbers() -> list[Panel]:
    return [
        stat(
            1,
            "Exporters heard",
            """Exporters that Prometheus scrapes. What is missing here is missing on every other
            dashboard.""",
            now(f"count({UP} == 1) or vector(0)"),
        ),
        stat(
            2,
            "Exporters lost",
            """Exporters that were heard in the time range, but not at its last scrape. Look at the node
            first, then at the exporter's log (TrainwatchExporterDown).""",
            now(f"count({UP} == 0) or vector(0)"),
            thresholds=steps("text", (1, VERMILION)),
        ),
        stat(
            3,
            "Collectors that fail",
            """Collectors whose last reading failed: what they read is missing, and rules that need it say
            nothing (TrainwatchCollectorFailing). On nodes without GPUs the collector gpu fails unless it
            is switched off.""",
            now(f"count({FAILED}) or vector(0)"),
            thresholds=steps("text", (1, VERMILION)),
        ),
        stat(
            4,
            "Samples missed",
            """The worst node's share of samples that were due but not taken, in the last five minutes. Up
            to 5 % does no harm: shares of samples are of those that were taken
            (TrainwatchSamplesMissed).""",
            now(f"max({missed_share('5m')}) or vector(0)"),
            unit="percentunit",
            decimals=1,
            thresholds=steps("text", (0.05, VERMILION)),
        ),
        stat(
            5,
            "Step records lost",
            """Records of single steps that were overwritten before the exporter read them, in the time
            range. Counts and histograms are whole all the same; outliers in a recording may be
            missing.""",
            now(f"sum(increase(trainwatch_ledger_records_lost_total{{{OF_NODE}}}[$__range])) or vector(0)"),
            decimals=0,
            thresholds=steps("text", (1, VERMILION)),
        ),
        stat(
            6,
            "Versions",
            """How many versions of the exporter run. More than one during an upgrade is usual; for weeks
            it is not.""",
            now(f"count(count by (version) ({BUILD})) or vector(0)"),
        ),
    ]


def _exporters() -> list[Panel]:
    return [
        section(10, "Exporters"),
        table(
            11,
            "Each exporter",
            """One line for each node. "Samples/s" is 2 unless another interval was chosen; "Simulated"
            names the scenario where the node is `trainwatch demo`.""",
            rows(f"max by (instance, version, python_version, simulated) ({last(BUILD)})"),
            rows(f"max by (instance) ({UP})"),
            rows(f"max by (instance) (rate({TICKS}[5m]))"),
            rows(f"max by (instance) ({missed_share('5m')})"),
            rows(f"max by (instance) (scrape_samples_scraped{{{OF_NODE}}} {OF_EXPORTERS})"),
            rows(f"max by (instance) (process_resident_memory_bytes{{{OF_NODE}}} {OF_EXPORTERS})"),
            rows(f"max by (instance) (time() - process_start_time_seconds{{{OF_NODE}}} {OF_EXPORTERS})"),
            columns={
                "instance": "Node",
                "Value #B": "State",
                "version": "Version",
                "python_version": "Python",
                "simulated": "Simulated",
                "Value #C": "Samples/s",
                "Value #D": "Missed",
                "Value #E": "Series",
                "Value #F": "Memory",
                "Value #G": "Running for",
            },
            height=10,
            sort_by=("State", False),
            overrides=[
                by_name(
                    "State",
                    custom__width=80,
                    custom__displayMode="color-text",
                    mappings=words({"0": ("lost", VERMILION), "1": ("heard", GREY)}),
                ),
                by_name("Samples/s", decimals=2),
                by_name("Missed", unit="percentunit", decimals=1),
                by_name("Series", unit="short", decimals=0),
                by_name("Memory", unit="bytes"),
                by_name("Running for", unit="s"),
            ],
        ),
    ]


def _sampling() -> list[Panel]:
    duration = f"trainwatch_collector_duration_seconds{{{OF_NODE}}}"
    last_step = f"time() - trainwatch_run_last_step_time_seconds{{{OF_NODE}}}"
    ended = f"trainwatch_run_end_time_seconds{{{OF_NODE}}}"
    return [
        section(20, "Samples and ledgers"),
        time_series(
            21,
            "Samples missed",
            """Share of the samples that were due. A node that misses some under load gives the exporter
            no core in time, or a driver call is slow: see how long its collectors take.""",
            lines(missed_share("$__rate_interval"), "{{instance}}"),
            unit="percentunit",
            width=8,
        ),
        time_series(
            22,
            "How long collectors take",
            """The slowest node, by collector, of its last sample. All together must stay well below the
            sample interval (500 ms). A slow `gpu` is the driver; a slow `training` has many ranks on one
            node.""",
            lines(f"max by (collector) ({duration})", "{{collector}}"),
            unit="s",
            width=8,
        ),
        time_series(
            23,
            "Collectors that fail",
            """How many nodes each collector fails on. The reason is in the exporter's log, a line when it
            begins to fail. What can never work on a node is left out with --no-collector.NAME.""",
            lines(f"count by (collector) ({FAILED}) or on () {NO_COLLECTOR}", "{{collector}}"),
            width=8,
        ),
        time_series(
            24,
            "Ledgers",
            """Ranks whose ledgers are read, by run. Fewer than the run's world size on its nodes: a rank
            has not started, was not told where ledgers lie (TRAINWATCH_LEDGER_DIR), or its container does
            not share the directory.""",
            lines(
                f"count by (run) (sum without (phase) (trainwatch_phase_seconds_total{{{OF_NODE}}}))",
                "{{run}}",
            ),
            width=8,
        ),
        time_series(
            25,
            "Age of the last step",
            """Seconds since the last step that was read of each run that has not ended, on its worst
            node. It climbs where training stands still (TrainingStalled), or where ledgers are not read
            any more.""",
            lines(f"max by (run) ({last_step} unless on (run, instance) {ended})", "{{run}}"),
            unit="s",
            width=8,
        ),
        time_series(
            26,
            "Step records lost",
            """Records a second that were overwritten unread. Steps of less than a millisecond while the
            exporter waits for a core can do that; counters and histograms are not touched.""",
            lines(
                f"sum by (instance) ({per_second(f'trainwatch_ledger_records_lost_total{{{OF_NODE}}}')})",
                "{{instance}}",
            ),
            width=8,
        ),
    ]


def _scrapes() -> list[Panel]:
    scraped = f"{{{OF_NODE}}} {OF_EXPORTERS}"
    return [
        section(30, "Scrapes, and what the exporter costs"),
        time_series(
            31,
            "Scrape time",
            """How long Prometheus waits for a scrape: the slowest node, and the median. Above a second,
            look at the network and at how busy the node is; the exporter itself takes milliseconds.""",
            lines(f"max(scrape_duration_seconds{scraped})", "slowest"),
            lines(f"quantile(0.5, scrape_duration_seconds{scraped})", "median"),
            unit="s",
            width=8,
            overrides=coloured(("slowest", "median")),
        ),
        time_series(
            32,
            "Series of a scrape",
            """How many samples a scrape of each node has. It grows with cores, GPUs, ranks and runs; a
            jump at an equal load is worth a look, because Prometheus keeps all of them.""",
            lines(f"scrape_samples_scraped{scraped}", "{{instance}}"),
            unit="short",
            width=8,
        ),
        time_series(
            33,
            "New series a minute",
            """Series that Prometheus had not seen before. It is high when a run starts; if it stays high,
            runs or names of devices come and go all the time.""",
            lines(f"sum(sum_over_time(scrape_series_added{{{OF_NODE}}}[1m]) {OF_EXPORTERS})", "all nodes"),
            unit="short",
            width=8,
            overrides=coloured(("all nodes",)),
        ),
        time_series(
            34,
            "CPU of exporters",
            """Share of one core that the exporter takes from the training on its node: the worst node,
            and the median.""",
            lines(f"max({CPU})", "worst"),
            lines(f"quantile(0.5, {CPU})", "median"),
            unit="percentunit",
            overrides=coloured(("worst", "median")),
        ),
        time_series(
            35,
            "Memory of exporters",
            """Resident memory of each exporter. It should be flat; with --recording.dir it is larger.""",
            lines(f"process_resident_memory_bytes{scraped}", "{{instance}}"),
            unit="bytes",
        ),
    ]


def _rules() -> list[Panel]:
    return [
        section(40, "Rules in Prometheus (where Prometheus scrapes itself)"),
        time_series(
            41,
            "How long rules take",
            """The last evaluation of each group of Trainwatch's rules, as a share of its interval. Above
            100 % evaluations are skipped: render the rules with a longer --scrape-interval, or give
            Prometheus more cores.""",
            lines(f"max by (group) ({of_group(f'{TAKEN} / {INTERVAL}')})", "{{group}}"),
            unit="percentunit",
        ),
        time_series(
            42,
            "Rules that fail",
            """Evaluations that failed, a second. Anything above 0 means that some rule says nothing
            (TrainwatchRuleEvaluationFailing); the reason is on Prometheus's page of rules.""",
            lines(f"sum by (group) ({of_group(per_second(f'{FAILURES}{{{RULES}}}'))})", "{{group}}"),
        ),
    ]
