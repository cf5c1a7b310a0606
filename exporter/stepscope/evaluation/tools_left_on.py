"""Finds tools that were on for most of a run: tracers, profilers, debuggers and settings for debugging."""

from collections.abc import Iterator
from dataclasses import replace
from operator import itemgetter

from stepscope.common.words import duration, listing
from stepscope.evaluation.account import HOST
from stepscope.evaluation.analysis import Analysis, RuleResult
from stepscope.evaluation.unexplained import finding, loop
from stepscope.rules.parts.shares import summed
from stepscope.rules.parts.topics import About
from stepscope.rules.straggler import Straggler
from stepscope.runs.model import USEFUL, LineTime, ThreadTime

MOST = 0.5  # of the time from the first step to the last, or of a main thread without steps
RUNS = 0.5  # of it, in which the thread waits for nothing: then a tool may take more than all else
UNSET = "Unset it once the error is found: it is for debugging."
# Those that Python calls (`sys.settrace`, `sys.setprofile`, `sys.monitoring`): what they do, and what to do.
OF_PYTHON = (
    "Python calls it at each line, or at each call of a function",
    "Train without it. `stepscope run` samples lines meanwhile, and `--profile 20:29,python` records every "
    "function of ten steps.",
)
OF_PROCESSES = "It stops the process at its system calls", "Detach it, or let it watch some seconds."
OTHERS = {
    "tracemalloc": (
        "It keeps the stack of each allocation of Python",
        "Remove `tracemalloc.start()`, `-X tracemalloc` or PYTHONTRACEMALLOC, or trace some steps only.",
    ),
    "memray": (
        "It keeps the stack of each allocation",
        "Train without it, or let it watch for some seconds.",
    ),
    "CUDA_LAUNCH_BLOCKING=1": ("The host waits for each kernel of the GPU", UNSET),
    "PYTORCH_NO_CUDA_MEMORY_CACHING=1": ("The driver makes and frees the memory of each tensor", UNSET),
    "TORCH_DISTRIBUTED_DEBUG=DETAIL": ("Ranks compare each collective before it begins", UNSET),
    **dict.fromkeys(("strace", "ltrace", "gdb", "another process"), OF_PROCESSES),
}
# Packages that run a script, or a function of it, under a tool.
RUNNERS = {
    *("cProfile", "profile", "trace", "pdb", "bdb", "coverage", "debugpy", "pydevd", "viztracer", "memray"),
    *("line_profiler", "kernprof", "memory_profiler"),
}


def tools_left_on(analysis: Analysis) -> Iterator[RuleResult]:
    """Yields tools that were on for most of the time of a main thread. Few of them show what they cost.

    The time of all else has that cost: they may cost all of the run, unless threads mostly wait.
    """
    whole = analysis.run_seconds or 0.0
    of_loop = loop(analysis.account) if analysis.account else 0.0
    main_phase = analysis.account.main_phase if analysis.account else "train"
    known = {
        thread.rank: (thread, _tools(thread, MOST * (of_loop * whole or thread.seconds)))
        for thread in analysis.main_threads
    }
    for name in dict.fromkeys(name for _, tools in known.values() for name in tools):
        on = {rank: tools[name] for rank, (thread, tools) in known.items() if name in tools}
        does, remedy = OTHERS.get(name, OF_PYTHON)
        ranks = [str(rank) for rank in on if rank is not None]
        of_ranks = f" on rank {listing(ranks)}" if 0 < len(ranks) < analysis.ranks else ""
        ran, own = max(((sum(line.total for line in own), own) for _, own in on.values()), key=itemgetter(0))
        seconds = max(each for each, _ in on.values())
        costs, about = "what it costs is not known", About(name, topic=f"account: {name}")
        if 0 < len(ranks) < analysis.ranks and _is_slow_there(set(on), analysis):
            costs, about = "no other rank is as slow", replace(about, topic=Straggler.topic, distance=-1)
            ran = 0.0  # a part of how much longer the rank takes
        elif ran:
            costs = f"its own functions ran for {duration(ran)}, and what their calls cost is not known"
        said = f"{does}. It was active{of_ranks} for {duration(seconds)}; {costs}."
        lost = ran if ran >= analysis.large * whole else 0.0
        may_cost = whole if all(_runs(known[rank][0]) for rank in on) else lost
        of_steps = (line for line in own if lost and line.phase == main_phase)
        brings = summed({line.component or HOST: line.total} for line in of_steps)
        yield finding(name, said, remedy, lost, about, brings=brings, may_cost=may_cost)


def _is_slow_there(on: set[int | None], analysis: Analysis) -> bool:
    """Returns whether the slow ranks are those on which a tool was on, in what it slows: code that runs."""
    slow = analysis.details_of(Straggler) if analysis.found(Straggler) else {}
    return slow.get("component") in (HOST, *USEFUL) and on == set(slow.get("slow_ranks", ()))


def _tools(thread: ThreadTime, least: float) -> dict[str, tuple[float, list[LineTime]]]:
    """Returns how long tools were on, at least for these seconds, and their own lines of Python, by name."""
    found: dict[str, tuple[float, list[LineTime]]] = {}
    for tool in thread.tools:
        own = [line for line in thread.lines if tool.place and _function(line) == _function(tool)]
        name = f"{tool.function}, {tool.place}" if tool.place else _package(tool.library)
        found[name] = tool.total, own or _called(name, thread)
    under = summed(
        {name: stack.seconds}
        for stack in thread.stacks
        for name in [each for each in map(_package, stack.functions) if each in RUNNERS][:1]
    )
    for name in under:
        found[name] = max(under[name], found.get(name, (0.0,))[0]), _called(name, thread)
    return {name: on for name, on in found.items() if on[0] >= least}


def _function(line: LineTime) -> tuple[str, str]:
    """Returns the file and the function of the script."""
    return line.place.rpartition(":")[0], line.function


def _called(package: str, thread: ThreadTime) -> list[LineTime]:
    return [line for line in thread.lines if _package(line.library) == package]


def _package(function: str) -> str:
    return function.rpartition(": ")[2].removeprefix("__main__.").partition(".")[0]


def _runs(thread: ThreadTime) -> bool:
    running = sum(line.running for line in thread.lines)
    return running >= RUNS * sum(line.total for line in thread.lines)
