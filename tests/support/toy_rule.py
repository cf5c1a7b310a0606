"""A rule that is not part of Stepscope: this one file is all that it consists of."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from stepscope.measurements.measure import Measure, Portion, RunMeasurements
from stepscope.measurements.scraped import Moment, Scraped, column, dropped, spellings
from stepscope.measurements.starved import StarvedSamples
from stepscope.rules.parts.base import Rule, Verdict, status_of
from stepscope.rules.parts.judgement import Judgement, Tallies, judgement
from stepscope.rules.parts.parameters import Parameters, Percent, fraction
from stepscope.rules.parts.promql import Alert, PrometheusRules, Record, Scraping, ratio
from stepscope.rules.parts.registry import rule
from stepscope.rules.parts.topics import IDLE_GPUS

BUSY, HALF = "toy:busy_while_idle:ratio", 50
SAMPLES = "stepscope_samples_total"


@dataclass(frozen=True)
class ToyRuleParameters(Parameters):
    threshold: Annotated[Percent, "the rule fires above this share of all samples"] = 20


@rule
class ToyRule(Rule[ToyRuleParameters, Portion]):
    parameters_type = ToyRuleParameters
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
        counter = 'stepscope_gpu_starved_samples_total{cause="cpu", cause_above="0.5", gpu_below="0.5"}'
        expression = f"{counter} / ignoring (cause, cause_above, gpu_below) {SAMPLES}"
        return PrometheusRules(
            targets=SAMPLES,
            records=[Record(BUSY, expression)],
            alerts=[
                Alert(
                    f"{BUSY} > {ratio(self.parameters.threshold)} and {SAMPLES} > 10",
                    summary="Somebody plays on {{ $labels.instance }}",
                    description="For {{ $value | humanizePercentage }} of run {{ $labels.run }}.",
                )
            ],
        )

    def scraped(self, now: Moment, scraping: Scraping) -> Scraped[Portion]:
        samples = now(SAMPLES)
        cells = f'cause="cpu",cause_above=~"{spellings(HALF)}",gpu_below=~"{spellings(HALF)}"'
        counted = now("stepscope_gpu_starved_samples_total", cells)
        starved = dropped(counted, "cause", "cause_above", "gpu_below")
        taken = column(samples, starved)
        view = Portion(taken, taken, column(starved, starved))
        shares = dict(zip(starved, view.ratio.tolist(), strict=True))
        return Scraped(list(starved), view, samples, {BUSY: shares})

    def conclude(self, run: RunMeasurements, tallies: Tallies) -> Verdict:
        percent = max((node.percent for node in run.of(self.measure).values()), default=0.0)
        return Verdict(
            status_of(tallies.triggered, tallies.judged),
            f"Somebody played for {percent:.0f} % of the run.",
            tallies.triggered,
            details={"percent": percent},
        )
