"""Measures CPU time, so that other work on the machine counts as little as possible."""

import gc
import time
from collections.abc import Callable
from statistics import median

ROUNDS = 5


def cpu_seconds(
    call: Callable[[], object], times: int, before_each: Callable[[], object] | None = None
) -> float:
    """Returns the CPU seconds of one `call`, in all threads of this process together.

    The result is the median of `times` calls, in the best of ROUNDS rounds: other work on the machine shares
    caches and cores, which makes CPU time longer and never shorter. `before_each` prepares a call outside
    the measured time. The first tenth of each round only warms up.
    """
    gc.collect()
    return min(_median_of_a_round(call, times // ROUNDS, before_each) for _ in range(ROUNDS))


def _median_of_a_round(
    call: Callable[[], object], times: int, before_each: Callable[[], object] | None
) -> float:
    spent = []
    warming = times // 10
    for _ in range(warming + times):
        if before_each is not None:
            before_each()
        begin = time.process_time()
        call()
        spent.append(time.process_time() - begin)
    return median(spent[warming:])
