"""GPUError: the driver reported an error of a GPU.

Source: NVIDIA's XID catalogue, and the numbers that NVIDIA's device plugin for Kubernetes takes for errors
of applications (trainwatch/xids.py); memory errors that ECC could not correct.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any

import numpy as np

from trainwatch.measurements.increases import Last, increases
from trainwatch.measurements.state import GpuByGpu, GpuState, Scans
from trainwatch.rules.base import Rule, Verdict, status_of
from trainwatch.rules.gpus import GPUS, for_each_run
from trainwatch.rules.parameters import Errors, Parameters
from trainwatch.rules.promql import MINUTE, Alert, PrometheusRules, Record, Scraping
from trainwatch.rules.registry import rule
from trainwatch.rules.topics import Effect
from trainwatch.runs.model import NodeSamples, RunFacts, Times, gpu_labels
from trainwatch.words import count
from trainwatch.xids import XIDS, Xid, xid

# Among the numbers of XID errors these stand for:
ECC = 0  # memory errors that ECC could not correct
LOOK_BACK = "5m"  # of Prometheus: for so long an error is new
UNKNOWN = -1  # an XID error of which only the count is known
_ECC = Xid("memory errors that ECC could not correct", XIDS[48].mend)


@dataclass(frozen=True)
class GPUErrorParameters(Parameters):
    threshold: Annotated[Errors, "the rule fires on more errors of a GPU than this"] = 0


@rule
class GPUError(Rule[GPUErrorParameters, "GpuByGpu[OneGpu]"]):
    """It claims no seconds lost: an error mostly ends the run, or spoils what it computes."""

    parameters_type = GPUErrorParameters
    subject = "GPU errors"
    question = "Did a GPU report errors, and are they its own or the program's?"
    description = (
        "Counts the XID errors that the driver reported during the run and the memory errors that ECC could "
        "not correct. Errors that are the program's (an illegal access, an exception in a kernel) are told "
        "apart: the GPU is in good health after them."
    )
    recommendation = "Take the machine out of use and run NVIDIA's diagnostics (dcgmi diag -r 3)."
    view = "health"
    effect = Effect.RISK

    def node(self) -> GpuByGpu[OneGpu]:
        return GpuByGpu(lambda: OneGpu(self.parameters))

    def judge(self, nodes: Mapping[str, GpuByGpu[OneGpu]], facts: RunFacts) -> Verdict:
        gpus = [
            (name, label, gpu)
            for name, node in nodes.items()
            for label, gpu in zip(gpu_labels(facts, name, len(node.gpus)), node.gpus, strict=True)
        ]
        triggered = sum(gpu.triggered for _, _, gpu in gpus)
        status = status_of(triggered, sum(gpu.readings for _, _, gpu in gpus))
        worst = max(gpus, key=lambda one: (one[2].triggered, one[2].of_the_gpu), default=None)
        fired = worst is not None and worst[2].triggered > 0
        return Verdict(
            status,
            "No GPU told of errors." if status == "not judged" else _finding(gpus, fired),
            triggered,
            sum(gpu.of_the_gpu for _, _, gpu in gpus),
            sum(max((gpu.readings for gpu in node.gpus), default=0) for node in nodes.values()),
            recommendation=worst[2].mend() if worst is not None and fired else None,
            details={"gpus": [_details(*one) for one in gpus]},
        )

    def prometheus_rules(self, scraping: Scraping) -> PrometheusRules:
        """New errors of the last minutes. A counter of an XID begins to be published with its first error."""
        of_programs = "|".join(str(number) for number, known in sorted(XIDS.items()) if known.of_the_program)
        xids = f'trainwatch_gpu_xid_errors_total{{xid!~"{of_programs}"}}'
        ecc = 'trainwatch_gpu_ecc_errors_total{severity="uncorrected"}'
        scraped_before = f"on (job, instance) trainwatch_sampler_ticks_total offset {LOOK_BACK}"
        new_xids, new_ecc = (
            f"run_instance_gpu:trainwatch_gpu_{which}_errors:delta{LOOK_BACK}" for which in ("xid", "ecc")
        )
        where = "GPU {{ $labels.gpu }} of {{ $labels.instance }}"
        more = f"{self.parameters.threshold}"
        numbers = (
            "{{ range printf `trainwatch_gpu_xid_errors_total{job=%q,instance=%q,gpu=%q}` "
            "$labels.job $labels.instance $labels.gpu | query }} {{ .Labels.xid }}{{ end }}"
        )
        return PrometheusRules(
            targets=GPUS,
            every=MINUTE,
            records=[
                Record(
                    new_xids,
                    for_each_run(
                        "\n  sum without (xid) (\n"
                        f"    {xids} - {xids} offset {LOOK_BACK} > 0\n"
                        f"      or ({xids} unless {xids} offset {LOOK_BACK}) and {scraped_before}\n  )\n"
                    ),
                ),
                Record(
                    new_ecc, for_each_run(f"sum without (severity) ({ecc} - {ecc} offset {LOOK_BACK}) > 0")
                ),
            ],
            alerts=[
                Alert(
                    f"{new_xids} > {more}",
                    severity="critical",
                    summary=f"{where} reported an error",
                    description=f"In run {{{{ $labels.run }}}}, the driver reported "
                    f"{{{{ $value | humanize }}}} new errors of {where} that are not the program's. "
                    f"XIDs that it has reported:{numbers}.",
                    keep_firing=3600,
                    labels={"trouble": "xid"},
                ),
                Alert(
                    f"{new_ecc} > {more}",
                    severity="critical",
                    summary=f"{where} has memory errors that could not be corrected",
                    description=f"In run {{{{ $labels.run }}}}, {where} had {{{{ $value | humanize }}}} new "
                    "memory errors that ECC could not correct.",
                    keep_firing=3600,
                    labels={"trouble": "memory"},
                ),
            ],
        )


class OneGpu(GpuState):
    """The errors of one GPU since its first reading."""

    def __init__(self, parameters: GPUErrorParameters) -> None:
        self.parameters = parameters
        self.last_xids, self.last_ecc = Last(), Last()
        self.readings = self.triggered = 0
        self.of_the_gpu = 0  # errors that are not the program's
        self.errors: dict[int, int] = {}  # by XID
        self.first: dict[int, float] = {}  # when each came first

    def observe(self, samples: NodeSamples, column: int, scans: Scans) -> None:
        xids, ecc = samples.gpu_xid_errors[:, column], samples.gpu_ecc_uncorrected_errors[:, column]
        self.readings += int(np.count_nonzero(~(np.isnan(xids) & np.isnan(ecc))))
        numbers = np.nan_to_num(samples.gpu_last_xid[:, column], nan=UNKNOWN)
        events = [(row, int(numbers[row]), more) for row, more in _new(xids, self.last_xids)]
        events += [(row, ECC, more) for row, more in _new(ecc, self.last_ecc)]
        grave = np.zeros(len(samples), np.int64)
        for row, number, more in events:
            self.errors[number] = self.errors.get(number, 0) + more
            self.first.setdefault(number, float(samples.times[row]))
            if not _known(number).of_the_program:
                grave[row] += more
        until = self.of_the_gpu + np.concatenate(([0], np.cumsum(grave)))
        self.triggered += int(np.count_nonzero(until[scans] > self.parameters.threshold))
        self.of_the_gpu = int(until[-1])

    def grave(self) -> list[int]:
        """The numbers of the GPU's own errors, the first one first: the others mostly follow from it."""
        own = (number for number in self.errors if not _known(number).of_the_program)
        return sorted(own, key=lambda number: (self.first[number], number))

    def mend(self) -> str:
        return _known(self.grave()[0]).mend


def _new(counter: Times, last: Last) -> list[tuple[int, int]]:
    """The rows in which a counter counted, and how much."""
    rows = np.flatnonzero(~np.isnan(counter))
    added = increases(counter[rows], last, anew=True)
    return [(int(row), int(more)) for row, more in zip(rows, added, strict=True) if more]


def _known(number: int) -> Xid:
    return _ECC if number == ECC else xid(number)


def _name(number: int) -> str:
    if number == ECC:
        return _ECC.meaning
    return f"XID {number if number != UNKNOWN else 'of an unknown number'} ({_known(number).meaning})"


def _finding(gpus: list[tuple[str, str, OneGpu]], fired: bool) -> str:
    told = [
        f"{label} of {name} reported {', then '.join(_name(number) for number in gpu.grave())}"
        for name, label, gpu in gpus
        if (gpu.triggered if fired else gpu.of_the_gpu)
    ]
    by_programs = [
        f"{label} of {name}: {_name(number)}"
        for name, label, gpu in gpus
        for number in sorted(gpu.errors)
        if _known(number).of_the_program
    ]
    sentence = told[0] if told else "No GPU reported an error of its own"
    if len(told) > 1:
        sentence += f", and {count(len(told) - 1, 'more GPU')} did"
    if by_programs and not told:
        sentence += f"; the program failed on {by_programs[0]}"
    return f"{sentence}."


def _details(node: str, label: str, gpu: OneGpu) -> dict[str, Any]:
    return {
        "node": node,
        "gpu": label,
        "triggered": gpu.triggered,
        "errors": [
            {
                "xid": number if number > ECC else None,
                "meaning": _known(number).meaning,
                "of_the_program": _known(number).of_the_program,
                "count": errors,
                "first": gpu.first[number],
            }
            for number, errors in sorted(gpu.errors.items(), key=lambda item: gpu.first[item[0]])
        ],
    }
