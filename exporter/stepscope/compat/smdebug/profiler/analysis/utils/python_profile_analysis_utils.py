"""Python functions and their times (smdebug.profiler.analysis.utils.python_profile_analysis_utils)."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from enum import Enum
from importlib import import_module
from typing import Any

from stepscope.compat.smdebug.not_served import not_served


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
