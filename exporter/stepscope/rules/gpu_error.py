"""GPUError: the driver reported an error of a GPU.

Source: NVIDIA's XID catalogue, and the numbers that NVIDIA's device plugin for Kubernetes takes for errors
of applications (stepscope/common/xids.py); memory errors that ECC could not correct.
"""

from dataclasses import dataclass, replace
from functools import partial
from typing import Annotated, Any

import numpy as np

from stepscope.common.words import count, number, others_of
from stepscope.common.xids import XIDS
from stepscope.measurements.gpu_errors import (
    ECC,
    GPU_ERRORS,
    LOST,
    UNKNOWN,
    ErrorCounts,
    ErrorsOfGpu,
    described,
)
from stepscope.measurements.measure import RunMeasurements
from stepscope.measurements.scraped import Moment, Scraped, Window, column, of_run
from stepscope.rules.parts.bands import Bands, Worst
from stepscope.rules.parts.base import Verdict
from stepscope.rules.parts.expressions import Gain, Record, Shared, time_span
from stepscope.rules.parts.gpus import GPUS, WHERE, Every, Judged, for_each_run, judged_gpus
from stepscope.rules.parts.judgement import Judgement, Tallies, judgement
from stepscope.rules.parts.other_exporters import MEMORY_USED, ON_GPU, OtherExporters
from stepscope.rules.parts.parameters import Errors, Parameters
from stepscope.rules.parts.promql import MINUTE, OF_RUN, Alert, PrometheusRules, Scraping, looked_up
from stepscope.rules.parts.registry import rule
from stepscope.rules.parts.tallied import Tallied
from stepscope.rules.parts.topics import Effect
from stepscope.runs.model import RunFacts

XID_ERRORS, ECC_ERRORS = "stepscope_gpu_xid_errors_total", "stepscope_gpu_ecc_errors_total"
NOT_OF_PROGRAMS = (
    f'xid!~"{"|".join(str(number) for number, known in sorted(XIDS.items()) if known.of_the_program)}"'
)
UNCORRECTED = 'severity="uncorrected"'
# Names before dcgm-exporter 4.9, then those since.
XIDS_OF_DCGM = ("DCGM_FI_DEV_XID_ERRORS", "DCGM_FI_DEV_XID_ERROR")
# DCGM's counters: the trouble, the series, the words. Not every dcgm-exporter publishes them.
COUNTED_BY_DCGM = (
    (
        "memory",
        (
            "DCGM_FI_DEV_ECC_DBE_VOL_TOTAL",
            "DCGM_FI_DEV_UNCORRECTABLE_REMAPPED_ROWS",
            "DCGM_FI_DEV_ROW_REMAP_UNCORRECTABLE_TOTAL",
        ),
        "uncorrectable memory errors",
    ),
    (
        "nvlink",
        ("DCGM_FI_DEV_NVLINK_RECOVERY_ERROR_COUNT_TOTAL", "DCGM_FI_DEV_NVLINK_RECOVERY_ERROR_TOTAL"),
        "NVLink errors",
    ),
)
TICKS = "stepscope_sampler_ticks_total"
RECENT = 5 * MINUTE  # an error is new until this age
EVERY = 2 * MINUTE  # an error often ends its run: one that has ended since the last evaluation counts
FAILED = partial(Alert, severity="critical", keep_firing=3600)
NEW_XIDS, NEW_ECC = (
    f"run_instance_gpu:stepscope_gpu_{kind}_errors:delta{time_span(RECENT)}" for kind in ("xid", "ecc")
)


@dataclass(frozen=True)
class GPUErrorParameters(Parameters):
    threshold: Annotated[Errors, "the rule fires on more errors of a GPU than this"] = 0


@rule
class GPUError(Tallied[GPUErrorParameters, ErrorCounts, ErrorsOfGpu]):
    """Estimates no seconds lost: an error usually ends the run, or makes its results wrong."""

    subject = "GPU errors"
    question = "Did a GPU report errors, and were they caused by the GPU or the program?"
    description = (
        "Counts the XID errors that the driver reported during the run, and uncorrectable ECC errors. A GPU "
        "that the driver does not reach for two minutes counts, too. Errors "
        "that the program caused (an illegal access, an exception in a kernel) are listed separately: the "
        "GPU is healthy after them."
    )
    recommendation = "Take the machine out of use and run NVIDIA's diagnostics (dcgmi diag -r 3)."
    bands = Bands("GPU", [Worst("errors: {}", number)], minutes=RECENT / MINUTE)
    view = "health"
    effect = Effect.RISK
    audience = "platform"
    any_process = True

    about_gpus = True
    unseen = "No GPU's errors could be read."
    measure = GPU_ERRORS

    def judge(self, view: ErrorCounts) -> Judgement:
        return judgement(
            view.known, *((errors, errors > self.parameters.threshold) for errors in view.errors)
        )

    def prometheus_rules(self, scraping: Scraping) -> PrometheusRules:
        """Returns the rules for new errors. The counter of an XID is first published with its first error."""
        xids, window = f"{XID_ERRORS}{{{NOT_OF_PROGRAMS}}}", scraping.last(RECENT)
        xids_now, xids_before = (scraping.held(xids, ago) for ago in (0.0, window.seconds))
        scraped_before = f"on (cluster, job, instance) {scraping.held(TICKS, window.seconds)}"
        threshold = f"{self.parameters.threshold}"
        numbers = looked_up(f"{XID_ERRORS}{{}}", ("cluster", "job", "instance", "gpu"), " {{ .Labels.xid }}")
        return PrometheusRules(
            targets=scraping.held(GPUS) > 0,
            every=EVERY,
            records=[
                Record(
                    NEW_XIDS,
                    for_each_run(
                        "\n  sum without (xid) (\n"
                        f"    {xids_now} - {xids_before} > 0\n"
                        f"      or ({xids_now} unless {xids_before}) and {scraped_before}\n  )\n",
                        scraping,
                        EVERY,
                    ),
                ),
                Record(
                    NEW_ECC,
                    for_each_run(f"sum without (severity) (({_new_ecc(window)})) > 0", scraping, EVERY),
                ),
            ],
            alerts=[
                FAILED(
                    f"{NEW_XIDS} > {threshold}",
                    summary=f"{WHERE} reported an error",
                    description=f"In run {{{{ $labels.run }}}}, the driver reported "
                    f"{{{{ $value | humanize }}}} new errors of {WHERE} that the program did not cause. "
                    f"XIDs so far:{numbers}.{_how_many(NEW_XIDS)}",
                    labels={"trouble": "xid"},
                ),
                FAILED(
                    f"{NEW_ECC} > {threshold}",
                    summary=f"{WHERE} has uncorrectable ECC errors",
                    description=f"In run {{{{ $labels.run }}}}, {WHERE} had {{{{ $value | humanize }}}} new "
                    f"uncorrectable ECC errors.{_how_many(NEW_ECC)}",
                    labels={"trouble": "memory"},
                ),
            ],
        )

    def without_our_exporter(self, others: OtherExporters) -> PrometheusRules:
        """Returns the rule over DCGM's last XID, which stays, and its counters of errors.

        Since dcgm-exporter 4.8, a GPU has no XID before its first one.
        """
        xid, xid_before = (others.reading(XIDS_OF_DCGM, ago) for ago in (0.0, RECENT))
        known_before = others.reading(MEMORY_USED, RECENT)
        own = "".join(f" != {number}" for number, known in sorted(XIDS.items()) if known.of_the_program)
        alerts = [
            FAILED(
                f"({xid} > 0{own}) != {ON_GPU} ({xid_before} or {ON_GPU} 0 * {known_before})",
                summary=f"{WHERE} reported an error",
                description=f"The driver reported XID {{{{ printf `%.0f` $value }}}} of {WHERE}. "
                "The program did not cause it.",
                labels={"trouble": "xid"},
            )
        ]
        for trouble, series, words in COUNTED_BY_DCGM:
            now, before = (others.reading(series, ago) for ago in (0.0, RECENT))
            alerts.append(
                FAILED(
                    f"({now} - {ON_GPU} {before}) > {self.parameters.threshold}",
                    summary=f"{WHERE} has {words}",
                    description=f"{WHERE} had {{{{ $value | humanize }}}} new {words}.",
                    labels={"trouble": trouble},
                )
            )
        return PrometheusRules(targets=xid, every=EVERY, alerts=alerts)

    def scraped(self, now: Moment, scraping: Scraping) -> Scraped[ErrorCounts]:
        window = scraping.last(RECENT)
        readings = now.held(GPUS, window.hold)
        # A counter without an earlier value is new, unless the exporter did not run before.
        counted, before = (
            scraping.held(f"{XID_ERRORS}{{{NOT_OF_PROGRAMS}}}", ago, of_run=False)
            for ago in (0.0, window.seconds)
        )
        ran_before = Shared(scraping.held(TICKS, window.seconds, of_run=False), ignoring=("gpu", "xid"))
        new = (counted - before > 0) | counted.unless(before) & ran_before
        xids = of_run(now, readings, new.sum_without("xid").value(now), window.hold, EVERY)
        new_ecc = _new_ecc(window).sum_without("severity") > 0
        ecc = of_run(now, readings, new_ecc.value(now), window.hold, EVERY)
        labels = list({**xids, **ecc})
        view = ErrorCounts(np.ones(len(labels), bool), (column(xids, labels), column(ecc, labels)))
        return Scraped(labels, view, {NEW_XIDS: xids, NEW_ECC: ecc})

    def seen(self, gpu: ErrorsOfGpu) -> int:
        return gpu.readings

    def conclude(self, run: RunMeasurements, tallies: Tallies) -> Verdict:
        gpus = judged_gpus(run.facts, run.of(self.measure), tallies)
        worst = max(gpus, key=lambda gpu: (gpu.tally.triggered, gpu.measured.own), default=None)
        fired = worst is not None and worst.tally.triggered > 0
        return replace(
            super().conclude(run, tallies),
            violations=sum(gpu.measured.own for gpu in gpus),
            recommendation=described(worst.measured.own_numbers[0]).remedy if worst and fired else None,
        )

    def finding(self, facts: RunFacts, judged: Every[ErrorsOfGpu], fired: Every[ErrorsOfGpu]) -> str:
        reported = [
            f"{gpu.name} {_what_it_did(gpu.measured.own_numbers)}"
            for gpu in judged
            if (gpu.tally.triggered if fired else gpu.measured.own)
        ]
        by_programs = [
            f"{gpu.name}: {_name(number)}"
            for gpu in judged
            for number in sorted(gpu.measured.errors)
            if described(number).of_the_program
        ]
        sentence = reported[0] if reported else "No GPU reported a hardware or driver error"
        if len(reported) > 1:
            sentence += f", and {others_of(len(reported) - 1, len(judged), 'GPU')} had errors"
        if len(judged) > len(reported) == 1:
            sentence += f"; the run's {count(len(judged) - 1, 'other GPU')} had no errors"
        if by_programs and not reported:
            sentence += f"; the program failed on {by_programs[0]}"
        return f"{sentence}."

    def details(self, facts: RunFacts, one: Judged[ErrorsOfGpu]) -> dict[str, Any]:
        gpu = one.measured
        return {
            "errors": [
                {
                    "xid": number if number > ECC else None,
                    "meaning": described(number).meaning,
                    "of_the_program": described(number).of_the_program,
                    "count": gpu.errors[number],
                    "first": gpu.first[number],
                }
                for number in sorted(gpu.errors, key=lambda number: gpu.first[number])
            ]
        }


def _how_many(errors: str) -> str:
    words = " GPUs of the run with such errors: {{ .Value | humanize }}"
    every = looked_up(f"count({GPUS}{{}})", OF_RUN, " of {{ .Value | humanize }}.")
    return looked_up(f"count({errors}{{}})", OF_RUN, words) + every


def _new_ecc(window: Window) -> Gain:
    return Gain(f"{ECC_ERRORS}{{{UNCORRECTED}}}", window, whole=True, of_run=False)


def _what_it_did(numbers: list[int]) -> str:
    """Returns what a GPU reported, and whether it was lost, from the numbers of its own errors."""
    reported = ", then ".join(_name(number) for number in numbers if number != LOST)
    gone = "did not answer the driver" if LOST in numbers else ""
    return " and ".join(words for words in (f"reported {reported}" if reported else "", gone) if words)


def _name(number: int) -> str:
    if number == ECC:
        return described(number).meaning
    return f"XID {number if number != UNKNOWN else 'of an unknown number'} ({described(number).meaning})"
