"""NVIDIA GPUs through NVML: load, memory, power, clocks, traffic and errors of each.

docs/gpu.md has the source and the tier of each value. It also describes missing and old drivers, calls that
hang and lost GPUs.
"""

from argparse import ArgumentParser
from collections.abc import Callable
from operator import attrgetter
from pathlib import Path
from time import monotonic

from stepscope.common.errors import UserError
from stepscope.exporter.nvidia import health
from stepscope.exporter.nvidia.nvml import Nvml
from stepscope.exporter.nvidia.session import RETRY_SECONDS, Session
from stepscope.exporter.nvidia.thread import NvmlThread
from stepscope.exporter.sampling.collector import Collector, collector
from stepscope.exporter.sampling.families import Family, LabelValues
from stepscope.exporter.sampling.sample import GPU_QUANTITIES, Sample

PATIENCE_SHARE = 0.5  # of an interval: how long a tick waits for NVML,
LONGEST_PATIENCE = 1.0  # but at most this many seconds
IDENTITY = ("uuid", "model", "driver_version", "pci_bus_id")
# Gauges first, as a scrape lists them.
PUBLISHED = sorted(
    (each for each in GPU_QUANTITIES.values() if each.help), key=lambda each: each.kind == "counter"
)
# The others have more labels than the sample has values.
VALUES = attrgetter(*(each.attribute for each in PUBLISHED if each.labels == ("gpu",)))


@collector
class GpuCollector(Collector):
    """Every sample has the label `gpu`: NVML's index when the GPU was first seen.

    `library` is the libnvidia-ml.so.1 to use; without it the dynamic loader finds one. `retry_seconds` are
    between looks for a driver or a lost GPU. Only tests and simulations set them and the other arguments.
    Raises UserError if `library` is no file.
    """

    name = "gpu"
    settings = ("path_nvml_library",)

    def __init__(
        self,
        library: Path | None = None,
        retry_seconds: float = RETRY_SECONDS,
        clock: Callable[[], float] = monotonic,
        longest_patience: float = LONGEST_PATIENCE,
        nvml: Nvml | None = None,
    ) -> None:
        if library is not None and not library.is_file():
            raise UserError(f"--path.nvml-library {library}: there is no such file; name a libnvidia-ml.so.1")
        self._longest_patience = longest_patience
        nvml = nvml or Nvml(library)
        self._thread = NvmlThread(nvml, Session(nvml, clock, retry_seconds))
        families = [quantity.family() for quantity in PUBLISHED]
        self.families = (
            Family("stepscope_gpu_up", "gauge", "Whether the GPU answers (1), or is lost (0).", ("gpu",)),
            Family("stepscope_gpu_info", "info", "Identity of the GPU.", ("gpu", *IDENTITY)),
            *families,
            *health.families(),
        )
        self._of_sample = [family for family in families if family.labels == ("gpu",)]
        others = (family for family in self.families if family not in self._of_sample)
        self._others = {family.name.removeprefix("stepscope_"): family for family in others}

    @classmethod
    def add_arguments(cls, parser: ArgumentParser) -> None:
        parser.add_argument(
            "--path.nvml-library",
            dest="path_nvml_library",
            type=lambda name: Path(name).absolute(),  # the loader would look up a bare name
            metavar="FILE",
            help="the NVML library (default: libnvidia-ml.so.1, where the dynamic loader finds it)",
        )

    def collect(self, sample: Sample) -> None:
        """Raises `NoReadingError` without a driver or a GPU, and while a call hangs."""
        reading = self._thread.read(sample.interval, self.patience(sample.interval))
        samples: dict[str, dict[LabelValues, float]] = {name: {} for name in self._others}
        gpus = self.within_limit(reading.samples)
        left_out = reading.samples.keys() - gpus.keys()
        for name, labels, value in reading.values:
            if labels[0] not in left_out:
                samples[name][labels] = value
        for name, published in samples.items():
            self._others[name].publish(published)
        rows = [((gpu,), VALUES(values)) for gpu, values in gpus.items()]
        for place, family in enumerate(self._of_sample):
            family.publish({gpu: row[place] for gpu, row in rows if row[place] == row[place]})  # not NaN
        sample.gpus = dict(gpus)
        sample.gpu_processes = reading.processes
        sample.driver_version = reading.driver_version

    def patience(self, interval: float) -> float:
        """Returns the most seconds that a tick waits for NVML, at this interval between ticks."""
        return min(interval * PATIENCE_SHARE, self._longest_patience)

    def close(self) -> None:
        self._thread.close()
