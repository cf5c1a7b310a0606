"""Says what a hang is: who waits in which collective, who is missing, and what the missing rank does."""

from collections import Counter

from stepscope.common.words import count, duration
from stepscope.measurements.hangs import DEAD, ENDED, STOPPED, Hang, RankInHang
from stepscope.runs.model import RunFacts

PLACES = {
    "data_wait": "in the data loader",
    "forward": "in the forward pass",
    "backward": "in the backward pass",
    "optimizer": "in the optimizer",
    "communication": "in a collective",
    "host_to_device": "in a copy to the device",
    "checkpoint": "in a checkpoint",
    "compile": "in the compiler",
    "gc": "in garbage collection",
    "host": "in other code of the script",
    "initialization": "before its first step",
}
GONE = {
    STOPPED: "is stopped (SIGSTOP or a debugger)",
    DEAD: "is dead: it ended without saying so",
    ENDED: "has ended",
}


def world_size(facts: RunFacts) -> int:
    return max((process.world_size for process in facts.ranks), default=0)


def in_words(hang: Hang, facts: RunFacts) -> str:
    waiting, missing = hang.waiting, hang.missing
    where = Counter(collective_of(rank) for rank in waiting)
    took = duration(hang.seconds)
    waited = "has waited" if len(waiting) == 1 else "have waited"
    lasts = waited if hang.end is None else "waited"
    if missing:
        first, others = missing[0], len(missing) - 1
        collective = where.most_common(1)[0][0] if where else "a collective"
        verb = "waited" if hang.end is not None else "waits" if len(waiting) == 1 else "wait"
        more = f" {count(others, 'more rank')} {'is' if others == 1 else 'are'} missing." if others else ""
        return (
            f"Rank {first.rank} on {first.node} {_does(first, hang.end is None)}; "
            f"{count(len(waiting), 'rank')} {verb} for it in {collective} ({took}).{more}"
        )
    size = world_size(facts)
    if len(where) > 1:
        groups = ", ".join(f"{count(ranks, 'rank')} in {name}" for name, ranks in where.items())
        return f"Ranks {lasts} in different collectives for {took}: {groups}. They do not match."
    if len(waiting) < size:
        here = f"{len(waiting)} of {size} ranks {lasts} in {next(iter(where))} for {took}"
        return f"{here}; the other ranks are on nodes that were not observed, or never came this far."
    everybody = f"All {count(len(waiting), 'rank')} {lasts} in {next(iter(where))} for {took}"
    return f"{everybody}, so it is not known who is missing."


def _does(rank: RankInHang, lasts: bool) -> str:
    """Returns what a missing rank does: "has been in the data loader for 8 min"."""
    place = PLACES.get(rank.component, "")
    if rank.state in GONE:
        words = GONE[rank.state] if lasts else GONE[rank.state].replace("is ", "was ", 1)
        return f"{words}, last seen {place}" if place else words
    if not place:
        return "does not wait, and finishes no step" if lasts else "did not wait, and finished no step"
    return f"{'has been' if lasts else 'was'} {place} for {duration(rank.seconds)}"


def collective_of(rank: RankInHang) -> str:
    """Returns the name of the collective that a rank waits in."""
    names = {"gradients": "backward", "wait": "wait()", "other": "a collective", "": "a collective"}
    return names.get(rank.operation, rank.operation)
