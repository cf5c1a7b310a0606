"""Finds forward passes, backward passes and steps of the optimizer, and the modules of the first two.

A profile window notes when modules were called. PyTorch numbers the operators of a forward pass, and gives
the node of the graph that follows from one the same number: so the time of a node is that of the module
which called the operator. Times of the host include Python code; those of a GPU are of what was launched.
"""

import numpy as np
from numpy.typing import NDArray

from stepscope.runs.model import BACKWARD, FORWARD, OPTIMIZER, PassTime
from stepscope.runs.traces.events import COPY, KERNEL, MICRO, MODULE, NONE, OPERATOR, PYTHON, Trace, launches
from stepscope.runs.traces.host import calls_of, without_calls

NODE, UPDATE = "autograd::engine::evaluate_function", "Optimizer.step#"  # names of events
PASSES = FORWARD, BACKWARD, OPTIMIZER
Places = NDArray[np.int64]


def passes_of(trace: Trace, until: float) -> tuple[PassTime, ...]:
    """Returns the time by device, pass and module; () if the trace has no calls of modules.

    `until`: microseconds, after which nothing counts: a window ends inside the update of its last step.
    """
    modules = trace.of(MODULE)
    if not modules.any():
        return ()
    nodes = trace.named(lambda name: name.startswith(NODE)) & trace.of(OPERATOR)
    updates = trace.named(lambda name: name.startswith(UPDATE)) & ~trace.of(PYTHON, MODULE)
    return _Scopes(trace, modules, nodes, updates, until).times()


class _Scopes:
    """The calls of modules, nodes of the graph and updates: each moment is of the innermost one."""

    def __init__(
        self,
        trace: Trace,
        modules: NDArray[np.bool_],
        nodes: NDArray[np.bool_],
        updates: NDArray[np.bool_],
        until: float,
    ) -> None:
        self._trace = trace
        self._rows = np.flatnonzero((modules | nodes | updates) & (trace.starts < until))
        self._starts, self._threads = trace.starts[self._rows], trace.thread_ids[self._rows]
        self._parents, self._ends = calls_of(
            self._starts, np.minimum(trace.ends[self._rows], until), self._threads
        )
        self._by_thread = {thread: np.flatnonzero(self._threads == thread) for thread in set(self._threads)}
        self._is_module, self._is_node = modules[self._rows], nodes[self._rows]
        names = trace.name_ids[self._rows].astype(np.int64)
        self._module = np.where(self._is_module, names, NONE)
        forward = self._modules_by_number(modules)
        for index in np.flatnonzero(self._is_node).tolist():
            self._module[index] = forward.get(trace.sequences.get(int(self._rows[index]), NONE), NONE)
        self._pass = np.where(self._is_module, 0, np.where(self._is_node, 1, 2))
        self._inherit()

    def _inherit(self) -> None:
        """Lets modules that a backward pass calls again be of that, and nodes without a number of the node
        around them."""
        for index, parent in enumerate(self._parents.tolist()):
            if parent == NONE:
                continue
            if self._pass[parent] == 1 and self._pass[index] == 0:
                self._pass[index] = 1
            if self._pass[index] == 1 and self._module[index] == NONE:
                self._module[index] = self._module[parent]

    def times(self) -> tuple[PassTime, ...]:
        own = without_calls(self._parents, self._ends - self._starts)
        sums: dict[tuple[str, int, int], list[float]] = {}
        self._add(sums, np.arange(len(own)), own, ["cpu"] * len(own), self._is_module | (self._pass == 2))
        self._add_devices(sums)
        names = [*self._trace.names, ""]  # the last one: of NONE
        return tuple(
            PassTime("", 0, device, PASSES[number], names[module], int(calls), time * MICRO)
            for (device, number, module), (calls, time) in sums.items()
        )

    def _add_devices(self, sums: dict[tuple[str, int, int], list[float]]) -> None:
        trace = self._trace
        work = np.flatnonzero(trace.of(KERNEL, COPY))
        calls = launches(trace, trace.correlations[work])
        work, calls = work[calls != NONE], calls[calls != NONE]
        scopes = self._at(trace.starts[calls], trace.thread_ids[calls])
        work, scopes = work[scopes != NONE], scopes[scopes != NONE]
        devices = trace.device_of_thread[trace.thread_ids[work]].tolist()
        self._add(sums, scopes, trace.ends[work] - trace.starts[work], devices, np.ones(len(work), bool))

    def _add(
        self,
        sums: dict[tuple[str, int, int], list[float]],
        scopes: Places,
        times: NDArray[np.float64],
        devices: list[str],
        counts: NDArray[np.bool_],
    ) -> None:
        keys = zip(devices, self._pass[scopes].tolist(), self._module[scopes].tolist(), strict=True)
        for key, time, count in zip(keys, times.tolist(), counts.tolist(), strict=True):
            total = sums.setdefault(key, [0, 0.0])
            total[0] += count
            total[1] += time

    def _at(self, times: NDArray[np.float64], threads: NDArray[np.int32]) -> Places:
        """Returns the innermost scope at each moment of a thread; NONE if there is none."""
        found = np.full(len(times), NONE, np.int64)
        for thread, scopes in self._by_thread.items():
            here = np.flatnonzero(threads == thread)
            latest = np.searchsorted(self._starts[scopes], times[here], "right") - 1
            at = np.where(latest >= 0, scopes[latest], NONE) if len(scopes) else latest
            while len(over := np.flatnonzero((at != NONE) & (self._ends[at] < times[here]))):
                at[over] = self._parents[at[over]]
            found[here] = at
        return found

    def _modules_by_number(self, modules: NDArray[np.bool_]) -> dict[int, int]:
        """Returns the module that called the operator of each number: the last one to begin."""
        trace = self._trace
        threads = set(trace.thread_ids[modules].tolist())
        rows = np.array([row for row in trace.sequences if trace.thread_ids[row] in threads], np.int64)
        rows = np.sort(rows[~np.isin(rows, self._rows)])  # not the nodes themselves
        scopes = self._at((trace.starts[rows] + trace.ends[rows]) / 2, trace.thread_ids[rows])
        found = {}
        for row, scope in zip(rows.tolist(), scopes.tolist(), strict=True):
            if scope == NONE or not self._is_node[scope]:  # those of a node run it
                found[trace.sequences[row]] = int(self._module[scope]) if scope != NONE else NONE
        return found
