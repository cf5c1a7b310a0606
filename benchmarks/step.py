"""Measures the recording of a step in the training process, against prometheus_client in the same run.

All forms are timed in turn, many times, so a busy machine slows all of them equally. The value is the median
of the rounds, without the cost of the loop. The steps compute nothing, but read the clock as real steps do.
"""

import contextlib
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from time import perf_counter

SHARED_MEMORY = "/dev/shm"
STEPS = 2_000  # per round
ROUNDS = 60
BUDGET_MICROSECONDS = 1.0
BUDGET_RATIO = 0.6

Form = Callable[[int], None]


def rows() -> list[tuple[str, float, str, str]]:
    """Returns (what, measured value, unit, budget) of each way to record a step with 5 components."""
    on = _measure_here()
    numbers = {call: on.pop(call) for call in (*_numbers(), "prometheus_client labels().inc")}
    off = _measure_switched_off()
    observe = on.pop("prometheus_client labels().observe")
    fastest = on["record_step (positional)"]
    table = [(f"step with 5 components: {name}", value, "us", "") for name, value in on.items()]
    table[0] = (*table[0][:3], f"<= {BUDGET_MICROSECONDS}")
    table.append(("the same: one prometheus_client labels().observe", observe, "us", ""))
    table.append(("record_step (positional) / observe", fastest / observe, "ratio", f"<= {BUDGET_RATIO}"))
    table += [(f"one {call}", on_call, "us", "") for call, on_call in numbers.items()]
    table += [(f"STEPSCOPE=off: {name}", value, "us", "") for name, value in off.items()]
    return table


def main() -> None:
    for what, value, unit, budget in rows():
        print(f"{what:<66}{value:>8.2f} {unit:<6}{budget}")


def forms() -> dict[str, Form]:
    """Returns every documented way to record a step, the fastest first."""
    import stepscope
    from stepscope import (
        begin_component,
        begin_step,
        component,
        end_component,
        end_step,
        mark,
        record_step,
        step,
    )

    clock = perf_counter

    def positional(steps: int) -> None:
        for _ in range(steps):
            t0 = clock()
            t1 = clock()
            t2 = clock()
            t3 = clock()
            t4 = clock()
            t5 = clock()
            record_step("train", t0, t5, t1 - t0, t2 - t1, t3 - t2, t4 - t3, t5 - t4)

    def named(steps: int) -> None:
        for _ in range(steps):
            t0 = clock()
            t1 = clock()
            t2 = clock()
            t3 = clock()
            t4 = clock()
            t5 = clock()
            record_step(
                "train", t0, t5, data_wait=t1 - t0, forward=t2 - t1, backward=t3 - t2, optimizer=t4 - t3
            )

    def marks(steps: int) -> None:
        for _ in range(steps):
            begin_step("train")
            mark("data_wait")
            mark("forward")
            mark("backward")
            mark("optimizer")
            mark("gc")
            end_step()

    def calls(steps: int) -> None:
        for _ in range(steps):
            begin_step("train")
            for name in ("data_wait", "forward", "backward", "optimizer", "gc"):
                begin_component(name)
                end_component()
            end_step()

    kept = [component(name) for name in ("data_wait", "forward", "backward", "optimizer", "gc")]

    def contexts(steps: int) -> None:
        for _ in range(steps):
            with step("train"):
                for each in kept:
                    with each:
                        pass

    def new_contexts(steps: int) -> None:
        for _ in range(steps):
            with stepscope.step("train"):
                for name in ("data_wait", "forward", "backward", "optimizer", "gc"):
                    with stepscope.component(name):
                        pass

    return {
        "record_step (positional)": positional,
        "record_step (4 keywords)": named,
        "begin_step, mark, end_step": marks,
        "begin_component, end_component": calls,
        "with step, with kept components": contexts,
        "with step, with component": new_contexts,
    }


def _measure_here() -> dict[str, float]:
    import stepscope
    from prometheus_client import Counter, Histogram

    histogram = Histogram("step", "A step.", ["run", "rank", "phase"], registry=None)

    def observe(steps: int) -> None:
        for _ in range(steps):
            histogram.labels("run", "0", "train").observe(0.1)

    counter = Counter("tokens", "Tokens.", ["run", "rank"], registry=None)

    def increase(steps: int) -> None:
        for _ in range(steps):
            counter.labels("run", "0").inc(4096)

    inc: dict[str, Form] = {"prometheus_client labels().inc": increase}
    with (
        tempfile.TemporaryDirectory(dir=_shared_memory()) as directory,
        _environment(STEPSCOPE_LEDGER_DIR=directory),
    ):
        stepscope.start(run="benchmark")
        values = _medians({**forms(), "prometheus_client labels().observe": observe, **_numbers(), **inc})
        stepscope.finish()
    return values


def _numbers() -> dict[str, Form]:
    """Returns the calls that publish a number of the script."""
    from stepscope import count, gauge

    def gauges(calls: int) -> None:
        for _ in range(calls):
            gauge("loss", 0.5)

    def counts(calls: int) -> None:
        for _ in range(calls):
            count("tokens", 4096)

    return {"stepscope.gauge": gauges, "stepscope.count": counts}


def _shared_memory() -> str | None:
    """Returns the default directory of ledgers: elsewhere, the disk would be measured, too."""
    return SHARED_MEMORY if os.path.isdir(SHARED_MEMORY) else None


def _measure_switched_off() -> dict[str, float]:
    """Measures the same in a new process, because STEPSCOPE=off is read at import."""
    code = "from benchmarks.step import print_medians; print_medians()"
    environment = {**os.environ, "STEPSCOPE": "off", "PYTHONPATH": os.pathsep.join(sys.path)}
    output = subprocess.run(
        [sys.executable, "-c", code], env=environment, check=True, capture_output=True, text=True
    ).stdout
    values = (line.rsplit(" ", 1) for line in output.splitlines())
    return {name: float(value) for name, value in values}


def print_medians() -> None:
    for name, value in _medians(forms()).items():
        print(name, value)


def _medians(timed: dict[str, Form]) -> dict[str, float]:
    """Returns the median microseconds per step of each form, without the cost of the loop."""
    rounds: dict[str, list[float]] = {name: [] for name in timed}
    for _ in range(ROUNDS):
        for name, form in timed.items():
            rounds[name].append(_seconds(form) - _seconds(_empty))
    return {name: statistics.median(values) / STEPS * 1e6 for name, values in rounds.items()}


def _seconds(form: Form) -> float:
    began = perf_counter()
    form(STEPS)
    return perf_counter() - began


def _empty(steps: int) -> None:
    for _ in range(steps):
        pass


@contextlib.contextmanager
def _environment(**values: str) -> Iterator[None]:
    before = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


if __name__ == "__main__":
    main()
