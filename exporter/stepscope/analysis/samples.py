"""Tables of samples: one row per sample and node, CPU or GPU."""

from collections.abc import Sequence
from dataclasses import fields, replace
from typing import Any, Literal

import numpy as np
import pyarrow as pa

from stepscope.analysis.tables import ENCODED, as_table, column, columns, elapsed, schema, timestamps
from stepscope.runs.model import Floats, NodeFacts, NodeSamples

Device = Literal["node", "cpu", "gpu"]

_WHEN_AND_WHERE = [
    column("time", pa.timestamp("us", tz="UTC")),
    column("elapsed_seconds", pa.float64(), "seconds"),
    column("node", ENCODED),
]
SCHEMAS: dict[Device, pa.Schema] = {
    "node": schema(
        *_WHEN_AND_WHERE,
        *columns(pa.float32(), "ratio", "cpu_utilization_ratio", "cpu_utilization_max_ratio"),
        *columns(pa.float32(), "ratio", "cpu_io_wait_ratio", "cpu_io_wait_max_ratio"),
        *columns(pa.float32(), "ratio", "gpu_utilization_ratio", "gpu_utilization_min_ratio"),
        column("memory_used_ratio", pa.float32(), "ratio"),
        *columns(pa.float64(), "bytes/second", "network_bytes_per_second", "disk_bytes_per_second"),
    ),
    "cpu": schema(
        *_WHEN_AND_WHERE,
        column("cpu", ENCODED),
        *columns(pa.float32(), "ratio", "utilization_ratio", "io_wait_ratio"),
    ),
    "gpu": schema(
        *_WHEN_AND_WHERE,
        column("gpu", ENCODED),
        *columns(pa.float32(), "ratio", "utilization_ratio", "memory_used_ratio"),
        column("power_watts", pa.float32(), "watts"),
        column("temperature_celsius", pa.float32(), "celsius"),
        column("clock_hertz", pa.float64(), "hertz"),
        *columns(pa.float64(), "seconds", "thermal_throttle_seconds_total", "power_throttle_seconds_total"),
        *columns(pa.float64(), "errors", "ecc_uncorrected_errors_total", "xid_errors_total"),
        column("last_xid", pa.int32()),
        column("lost", pa.int32()),
    ),
}


def between(samples: NodeSamples, start: float | None, end: float | None) -> NodeSamples:
    """Returns the samples from `start` to before `end`, in seconds since the epoch; None: no limit."""
    first = 0 if start is None else int(np.searchsorted(samples.times, start))
    last = len(samples) if end is None else int(np.searchsorted(samples.times, end))
    if (first, last) == (0, len(samples)):
        return samples
    arrays = {
        item.name: getattr(samples, item.name)[first:last] for item in fields(samples) if item.name != "node"
    }
    return replace(samples, **arrays)


def table(device: Device, samples: NodeSamples, node: NodeFacts | None, start: float | None) -> pa.Table:
    """Returns the samples as rows of `SCHEMAS[device]`. `start` is the run's, in seconds since the epoch."""
    if device == "node":
        return as_table(SCHEMAS[device], {**_when_and_where(samples, start, 1), **_of_node(samples)})
    if device == "cpu":
        labels: Sequence[str] = node.cpus if node else ()
        values = {"utilization_ratio": samples.cpu, "io_wait_ratio": samples.io_wait}
    else:
        labels = [gpu.gpu for gpu in node.gpus] if node else ()
        values = _of_gpus(samples)
    devices = values["utilization_ratio"].shape[1]
    return as_table(
        SCHEMAS[device],
        {
            **_when_and_where(samples, start, devices),
            device: _labels(labels, devices, len(samples)),
            **{name: matrix.ravel() for name, matrix in values.items()},
        },
    )


def _when_and_where(samples: NodeSamples, start: float | None, devices: int) -> dict[str, Any]:
    times = np.repeat(samples.times, devices)
    node = pa.DictionaryArray.from_arrays(np.zeros(len(times), np.int16), [samples.node])
    return {"time": timestamps(times), "elapsed_seconds": elapsed(times, start), "node": node}


def _labels(known: Sequence[str], devices: int, rows: int) -> pa.DictionaryArray:
    """Returns the device of each row; devices without a label are numbered."""
    names = [known[index] if index < len(known) else str(index) for index in range(devices)]
    return pa.DictionaryArray.from_arrays(np.tile(np.arange(devices, dtype=np.int16), rows), names)


def _of_node(samples: NodeSamples) -> dict[str, Any]:
    gpus = np.count_nonzero(~np.isnan(samples.gpu), axis=1)
    with np.errstate(invalid="ignore", divide="ignore"):
        gpu_mean = np.nansum(samples.gpu, axis=1, dtype=np.float64) / gpus
    return {
        "cpu_utilization_ratio": samples.cpu_mean,
        "cpu_utilization_max_ratio": _highest(samples.cpu),
        "cpu_io_wait_ratio": samples.io_wait_mean,
        "cpu_io_wait_max_ratio": _highest(samples.io_wait),
        "gpu_utilization_ratio": gpu_mean,
        "gpu_utilization_min_ratio": np.fmin.reduce(samples.gpu, axis=1, initial=np.nan),
        "memory_used_ratio": samples.memory,
        "network_bytes_per_second": samples.network,
        "disk_bytes_per_second": samples.disk,
    }


def _highest(values: Floats) -> Floats:
    """Returns the maximum of each row, NaN for rows without readings."""
    highest: Floats = np.fmax.reduce(values, axis=1, initial=np.nan)
    return highest


def _of_gpus(samples: NodeSamples) -> dict[str, np.ndarray[Any, Any]]:
    """Returns the numbers of `SCHEMAS["gpu"]`; most have the names of the model's fields."""
    alike = SCHEMAS["gpu"].names[len(_WHEN_AND_WHERE) + 3 :]
    return {
        "utilization_ratio": samples.gpu,
        "memory_used_ratio": samples.gpu_memory,
        **{name: getattr(samples, f"gpu_{name.removesuffix('_total')}") for name in alike},
    }
