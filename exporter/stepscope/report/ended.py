"""Says how a training command ended: when, in which phase, after which step, and how to find out why."""

from __future__ import annotations

from signal import Signals

from stepscope.common.words import UNKNOWN, all_of, count, duration, moment, number, time_of_day
from stepscope.evaluation.analysis import Analysis
from stepscope.exporter.ledgers.endings import FINISHED, OUT_OF_MEMORY, UNSAID

STOPPED = ("SIGINT", "SIGTERM", "SIGHUP", "SIGQUIT")  # somebody, or a scheduler, asked the command to end
CRASHED = ("SIGSEGV", "SIGABRT", "SIGBUS", "SIGFPE", "SIGILL")
PHASES = {"train": "training", "eval": "evaluation", "predict": "prediction"}


def failed(analysis: Analysis) -> bool:
    return bool(analysis.exit_status) or analysis.ended not in ("", FINISHED, UNSAID)


def signal_name(analysis: Analysis) -> str | None:
    """Returns the signal that ended the command; None if it was none, or that is not known."""
    kind, _, name = analysis.ended.partition(" ")
    return name if kind == "signal" else None


def out_of_memory(analysis: Analysis) -> bool:
    return analysis.ended == OUT_OF_MEMORY


def status_in_words(analysis: Analysis) -> str:
    """Returns the exit status and what it means: "137 (killed by SIGKILL)", "1 (out of memory)"."""
    name, status = signal_name(analysis), analysis.exit_status
    if status is None:
        return UNKNOWN
    known = {each + 128: f"128 + {each.value}: {each.name}" for each in Signals}
    meant = OUT_OF_MEMORY if out_of_memory(analysis) else _by(name) if name else known.get(status, "")
    return f"{status} ({meant})" if meant else str(status)


def failure(analysis: Analysis) -> str:
    """Returns the sentence of a run that failed."""
    start, end = analysis.start, analysis.end
    after = "" if start is None or end is None else f", after {duration(end - start)}"
    at = "" if analysis.end_date is None else f" at {_at(analysis)}"
    return f"The command {_how(analysis)}{at}{after}{_where(analysis)}."


def how_to_find_out(analysis: Analysis) -> str:
    """Says what is not known about a failure, and where to look."""
    name = signal_name(analysis)
    if out_of_memory(analysis):
        return "Compare the memory of the run with its limit, and give it more memory or smaller batches."
    if name in STOPPED:
        return (
            f"{name} asks a process to end: Ctrl-C, a scheduler’s time limit or a preemption send it. "
            "The scheduler’s log has the reason."
        )
    if name in CRASHED:
        return "A native library crashed. With PYTHONFAULTHANDLER=1, the next run prints its Python stack."
    if name is not None:
        return f"The sender of {name} is not known: `dmesg` and the scheduler’s log have it."
    return "The reason is not known to Stepscope: the end of the command’s own output has it."


def _at(analysis: Analysis) -> str:
    begin, end = analysis.date, analysis.end_date
    same_day = begin is not None and moment(begin)[:10] == moment(end)[:10]
    return time_of_day(end) if same_day and end is not None else moment(end)


def _by(signal: str) -> str:
    return f"{'stopped' if signal in STOPPED else 'killed'} by {signal}"


def _how(analysis: Analysis) -> str:
    name = signal_name(analysis)
    if out_of_memory(analysis):
        return "ran out of memory (the kernel killed one of its processes)"
    if name is not None:
        return f"was {_by(name)}"
    return f"ended with exit status {status_in_words(analysis)}"


def _where(analysis: Analysis) -> str:
    """Returns ", in training, 6 ms after train step 60", of the rank whose last step ended last."""
    if not analysis.last_steps:
        return ", before its first step" if analysis.ranks else ""
    last = max(analysis.last_steps, key=lambda step: step.end)
    after = "after" if analysis.end is None else f"{duration(max(analysis.end - last.end, 0.0))} after"
    phase = PHASES.get(last.phase, "training")
    return f", in {phase}, {after} {last.phase} step {number(last.number)}{_of_ranks(analysis)}"


def _of_ranks(analysis: Analysis) -> str:
    last = max(analysis.last_steps, key=lambda step: step.end)
    alike = [step for step in analysis.last_steps if (step.phase, step.number) == (last.phase, last.number)]
    if len(analysis.last_steps) == 1:
        return ""
    if len(alike) == len(analysis.last_steps):
        return f" of {all_of(len(alike), 'rank')}"
    behind = len(analysis.last_steps) - len(alike)
    return f" of rank {last.rank}; {count(behind, 'rank')} had not finished that step"
