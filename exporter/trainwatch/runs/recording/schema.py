"""The tables of a recording: their columns, types, units and meaning. docs/recording.md shows the same.

A part is one minute of one table of one node. What stays the same over a part (the devices, the
interval) is JSON in the schema's metadata under the key `trainwatch`, not a column.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from math import isfinite
from typing import Any

import pyarrow as pa

from trainwatch.errors import UserError
from trainwatch.runs.model import COMPONENTS, PHASES, GpuFacts, NodeFacts
from trainwatch.sampling.sample import Sample

FORMAT = 1  # raised when a reader of the old format would misread the new one
METADATA_KEY = b"trainwatch"

TABLES = ("samples", "steps", "ranks")

# Where a process spends its time: the phases, and what lies before, between and after them.
PHASES_AND_MORE = (*PHASES, "initialization", "other", "finalization")

# Columns of `samples` by the attribute of Sample (or GpuSample) they keep. Byte and second counters
# need float64, which holds whole numbers up to 9e15; ratios, watts and degrees do not.
CPU_COLUMNS = {
    "cpu_utilization_ratio": "cpu_utilization",
    "cpu_io_wait_ratio": "cpu_io_wait",
}
NODE_COLUMNS = {
    "memory_used_bytes": "memory_used_bytes",
    "memory_total_bytes": "memory_total_bytes",
    "swap_used_bytes": "swap_used_bytes",
    "disk_read_bytes_total": "disk_read_bytes",
    "disk_written_bytes_total": "disk_written_bytes",
    "network_receive_bytes_total": "network_received_bytes",
    "network_transmit_bytes_total": "network_transmitted_bytes",
}
GPU_COLUMNS = {
    "gpu_utilization_ratio": ("utilization", pa.float32()),
    "gpu_memory_used_bytes": ("memory_used_bytes", pa.float64()),
    "gpu_memory_total_bytes": ("memory_total_bytes", pa.float64()),
    "gpu_memory_bandwidth_utilization_ratio": ("memory_bandwidth_utilization", pa.float32()),
    "gpu_power_watts": ("power_watts", pa.float32()),
    "gpu_temperature_celsius": ("temperature_celsius", pa.float32()),
    "gpu_clock_hertz": ("sm_clock_hertz", pa.float64()),
    "gpu_energy_joules_total": ("energy_joules", pa.float64()),
    "gpu_throttle_seconds_total": ("throttle_seconds", pa.float64()),
    "gpu_thermal_throttle_seconds_total": ("thermal_throttle_seconds", pa.float64()),
    "gpu_power_throttle_seconds_total": ("power_throttle_seconds", pa.float64()),
    "gpu_ecc_uncorrected_errors_total": ("ecc_uncorrected_errors", pa.float64()),
    "gpu_xid_errors_total": ("xid_errors", pa.float64()),
    "gpu_last_xid": ("last_xid", pa.float64()),
    "gpu_sm_active_ratio": ("sm_active", pa.float32()),
    "gpu_tensor_active_ratio": ("tensor_active", pa.float32()),
}

STEPS_SCHEMA = pa.schema(
    [
        pa.field("rank", pa.int32()),
        pa.field("pid", pa.int64()),
        pa.field("rank_start", pa.float64()),
        pa.field("phase", pa.string()),
        pa.field("number", pa.int64()),
        pa.field("start", pa.float64()),
        pa.field("duration", pa.float64()),
        *(pa.field(component, pa.float64()) for component in COMPONENTS),
    ]
)

LOADER_TYPE = pa.struct(
    [
        pa.field("phase", pa.string()),
        pa.field("workers", pa.int64()),
        pa.field("pin_memory", pa.bool_()),
        pa.field("prefetch_factor", pa.int64()),
        pa.field("waits", pa.int64()),
        pa.field("wait_seconds", pa.float64()),
        pa.field("batch_size", pa.int64()),
    ]
)

RANKS_SCHEMA = pa.schema(
    [
        pa.field("time", pa.float64()),
        pa.field("rank", pa.int32()),
        pa.field("pid", pa.int64()),
        pa.field("alive", pa.bool_()),
        pa.field("world_size", pa.int32()),
        pa.field("framework", pa.string()),
        pa.field("framework_version", pa.string()),
        pa.field("start", pa.float64()),
        pa.field("first_step_start", pa.float64()),
        pa.field("last_step_end", pa.float64()),
        pa.field("end", pa.float64()),
        *(pa.field(f"{phase}_steps", pa.int64()) for phase in PHASES),
        *(pa.field(f"{phase}_seconds", pa.float64()) for phase in PHASES_AND_MORE),
        *(pa.field(f"{component}_seconds", pa.float64()) for component in COMPONENTS),
        pa.field("fetches", pa.int64()),
        pa.field("fetch_seconds", pa.float64()),
        pa.field("fetch_cpu_seconds", pa.float64()),
        pa.field("fetch_core_wait_seconds", pa.float64()),
        pa.field("loaders", pa.list_(LOADER_TYPE)),
    ]
)


@dataclass(frozen=True)
class Layout:
    """Which device each position of a list column means. It only grows: a position keeps its device."""

    cpus: tuple[str, ...] = ()
    gpus: tuple[str, ...] = ()

    def with_devices_of(self, sample: Sample) -> Layout:
        """This layout and, behind its devices, those of the sample that it did not know."""
        cpus = self.cpus if self.cpus == sample.cpus else grown(self.cpus, sample.cpus)
        gpus = grown(self.gpus, sorted(sample.gpus, key=_natural))
        return self if cpus == self.cpus and gpus == self.gpus else Layout(cpus, gpus)


def grown(known: tuple[str, ...], devices: Sequence[str]) -> tuple[str, ...]:
    """`known` and, behind, the devices that are not in it."""
    return known + tuple(device for device in devices if device not in known)


def samples_schema(layout: Layout) -> pa.Schema:
    """One row a sample. List columns have one value a core or GPU; without a core or GPU there is none.

    (Parquet has no lists of the fixed length 0.)
    """
    fields = [pa.field("time", pa.float64())]
    if layout.cpus:
        fields += [pa.field(name, pa.list_(pa.float32(), len(layout.cpus))) for name in CPU_COLUMNS]
    fields += [pa.field(name, pa.float64()) for name in NODE_COLUMNS]
    if layout.gpus:
        fields += [
            pa.field(name, pa.list_(kind, len(layout.gpus))) for name, (_, kind) in GPU_COLUMNS.items()
        ]
    return pa.schema(fields)


def with_metadata(schema: pa.Schema, values: dict[str, Any]) -> pa.Schema:
    """The schema with these values added to the JSON in its metadata."""
    merged = {**metadata_of(schema), "format": FORMAT, **values}
    return schema.with_metadata({METADATA_KEY: json.dumps(merged).encode()})


def metadata_of(schema: pa.Schema) -> dict[str, Any]:
    """The JSON values in the schema's metadata; none where there is no metadata of ours.

    Raises UserError where a newer Trainwatch wrote them.
    """
    text = (schema.metadata or {}).get(METADATA_KEY)
    if text is None:
        return {}
    values: dict[str, Any] = json.loads(text)
    check_format(values.get("format", FORMAT), "this recording")
    return values


def check_format(written: object, name: str) -> None:
    """Raises UserError where a newer Trainwatch wrote what is called `name`."""
    if not isinstance(written, int) or written > FORMAT:
        raise UserError(
            f"{name} has format {written!r}, this Trainwatch reads up to {FORMAT}: update Trainwatch"
        )


def facts_to_json(facts: NodeFacts) -> dict[str, Any]:
    """What a part says of its node."""
    return {
        "node": facts.node,
        "cpus": list(facts.cpus),
        "gpus": [vars(gpu) for gpu in facts.gpus],
        "memory_bytes": facts.memory_bytes,
        "driver_version": facts.driver_version,
    }


def facts_from_json(values: dict[str, Any]) -> NodeFacts:
    """What a part said of its node: the other way of `facts_to_json`."""
    return NodeFacts(
        node=values["node"],
        cpus=tuple(values["cpus"]),
        gpus=tuple(GpuFacts(**gpu) for gpu in values["gpus"]),
        memory_bytes=values["memory_bytes"],
        driver_version=values["driver_version"],
    )


def facts_after(known: NodeFacts, layout: Layout, sample: Sample) -> NodeFacts:
    """What is known of the node after this sample, in the order of `layout`."""
    gpus = {gpu.gpu: gpu for gpu in known.gpus}
    for label, reading in sample.gpus.items():
        before = gpus.get(label, GpuFacts(label))
        gpus[label] = GpuFacts(
            gpu=label,
            model=reading.model or before.model,
            uuid=reading.uuid or before.uuid,
            memory_bytes=_finite(reading.memory_total_bytes, before.memory_bytes),
            power_limit_watts=_finite(reading.power_limit_watts, before.power_limit_watts),
        )
    return NodeFacts(
        node=known.node,
        cpus=layout.cpus,
        gpus=tuple(gpus.get(label, GpuFacts(label)) for label in layout.gpus),
        memory_bytes=_finite(sample.memory_total_bytes, known.memory_bytes),
        driver_version=sample.driver_version or known.driver_version,
    )


def _finite(value: float, otherwise: float) -> float:
    return value if isfinite(value) else otherwise


def _natural(label: str) -> tuple[int, str]:
    """NVML's indices in the order of numbers, whatever else is behind them."""
    return (int(label), "") if label.isdigit() else (1 << 30, label)
