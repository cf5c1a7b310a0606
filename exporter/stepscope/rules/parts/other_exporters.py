"""Reads GPUs and cores from dcgm-exporter and node_exporter, for rules on nodes without readings of ours.

Sources: dcgm-exporter's default-counters.csv and its labels (`gpu`, `Hostname`, in MIG mode `GPU_I_ID`; in
Kubernetes, the same GPU once per pod); node_exporter's cpu and uname collectors. They give one reading per
scrape and no counts of samples, so results are less precise.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from stepscope.rules.parts.expressions import time_span
from stepscope.rules.parts.node_names import DCGM_LABELS, NODE, by_node
from stepscope.rules.parts.promql import MINUTE, Scraping, ratio

STEPSCOPE, DCGM, NODE_EXPORTER = "stepscope", "dcgm", "node-exporter"
GPU_SOURCES, HOST_SOURCES = (STEPSCOPE, DCGM), (STEPSCOPE, NODE_EXPORTER)

# Neither exporter knows which process uses a GPU: a GPU with more than this share of its memory in use works.
MEMORY_IN_USE = 0.02
IDLE = 'mode=~"idle|iowait"'  # of a core
SCRAPES = 40  # readings that a percentile needs
ON_GPU = "on (cluster, instance, gpu)"
ON_NODE = "on (cluster, instance)"
# DCGM's bits of the reasons why clocks are low: 0x20 and 0x40 are slowdowns by heat. The name is that of the
# version: before DCGM 4 the first, then the second.
CLOCK_REASONS = ("DCGM_FI_DEV_CLOCK_THROTTLE_REASONS", "DCGM_FI_DEV_CLOCKS_EVENT_REASONS")
LOWEST_HEAT_BIT, HEAT_BITS = 0x20, 4
# Names and units before dcgm-exporter 4.9, then those since.
UTILIZATIONS = (
    "DCGM_FI_PROF_GR_ENGINE_ACTIVE",
    "DCGM_FI_PROF_GR_ENGINE_UTIL_RATIO",
    "DCGM_FI_DEV_GPU_UTIL / 100",
    "DCGM_FI_DEV_GPU_UTIL_RATIO",
)
MEMORY_USED = ("DCGM_FI_DEV_FB_USED", "DCGM_FI_DEV_FB_USED_BYTES")


@dataclass(frozen=True)
class OtherExporters:
    """PromQL over the series of both exporters; `samples` are those of our exporter in the same time.

    Every reading has the labels `cluster`, `instance` (the node's name) and, of a GPU, `gpu`.
    """

    scraping: Scraping
    gpus: str = DCGM
    cores: str = NODE_EXPORTER

    @property
    def utilization(self) -> str:
        """Returns the share of the time in which a GPU worked.

        Only data centre GPUs have the profiling field, and in MIG mode only that exists.
        """
        if self.gpus == STEPSCOPE:
            return "max by (cluster, instance, gpu) (stepscope_gpu_utilization_ratio)"
        return _gpu(" or ".join(UTILIZATIONS))

    @property
    def memory(self) -> str:
        """Returns the used share of a GPU's memory."""
        if self.gpus == STEPSCOPE:
            used = "stepscope_gpu_memory_used_bytes / stepscope_gpu_memory_total_bytes"
            return f"max by (cluster, instance, gpu) ({used})"
        of_total = "DCGM_FI_DEV_FB_USED{0} / (DCGM_FI_DEV_FB_USED{0} + DCGM_FI_DEV_FB_FREE{0})"
        return _gpu(f"{of_total.format('')} or {of_total.format('_BYTES')}")

    @property
    def hot(self) -> str:
        """Returns 1 while heat lowers the clocks of a GPU, otherwise 0."""
        return _gpu(f"floor(({' or '.join(CLOCK_REASONS)}) / {LOWEST_HEAT_BIT}) % {HEAT_BITS} > bool 0")

    def reading(self, names: Sequence[str], ago: float = 0.0) -> str:
        """Returns any other series of dcgm-exporter, by any of its names, the largest of the same GPU."""
        earlier = f" offset {time_span(ago)}" if ago else ""
        return _gpu(" or ".join(f"{name}{earlier}" for name in names))

    @property
    def mean_core(self) -> str:
        """Returns the mean utilisation of a node's cores."""
        if self.cores == STEPSCOPE:
            return "avg by (cluster, instance) (stepscope_cpu_utilization_ratio)"
        return f"1 - {self._node('avg', self._time_of(IDLE))}"

    def busiest_core(self, cause: str) -> str:
        """Returns the largest utilisation of a node's cores, or their largest I/O wait (`cause` "io")."""
        if self.cores == STEPSCOPE:
            name = "io_wait" if cause == "io" else "utilization"
            return f"max by (cluster, instance) (stepscope_cpu_{name}_ratio)"
        if cause == "io":
            return self._node("max", self._time_of('mode="iowait"'))
        return f"1 - {self._node('min', self._time_of(IDLE))}"

    def measured_by_us(self, reads_cores: bool) -> str:
        """Returns the nodes that our exporter measures itself: these are judged by its samples."""
        gpus = f"{self.scraping.held('stepscope_gpu_up')}"
        if reads_cores:
            gpus = f"({gpus} and {ON_NODE} {self.scraping.held(CORES)})"
        return by_node(gpus, ["instance"])

    def percentile(self, quantile: float, reading: str, samples: int) -> str:
        """Returns a percentile over the time of `samples`."""
        return f"quantile_over_time({quantile}, {self.past(reading, self._seconds(samples))})"

    def in_use(self, samples: int) -> str:
        """Returns the GPUs that were in use all the time of `samples`."""
        return self.always(f"{self.memory} > {MEMORY_IN_USE}", self._seconds(samples))

    def always(self, condition: str, seconds: float) -> str:
        """Returns the elements for which a condition held at each scrape of the last `seconds`."""
        readings = math.floor(seconds / self.scraping.interval)
        return f"count_over_time({self.past(condition, seconds)}) >= {readings}"

    def past(self, reading: str, seconds: float, ago: float = 0.0) -> str:
        """Returns a range of readings, one per scrape, or per minute if that is longer than 15 minutes."""
        step = self.scraping.interval if seconds <= 15 * MINUTE else max(MINUTE, self.scraping.interval)
        earlier = f" offset {time_span(ago)}" if ago else ""
        return f"({reading})[{time_span(seconds + step / 2)}:{time_span(step)}]{earlier}"

    def mean(self, series: str, samples: int) -> str:
        """Returns the mean of a recorded series."""
        return f"avg_over_time({series}[{time_span(self.scraping.reach(self.scraping.window(samples)))}])"

    def before(self, series: str, samples: int) -> str:
        """Returns the series as it was before the time of `samples`."""
        return f"{series} offset {time_span(self.scraping.window(samples))}"

    def _seconds(self, samples: int) -> float:
        return max(self.scraping.window(samples), SCRAPES * self.scraping.interval)

    def _time_of(self, mode: str) -> str:
        window = time_span(4 * self.scraping.interval)
        return f"sum without (mode) (rate(node_cpu_seconds_total{{{mode}}}[{window}]))"

    def _node(self, over_cores: str, cores: str) -> str:
        """Returns a value per node, by the name that uname gives it or, without that, by its address."""
        value, target = f"{over_cores} without (cpu) ({cores})", "on (cluster, job, instance)"
        named = f"{value} * {target} group_left (nodename) node_uname_info"
        return by_node(f"{named} or {value} unless {target} node_uname_info", ["instance", "nodename"])


CORES = "stepscope_cpu_utilization_ratio"
# The run of a node's GPUs, 1: our exporter knows the runs that train there, but not on which GPU each does.
# `instance` is the short name there, as in readings of others, and `of_node` ours. Two nodes with one short
# name are left out: nobody knows whose the readings are.
_OURS = 'label_replace(stepscope_samples_total, "of_node", "$1", "instance", "(.+)")'
_RUNS = f"""\
label_replace(
    max by (cluster, node, of_node, run) (label_replace({_OURS}, "node", "$1", "instance", "{NODE}")),
    "instance", "$1", "node", "(.+)"
  )"""
_RUNS_OF_NODES = f"""\
(
  clamp({_RUNS}, 1, 1)
    and on (cluster, instance) count by (cluster, instance) ({_RUNS}) == 1
  or
  label_replace(
    clamp(
      count by (cluster, instance, of_node) ({_RUNS})
        == {ON_NODE} group_left () (count by (cluster, instance) ({_RUNS}) > 1),
      1, 1
    ),
    "run", "several", "", ""
  )
)"""


def of_runs(readings: str) -> str:
    """Returns readings of the nodes on which our exporter knows runs, with the names that it has for both."""
    found = f"({readings})\n* {ON_NODE} group_left (run, of_node)\n{_RUNS_OF_NODES}"
    return f'max without (of_node) (label_replace({found}, "instance", "$1", "of_node", "(.+)"))'


def below(reading: str, percent: float) -> str:
    return f"({reading}) < {ratio(percent)}"


def _gpu(expression: str) -> str:
    """Names dcgm-exporter's GPUs as ours. A MIG device is "0:3": its GPU, and its GPU instance there."""
    joined = f'label_join({expression}, "gpu", ":", "gpu", "GPU_I_ID")'
    of_gpu = f'label_replace({joined}, "gpu", "$1", "gpu", "(.*):")'
    return by_node(of_gpu, DCGM_LABELS, "gpu")
