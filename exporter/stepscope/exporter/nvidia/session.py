"""The GPUs of the node over the life of the exporter, with drivers that start late and GPUs that get lost.

A session belongs to the one thread that may poll NVML (thread.py).
"""

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from math import nan

from stepscope.exporter.nvidia.device import Gpu, Value
from stepscope.exporter.nvidia.nvml import Handle, Identity, LibraryMissingError, Nvml, NvmlError
from stepscope.exporter.nvidia.xid_events import XidWatcher, last_xids
from stepscope.exporter.sampling.collector import SourceAbsentError
from stepscope.exporter.sampling.sample import GpuSample

logger = logging.getLogger(__name__)

RETRY_SECONDS = 10.0  # between looks for a driver or a lost GPU
LONGEST_RETRY_FACTOR = 32  # NVML is restarted for a lost GPU after 1, 2, 4, ... this many times RETRY_SECONDS
BACKGROUND_SHARE = 0.4  # of an interval, for slow work after a reading


class NoReadingError(OSError):
    """There is nothing to publish; the message is the same as long as the reason is."""


class NoGpuError(NoReadingError, SourceAbsentError):
    """This node has no driver, or the driver has no GPU."""


@dataclass
class Reading:
    """The values of all GPUs at one tick."""

    values: list[Value] = field(default_factory=list)
    samples: dict[str, GpuSample] = field(default_factory=dict)
    processes: dict[str, dict[int, float]] = field(default_factory=dict)
    driver_version: str = ""


class Session:
    """NVML and its GPUs."""

    def __init__(self, nvml: Nvml, clock: Callable[[], float], retry_seconds: float) -> None:
        self._nvml = nvml
        self._clock = clock
        self._retry_seconds = retry_seconds
        self._gpus: list[Gpu] = []
        self._xids = XidWatcher(nvml)
        self._xids_seen: Mapping[tuple[str, str], int] = {}  # at the last reading
        self._last_xids: dict[str, int] = {}  # by GPU label
        self._started = False
        self._start_due = 0.0
        self._not_started = NoReadingError()
        self._driver_version = ""
        self._look_due = 0.0
        self._restart_wait = retry_seconds
        self._restart_due: float | None = None
        self._pcie_turn = 0

    def read(self, interval: float) -> Reading:
        """Reads every GPU. Raises `NoReadingError` without a driver or a GPU."""
        if not self._started and (now := self._clock()) >= self._start_due:
            self._start_due = now + self._retry_seconds
            self._start()
        if not self._started:
            raise self._not_started
        reading = Reading(driver_version=self._driver_version)
        for gpu in self._gpus:
            if not gpu.lost:
                self._read_gpu(gpu, interval, reading)
            if gpu.lost:
                reading.values.append(("gpu_up", (gpu.label,), 0))
                lost = GpuSample(lost=1.0, model=gpu.identity.model, uuid=gpu.identity.uuid)
                reading.samples[gpu.label] = lost
        counts = self._xids.counts
        reading.values += [("gpu_xid_errors_total", key, count) for key, count in counts.items()]
        self._add_xids(reading, counts)
        return reading

    def _add_xids(self, reading: Reading, counts: Mapping[tuple[str, str], int]) -> None:
        """Adds the known XID errors, also those of a lost GPU: they show why it is lost."""
        self._last_xids.update(last_xids(self._xids_seen, counts))
        self._xids_seen = counts
        for label, sample in reading.samples.items():
            errors = [count for (gpu, _), count in counts.items() if gpu == label]
            if errors or label in self._xids.watched:
                sample.xid_errors = sum(errors)
                sample.last_xid = self._last_xids.get(label, nan)

    def work_between_ticks(self, interval: float) -> None:
        """Looks for lost GPUs and measures PCIe traffic: both may take too long for a tick."""
        if not self._started:
            return
        end = self._clock() + interval * BACKGROUND_SHARE
        try:
            if any(gpu.lost for gpu in self._gpus):
                self._look_for_lost_gpus()
            self._measure_pcie(end)
        except NvmlError as error:
            logger.debug("between two readings: %s", error)  # the next reading handles it

    def _start(self) -> None:
        """Starts NVML and finds the GPUs, or stores the reason why it cannot."""
        self._nvml.subject = "the driver"
        kind: type[NoReadingError]
        try:
            self._nvml.start()
            self._started = True
            self._driver_version = self._nvml.driver_version()
            for index in range(self._nvml.count()):
                self._find(index)
            self._gpus.sort(key=lambda gpu: int(gpu.label))
            kind, reason = NoGpuError, "" if self._gpus else "NVML finds no GPU"
        except LibraryMissingError as error:
            kind, reason = NoGpuError, f"no NVIDIA driver here ({error})"
        except NvmlError as error:
            kind, reason = NoReadingError, f"no answer from the driver ({error})"
        if reason:
            self._not_started = kind(f"{reason}; looking again every {self._retry_seconds:g} s")
            self.close()
        else:
            self._xids.start(self._gpus)

    def close(self) -> None:
        """Stops counting XID errors and ends NVML, unless the thread for XID errors hangs in it."""
        for gpu in self._gpus:
            gpu.detach()
        if self._started and self._xids.stop():
            try:
                self._nvml.stop()
            except NvmlError as error:
                logger.debug("%s", error)
        self._started = False

    def _find(self, index: int) -> None:
        """Attaches a GPU that NVML lists to its handle. A new GPU gets a label."""
        try:
            handle = self._nvml.handle(index)
            identity = self._nvml.identity(handle)
        except NvmlError as error:
            if all(gpu.label != str(index) for gpu in self._gpus):
                logger.warning("GPU %d is out of reach: %s", index, error)
                self._new_gpu(index)
        else:
            self._attach(self._known(identity.uuid, index), handle, identity)

    def _known(self, uuid: str, index: int) -> Gpu:
        """Returns the GPU with this uuid: a GPU keeps its label, but NVML renumbers without a lost GPU."""
        nameless = None
        for gpu in self._gpus:
            if gpu.identity.uuid == uuid:
                return gpu
            if gpu.label == str(index) and not gpu.identity.uuid:
                nameless = gpu  # lost since the exporter started
        return nameless or self._new_gpu(index)

    def _new_gpu(self, index: int) -> Gpu:
        taken = {gpu.label for gpu in self._gpus}
        while str(index) in taken:
            index += 1
        gpu = Gpu(self._nvml, str(index))
        self._gpus.append(gpu)
        return gpu

    def _attach(self, gpu: Gpu, handle: Handle, identity: Identity) -> None:
        try:
            gpu.attach(handle, identity, self._driver_version)
        except NvmlError as error:
            self._lose(gpu, error)

    def _read_gpu(self, gpu: Gpu, interval: float, reading: Reading) -> None:
        self._nvml.subject = f"GPU {gpu.label}"
        try:
            values = gpu.read(self._clock(), 2 * interval)
        except NvmlError as error:
            if not error.uninitialised:
                self._lose(gpu, error)
                return
            for each in self._gpus:
                each.lose()
            self.close()
            raise NoReadingError(f"NVML must be restarted ({error})") from error
        reading.values += values
        reading.samples |= gpu.samples
        reading.processes |= gpu.processes

    def _lose(self, gpu: Gpu, error: NvmlError) -> None:
        logger.warning("GPU %s is lost: %s", gpu.label, error)
        gpu.lose()
        self._look_due = self._clock() + self._retry_seconds

    def _look_for_lost_gpus(self) -> None:
        """Tries lost GPUs by their old handles. Otherwise restarts NVML, less and less often."""
        now = self._clock()
        if now < self._look_due:
            return
        self._look_due = now + self._retry_seconds
        for gpu in self._gpus:
            if gpu.lost and gpu.handle is not None:
                self._revive(gpu)
        if self._restart_due is None:
            self._restart_due = now
        if any(gpu.lost for gpu in self._gpus) and now >= self._restart_due:
            self._restart_due = now + self._restart_wait
            self._restart_wait = min(self._restart_wait * 2, self._retry_seconds * LONGEST_RETRY_FACTOR)
            # NVML lists and opens GPUs only when it starts. The counters kept here continue.
            if self._xids.stop():
                self.close()
                self._start()
        lost = [gpu for gpu in self._gpus if gpu.lost]
        if not lost:
            logger.info("every GPU is back")
            self._restart_wait, self._restart_due = self._retry_seconds, None

    def _revive(self, gpu: Gpu) -> None:
        handle = gpu.handle
        try:
            gpu.memory()
            identity = self._nvml.identity(handle)
        except NvmlError as error:
            logger.debug("GPU %s is still lost: %s", gpu.label, error)
        else:
            self._attach(gpu, handle, identity)
            if gpu.label not in self._xids.watched and self._xids.stop():  # it was lost when NVML started
                self._xids.start(self._gpus)

    def _measure_pcie(self, end: float) -> None:
        """Measures one GPU and direction after the other until `end`, 20 ms each."""
        turns = 2 * len(self._gpus)
        for _ in range(turns):
            if self._clock() >= end:
                return
            gpu = self._gpus[self._pcie_turn // 2]
            direction = ("transmit", "receive")[self._pcie_turn % 2]
            self._pcie_turn = (self._pcie_turn + 1) % turns
            gpu.measure_pcie(direction, self._clock())
