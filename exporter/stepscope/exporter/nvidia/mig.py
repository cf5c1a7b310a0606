"""MIG devices: the parts of a divided GPU, each of which is a device.

NVML gives memory and processes of each, but no utilisation: that stays missing. Power, temperature, clocks
and errors are of the whole GPU.
"""

from typing import NamedTuple

from stepscope.exporter.nvidia.nvml import Handle, Identity, Nvml, NvmlError
from stepscope.exporter.sampling.sample import GpuSample


class MigDevice(NamedTuple):
    """A part of a GPU. Its label is the GPU's and its own number, as in nvidia-smi: "0:1"."""

    label: str
    handle: Handle
    identity: Identity


class MigReading(NamedTuple):
    """The values of one device; None for processes that NVML does not list."""

    device: MigDevice
    sample: GpuSample
    processes: dict[int, float] | None


def mig_devices(nvml: Nvml, handle: Handle, label: str, parent: Identity) -> list[MigDevice]:
    """Returns the present devices of a GPU. Raises NvmlError if NVML does not list them."""
    found = []
    for number in range(nvml.most_mig_devices(handle)):
        device = nvml.mig_handle(handle, number)
        if device is not None:
            identity = nvml.mig_identity(device, parent)
            found.append(MigDevice(f"{label}:{number}", device, identity))
    return found


def read_mig(nvml: Nvml, device: MigDevice) -> MigReading:
    """Returns memory and processes of a device. Raises NvmlError if the device is gone."""
    sample = GpuSample(model=device.identity.model, uuid=device.identity.uuid)
    sample.memory_used_bytes, sample.memory_total_bytes = nvml.memory_v2(device.handle)
    try:
        processes = dict(nvml.compute_processes(device.handle))
    except NvmlError as error:
        if error.lost or error.uninitialised:
            raise
        return MigReading(device, sample, None)
    sample.compute_processes = len(processes)
    return MigReading(device, sample, processes)
