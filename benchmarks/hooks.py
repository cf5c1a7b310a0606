"""Measures what the hooks of stock PyTorch cost per training step, next to other ways to time it.

*Hot* is the hooks' own work around functions that do nothing. *In place* is a training step of less than a
millisecond on the CPU. There all ways take turns in one process, so a busy machine slows all of them equally.
The value is the median over rounds of how much longer the median step of a round took than the bare one.
"""

import statistics
import tempfile
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from time import perf_counter, thread_time
from typing import Any

from benchmarks import Row
from benchmarks.step import _environment, _shared_memory

STEPS = 60  # per way and round,
WARM_UP = 30  # after as many: Python adapts its code again when hooks come or go
ROUNDS = 40
HOT_STEPS = 5_000
FAR = "100000000:100000001"  # a profile window of steps that no benchmark reaches
HOT_MICROSECONDS, MICROSECONDS = 5.0, 20.0

Around = Callable[[], AbstractContextManager[object]]


def rows() -> list[Row]:
    """Returns the cost per step of each way."""
    with (
        tempfile.TemporaryDirectory(dir=_shared_memory()) as directory,
        _environment(STEPSCOPE_LEDGER_DIR=directory, STEPSCOPE_RUN="benchmark", KINETO_LOG_LEVEL="99"),
    ):
        bare, extra = _in_place()
        with _run():
            hot = _hot()
        outside = _outside_a_window()
    table: list[Row] = [("hooks of a step, hot", hot, "us", f"<= {HOT_MICROSECONDS:g}")]
    table.append(("added to them outside of a profile window, in CPU time", outside, "us", ""))
    table.append(("a training step on the CPU, bare", bare, "us", ""))
    for name, value in extra.items():
        budget = f"<= {MICROSECONDS:g}" if name == "hooks" else ""
        table.append((f"added to it by: {name}", value, "us", budget))
    return table


def _outside_a_window() -> float:
    """Returns what a profile window adds to a step outside of it, in turns: the median, in microseconds."""
    added = []
    for _ in range(ROUNDS):
        with _run():
            without = _hot(thread_time, rounds=3)
        with _environment(STEPSCOPE_PROFILE=FAR), _run():
            added.append(_hot(thread_time, rounds=3) - without)
    return statistics.median(added)


def _hot(clock: Callable[[], float] = perf_counter, rounds: int = ROUNDS) -> float:
    """Returns the microseconds per step of wrappers around functions that do nothing."""
    import torch
    from stepscope.training.automatic import automatic
    from stepscope.training.frameworks.torch_hooks import batches, passes, steps

    automatic.unusual.clear()
    parameter = torch.nn.Parameter(torch.zeros(1))
    optimizer = torch.optim.SGD([parameter], lr=0.1)
    loader = torch.utils.data.DataLoader([0])
    iterator = batches._timed_iter(type(loader).__iter__)(loader)
    following = batches._quick_next(_nothing)
    forward = passes._quick_forward(_nothing)
    backward = passes._quick_backward(_nothing)
    before, after = steps.quick_hooks()

    def hooked() -> None:
        for _ in range(HOT_STEPS):
            following(iterator)
            forward(iterator)
            backward(iterator)
            before(optimizer)
            after(optimizer)

    def bare() -> None:
        for _ in range(HOT_STEPS):
            _nothing(iterator)
            _nothing(iterator)
            _nothing(iterator)

    took = [_seconds(hooked, clock) - _seconds(bare, clock) for _ in range(rounds)]
    return statistics.median(took) / HOT_STEPS * 1e6


def _nothing(*_: object) -> None:
    pass


def _seconds(function: Callable[[], None], clock: Callable[[], float] = perf_counter) -> float:
    began = clock()
    function()
    return clock() - began


def _in_place() -> tuple[float, dict[str, float]]:
    """Returns the median of a bare step, and what each way adds to it, in microseconds."""
    ways = {"bare": (nullcontext, _Training()), **_ways()}
    rounds: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(ROUNDS):
        for name, (around, training) in ways.items():
            with around():
                training.restart()
                for _ in range(WARM_UP):
                    training.step()
                rounds[name].append(statistics.median(training.seconds() for _ in range(STEPS)))
    bare = rounds.pop("bare")
    return statistics.median(bare) * 1e6, {
        name: statistics.median(a - b for a, b in zip(values, bare, strict=True)) * 1e6
        for name, values in rounds.items()
    }


def _ways() -> "dict[str, tuple[Around, _Training]]":
    """Returns each way to time a step: what to open around a round, and the training."""
    import torch

    idle = torch.profiler.schedule(wait=10**9, warmup=1, active=1)
    profile = torch.profiler.profile
    cpu = [torch.profiler.ProfilerActivity.CPU]
    plain = _Training()
    return {
        "functions that only call the original, where hooks are": (_floor, plain),
        "hooks": (_hooks, plain),
        "hooks and line sampling": (_hooks_and_lines, plain),
        "the API by hand": (_run, _ByHand()),
        "prometheus_client by hand": (nullcontext, _WithPrometheus()),
        "torch.profiler, idle": (lambda: profile(activities=cpu, schedule=idle), plain),
        "torch.profiler, active": (lambda: profile(activities=cpu), plain),
    }


@contextmanager
def _run() -> Iterator[None]:
    import stepscope

    stepscope.start(run="benchmark")
    try:
        yield
    finally:
        stepscope.finish()


@contextmanager
def _floor() -> Iterator[None]:
    """Puts functions where hooks are that no hook in Python can be cheaper than."""
    import torch
    from stepscope.training.frameworks.torch_hooks import patches
    from torch.optim import optimizer

    patches.replace(torch.utils.data.dataloader._BaseDataLoaderIter, "__next__", _calling)
    patches.replace(torch.nn.Module, "__call__", lambda _: _calling_module)
    patches.replace(torch.autograd, "backward", _calling)
    patches.on_removal(optimizer.register_optimizer_step_pre_hook(_nothing).remove)
    patches.on_removal(optimizer.register_optimizer_step_post_hook(_nothing).remove)
    try:
        yield
    finally:
        patches.remove()


def _calling(original: Callable[..., Any]) -> Callable[..., Any]:
    def call(*arguments: Any, **keywords: Any) -> Any:
        return original(*arguments, **keywords)

    return call


def _calling_module(module: Any, *arguments: Any, **keywords: Any) -> Any:
    """Does what the original does: inside the model, a call more per module would cost more."""
    if module._compiled_call_impl is not None:
        return module._compiled_call_impl(*arguments, **keywords)
    return module._call_impl(*arguments, **keywords)


@contextmanager
def _hooks() -> Iterator[None]:
    from stepscope.training.frameworks import torch_hooks

    torch_hooks.install()
    try:
        with _run():
            yield
    finally:
        torch_hooks.remove()


@contextmanager
def _hooks_and_lines() -> Iterator[None]:
    from stepscope.training.line_sampler import LineSampler

    sampler = LineSampler()
    with _hooks():
        sampler.start()
        try:
            yield
        finally:
            sampler.stop()


class _Training:
    """A small model on the CPU whose step takes less than a millisecond."""

    def __init__(self) -> None:
        import torch
        from torch import nn

        torch.manual_seed(0)
        torch.set_num_threads(1)
        self.model = nn.Sequential(
            nn.Linear(128, 192), nn.ReLU(), nn.Linear(192, 128), nn.ReLU(), nn.Linear(128, 10)
        )
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.01)
        self.loss_of = nn.CrossEntropyLoss()
        data = torch.utils.data.TensorDataset(torch.randn(512, 128), torch.randint(0, 10, (512,)))
        self.loader = torch.utils.data.DataLoader(data, batch_size=16)
        self.restart()

    def restart(self) -> None:
        """Begins an epoch with the next step."""
        self._batches: Iterator[Any] = iter(())

    def batch(self) -> Any:
        try:
            return next(self._batches)
        except StopIteration:
            self._batches = iter(self.loader)
            return next(self._batches)

    def seconds(self) -> float:
        """Returns the seconds of a step."""
        return _seconds(self.step)

    def step(self) -> None:
        inputs, labels = self.batch()
        loss = self.loss_of(self.model(inputs), labels)
        loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad()


class _ByHand(_Training):
    def __init__(self) -> None:
        from stepscope import begin_step, end_step, mark

        super().__init__()
        self.begin_step, self.mark, self.end_step = begin_step, mark, end_step

    def step(self) -> None:
        self.begin_step()
        inputs, labels = self.batch()
        self.mark("data_wait")
        loss = self.loss_of(self.model(inputs), labels)
        self.mark("forward")
        loss.backward()
        self.mark("backward")
        self.optimizer.step()
        self.mark("optimizer")
        self.optimizer.zero_grad()
        self.end_step()


class _WithPrometheus(_Training):
    def __init__(self) -> None:
        from prometheus_client import Counter, Histogram

        super().__init__()
        self.components = Counter("component_seconds", "Seconds.", ["component"], registry=None)
        self.steps = Histogram("step_seconds", "Seconds.", ["phase"], registry=None)

    def step(self) -> None:
        began = perf_counter()
        inputs, labels = self.batch()
        got = perf_counter()
        loss = self.loss_of(self.model(inputs), labels)
        passed = perf_counter()
        loss.backward()
        computed = perf_counter()
        self.optimizer.step()
        updated = perf_counter()
        self.components.labels("data_wait").inc(got - began)
        self.components.labels("forward").inc(passed - got)
        self.components.labels("backward").inc(computed - passed)
        self.components.labels("optimizer").inc(updated - computed)
        self.optimizer.zero_grad()
        self.steps.labels("train").observe(perf_counter() - began)


def main() -> None:
    for what, value, unit, budget in rows():
        print(f"{what:<66}{value:>8.2f} {unit:<6}{budget}")


if __name__ == "__main__":
    main()
