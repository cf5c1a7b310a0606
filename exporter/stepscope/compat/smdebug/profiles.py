"""Profiles of Python functions (smdebug.profiler.python_profile_utils, .analysis.python_profile_analysis)."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from enum import Enum, IntEnum
from importlib import import_module
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from stepscope import analysis
from stepscope.compat.smdebug.events import microseconds
from stepscope.compat.smdebug.given import not_served, number
from stepscope.runs.model import PYTHON


class PythonProfileModes(IntEnum):
    """The phases of a run that a Python profile may be of."""

    TRAIN = 1
    EVAL = 2
    PREDICT = 3
    GLOBAL = 4
    PRE_STEP_ZERO = 5
    POST_HOOK_CLOSE = 6

    @property
    def phase(self) -> str:
        """Returns the phase of `Run.lines`."""
        outside = {self.PRE_STEP_ZERO: "initialization", self.POST_HOOK_CLOSE: "finalization"}
        return outside.get(self, self.name.lower())


class StepPhase(Enum):
    """The parts of a step at which Debugger's profiles begin and end."""

    START = "start"
    STEP_START = "stepstart"
    FORWARD_PASS_END = "forwardpassend"
    STEP_END = "stepend"
    END = "end"


class Metrics(Enum):
    """Keys by which functions are sorted."""

    TOTAL_TIME = "tottime"
    CUMULATIVE_TIME = "cumtime"
    PRIMITIVE_CALLS = "pcalls"
    TOTAL_CALLS = "ncalls"


@dataclass(frozen=True)
class cProfileFunctionStats:  # noqa: N801  # smdebug's name
    """One function. None: not known."""

    function_name: str  # as file:line(function)
    total_time: float | None  # seconds in itself
    cumulative_time: float | None = None  # seconds, with the functions that it called
    total_calls: int | None = None
    prim_calls: int | None = None  # not made by itself


_FIELDS = {
    Metrics.TOTAL_TIME: "total_time",
    Metrics.CUMULATIVE_TIME: "cumulative_time",
    Metrics.TOTAL_CALLS: "total_calls",
    Metrics.PRIMITIVE_CALLS: "prim_calls",
}


class cProfileStats:  # noqa: N801  # smdebug's name
    """The functions of a profile window, or the lines that samples saw."""

    def __init__(self, functions: Sequence[cProfileFunctionStats]) -> None:
        self.function_stats_list = list(functions)

    def print_top_n_functions(self, by: Metrics, n: int = 10) -> None:
        """Prints the functions with the largest numbers. Raises NotImplementedError for what is not known."""
        name = _FIELDS.get(by, "")
        known = [each for each in self.function_stats_list if getattr(each, name, None) is not None]
        if not known:
            raise not_served(f"{by}", "record with stepscope run --profile 2:8,python, or use TOTAL_TIME")
        for each in sorted(known, key=lambda each: -getattr(each, name))[: max(n, 0)]:
            print(f"{getattr(each, name):12.6g}  {each.function_name}")

    def get_function_stats(self) -> Any:
        """Returns a row per function, as a data frame."""
        return import_module("pandas").DataFrame(map(asdict, self.function_stats_list))


MODES = PythonProfileModes


class PythonProfileAnalysis:
    """The Python functions of a run: of profile windows `run.functions()`, of phases `run.lines()`."""

    def __init__(self, local_profile_dir: str = "/tmp/python_stats", s3_path: str | None = None) -> None:
        self.run = analysis.open(s3_path or local_profile_dir)

    def fetch_profile_stats_by_step(
        self,
        start_step: int,
        end_step: int | None = None,
        mode: PythonProfileModes = MODES.TRAIN,
        start_phase: StepPhase = StepPhase.STEP_START,
        end_phase: StepPhase = StepPhase.STEP_END,
        node_id: str = "any",
        refresh_stats: bool = True,
    ) -> cProfileStats:
        """Returns the functions of the profile windows that have some of these steps."""
        self._refresh(refresh_stats)
        first = number(start_step, "start_step")
        last = first if end_step is None else number(end_step, "end_step")
        return self._functions(self.run.functions(steps=(first, last)), node_id, "by step")

    def fetch_profile_stats_by_time(
        self,
        start_time_since_epoch_in_secs: float,
        end_time_since_epoch_in_secs: float,
        node_id: str = "any",
        refresh_stats: bool = True,
    ) -> cProfileStats:
        """Returns the functions of the profile windows that were open between two times."""
        self._refresh(refresh_stats)
        begin = microseconds(self.run.start) / 1e6
        given = start_time_since_epoch_in_secs, end_time_since_epoch_in_secs
        first, last = (number(each, "time") - begin for each in given)
        return self._functions(self.run.functions(times=(first, last)), node_id, "by time")

    def _functions(self, functions: pa.Table, node_id: str, by: str) -> cProfileStats:
        rows = _of_node(functions, node_id).to_pylist()
        if not rows:
            raise not_served(
                f"a Python profile {by}",
                "record with stepscope run --profile 2:8,python, or use run.lines()",
            )
        columns = ("operator", "self_seconds", "seconds", "calls", "primitive_calls")
        return cProfileStats([cProfileFunctionStats(*(row[name] for name in columns)) for row in rows])

    def fetch_profile_stats_between_modes(
        self,
        start_mode: PythonProfileModes,
        end_mode: PythonProfileModes,
        node_id: str = "any",
        refresh_stats: bool = True,
    ) -> cProfileStats:
        """Returns the sampled lines of one phase. Raises NotImplementedError for two."""
        self._refresh(refresh_stats)
        if start_mode != end_mode:
            raise not_served("a profile from one mode to another", "use run.lines(), which has each phase")
        return self._lines((start_mode,), node_id)

    def fetch_pre_step_zero_profile_stats(
        self, node_id: str = "any", refresh_stats: bool = True
    ) -> cProfileStats:
        """Returns the sampled lines before the first step."""
        self._refresh(refresh_stats)
        return self._lines((MODES.PRE_STEP_ZERO,), node_id)

    def fetch_post_hook_close_profile_stats(
        self, node_id: str = "any", refresh_stats: bool = True
    ) -> cProfileStats:
        """Returns the sampled lines after the last step."""
        self._refresh(refresh_stats)
        return self._lines((MODES.POST_HOOK_CLOSE,), node_id)

    def list_profile_stats(self, refresh_stats: bool = True) -> Any:
        """Returns a row per profile window of Python functions, as a data frame."""
        self._refresh(refresh_stats)
        rows = self.run.windows().filter(pc.field("kind") == PYTHON).to_pylist()
        return import_module("pandas").DataFrame(
            {
                "profiler_name": "cprofile",
                "node_id": row["node"],
                "start_mode": MODES.TRAIN.phase,
                "start_phase": StepPhase.STEP_START.value,
                "start_step": row["first"],
                "end_mode": MODES.TRAIN.phase,
                "end_phase": StepPhase.STEP_END.value,
                "end_step": row["last"],
                "stats_path": row["trace"],
            }
            for row in rows
        )

    def list_available_node_ids(self, refresh_stats: bool = True) -> list[str]:
        """Returns the names of the run's nodes."""
        self._refresh(refresh_stats)
        return self.run.nodes

    def _refresh(self, wanted: bool) -> None:
        if wanted:
            self.run.refresh()

    def _lines(self, modes: tuple[PythonProfileModes, ...], node_id: str) -> cProfileStats:
        every = _of_node(self.run.lines(), node_id)
        if not len(every):
            raise not_served("a Python profile of this run", "read Debugger's own with python -m pstats FILE")
        rows = every.filter(pc.field("phase").isin([mode.phase for mode in modes])).to_pylist()
        return cProfileStats(
            [cProfileFunctionStats(f"{row['place']}({row['function']})", row["seconds"]) for row in rows]
        )


class cProfileAnalysis(PythonProfileAnalysis):  # noqa: N801  # smdebug's name
    """The same, with profiles by phase."""

    def fetch_profile_stats_by_training_phase(
        self, node_id: str = "any", refresh_stats: bool = True
    ) -> dict[tuple[PythonProfileModes, PythonProfileModes], cProfileStats]:
        """Returns the sampled lines of each phase that has some."""
        self._refresh(refresh_stats)
        found = {(mode, mode): self._lines((mode,), node_id) for mode in MODES}
        return {modes: stats for modes, stats in found.items() if stats.function_stats_list}

    def fetch_profile_stats_by_job_phase(
        self, node_id: str = "any", refresh_stats: bool = True
    ) -> dict[str, cProfileStats]:
        """Returns the sampled lines before, in and after the training loop."""
        self._refresh(refresh_stats)
        loop = (MODES.TRAIN, MODES.EVAL, MODES.PREDICT, MODES.GLOBAL)
        parts = {"initialization": (MODES.PRE_STEP_ZERO,), "training_loop": loop}
        parts["finalization"] = (MODES.POST_HOOK_CLOSE,)
        return {name: self._lines(modes, node_id) for name, modes in parts.items()}


class PyinstrumentAnalysis(PythonProfileAnalysis):
    """Raises NotImplementedError."""

    def __init__(self, local_profile_dir: str = "/tmp/python_stats", s3_path: str | None = None) -> None:
        raise not_served("PyinstrumentAnalysis", "use run.lines()")


def _of_node(table: pa.Table, node_id: str) -> pa.Table:
    return table if node_id == "any" else table.filter(pc.field("node") == node_id)
