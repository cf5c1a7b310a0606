"""How benchmarks take time: CPU time, so that other work on the machine counts as little as it can."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable
from statistics import median


def cpu_seconds(
    call: Callable[[], object], times: int, before_each: Callable[[], object] | None = None
) -> float:
    """Median CPU time of one `call`, of all threads of this process together, in seconds.

    `before_each` prepares a call outside the measured time. The first tenth of the calls only warms up.
    """
    spent = []
    gc.collect()
    for _ in range(times + times // 10):
        if before_each is not None:
            before_each()
        begin = time.process_time()
        call()
        spent.append(time.process_time() - begin)
    return median(spent[times // 10 :])
