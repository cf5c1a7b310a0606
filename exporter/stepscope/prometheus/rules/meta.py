"""Alerts on Stepscope itself: no alert must mean that all is well, not that nothing is measured.

They have no `kind`, unlike those of rules: of all causes, only the error of a GPU silences them.
"""

from functools import partial
from typing import Any, NamedTuple

from stepscope.evaluation.settings import Settings
from stepscope.exporter.sampling.active_runs import UNNAMED
from stepscope.measurements.scraped import SAMPLES
from stepscope.prometheus.rules.groups import DASHBOARD, Entry, Group, alerting, record
from stepscope.prometheus.rules.options import ENGINES, Engine, Options
from stepscope.rules.collective_hang import STATE
from stepscope.rules.gpu_error import NOT_OF_PROGRAMS, XID_ERRORS
from stepscope.rules.parts.expressions import time_span
from stepscope.rules.parts.gpus import GPUS
from stepscope.rules.parts.hardware import hardware_rules
from stepscope.rules.parts.node_names import DCGM_LABELS, GPUS_OF_DCGM, by_node
from stepscope.rules.parts.promql import (
    MINUTE,
    OF_NODE,
    OWNER,
    Alert,
    Audience,
    Scraping,
    owner_labels,
    ratio,
)
from stepscope.rules.parts.silences import (
    CollectorFailing,
    ExporterDown,
    ExporterMissing,
    GPULost,
    LimitReached,
    RunFailed,
    RunsStalled,
    SamplesMissed,
    ScrapeIntervalDiffers,
)
from stepscope.rules.training_stalled import WORLD

UNFINISHED = "run_instance:stepscope_run_unfinished:bool"
KNOWN = "instance:stepscope_exporter_known:bool"
BUILD = "stepscope_exporter_build_info"
TAKEN, MISSED = "stepscope_sampler_ticks_total", "stepscope_sampler_ticks_missed_total"
TARGET = "on (cluster, job, instance)"
# Nodes with GPUs by the short names that dcgm-exporter gives: that of the node, of a pod, or of an instance
# in a cloud. A job of it whose names never match ours knows no nodes.
OF_DCGM = "instance:stepscope_gpu_node:bool"
KNOWN_TO_DCGM = by_node(
    f'label_replace({GPUS_OF_DCGM}, "source", "$1", "job", "(.*)") * 0 + 1',
    DCGM_LABELS,
    "source",
)
KNOWN_TO_OTHERS = "\n  or\n  ".join(
    by_node(series, (label,))
    for series, label in (
        ('(kube_pod_container_resource_requests{resource="nvidia_com_gpu"} > 0)', "node"),
        (
            f'(node_pci_device_info{{vendor_id="0x10de"}} * {TARGET} group_left (nodename) node_uname_info)',
            "nodename",
        ),
        ('(up{job=~".*stepscope.*"} == 0)', "instance"),
    )
)
TRAINED = f"{SAMPLES} unless stepscope_run_end_time_seconds"
# Without processes of which it is not known whether they train.
NAMED = f'{SAMPLES}{{run!~"{UNNAMED}"}} unless stepscope_run_end_time_seconds'
# Stalled runs of which some ranks are not seen.
INCOMPLETE = f"""count by (cluster, run) (group by (cluster, run, rank) ({STATE}))
    < max by (cluster, run) ({WORLD})
    and on (cluster, run) ALERTS{{standstill=~"cause|symptom", alertstate="firing", severity="critical"}}"""
# Both remember while an exporter is down, until it is up again. A run may end, and its node be turned off,
# between two evaluations. Nodes also leave service discovery on purpose: then they count only if a run waits.
STILL_UNFINISHED = f"""
clamp({TRAINED}, 1, 1)
or
{UNFINISHED} and {TARGET} up == 0 unless last_over_time(stepscope_run_end_time_seconds[5m])
or
last_over_time({UNFINISHED}[15m]) unless {TARGET} up
  unless last_over_time(stepscope_run_end_time_seconds[15m])
  and on (cluster, run) (
    {INCOMPLETE}
  )
"""
STILL_KNOWN = f"""
group by (cluster, job, instance) ({BUILD})
or
{KNOWN} and {TARGET} up == 0
"""
_REPAIR_GPU = "Look for XID errors in the kernel's log, and reset the GPU or drain the machine."
WATCHDOG = "Watchdog"
HARDWARE = "stepscope-hardware"  # the group of the rules on hardware
# Reasons that accuse nobody: a user stopped the run, or nobody said how it ended.
NOT_FAILED = "finished|signal SIG(INT|TERM|HUP|QUIT)|ended without saying so"
_FAILED = f'last_over_time(stepscope_run_ended_info{{reason!~"{NOT_FAILED}"}}[5m])'
ENDED_RUN = "cluster, job, instance, run"
# Nodes that are off, by another exporter or by Kubernetes: if only ours is silent, the run may still train.
OTHERS_UP = 'up{job!~".*stepscope.*"}'
OFF = f"""(
    {by_node(f"({OTHERS_UP} == 0)", ["instance"])}
      or {by_node('(kube_node_status_condition{condition="Ready",status="true"} == 0)', ["node"])}
  ) unless {by_node(f"({OTHERS_UP} == 1)", ["instance"])}"""
# Runs that had not ended when their node was switched off, or left service discovery. No other node has them.
# Without an exporter, they served their own metrics, as long as they ran.
LOST = f"""
max by ({", ".join((*OF_NODE, *OWNER))}) (last_over_time(stepscope_run_info[25m]))
  unless {TARGET} (up unless on (cluster, instance) (
  {OFF}))
  unless on (cluster, run) last_over_time(stepscope_run_info[10m])
  unless on (cluster, run) last_over_time(stepscope_run_end_time_seconds[25m])
  and {TARGET} last_over_time({BUILD}[25m]) and on (cluster) {BUILD}
"""
STALLED = 'ALERTS{rule="TrainingStalled", alertstate="firing", severity="critical"}'
# Grafana's dashboards of clusters and of exporters, with their variables.
CLUSTER_DASHBOARD = (
    "/d/stepscope-cluster"
    "{{with or $labels.cluster $externalLabels.cluster}}?var-cluster={{.|urlquery}}{{end}}"
)
EXPORTER_DASHBOARD = (
    "/d/stepscope-exporter?var-instance={{$labels.instance|urlquery}}"
    "{{with or $labels.cluster $externalLabels.cluster}}&var-cluster={{.|urlquery}}{{end}}"
)


class Silence(NamedTuple):
    name: str
    alert: Alert
    recommendation: str
    dashboard: str = EXPORTER_DASHBOARD
    audience: Audience = "platform"
    of_run: bool = False  # whether its labels say whose the run is

    def entry(self, options: Options) -> Entry:
        """Returns its alerting rule."""
        alert = self.alert
        labels = {"rule": self.name, "severity": alert.severity, "audience": self.audience, **alert.labels}
        labels |= owner_labels() if self.of_run else {}
        return alerting(self.name, alert, labels, self.recommendation, options, "rules.md", self.dashboard)


def _silence(
    name: str,
    expression: str,
    summary: str,
    description: str,
    recommendation: str,
    dashboard: str = EXPORTER_DASHBOARD,
    **alert: Any,
) -> Silence:
    return Silence(name, Alert(expression, summary, description, **alert), recommendation, dashboard)


def silences(scraping: Scraping, settings: Settings, engine: Engine) -> list[Silence]:
    """Returns the alerts; docs/rules.md has a section on each."""
    gpu = settings.of(GPULost)
    gone = MINUTE * gpu.gone_minutes
    missed = settings.of(SamplesMissed).threshold
    return [
        *_exporters(settings.of(ExporterDown), settings.of(ExporterMissing)),
        _silence(
            "GPULost",
            "stepscope_gpu_up == 0",
            "GPU {{ $labels.gpu }} of {{ $labels.instance }} does not answer",
            "The driver of {{ $labels.instance }} gives no readings of GPU {{ $labels.gpu }}: rules "
            "cannot judge it.",
            _REPAIR_GPU,
            pending=MINUTE * gpu.minutes,
            labels={"trouble": "silent"},
        ),
        _silence(
            "GPULost",
            f"(stepscope_gpu_up offset {time_span(gone)} unless stepscope_gpu_up)\n"
            f"  and {TARGET} {BUILD}\n"
            f'  unless {TARGET} stepscope_collector_success{{collector="gpu"}} == 0',
            "GPU {{ $labels.gpu }} of {{ $labels.instance }} has disappeared",
            f"{time_span(gone)} ago, the driver of {{{{ $labels.instance }}}} listed GPU "
            "{{ $labels.gpu }}. It no longer does, so rules cannot judge it.",
            _REPAIR_GPU,
            labels={"trouble": "gone"},
        ),
        _silence(
            "CollectorFailing",
            f"stepscope_collector_success == 0 and {TARGET} {UNFINISHED}",
            "Collector {{ $labels.collector }} fails on {{ $labels.instance }}",
            "Collector {{ $labels.collector }} has no readings on {{ $labels.instance }}: its metrics "
            "are missing, and rules that need them cannot fire.",
            "The exporter's log has the reason. Turn off a collector that cannot work on this node, with "
            "--no-collector.NAME.",
            severity="info",
            pending=MINUTE * settings.of(CollectorFailing).minutes,
        ),
        _silence(
            "SamplesMissed",
            f"rate({MISSED}[5m]) / (rate({TAKEN}[5m]) + rate({MISSED}[5m])) > {ratio(missed)}",
            "The exporter of {{ $labels.instance }} misses samples",
            "The exporter of {{ $labels.instance }} missed {{ $value | humanizePercentage }} of its "
            f"samples in the last 5 minutes (fires above {missed:g} %). Rules see only the samples "
            "that it took.",
            "Reserve a core for the exporter, or use a longer --sample-interval.",
            severity="info",
        ),
        _silence(
            "LimitReached",
            "sum without (run, collector) (stepscope_exporter_left_out) > 0",
            "The exporter of {{ $labels.instance }} leaves out {{ $labels.limit }}",
            "A limit of the exporter of {{ $labels.instance }} leaves out {{ $value | humanize }} "
            "({{ $labels.limit }}): rules cannot judge what is left out.",
            "stepscope_exporter_left_out names the run or the collector. Raise --limit.{{ $labels.limit }}, "
            "or find out why there are so many.",
            pending=MINUTE * settings.of(LimitReached).minutes,
        ),
        # It always fires, and is not a finding: its absence is the news.
        _silence(
            WATCHDOG,
            "vector(1)",
            "Alerts of Stepscope reach Alertmanager",
            "This alert always fires. If the service that expects it hears nothing, alerts are lost.",
            "Nothing. If it stops, check Prometheus and Alertmanager.",
            severity="none",
        ),
        _scrape_interval(scraping, settings.of(ScrapeIntervalDiffers).factor),
        *_shared_targets(),
        _silence(
            "RuleEvaluationFailing",
            engine.failures,
            f"{engine.title} cannot evaluate a rule of Stepscope",
            f"{{{{ $labels.{engine.group} }}}} failed {{{{ $value | humanize }}}} times in the last "
            "5 minutes.",
            f"{engine.reason} has the reason.",
        ),
        *_failed_runs(settings.of(RunFailed)),
    ]


def raised(matchers: str, span: str) -> str:
    """Returns one exception per run in the last `span`: the present one, if it failed several times."""
    series = f"stepscope_run_exception_info{matchers}"
    return f"topk by ({ENDED_RUN}) (1, 2 * {series} or last_over_time({series}[{span}]))"


def _failed_runs(failed: RunFailed) -> list[Silence]:
    """Returns an alert for owners on every failure, and two for the platform on those that are the node's."""
    of_run = f"on ({ENDED_RUN})"
    failed_run = partial(
        Alert,
        summary="Run {{ $labels.run }} failed: {{ or $labels.type $labels.reason }}",
        description="Run {{ $labels.run }} on {{ $labels.instance }} ended with: {{ $labels.reason }}"
        "{{ with $labels.type }}, {{ . }} at {{ $labels.place }}{{ end }}.",
        keep_firing=MINUTE * failed.minutes,
    )
    exhausted = 'last_over_time(stepscope_run_ended_info{reason="out of memory"}[5m])'
    xids = f"{XID_ERRORS}{{{NOT_OF_PROGRAMS}}}"
    return [
        Silence(
            "RunFailed",
            failed_run(
                f"{_FAILED} * {of_run} group_left (type, place) {raised('', '5m')}\n  or {of_run}\n{_FAILED}",
                severity="info",
            ),
            "Read the end of the run's own log: it has the message of an exception. After `out of memory`, "
            "compare the memory of the run with its limit.",
            DASHBOARD,
            audience="owner",
            of_run=True,
        ),
        *(
            Silence(
                "RunFailed",
                # Over before GPUError, which silences it.
                failed_run(expression, labels={"fault": fault}, keep_firing=15 * MINUTE),
                recommendation,
                DASHBOARD,
                of_run=True,
            )
            for fault, expression, recommendation in (
                (
                    "GPU",
                    f"{_FAILED}\n  and {of_run} (\n"
                    # Errors are those of the whole GPU, of which a MIG device is a part.
                    f'    label_replace(last_over_time({GPUS}[10m]), "whole", "$1", "gpu", "([^:]+).*")\n'
                    "      and on (cluster, job, instance, whole) label_replace(\n"
                    # The counter of an XID is first published with its first error.
                    f"    increase({xids}[10m]) > 0\n      or\n    {xids} unless {xids} offset 10m "
                    f"and {TARGET} {BUILD} offset 10m\n"
                    '      or\n    stepscope_gpu_up == 0,\n    "whole", "$1", "gpu", "(.+)"\n  ))',
                    "A GPU of the run had an error, or is lost: drain the node, and run it again elsewhere.",
                ),
                (
                    "memory",
                    f"{exhausted}\n  and {of_run}\n"
                    f"last_over_time(stepscope_run_memory_capacity_bytes[5m])\n"
                    f"  >= {TARGET} group_left () last_over_time(stepscope_memory_total_bytes[5m])",
                    "The memory of the node ran out, because the run has no limit of its own: set limits, so "
                    "that one run cannot end others.",
                ),
            )
        ),
    ]


def _exporters(down: ExporterDown, missing: ExporterMissing) -> list[Silence]:
    seen = f"on (cluster, instance) {by_node(f'({BUILD} or {KNOWN})', ['instance'])}"
    check = "Check the node first, then the exporter (systemctl status stepscope-exporter)."
    return [
        _silence(
            "ExporterDown",
            f"{UNFINISHED} unless {SAMPLES}",
            "{{ $labels.instance }} is not scraped while run {{ $labels.run }} is training",
            "Prometheus cannot scrape {{ $labels.instance }}, or no longer has it as a target. Run "
            "{{ $labels.run }} had not ended there: rules cannot judge that node.",
            check,
            pending=MINUTE * down.minutes,
        ),
        _silence(
            "ExporterDown",
            f"{KNOWN} and {TARGET} up == 0 unless {TARGET} {UNFINISHED}",
            "The exporter of {{ $labels.instance }} is down",
            "Prometheus cannot scrape {{ $labels.instance }}, where no run was training: rules will not "
            "see the next one.",
            check,
            severity="info",
            pending=MINUTE * down.idle_minutes,
        ),
        _silence(
            "ExporterMissing",
            f"group by (cluster, instance) (\n"
            f"  {OF_DCGM} and on (cluster, source) ({OF_DCGM} and {seen})\n  or\n  {KNOWN_TO_OTHERS}\n)\n"
            f"  unless {seen}\n"
            f"  and on (cluster) {BUILD}",
            "{{ $labels.instance }} has GPUs, but no exporter of Stepscope",
            "Others know {{ $labels.instance }} as a node with GPUs (dcgm-exporter, node_exporter, or "
            "pods that request GPUs), but Prometheus has scraped no exporter of Stepscope there.",
            "Install the exporter there, or add the node to the scrape configuration. On nodes that do not "
            "train, silence this alert.",
            severity="info",
            pending=MINUTE * missing.minutes,
        ),
    ]


def _scrape_interval(scraping: Scraping, factor: float) -> Silence:
    """Compares the number of scrapes in ten minutes, or of ten scrapes, with what it should be."""
    window = time_span(max(10 * MINUTE, 10 * scraping.interval))
    interval = f"{max(10 * MINUTE, 10 * scraping.interval):g} / count_over_time(up[{window}])"
    seldom, often = (
        f"{seconds:.12g}" for seconds in (factor * scraping.interval, scraping.interval / factor)
    )
    differs = f"({interval} > {seldom} or {interval} < {often})"
    return _silence(
        "ScrapeIntervalDiffers",
        f"{differs}\n  and {TARGET} {BUILD}\n  and {TARGET} {BUILD} offset {window}",
        "{{ $labels.instance }} is not scraped as often as the rules expect",
        "Prometheus scrapes {{ $labels.instance }} every {{ $value | humanizeDuration }}, but the rules "
        f"were rendered for {time_span(scraping.interval)}.",
        "Render the rules with `stepscope rules render --scrape-interval`, or change the scrape interval.",
        severity="info",
    )


def _shared_targets() -> list[Silence]:
    """Returns both alerts. A restarted exporter has a later start; it goes back only if two take turns."""
    repair = (
        "Give each exporter its own target: set `instance` to the node's name in the scrape configuration."
    )
    return [
        _silence(
            "TargetShared",
            f"resets(process_start_time_seconds[15m]) >= 2 and {TARGET} {BUILD}",
            "Several exporters answer as {{ $labels.instance }}",
            "The target {{ $labels.instance }} changed between several exporters {{ $value | humanize }} "
            "times in 15 minutes: counters of different nodes are mixed up.",
            repair,
            labels={"trouble": "several exporters"},
        ),
        _silence(
            "TargetShared",
            f"count by (cluster, instance) ({BUILD}) > 1",
            "{{ $labels.instance }} is the name of several targets",
            "{{ $value | humanize }} targets have the instance {{ $labels.instance }}: dashboards show "
            "them as one node.",
            repair,
            severity="info",
            pending=10 * MINUTE,
            labels={"trouble": "several targets"},
        ),
    ]


def meta_group(options: Options) -> Group:
    rules = [
        record(UNFINISHED, STILL_UNFINISHED),
        record(KNOWN, STILL_KNOWN),
        record(OF_DCGM, KNOWN_TO_DCGM),
    ]
    found = silences(options.scraping, options.settings, ENGINES[options.engine])
    if options.profile != "lean":
        lean = _silence(
            "ProfileDiffers",
            f'{BUILD}{{profile="lean"}}',
            "{{ $labels.instance }} publishes fewer metrics than the rules read",
            "The exporter of {{ $labels.instance }} has the lean profile, but the rules were rendered for "
            "the default one: rules that need more cannot judge that node.",
            "Render the rules with `stepscope rules render --profile lean`, or start the exporter without "
            "--metrics.profile=lean.",
            severity="info",
            pending=10 * MINUTE,
        )
        found.append(lean)
    rules += [silence.entry(options) for silence in found]
    interval = time_span(max(2 * MINUTE, options.scraping.interval))
    return {"name": "stepscope-meta", "interval": interval, "rules": rules}


def outage_group(options: Options) -> Group:
    """Returns the alerts that runs were lost with their nodes, and that many runs stall at once.

    What they share is to blame then, not their owners.
    """
    stalled = options.settings.of(RunsStalled)
    runs, all_runs = (f"count by (cluster) (group by (cluster, run) ({each}))" for each in (STALLED, NAMED))
    alert = _silence(
        "RunsStalled",
        f"({runs} >= {stalled.runs})\n  > {ratio(stalled.share)} * {all_runs}",
        "{{ $value | humanize }} runs have stalled together",
        "{{ $value | humanize }} runs of the cluster make no steps (fires above "
        f"{stalled.share:g} % of those that train).",
        "Check what these runs share: storage first, then the network. Meanwhile, their owners are not "
        "notified.",
        dashboard=CLUSTER_DASHBOARD,
        severity="critical",
        keep_firing=15 * MINUTE,  # as long as alerts on what it explains may fire after it
        labels={"standstill": "together"},
    )
    lost = Silence(
        "RunFailed",
        Alert(
            LOST,
            "Run {{ $labels.run }} was lost with {{ $labels.instance }}",
            "{{ $labels.instance }} has not been seen for 10 minutes. Run {{ $labels.run }} had not ended "
            "there, and is on no other node.",
            labels={"fault": "node"},
        ),
        "Start it again from its last checkpoint, unless its scheduler does.",
        DASHBOARD,
        audience="owner",
        of_run=True,
    )
    interval = time_span(max(MINUTE, options.scraping.interval))
    rules = [each.entry(options) for each in (alert, lost)]
    return {"name": "stepscope-outage", "interval": interval, "rules": rules}


def hardware_group(options: Options) -> Group:
    """Returns the alerts of the files in stepscope/rules that are marked with `@hardware_rule`."""
    found = [
        Silence(rule.__name__, *advised)
        for rule in hardware_rules()
        for advised in options.settings.of(rule).alerts(options.scraping)
    ]
    interval = time_span(max(MINUTE, options.scraping.interval))
    return {"name": HARDWARE, "interval": interval, "rules": [each.entry(options) for each in found]}
