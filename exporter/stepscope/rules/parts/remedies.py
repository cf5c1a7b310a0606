"""Lists the remedies for steps, and for ranks, that one component makes long, and for steps not seen."""

from stepscope.common.words import duration
from stepscope.runs.model import RunFacts

HOOKS = "The hooks of `stepscope run` and STEPSCOPE_INSTRUMENT=1"
HOW_TO_SEE_STEPS = (
    f"{HOOKS} see the steps of PyTorch, TensorFlow and Keras. In other scripts, mark steps with "
    "`stepscope.step`, and loaders with `stepscope.watch`."
)

HAND_OVER_LESS = "Hand over fewer and larger arrays, and collate in the workers."

LONG_COMPONENT = {
    "data_wait": "The long steps wait for data: let the loader prefetch more, and keep its workers alive "
    "between epochs.",
    "checkpoint": "The long steps write a checkpoint: write in the background, or less often.",
    "compile": "The long steps compile: pad batches to few shapes, and make each model once, so that each "
    "shape is compiled once.",
    "gc": "The long steps collect garbage: call gc.freeze() once the model is built.",
    "communication": "The long steps communicate longer: look for a slow rank, or for a shared network.",
    "host_to_device": "The long steps copy to the GPU: pin memory and copy with non_blocking=True.",
}

SLOW_RANK = {
    "data_wait": "That rank waits for its data: compare its share of the data, its disk and its loader's "
    "workers with those of the other ranks, and let its loader prefetch more.",
    "checkpoint": "One rank saves for all, which is usual. If it costs too much, save in the background or "
    "less often.",
    "compile": "That rank compiles while the others wait: pad its batches to few shapes.",
    "gc": "That rank collects garbage while the others wait: call gc.freeze() once the model is built, or "
    "collect on all ranks at the same step.",
    "copies": "Compare that rank's copies with the others': pin memory, copy with non_blocking=True, and "
    "check the speed and width of its PCIe link.",
    "host": "Look at what only that rank does outside forward, backward and optimizer: logging, evaluation, "
    "other Python code.",
}

UNTIMED_RANK = (
    "Observe the job with `stepscope run`: its hooks time what each rank does in a step, and name its lines."
)

CHANGING_RANK = {
    "compute": "Give every rank the same amount of work per step: batch by number of tokens, sort or pack "
    "sequences by length.",
    "data_wait": "Let loaders prefetch more, so that one slow batch does not stop all ranks.",
}

SLOW_STAGE = (
    "Move layers from that stage to the others, so that all stages compute equally long. The last one often "
    "has the output layer and the loss, too. If it computes no more than they, look at its machine."
)

SHORTER_BUBBLES = (
    "Stages of a pipeline wait for each other at the start and the end of each step: split the batch into "
    "more micro-batches, or interleave stages. All stages should compute equally long."
)

PAUSED_RANK = {
    "stopped": "Find what stops the process of that rank: SIGSTOP, SIGTSTP (Ctrl-Z), or a debugger.",
    "no_core": "Other processes use the cores of that rank: give each rank its own cores, and move others "
    "away (see NoisyNeighbour).",
    "throttled": "Raise the CPU limit of that rank's pod or cgroup (see CPUThrottled).",
    "interpreter_lock": "Move what the other threads of that rank do into another process, or let them do it "
    "less often.",
}


def why_no_steps(facts: RunFacts) -> str:
    """Returns why no step was seen, and the fix; "" if that is not known."""
    last = [rank.stays[-1] for rank in facts.ranks if rank.stays]
    compiling = [stay.end - stay.start for stay in last if stay.component == "compile"]
    if compiling:
        return (
            f"The first step was still compiling after {duration(max(compiling))}: see what the lines call."
        )
    return facts.no_steps


def no_steps(facts: RunFacts) -> str:
    """Says that no step was recorded, and how to see steps, or why none was seen if that is known."""
    return f"No step was recorded. {why_no_steps(facts) or HOW_TO_SEE_STEPS}"
