"""A recorded run in which every rule has something to look at."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

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
        pq.write_table(_with_trouble(pq.read_table(path), start), path)
    for path in directory.glob("*/steps-*.parquet"):
        table = pq.read_table(path)
        ends = pc.subtract(pc.add(table.column("start"), table.column("duration")), start)
        kept = pc.or_(pc.less(ends, STANDSTILL[0]), pc.greater(ends, STANDSTILL[1]))
        pq.write_table(table.filter(kept), path)
    return directory


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
    return table
