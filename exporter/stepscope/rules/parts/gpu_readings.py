"""Concludes for LowGPUUtilization and BatchSize: rules on percentiles of the last readings of each GPU."""

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import numpy as np

from stepscope.measurements.measure import Measure, RunMeasurements
from stepscope.measurements.recent_readings import Quantity, RecentOfGpus, RecentReadings
from stepscope.measurements.scraped import (
    CPU_SAMPLES,
    GPU_SAMPLES,
    MEMORY_SAMPLES,
    CountedWindow,
    Moment,
    Scraped,
    enough_readings,
    without,
)
from stepscope.measurements.usage import USAGE, GpuUsage
from stepscope.rules.parts.base import P, Verdict, status_of
from stepscope.rules.parts.expressions import Expression, Gain, Record
from stepscope.rules.parts.gpus import GPUS, Judged, going_on, judged_gpus
from stepscope.rules.parts.judgement import Tallies
from stepscope.rules.parts.promql import MINUTE, Alert, PrometheusRules, Scraping, at_most
from stepscope.rules.parts.starting import Beginning, Pausing, is_short_evaluation, is_starting
from stepscope.rules.parts.tallied import Patient
from stepscope.rules.parts.topics import IDLE_GPUS

AFTER_START = 5 * MINUTE  # readings of a start are not judged: MaxInitializationTime does that
MOSTLY_PAUSING = 0.5  # of the window: what is idle then is so because of the pause
HISTOGRAMS: dict[Quantity, str] = {"gpu": GPU_SAMPLES, "gpu_memory": MEMORY_SAMPLES, "cpu": CPU_SAMPLES}


class FollowsReadings(Patient[P, RecentReadings | CountedWindow]):
    """Decides on the last `window` readings of a GPU, once there are more than `patience`.

    Seconds lost: the time for which the GPU that idled most, of those that fired, did nothing.
    """

    symptom = IDLE_GPUS
    about_gpus = True
    is_symptom = True
    details_of: ClassVar[Sequence[Measure[Any]]] = (USAGE,)
    # By recorded series: the quantity, and the parameter of the bound. Its value is the share of the samples
    # up to the bound.
    recorded: ClassVar[Mapping[str, tuple[Quantity, str]]]
    counted = "readings of a GPU"

    @property
    def measure(self) -> Measure[RecentOfGpus]:
        parameters: Any = self.parameters
        quantities = tuple(dict.fromkeys(quantity for quantity, _ in self.recorded.values()))
        return Measure(RecentOfGpus, quantities, parameters.window, parameters.patience)

    def is_usual(self, beginning: Beginning) -> bool:
        return beginning.is_short_evaluation() or beginning.is_starting(AFTER_START)

    def prometheus_rules(self, scraping: Scraping) -> PrometheusRules:
        """Returns the rules: a percentile is below a threshold if more than its share of the samples is.

        Runs that have ended are not judged, because their last window contains fewer and fewer samples.
        """
        parameters: Any = self.parameters
        window = scraping.last(scraping.window(parameters.window))
        whole = parameters.patience >= parameters.window

        def share(quantity: Quantity, bound: str) -> Expression:
            """Returns the share of the samples in the window that are at or below a bound."""
            samples, bucket = HISTOGRAMS[quantity], at_most(getattr(parameters, bound), bound)
            counted, of_all = f"{samples}_bucket{{{bucket}}}", f"{samples}_count"
            return Gain(counted, window, whole=whole) / Gain(of_all, window, whole=whole)

        return PrometheusRules(
            every=4 * MINUTE,
            targets=scraping.held(GPUS) > 0,
            records=[Record(series, share(*asked)) for series, asked in self.recorded.items()],
            alerts=self.alerts(
                f"{scraping.held(GPUS)} > {parameters.patience}\n  {going_on(scraping)}\n"
                f"  unless ignoring (gpu) ({self._usual(scraping)})\n  {self._pausing(scraping)}"
            ),
        )

    def _usual(self, scraping: Scraping) -> Expression:
        """Returns the runs, by node, in which idle GPUs are usual so early."""
        return is_short_evaluation(scraping) | is_starting(scraping, AFTER_START)

    def _pausing(self, scraping: Scraping) -> Pausing:
        parameters: Any = self.parameters
        return Pausing(scraping, scraping.window(parameters.window), MOSTLY_PAUSING)

    def scraped(self, now: Moment, scraping: Scraping) -> Scraped[CountedWindow]:
        parameters: Any = self.parameters
        records = [now.recorded(series) for series in self.recorded]
        labels = list(records[0])  # GPUs; series of cores have the labels of the node
        shares = {
            (str(quantity), float(getattr(parameters, bound))): np.array(
                [found.get(gpu, found.get(without(gpu, "gpu"), np.nan)) for gpu in labels]
            )
            for found, (quantity, bound) in zip(records, self.recorded.values(), strict=True)
        }
        readings = now.held(GPUS, scraping.hold)
        enough = enough_readings(now, readings, labels, parameters.patience, scraping.hold)
        usual = self._usual(scraping).value(now)
        enough &= np.array([without(gpu, "gpu") not in usual for gpu in labels], bool)
        enough &= self._pausing(scraping).spares(now, labels)
        return Scraped(labels, CountedWindow(enough, shares))

    def conclude(self, run: RunMeasurements, tallies: Tallies) -> Verdict:
        gpus = judged_gpus(run.facts, run.of(USAGE), tallies)
        fired = [gpu for gpu in gpus if gpu.tally.triggered]
        most = max((recent.most_readings for recent in run.of(self.measure).values()), default=0)
        details = self.details(run, fired)
        if fired:
            details["last_timestamp"] = int(max(gpu.tally.last_fired for gpu in fired) * 1e6)
        return Verdict(
            status_of(tallies.triggered, tallies.judged),
            self.finding(run, fired, len(gpus)) if most and tallies.judged else self.why_not(most),
            tallies.triggered,
            tallies.triggered,
            self.datapoints(run),
            max((gpu.measured.idle_readings for gpu in fired), default=0.0) * run.facts.interval,
            details=details,
        )

    @abstractmethod
    def alerts(self, enough: str) -> list[Alert]:
        """Returns the alerts; `enough` selects the GPUs that are judged."""

    @abstractmethod
    def datapoints(self, run: RunMeasurements) -> int:
        """Returns the number of samples, as Debugger counts them."""

    @abstractmethod
    def finding(self, run: RunMeasurements, fired: Sequence[Judged[GpuUsage]], gpus: int) -> str:
        """Returns the finding on the GPUs that fired, of `gpus` that the run has, or that none did."""

    @abstractmethod
    def details(self, run: RunMeasurements, fired: Sequence[Judged[GpuUsage]]) -> dict[str, Any]:
        """Returns Debugger's box plots in percent of the GPUs that fired, by node."""
