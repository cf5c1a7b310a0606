"""GPUError: the driver reported an error of a GPU.

Source: NVIDIA's XID catalogue, and the numbers that NVIDIA's device plugin for Kubernetes takes for errors
of applications (trainwatch/xids.py); memory errors that ECC could not correct.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any

import numpy as np

from trainwatch.measurements.gpu_errors import ECC, UNKNOWN, ErrorCounts, ErrorsOfGpu, GpuErrors, described
from trainwatch.measurements.measure import RunMeasurements
from trainwatch.measurements.scraped import Labels, Moment, Scraped, Vector, column, gained, of_run, summed
from trainwatch.rules.base import Rule, Verdict, status_of
from trainwatch.rules.gpus import GPUS, WHERE, JudgedGpu, for_each_run, judged_gpus
from trainwatch.rules.judgement import Judgement, Tallies, judgement
from trainwatch.rules.parameters import Errors, Parameters
from trainwatch.rules.promql import MINUTE, Alert, PrometheusRules, Record, Scraping, time_span
from trainwatch.rules.registry import rule
from trainwatch.rules.topics import Effect
from trainwatch.status import Status
from trainwatch.words import count
from trainwatch.xids import XIDS

XID_ERRORS, ECC_ERRORS = "trainwatch_gpu_xid_errors_total", "trainwatch_gpu_ecc_errors_total"
NOT_OF_PROGRAMS = (
    f'xid!~"{"|".join(str(number) for number, known in sorted(XIDS.items()) if known.of_the_program)}"'
)
UNCORRECTED = 'severity="uncorrected"'
TICKS = "trainwatch_sampler_ticks_total"
RECENT = 5 * MINUTE  # an error is new until this age
NEW_XIDS, NEW_ECC = (
    f"run_instance_gpu:trainwatch_gpu_{kind}_errors:delta{time_span(RECENT)}" for kind in ("xid", "ecc")
)


@dataclass(frozen=True)
class GPUErrorParameters(Parameters):
    threshold: Annotated[Errors, "the rule fires on more errors of a GPU than this"] = 0


@rule
class GPUError(Rule[GPUErrorParameters, ErrorCounts]):
    """Estimates no seconds lost: an error usually ends the run, or makes its results wrong."""

    parameters_type = GPUErrorParameters
    subject = "GPU errors"
    question = "Did a GPU report errors, and were they caused by the GPU or the program?"
    description = (
        "Counts the XID errors that the driver reported during the run, and uncorrectable ECC errors. Errors "
        "that the program caused (an illegal access, an exception in a kernel) are listed separately: the "
        "GPU is healthy after them."
    )
    recommendation = "Take the machine out of use and run NVIDIA's diagnostics (dcgmi diag -r 3)."
    view = "health"
    effect = Effect.RISK

    @property
    def measure(self) -> GpuErrors:
        return GpuErrors()

    def judge(self, view: ErrorCounts) -> Judgement:
        return judgement(
            view.known, *((errors, errors > self.parameters.threshold) for errors in view.errors)
        )

    def prometheus_rules(self, scraping: Scraping) -> PrometheusRules:
        """Returns the rules for new errors. The counter of an XID is first published with its first error."""
        xids, ecc = f"{XID_ERRORS}{{{NOT_OF_PROGRAMS}}}", f"{ECC_ERRORS}{{{UNCORRECTED}}}"
        earlier = f"offset {time_span(RECENT)}"
        scraped_before = f"on (job, instance) {TICKS} {earlier}"
        threshold = f"{self.parameters.threshold}"
        numbers = (
            "{{ range printf `trainwatch_gpu_xid_errors_total{job=%q,instance=%q,gpu=%q}` "
            "$labels.job $labels.instance $labels.gpu | query }} {{ .Labels.xid }}{{ end }}"
        )
        return PrometheusRules(
            targets=GPUS,
            every=MINUTE,
            records=[
                Record(
                    NEW_XIDS,
                    for_each_run(
                        "\n  sum without (xid) (\n"
                        f"    {xids} - {xids} {earlier} > 0\n"
                        f"      or ({xids} unless {xids} {earlier}) and {scraped_before}\n  )\n"
                    ),
                ),
                Record(NEW_ECC, for_each_run(f"sum without (severity) ({ecc} - {ecc} {earlier}) > 0")),
            ],
            alerts=[
                Alert(
                    f"{NEW_XIDS} > {threshold}",
                    severity="critical",
                    summary=f"{WHERE} reported an error",
                    description=f"In run {{{{ $labels.run }}}}, the driver reported "
                    f"{{{{ $value | humanize }}}} new errors of {WHERE} that the program did not cause. "
                    f"XIDs so far:{numbers}.",
                    keep_firing=3600,
                    labels={"trouble": "xid"},
                ),
                Alert(
                    f"{NEW_ECC} > {threshold}",
                    severity="critical",
                    summary=f"{WHERE} has uncorrectable ECC errors",
                    description=f"In run {{{{ $labels.run }}}}, {WHERE} had {{{{ $value | humanize }}}} new "
                    "uncorrectable ECC errors.",
                    keep_firing=3600,
                    labels={"trouble": "memory"},
                ),
            ],
        )

    def scraped(self, now: Moment, scraping: Scraping) -> Scraped[ErrorCounts]:
        readings = now(GPUS)
        xids = of_run(now, readings, summed(_new_xids(now), "xid"))
        more = summed(gained(now, ECC_ERRORS, UNCORRECTED, RECENT, True, of_run=False), "severity")
        ecc = of_run(now, readings, {labels: errors for labels, errors in more.items() if errors > 0})
        labels = list({**xids, **ecc})
        view = ErrorCounts(np.ones(len(labels), bool), (column(xids, labels), column(ecc, labels)))
        return Scraped(labels, view, readings, {NEW_XIDS: xids, NEW_ECC: ecc})

    def conclude(self, run: RunMeasurements, tallies: Tallies) -> Verdict:
        nodes = run.of(self.measure)
        gpus = judged_gpus(run.facts, nodes, tallies)
        status = status_of(tallies.triggered, tallies.judged)
        worst = max(gpus, key=lambda gpu: (gpu.tally.triggered, gpu.measured.own), default=None)
        fired = worst is not None and worst.tally.triggered > 0
        return Verdict(
            status,
            "No GPU's errors could be read." if status is Status.NOT_ENOUGH_DATA else _finding(gpus, fired),
            tallies.triggered,
            sum(gpu.measured.own for gpu in gpus),
            sum(max((gpu.readings for gpu in node.gpus), default=0) for node in nodes.values()),
            recommendation=described(worst.measured.own_numbers[0]).remedy if worst and fired else None,
            details={"gpus": [_details(gpu) for gpu in gpus]},
        )


def _new_xids(now: Moment) -> Vector:
    """Returns new errors that the program did not cause. The counter of an XID begins with its first error.

    So a counter without an earlier value is new, unless the exporter did not run before.
    """
    current, before = (now(XID_ERRORS, NOT_OF_PROGRAMS, ago, of_run=False) for ago in (0, RECENT))
    sampled = {_target(labels) for labels in now(TICKS, ago=RECENT, of_run=False)}
    return {
        labels: errors - before.get(labels, 0.0)
        for labels, errors in current.items()
        if (errors > before[labels] if labels in before else _target(labels) in sampled)
    }


def _target(labels: Labels) -> Labels:
    return frozenset(label for label in labels if label[0] in ("job", "instance"))


def _name(number: int) -> str:
    if number == ECC:
        return described(number).meaning
    return f"XID {number if number != UNKNOWN else 'of an unknown number'} ({described(number).meaning})"


def _finding(gpus: list[JudgedGpu[ErrorsOfGpu]], fired: bool) -> str:
    reported = [
        f"{gpu.name} reported {', then '.join(_name(number) for number in gpu.measured.own_numbers)}"
        for gpu in gpus
        if (gpu.tally.triggered if fired else gpu.measured.own)
    ]
    by_programs = [
        f"{gpu.name}: {_name(number)}"
        for gpu in gpus
        for number in sorted(gpu.measured.errors)
        if described(number).of_the_program
    ]
    sentence = reported[0] if reported else "No GPU reported a hardware or driver error"
    if len(reported) > 1:
        sentence += f", and {count(len(reported) - 1, 'more GPU')} reported errors"
    if by_programs and not reported:
        sentence += f"; the program failed on {by_programs[0]}"
    return f"{sentence}."


def _details(gpu: JudgedGpu[ErrorsOfGpu]) -> dict[str, Any]:
    errors, first = gpu.measured.errors, gpu.measured.first
    return {
        "node": gpu.node,
        "gpu": gpu.label,
        "triggered": gpu.tally.triggered,
        "errors": [
            {
                "xid": number if number > ECC else None,
                "meaning": described(number).meaning,
                "of_the_program": described(number).of_the_program,
                "count": errors[number],
                "first": first[number],
            }
            for number in sorted(errors, key=lambda number: first[number])
        ],
    }
