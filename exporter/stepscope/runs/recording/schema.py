"""The tables of a recording: their columns and types; docs/recording.md explains each.

A part is one minute of one table of one node. Values that are constant within a part (the devices, the
interval) are JSON in the schema's metadata under the key `stepscope`, not columns.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass, fields
from math import isfinite
from typing import Any

import pyarrow as pa

from stepscope.common.errors import UserError
from stepscope.exporter.processes.cgroup import RESOURCES
from stepscope.exporter.sampling.sample import (
    GPU_QUANTITIES,
    NODE_QUANTITIES,
    PAUSES,
    RUN_QUANTITIES,
    HostUse,
    Sample,
)
from stepscope.runs.model import COMPONENTS, PHASES, GpuFacts, NodeFacts

FORMAT = 1  # of run.json, journals and parts; no other is read
METADATA_KEY = b"stepscope"

TABLES = ("samples", "steps", "ranks", "gauges")

# The time of a process: the phases, and the time before, between and after them.
PHASES_AND_MORE = (*PHASES, "initialization", "other", "finalization")

# Columns of `samples` by the attribute of Sample, HostUse or GpuSample that they hold.
_NODE = NODE_QUANTITIES.values()
CPU_COLUMNS = {each.column: each.attribute for each in _NODE if each.labels == ("cpu",)}
NODE_COLUMNS = {each.column: each.attribute for each in _NODE if each.labels != ("cpu",)}
RUN_COLUMNS = {each.column: each.attribute for each in RUN_QUANTITIES.values() if each.bits}
# The pressure by resource, and the CPU time of neighbours by user.
PRESSURE_COLUMNS = {f"run_{resource}_waiting_seconds_total": resource for resource in RESOURCES}
NEIGHBOURS_COLUMN = "run_neighbour_cpu_seconds_total"
GPU_COLUMNS = {
    each.column: (each.attribute, pa.float32() if each.bits == 32 else pa.float64())
    for each in GPU_QUANTITIES.values()
    if each.bits
}
EVIDENCE_COLUMN = "gpu_run_evidence"  # the place in EVIDENCE: 0 for a GPU that the run does not use

# Columns that have the names of attributes: of LedgerHeader, LedgerTotals and RankFacts, and of Loader.
HEADER_COLUMNS = ("rank", "pid", "start", "framework", "framework_version", "world_size")
MOMENT_COLUMNS = ("first_step_start", "last_step_end", "end")
FETCH_COLUMNS = ("fetches", "fetch_seconds", "fetch_cpu_seconds", "fetch_core_wait_seconds")
PAUSE_COLUMNS = {f"{reason}_seconds": reason for reason in PAUSES}  # of a rank that could not run
WORKER_COLUMNS = {  # null: not known
    "busiest_fetch_seconds": pa.float64(),
    "worker_threads": pa.int64(),
    "fetch_counts": pa.list_(pa.int64()),
}

STEPS_SCHEMA = pa.schema(
    [
        ("rank", pa.int32()),
        ("pid", pa.int64()),
        ("rank_start", pa.float64()),
        ("phase", pa.string()),
        ("number", pa.int64()),
        ("start", pa.float64()),
        ("duration", pa.float64()),
        *((component, pa.float64()) for component in COMPONENTS),
    ]
)

LOADER_TYPE = pa.struct(
    [
        ("phase", pa.string()),
        ("workers", pa.int64()),
        ("pin_memory", pa.bool_()),
        ("prefetch_factor", pa.int64()),
        ("waits", pa.int64()),
        ("wait_seconds", pa.float64()),
        ("batch_size", pa.int64()),
        ("persistent_workers", pa.bool_()),
        ("restart_seconds", pa.float64()),
    ]
)

LOADER_COLUMNS = [item.name for item in LOADER_TYPE if not item.name.startswith("wait")]

RANKS_SCHEMA = pa.schema(
    [
        ("time", pa.float64()),
        ("rank", pa.int32()),
        ("pid", pa.int64()),
        ("alive", pa.bool_()),
        ("world_size", pa.int32()),
        ("framework", pa.string()),
        ("framework_version", pa.string()),
        *((name, pa.float64()) for name in ("start", *MOMENT_COLUMNS)),
        *((f"{phase}_steps", pa.int64()) for phase in PHASES),
        *((f"{phase}_seconds", pa.float64()) for phase in PHASES_AND_MORE),
        *((f"{component}_seconds", pa.float64()) for component in COMPONENTS),
        *((name, pa.int64() if name == "fetches" else pa.float64()) for name in FETCH_COLUMNS),
        ("loaders", pa.list_(LOADER_TYPE)),
        # The place of a long stay (ledgers/presence.py); null if there is no long stay.
        ("component", pa.string()),
        ("operation", pa.string()),
        ("component_since", pa.float64()),  # by the process's own clock, so it identifies the stay
        ("stay_seconds", pa.float64()),
        ("state", pa.string()),
        *((column, pa.float64()) for column in PAUSE_COLUMNS),  # null: not measured
        ("gauges", pa.map_(pa.string(), pa.float64())),  # the last values
        ("counts", pa.map_(pa.string(), pa.float64())),
        *WORKER_COLUMNS.items(),
        ("attempt", pa.int64()),
    ]
)
# The columns that identify an updated row: a part keeps only the last row of each.
KEEP_LAST_BY: dict[str, tuple[str, ...]] = {"ranks": ("rank", "pid", "start", "alive", "component_since")}

GAUGES_SCHEMA = pa.schema(
    [
        ("time", pa.float64()),  # when the value was first seen
        ("rank", pa.int32()),
        ("pid", pa.int64()),
        ("rank_start", pa.float64()),
        ("name", pa.string()),
        ("value", pa.float64()),
    ]
)


@dataclass(frozen=True)
class Layout:
    """The device of each position in a list column. It only grows: a position keeps its device."""

    cpus: tuple[str, ...] = ()
    gpus: tuple[str, ...] = ()

    def with_devices_of(self, sample: Sample) -> "Layout":
        """Returns this layout, with the new devices of the sample at its end."""
        cpus = self.cpus if self.cpus == sample.cpus else grown(self.cpus, sample.cpus)
        # NVML's indices by number, then all other labels.
        labels = sorted(sample.gpus, key=lambda gpu: (not gpu.isdigit(), int(gpu) if gpu.isdigit() else gpu))
        gpus = grown(self.gpus, labels)
        return self if cpus == self.cpus and gpus == self.gpus else Layout(cpus, gpus)


def grown(known: tuple[str, ...], devices: Sequence[str]) -> tuple[str, ...]:
    """Returns `known`, with the devices that are not in it at its end."""
    return known + tuple(device for device in devices if device not in known)


def samples_schema(layout: Layout) -> pa.Schema:
    """Returns the schema of one row per sample; list columns have one value per core or GPU.

    A node without cores or GPUs lacks their columns: Parquet has no lists of the fixed length 0.
    """
    fields = [("time", pa.float64())]
    if layout.cpus:
        fields += [(name, pa.list_(pa.float32(), len(layout.cpus))) for name in CPU_COLUMNS]
    fields += [(name, pa.float64()) for name in (*NODE_COLUMNS, *RUN_COLUMNS, *PRESSURE_COLUMNS)]
    fields.append((NEIGHBOURS_COLUMN, pa.map_(pa.string(), pa.float64())))
    if layout.gpus:
        fields += [(name, pa.list_(kind, len(layout.gpus))) for name, (_, kind) in GPU_COLUMNS.items()]
        fields.append((EVIDENCE_COLUMN, pa.list_(pa.float32(), len(layout.gpus))))
    return pa.schema(fields)


def with_metadata(schema: pa.Schema, values: dict[str, Any]) -> pa.Schema:
    """Returns the schema with these values added to the JSON in its metadata."""
    merged = {**metadata_of(schema), "format": FORMAT, **values}
    return schema.with_metadata({METADATA_KEY: json.dumps(merged).encode()})


def metadata_of(schema: pa.Schema) -> dict[str, Any]:
    """Returns the JSON values in the schema's metadata, {} if Stepscope did not write it.

    Raises UserError if they have another format.
    """
    values: dict[str, Any] = json.loads((schema.metadata or {}).get(METADATA_KEY, "{}"))
    check_format(values.get("format", FORMAT), "this recording")
    return values


def check_format(written: object, name: str) -> None:
    """Raises UserError if the file that is called `name` has another format."""
    if written != FORMAT:
        raise UserError(
            f"{name} has format {written!r}, this Stepscope reads {FORMAT}: use the one that wrote it"
        )


def facts_of(metadata: dict[str, Any]) -> NodeFacts:
    """Returns what a part's metadata contains about its node: `asdict` of its facts, among other values."""
    values = {item.name: metadata[item.name] for item in fields(NodeFacts)}
    gpus = tuple(GpuFacts(**gpu) for gpu in metadata["gpus"])
    cpus = {name: tuple(values[name]) for name in ("cpus", "run_cpus")}
    return NodeFacts(**{**values, **cpus, "gpus": gpus, "neighbours": ()})


def facts_after(known: NodeFacts, layout: Layout, sample: Sample, host: HostUse) -> NodeFacts:
    """Returns what is known about the node after this sample, in the order of `layout`."""
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
        run_cpus=host.cpus or known.run_cpus,
    )


def _finite(value: float, otherwise: float) -> float:
    return value if isfinite(value) else otherwise
