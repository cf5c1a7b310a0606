"""NumPy without steps: each process of a pool computes with many threads."""

import os
import sys
from multiprocessing import Pool

THREADS = 1 if "--good" in sys.argv[1:] else 8 * (os.cpu_count() or 1)
os.environ["OPENBLAS_NUM_THREADS"] = os.environ["OMP_NUM_THREADS"] = str(THREADS)

import numpy as np  # noqa: E402 - it reads the number of threads

from trials.everyday.clock import GOOD, lasts  # noqa: E402

PROCESSES = (1 if GOOD else 4) * (os.cpu_count() or 1)


def fit(seed):
    data = np.random.default_rng(seed).random((300, 300))
    for _ in range(12):
        data = data @ data  # the cause
        data /= data.max()
    return np.linalg.svd(data, compute_uv=False)[0]  # the cause


if __name__ == "__main__":
    with Pool(PROCESSES) as pool:
        while lasts():
            pool.map(fit, range(2 * PROCESSES))  # the cause
