"""Defines recording rules and alerts of a rule, and writes their PromQL.

Expressions keep every label of the target (`job`, `cluster` and the like): they match with `ignoring` and
aggregate with `without`. They avoid what Prometheus 3 changed: no range whose left end falls on a sample, no
bare `le` of a whole number, no renamed function.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from stepscope.exporter.sampling.sample_tally import BOUNDS, GRID
from stepscope.measurements.scraped import GAP, STEPS, Window
from stepscope.measurements.scraped import OF_RUN as OF_RUN
from stepscope.rules.parts.expressions import Expression, LastValues, Record
from stepscope.rules.parts.judgement import EARLY, margin
from stepscope.rules.parts.parameters import ShareLimits, fraction, live_minimum

# critical: data or hardware is at risk now; warning: money is lost now; info: it could be better; none:
# no finding
Severity = Literal["none", "info", "warning", "critical"]
Audience = Literal["platform", "owner"]  # who can end it: those who run the nodes, or the user of the run

PHASES_OF_STEPS = 'phase!~"initialization|finalization"'  # steps, and the time between them
MINUTE = 60.0  # also the time between two scans of a report


@dataclass(frozen=True)
class Scraping:
    """The intervals of Prometheus's scrapes and of the exporter's samples, in seconds."""

    interval: float = 15.0
    sample_interval: float = 0.5

    def window(self, samples: int) -> float:
        """Returns the seconds in which `samples` are taken, rounded up to whole scrapes.

        Over a whole number of scrapes, Prometheus sees every counted sample.
        """
        scrapes = math.ceil(round(samples * self.sample_interval / self.interval, 9))
        return max(1, scrapes) * self.interval

    @property
    def hold(self) -> float:
        """Returns the seconds for which a scraped value counts: over a gap of GAP, to the next scrape."""
        return GAP + 1.5 * self.interval

    def held(self, series: str, ago: float = 0.0, of_run: bool = True) -> LastValues:
        """Returns the last scraped values of a selector, as of `ago` seconds before."""
        return LastValues(series, self.hold, ago, of_run)

    def between_steps(self) -> Expression:
        """Returns the mean time from step to step of a node's ranks, without what is before and after."""
        spent = self.held(f"stepscope_phase_seconds_total{{{PHASES_OF_STEPS}}}")
        return spent.sum_without("rank", "phase") / self.held(f"{STEPS}_count").sum_without("rank", "phase")

    def last(self, seconds: float) -> Window:
        """Returns the window of the last `seconds`, in whole scrapes."""
        whole = self.interval * math.ceil(round(seconds / self.interval, 9))
        return Window(whole, self.hold, self.sample_interval)

    def reach(self, seconds: float) -> float:
        """Returns the length of a range that contains the values of `seconds` ago, and none before.

        It is half an interval longer, because versions differ in whether a range includes its left end.
        """
        return seconds + self.interval / 2


@dataclass(frozen=True)
class Alert:
    """An alerting rule, named like the rule; the value of `expression` is `$value`.

    `pending` (`for`) and `keep_firing` are seconds. Values over a window are smooth and need no `pending`.
    `lost` is PromQL for the share of the time that a finding costs, if that is known; `{}` is the finding.
    """

    expression: str
    summary: str
    description: str
    severity: Severity = "warning"
    pending: float = 0.0
    keep_firing: float = 0.0
    labels: Mapping[str, str] = field(default_factory=dict)
    lost: str = ""


@dataclass(frozen=True)
class PrometheusRules:
    """The recording rules and alerts of one rule.

    `targets` selects one series per judged node, GPU or rank of a run, with the labels of the alerts. Each
    has a status, 0 or 1, at all times. `every` is the evaluation interval in seconds, longer for expressions
    that are expensive and change slowly; 0 means every scrape interval.
    """

    targets: Expression | str
    alerts: Sequence[Alert]
    records: Sequence[Record] = ()
    every: float = 0.0


def ratio(percent: float) -> str:
    """Returns "0.7" for 70, without the rounding error of a division."""
    return f"{percent / 100:.12g}"


OWNER = ("user", "namespace", "pod", "scheduler_job")  # labels of run_info: whose a run is
OF_NODE = ("cluster", "job", "instance", "run")
OF_RANK, OF_GPU = (*OF_NODE, "rank"), (*OF_NODE, "gpu")


def looked_up(
    expression: str, labels: Sequence[str], words: str = "{{ .Value | humanizePercentage }}"
) -> str:
    """Returns an annotation's template: `words` with the values of an expression as `.Value`.

    Each `{}` in the expression becomes the selector of the alert's target by `labels`. Without a value there
    are no words. Annotations are no part of an alert's identity, so they may change.
    """
    selector = ",".join(f"{label}=%q" for label in labels)
    values = " ".join(f"$labels.{label}" for label in labels)
    query = expression.replace("{}", "{%[1]s}")
    return f"{{{{ range printf `{query}` (printf `{selector}` {values}) | query }}}}{words}{{{{ end }}}}"


def owner_labels() -> dict[str, str]:
    """Returns templates of labels that say whose the alert's run is, empty ones if it has none.

    A label that the alert has already stays as it is: the user of a process that is no run.
    """
    info = "topk(1, last_over_time(stepscope_run_info{}[10m]))"
    return {
        label: f"{{{{ if $labels.{label} }}}}{{{{ $labels.{label} }}}}{{{{ else }}}}"
        + looked_up(info, OF_NODE, f"{{{{ .Labels.{label} }}}}")
        + "{{ end }}"
        for label in OWNER
    }


def rank_of_run(series: str) -> str:
    """Returns a template of "rank 3 of run R"; of "run R" if no other rank of the run has the series."""
    ranks = f"count(count by (instance, rank) ({series}{{}}))"
    words = looked_up(f"{ranks} > 1", OF_RUN, "rank {{ $labels.rank }} of run{{ else }}run")
    return f"{words} {{{{ $labels.run }}}}"


def of_all(series: str) -> str:
    """Returns a template that sets `$all`: the values of all ranks or GPUs of the run, in ascending order.

    All of them may have the alert, and each asks. So it asks once, with the run's series alone.
    """
    return (
        f"{{{{ $all := printf `sort({series}{{cluster=%q,run=%q}})` $labels.cluster $labels.run | query }}}}"
    )


def spread(things: str) -> str:
    """Returns a template's sentence on the least and the most of `$all`, if there are several `things`."""
    return (
        f"{{{{ if gt (len $all) 1 }}}} All {things} of the run: "
        "{{ (index $all 0).Value | humanizePercentage }}"
        "{{ $most := 0.0 }}{{ range $all }}{{ $most = .Value }}{{ end }} to {{ $most | humanizePercentage }}."
        "{{ end }}"
    )


def compared(series: str, things: str) -> str:
    """Returns a template's sentence on the values of all ranks or GPUs of the run, if there are several."""
    return of_all(series) + spread(things)


def at_most(percent: float, parameter: str) -> str:
    """Returns the matcher of the bucket with the samples at or below `percent`.

    Raises ValueError, naming the nearest bounds, if no bucket ends there.
    """
    bound = _bound(percent, parameter, BOUNDS)
    if bound == int(bound):  # "1" in some engines, "1.0" in others
        return f'le=~"{bound:g}|{bound:.1f}"'
    return f'le="{bound:g}"'


def on_grid(percent: float, parameter: str) -> str:
    """Returns the label of `cause_above` or `gpu_below` for `percent`. Raises ValueError like `at_most`."""
    return f"{_bound(percent, parameter, GRID):g}"


def _bound(percent: float, parameter: str, bounds: Sequence[float]) -> float:
    exact = [bound for bound in bounds if math.isclose(100 * bound, percent, rel_tol=0, abs_tol=1e-9)]
    if exact:
        return exact[0]
    nearest = sorted(sorted(bounds, key=lambda bound: (abs(100 * bound - percent), bound))[:2])
    raise ValueError(
        f"{parameter}={percent:g} is not available in Prometheus: the exporter counts samples at other "
        f"bounds; use {' or '.join(f'{100 * bound:g}' for bound in nearest)}"
    )


def too_large(
    scraping: Scraping, share: str, samples: str, parameters: ShareLimits, early_seconds: float = EARLY
) -> str:
    """Returns where the recorded `share` of the recorded number of `samples` is above the threshold.

    It decides after `live_minimum`, or earlier if the share is surely above (rules/parts/judgement.py).
    """
    interval, percent = scraping.sample_interval, parameters.threshold
    return (
        f"{share} > {ratio(percent)} and {samples} > {live_minimum(parameters, interval):.12g}\n"
        f"  or {share} > {ratio(percent)} + {margin(fraction(percent)):.12g} * "
        f"({samples} >= {early_seconds / interval:.12g}) ^ -0.5"
    )
