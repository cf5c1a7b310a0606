"""A rule that is not part of Stepscope: this one file is all that it consists of."""

from dataclasses import dataclass
from typing import Annotated

import numpy as np
from stepscope.measurements.measure import Measure, Portion, RunMeasurements
from stepscope.measurements.scraped import Moment, Scraped, column
from stepscope.measurements.starved import StarvedSamples
from stepscope.rules.parts.base import Rule, Verdict, status_of
from stepscope.rules.parts.expressions import Record
from stepscope.rules.parts.judgement import Judgement, Tallies, judgement
from stepscope.rules.parts.parameters import Parameters, Percent, fraction
from stepscope.rules.parts.promql import Alert, PrometheusRules, Scraping, ratio
from stepscope.rules.parts.registry import rule
from stepscope.rules.parts.topics import IDLE_GPUS

BUSY, HALF = "toy:busy_while_idle:ratio", 50
SAMPLES = "stepscope_samples_total"


@dataclass(frozen=True)
class ToyRuleParameters(Parameters):
    threshold: Annotated[Percent, "the rule fires above this share of all samples"] = 20


@rule
class ToyRule(Rule[ToyRuleParameters, Portion]):
    subject = "Playing with toys"
    question = "Is some core half busy while some GPU is half idle?"
    description = "Counts the samples in which a core is above 50 % and a GPU below 50 %."
    recommendation = "Put the toys away."
    symptom = IDLE_GPUS
    explains_late_data = 9

    measure = Measure(StarvedSamples, "cpu", HALF / 100, HALF / 100)

    def judge(self, view: Portion) -> Judgement:
        return judgement(view.seen > 10, (view.ratio, view.ratio > fraction(self.parameters.threshold)))

    def prometheus_rules(self, scraping: Scraping) -> PrometheusRules:
        samples = scraping.held(SAMPLES)
        starved = 'stepscope_gpu_starved_samples_total{cause="cpu", cause_above="0.5", gpu_below="0.5"}'
        return PrometheusRules(
            targets=samples,
            records=[Record(BUSY, scraping.held(starved) / samples)],
            alerts=[
                Alert(
                    f"{BUSY} > {ratio(self.parameters.threshold)} and {samples} > 10",
                    summary="Somebody plays on {{ $labels.instance }}",
                    description="For {{ $value | humanizePercentage }} of run {{ $labels.run }}.",
                )
            ],
        )

    def scraped(self, now: Moment, scraping: Scraping) -> Scraped[Portion]:
        samples, shares = now.held(SAMPLES, scraping.hold), now.recorded(BUSY)
        labels = list(shares)
        return Scraped(labels, Portion(column(samples, labels), np.ones(len(labels)), column(shares, labels)))

    def conclude(self, run: RunMeasurements, tallies: Tallies) -> Verdict:
        percent = max((node.percent for node in run.of(self.measure).values()), default=0.0)
        return Verdict(
            status_of(tallies.triggered, tallies.judged),
            f"Somebody played for {percent:.0f} % of the run.",
            tallies.triggered,
            details={"percent": percent},
        )
