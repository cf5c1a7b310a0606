"""HostMemoryLeak: the memory that the run holds on a node grows steadily.

Source: our own definition, with the statistics of GPUMemoryLeak. It looks at memory that is no file's
(RssAnon and VmSwap in /proc/PID/status), because the kernel takes files' pages back when it needs memory.
A forked process shares pages with its parent, and both count them. A page that is copied later is no growth.
"""

from dataclasses import dataclass
from typing import Annotated, Any

import numpy as np

from stepscope.common.words import duration, percent
from stepscope.measurements.measure import RunMeasurements
from stepscope.measurements.memory_growth import HOST_MEMORY_GROWTH, Filling
from stepscope.measurements.scraped import SAMPLES, Moment, Scraped, column
from stepscope.rules.parts.bands import Bands, Worst
from stepscope.rules.parts.base import Verdict, status_of
from stepscope.rules.parts.judgement import Judgement, Tallies, judgement
from stepscope.rules.parts.parameters import Minutes, Parameters, Percent, Samples, fraction
from stepscope.rules.parts.promql import OF_NODE, Alert, PrometheusRules, Scraping, looked_up, ratio
from stepscope.rules.parts.registry import rule
from stepscope.rules.parts.steady_growth import LongGrowth, counts_of, known
from stepscope.rules.parts.tallied import Patient
from stepscope.rules.parts.topics import Effect

HELD, CAPACITY = "stepscope_run_anonymous_memory_bytes", "stepscope_run_memory_capacity_bytes"
SHARE = "run_instance:stepscope_run_memory:ratio"
LOWEST = "run_instance:stepscope_run_memory:min_ratio"
GROWTH = "run_instance:stepscope_run_memory_leak:growth_ratio"


@dataclass(frozen=True)
class HostMemoryLeakParameters(Parameters):
    increase: Annotated[Percent, "the rule fires when more than this share filled up steadily"] = 5
    patience: Annotated[Samples, "decisions begin after this many samples"] = 1200
    warm_up: Annotated[
        Minutes, "alerts are about growth after this time of a run: caches fill until then"
    ] = 60
    horizon: Annotated[Minutes, "or about growth that fills the memory within this time at its rate"] = 120


@rule
class HostMemoryLeak(Patient[HostMemoryLeakParameters, Filling]):
    """Estimates no seconds lost: a leak costs nothing until it ends the run."""

    subject = "Steadily growing host memory"
    question = "Does the memory that the run holds on a node grow steadily, until it is killed?"
    description = (
        "Follows the lowest memory use of the run's processes on each node. It is a share of its cgroup's "
        "memory limit, or of the node's memory. Memory of files does not count: the kernel takes it back."
    )
    recommendation = (
        "Look for what lives longer than its step: lists of losses or samples, caches without a bound, "
        "metrics of a logger. tracemalloc or memray show where it was allocated. A dataset that is cached in "
        "memory looks the same until its first epoch ends."
    )
    topic = "host memory"
    bands = Bands("node", [Worst("growth by {} of the memory")] * 2)
    view = ""
    effect = Effect.RISK
    unseen = "The memory of the run's processes was not read."

    measure = HOST_MEMORY_GROWTH

    def judge(self, view: Filling) -> Judgement:
        enough = view.read & (view.samples > self.parameters.patience)
        grows = view.growth > fraction(self.parameters.increase)
        return judgement(enough, (view.growth, grows), (view.growth, np.zeros_like(grows)))

    def judge_live(self, view: Filling, sample_interval: float) -> Judgement:
        judged = self.judge(view)
        growth, grows = judged.conditions[0]
        leaks = view.lasts & (view.samples > self._growth.warmed_up(sample_interval))
        # What is not known to have grown before counts as none.
        seen = np.fmin(1.0, view.seen / (2 * self.parameters.patience * sample_interval))
        leaks |= view.full_in < 60 * self.parameters.horizon * seen
        return judgement(judged.enough, (growth, grows & leaks), (growth, grows & ~leaks))

    def prometheus_rules(self, scraping: Scraping) -> PrometheusRules:
        """Returns the rules for growth in each sixth of `patience`, or of 6 or 36 times as long.

        Growth in the shortest time may be a fluctuation, or a part of a cache's growth. Memory that leaks
        also grows in one of the longer times, by twice `increase` in twice the shortest one, or fast enough
        to fill up.
        """
        soonest = self._growth.windows(scraping)[0]
        warmed_up = self._growth.warmed_up(scraping.sample_interval)
        parameters, held, capacity = self.parameters, scraping.held(HELD), scraping.held(CAPACITY)
        samples = scraping.held(SAMPLES)
        grows = f"{GROWTH} > {ratio(parameters.increase)}\n  and {samples} > {parameters.patience}\n"
        leaks = (
            f"({samples} > {warmed_up:.12g} and (\n"
            f"      {soonest.in_twice} > {ratio(2 * parameters.increase)}\n"
            f"        or {samples} unless {soonest.total} > {ratio(parameters.increase)}\n    )\n"
            f"    or {soonest.full_in(SHARE, soonest.in_twice, 2)} < {60 * parameters.horizon:.12g})"
        )
        grown = (
            "On {{ $labels.instance }}, the memory that run {{ $labels.run }} holds has grown steadily, by "
            "{{ $value | humanizePercentage }} of what it may use "
            f"(fires above {parameters.increase:g} %)."
        )
        now = looked_up(f"{SHARE}{{}}", OF_NODE, " Now it holds {{ .Value | humanizePercentage }}.")
        return PrometheusRules(
            targets=held & capacity,
            every=self._growth.every(scraping),
            records=[
                *self._growth.records(held / (capacity > 0), scraping),
                soonest.twice(scraping.reach(2 * soonest.seconds)),
            ],
            alerts=[
                Alert(
                    f"{grows}  and {leaks}",
                    summary="The memory of run {{ $labels.run }} on {{ $labels.instance }} grows steadily",
                    description=grown + now,
                    keep_firing=600,
                    labels={"trouble": "leak"},
                ),
                Alert(
                    f"{grows}  unless {leaks}",
                    summary="The memory of run {{ $labels.run }} on {{ $labels.instance }} grows: "
                    "a cache, or a leak",
                    description=f"{grown} It may be a cache that fills, or a leak.{now}",
                    severity="info",
                    keep_firing=600,
                    labels={"trouble": "cache or leak"},
                ),
            ],
        )

    def scraped(self, now: Moment, scraping: Scraping) -> Scraped[Filling]:
        growth = now.recorded(GROWTH)
        labels = list(growth)
        samples = column(now.held(SAMPLES, scraping.hold), labels)
        soonest = self._growth.windows(scraping)[0]
        in_twice, short = now.recorded(soonest.in_twice), now.recorded(soonest.total)
        full_in = soonest.recorded_full_in(now.recorded(SHARE), in_twice, 2)
        once, twice = (float(ratio(times * self.parameters.increase)) for times in (1, 2))
        view = Filling(
            samples,
            np.ones(len(labels), bool),
            growth=column(growth, labels),
            full_in=column(full_in, labels),
            # Without growth in the shortest time, that of a longer one is above the threshold.
            lasts=(column(in_twice, labels) > twice) | ~(column(short, labels) > once),
        )
        records = self._growth.recorded(now, scraping)
        records[soonest.in_twice] = soonest.recorded_twice(now, scraping.reach(2 * soonest.seconds))
        return Scraped(labels, view, records)

    @property
    def _growth(self) -> LongGrowth:
        chosen = self.parameters
        return LongGrowth(SHARE, LOWEST, GROWTH, chosen.increase, chosen.patience, chosen.warm_up, SAMPLES)

    def conclude(self, run: RunMeasurements, tallies: Tallies) -> Verdict:
        nodes = {name: node for name, node in run.of(self.measure).items() if node.lows.known}
        details: dict[str, dict[str, Any]] = {}
        for name, node in nodes.items():
            growth = node.lows.growth()
            details[name] = {
                **counts_of(tallies.of(name, 0), bool(growth.levelled[0])),
                "percent": known(100 * float(growth.level[0])),
                "points_per_hour": known(100 * 3600 * float(growth.slope[0])),
                "full_in_seconds": known(float(node.full_in(growth)[0])),
            }
        rows = sum(node.lows.rows for node in nodes.values())
        finding = self._finding(details) if tallies.judged else self.why_not(rows)
        triggered = sum(node["triggered"] for node in details.values())
        status = status_of(triggered, tallies.judged)
        return Verdict(status, finding, triggered, triggered, rows, details={"nodes": details})

    def _finding(self, nodes: dict[str, dict[str, Any]]) -> str:
        fired = {name: node for name, node in nodes.items() if node["triggered"]}
        if not fired:
            if levelled := [name for name, node in nodes.items() if node["levelled_off"]]:
                return f"On {levelled[0]}, the run's memory grew steadily for a time, then levelled off."
            return "The run's memory grew steadily on no node."
        name, worst = max(fired.items(), key=lambda item: item[1]["points_per_hour"] or 0.0)
        others = len(nodes) - 1
        more = f" It grew steadily on {len(fired) - 1} of {others} other nodes." if others else ""
        if worst["points_per_hour"] is None:
            return f"On {name}, the run's memory grew steadily for a time, but not at the end.{more}"
        full = worst["full_in_seconds"]
        until = "" if not full else f", and would hold all of it in {duration(full)}"
        return (
            f"On {name}, the memory of the run's processes grows by {percent(worst['points_per_hour'])} of "
            f"what they may use per hour. They hold {percent(worst['percent'])} of it now{until}.{more}"
        )
