"""A recorded run in which every rule has something to look at."""

import shutil
from math import nan
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from stepscope.runs.recording.files import write_part
from stepscope.runs.recording.schema import GAUGES_SCHEMA

from tests.support.recording import rewrite

GPUS = 8
STANDSTILL = (240.0, 400.0)  # seconds from the start in which there is no step
FIRST_XID, SECOND_XID = 200.0, 300.0  # seconds from the start: 63 of GPU 0, then 13 (a program's) of GPU 1
ECC = 100.0  # of GPU 2
HOT_GPU, HEAT = 3, 0.4  # its share of time with clocks held down


def write_troubled(recording: Path, directory: Path) -> Path:
    """A copy of the recording of a demo with errors, heat and a standstill added."""
    shutil.copytree(recording, directory)
    samples = sorted(directory.glob("*/samples-*.parquet"))
    start = pq.read_table(samples[0]).column("time")[0].as_py()
    for path in samples:
        rewrite(path, _with_trouble(pq.read_table(path), start))
    for path in directory.glob("*/ranks-*.parquet"):
        rewrite(path, _with_waits(pq.read_table(path), start))
    first = min(directory.glob("*/ranks-*.parquet"))
    write_part(first.parent, "gauges", 1, _not_finite(pq.read_table(first)))
    for path in directory.glob("*/steps-*.parquet"):
        table = pq.read_table(path)
        ends = pc.subtract(pc.add(table.column("start"), table.column("duration")), start)
        kept = pc.or_(pc.less(ends, STANDSTILL[0]), pc.greater(ends, STANDSTILL[1]))
        rewrite(path, table.filter(kept))
    return directory


def _not_finite(ranks: pa.Table) -> pa.Table:
    """A loss and a gradient norm of rank 0 that are NaN from the beginning."""
    first = next(row for row in ranks.to_pylist() if row["rank"] == 0)
    kept = {name: first[name] for name in ("time", "rank", "pid")}
    kept |= {"rank_start": first["start"], "value": nan}
    rows = [kept | {"name": name} for name in ("loss", "grad_norm")]
    return pa.Table.from_pylist(rows, schema=GAUGES_SCHEMA.with_metadata(ranks.schema.metadata))


def _with_waits(table: pa.Table, start: float) -> pa.Table:
    """In the standstill, rank 3 is in its data loader and all others wait for it."""
    rows = table.to_pylist()
    for row in rows:
        elapsed = row["time"] - start
        if STANDSTILL[0] + 10 < elapsed < STANDSTILL[1]:
            component = "data_wait" if row["rank"] == 3 else "communication"
            stay = {"component": component, "component_since": start + STANDSTILL[0], "state": "waiting"}
            row |= stay | {"stay_seconds": elapsed - STANDSTILL[0]}
    return pa.Table.from_pylist(rows, schema=table.schema)


def _with_trouble(table: pa.Table, start: float) -> pa.Table:
    elapsed = table.column("time").to_numpy() - start
    of_gpu = np.arange(GPUS)
    columns = {
        "gpu_xid_errors_total": np.outer(elapsed >= FIRST_XID, of_gpu == 0)
        + np.outer(elapsed >= SECOND_XID, of_gpu == 1),
        "gpu_last_xid": np.where(of_gpu == 0, 63.0, 13.0) + 0 * elapsed[:, None],
        "gpu_ecc_uncorrected_errors_total": np.outer(elapsed >= ECC, of_gpu == 2),
        "gpu_thermal_throttle_seconds_total": np.outer(HEAT * elapsed, of_gpu == HOT_GPU),
    }
    for name, values in columns.items():
        flat = pa.array(values.astype(np.float64).ravel())
        place = table.schema.get_field_index(name)
        table = table.set_column(place, name, pa.FixedSizeListArray.from_arrays(flat, GPUS))
    # A limit of more cores than there are, which is used up now and then, and neighbours on its cores. It
    # swaps, and its memory grows.
    of_run = {
        "run_cpu_limit_cores": 1000 + 0 * elapsed,
        "run_cpu_throttled_seconds_total": 20 * elapsed,
        "run_cpu_seconds_total": 10 * elapsed,
        "run_other_cpu_seconds_total": elapsed,
        "run_main_threads_ran_seconds_total": 10 * elapsed,
        "run_main_threads_waited_seconds_total": 30 * elapsed,
        "run_memory_waiting_seconds_total": 0.5 * elapsed,
        "run_anonymous_memory_bytes": 3e9 + 8e6 * elapsed,
        "run_memory_capacity_bytes": 20e9 + 0 * elapsed,
    }
    for name, numbers in of_run.items():
        table = table.set_column(table.schema.get_field_index(name), name, pa.array(numbers))
    return table
