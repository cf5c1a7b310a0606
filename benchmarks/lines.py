"""Measures what line samples cost: CPU time of the sampling thread, and how it slows the main thread down.

Each kind of work is done in turns with and without samples in one process, so a busy machine slows both. The
slowdown is that of the work per second of wall time, which includes waits for the interpreter lock.
"""

import json
import os
import subprocess
import sys
import tempfile

ROUNDS = 4
SECONDS = 5.0  # per round: what one sample takes too much, the next ones save
BUDGET_PERCENT = 0.3

SCRIPT = f"""
import json, statistics, sys, threading, time
from stepscope.training import line_sampler

TEXT = json.dumps([{{"a": i, "b": [1, 2, 3]}} for i in range(20_000)])

def python():
    x = 0
    for i in range(2_000):
        x += i * i

def deep(calls):
    return deep(calls - 1) if calls else python()

def rounds(work):
    own, ratios = [], []
    sampler = line_sampler._sampler
    for _ in range({ROUNDS}):
        speeds = []
        for sampling in (True, False):
            before = sampler._own_cpu
            if sampling:
                sampler.start()
            else:
                sampler.stop()
            count, begin = 0, time.monotonic()
            while time.monotonic() - begin < {SECONDS}:
                work()
                count += 1
            speeds.append(count / (time.monotonic() - begin))
            sampler.stop()
            if sampling:
                own.append((sampler._own_cpu - before) / {SECONDS})
        ratios.append(speeds[1] / speeds[0] - 1)
    return statistics.median(own), statistics.median(ratios)

line_sampler.start()
line_sampler._sampler.stop()
line_sampler._sampler._owed = 0.0  # without what a process may spend once
result = {{
    "sleeping": rounds(lambda: time.sleep(0.005)),
    "in Python code": rounds(python),
    "in Python code, 100 calls deep": rounds(lambda: deep(100)),
    "in json.loads": rounds(lambda: json.loads(TEXT)),
}}
threading.Thread(target=lambda: [python() for _ in iter(int, 1)], daemon=True).start()
result["in Python code, next to a busy thread"] = rounds(python)
print(json.dumps(result))
"""


def rows() -> list[tuple[str, float, str, str]]:
    """Returns (what, measured value, unit, budget)."""
    table = []
    for work, (own, slower) in _measure().items():
        budget = f"<= {BUDGET_PERCENT}" if work.startswith(("sleeping", "in Python code")) else ""
        table.append((f"line samples, main thread {work}", 100 * own, "% of a core", budget))
        if work != "sleeping":
            table.append((f"the same: slowdown of the main thread {work}", 100 * slower, "%", ""))
    return table


def _measure() -> dict[str, tuple[float, float]]:
    memory = "/dev/shm" if os.path.isdir("/dev/shm") else None
    with tempfile.TemporaryDirectory(prefix="stepscope-bench-", dir=memory) as folder:
        environment = {**os.environ, "STEPSCOPE_LEDGER_DIR": folder, "STEPSCOPE_LAUNCH": "bench"}
        command = [sys.executable, "-c", SCRIPT]
        done = subprocess.run(command, env=environment, check=True, capture_output=True, text=True)
    found: dict[str, tuple[float, float]] = json.loads(done.stdout)
    return found
