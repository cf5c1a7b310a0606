"""Says how a training command ended: when, in which phase, after which step, and how to find out why."""

from math import isnan
from signal import Signals

from stepscope.common.words import (
    UNKNOWN,
    all_of,
    capitalised,
    count,
    duration,
    moment,
    number,
    size,
    time_of_day,
    uncapitalised,
)
from stepscope.evaluation.analysis import Analysis
from stepscope.evaluation.restarts import in_words
from stepscope.exporter.ledgers.presence import FINISHED, OUT_OF_MEMORY, OUTSIDE, TERMINAL, UNSAID

NEARLY_FULL = 0.8  # of its memory: a kill without a known sender may then be because it ran out
BY_TERMINAL = {
    "SIGINT": "by you (Ctrl-C)",
    "SIGQUIT": "by you (Ctrl-\\)",
    "SIGHUP": "because its terminal was closed",
}
STOPPED = ("SIGINT", "SIGTERM", "SIGHUP", "SIGQUIT")  # somebody, or a scheduler, asked the command to end
CRASHED = ("SIGSEGV", "SIGABRT", "SIGBUS", "SIGFPE", "SIGILL")
PHASES = {"train": "training", "eval": "evaluation", "predict": "prediction"}


def failed(analysis: Analysis) -> bool:
    """Returns whether the command did not end well. One that was stopped did not, either.

    If an exception is known, it ended the training: a shell may hide that in its exit status.
    """
    ended_well = analysis.ended in ("", FINISHED, UNSAID) and not analysis.exception
    return bool(analysis.exit_status) or not ended_well


def signal_name(analysis: Analysis) -> str | None:
    """Returns the signal that ended the command; None if it was none, or that is not known."""
    kind, _, name = analysis.ended.partition(" ")
    return name if kind == "signal" else None


def stopped(analysis: Analysis) -> bool:
    """Returns whether somebody, or a scheduler, ended the command by a signal."""
    return signal_name(analysis) in STOPPED


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
    """Returns the sentence of a run that failed, or was stopped."""
    start, end = analysis.start, analysis.end
    after = "" if start is None or end is None else f", after {duration(end - start)}"
    at = "" if analysis.end_date is None else f" at {_at(analysis)}"
    return f"The command {_how(analysis)}{at}{after}{_where(analysis)}."


def how_it_ended(analysis: Analysis) -> list[str]:
    """Returns sentences on a run that failed or was stopped: how, and what to do or where to look."""
    how, more = failure(analysis), how_to_find_out(analysis)
    if stopped(analysis):
        how = capitalised(how.removeprefix("The command was "))
    elif raised := in_words(analysis.exception, analysis.world_size):
        return [f"Failed: {raised}", how, more] if _killer_of_rank(analysis) else [f"Failed: {raised}", how]
    else:
        how = f"Failed: {uncapitalised(how)}"
    return [how, more] if more else [how]


def how_to_find_out(analysis: Analysis) -> str:
    """Says what is not known about the end of a run, and where to look; "" if nothing is left to find out."""
    name = signal_name(analysis) or _killer_of_rank(analysis)
    if out_of_memory(analysis):
        return f"{_memory(analysis)} Give the run more memory, or let it use less."
    if name in STOPPED and analysis.stopped_by:
        return ""
    if name in STOPPED:
        return (
            f"{name} asks a process to end: Ctrl-C, a scheduler’s time limit or a preemption send it. "
            "The scheduler’s log has the reason."
        )
    if name == "SIGKILL" and any(use.memory > NEARLY_FULL * use.memory_capacity for use in analysis.run_use):
        return f"The kernel may have killed it because memory ran out: `dmesg` has it. {_memory(analysis)}"
    if name in CRASHED:
        return "A native library crashed. With PYTHONFAULTHANDLER=1, the next run prints its Python stack."
    if name:
        return f"The sender of {name} is not known: `dmesg` and the scheduler’s log have it."
    return "The reason is not known to Stepscope: the end of the command’s own output has it."


def _killer_of_rank(analysis: Analysis) -> str:
    """Returns the signal that killed a rank, as its launcher says; "" if none is known."""
    known = analysis.exception.get("type", "")
    return known if known in Signals.__members__ else ""


def _memory(analysis: Analysis) -> str:
    """Says how much memory the run held when it ended, of how much, and how fast that grew."""
    known = [use for use in analysis.run_use if not isnan(use.memory / use.memory_capacity)]
    if not known:
        return "How much memory the run held is not known."
    fullest = max(known, key=lambda use: use.memory / use.memory_capacity)
    where = f" on {fullest.node}" if len(analysis.nodes) > 1 else ""
    held, capacity = size(fullest.memory), size(fullest.memory_capacity)
    pace, steps = fullest.memory_growth, [step.number + 1 for step in analysis.last_steps]
    first, last = analysis.first_step_start, analysis.last_step_end
    grew = ""
    if not isnan(pace) and steps and first is not None and last is not None:
        grew = f" Its memory had grown by {size(pace * (last - first) / max(steps))} per step."
    return f"When last seen, its processes held {held} of the {capacity} that they may use{where}.{grew}"


def _at(analysis: Analysis) -> str:
    begin, end = analysis.date, analysis.end_date
    same_day = begin is not None and moment(begin)[:10] == moment(end)[:10]
    return time_of_day(end) if same_day and end is not None else moment(end)


def _by(signal: str, sender: str = "") -> str:
    if sender == TERMINAL and signal in BY_TERMINAL:
        return f"stopped {BY_TERMINAL[signal]}"
    source = "a process outside its container" if sender == OUTSIDE else sender
    said = f"{'stopped' if signal in STOPPED else 'killed'} by {signal}"
    return f"{said} from {source}" if source else said


def _how(analysis: Analysis) -> str:
    name = signal_name(analysis)
    if out_of_memory(analysis):
        return "ran out of memory (the kernel killed one of its processes)"
    if name is not None:
        return f"was {_by(name, analysis.stopped_by)}"
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
    if len(analysis.last_steps) == 1:
        return ""
    if len({(step.phase, step.number) for step in analysis.last_steps}) == 1:
        return f" of {all_of(len(analysis.last_steps), 'rank')}"
    behind = sum(step.phase == last.phase and step.number < last.number for step in analysis.last_steps)
    more = f"; {count(behind, 'rank')} had not finished that step" if behind else ""
    return f" of rank {last.rank}{more}"
