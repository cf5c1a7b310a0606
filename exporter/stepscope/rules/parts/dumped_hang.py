"""Words what the dumps of PyTorch's flight recorder show, for CollectiveHang."""

from collections.abc import Sequence

from stepscope.common.words import count, listing
from stepscope.measurements.dumped_waits import DumpedWaits, Mismatch, Wait
from stepscope.rules.parts.base import Verdict, status_of
from stepscope.runs.rank_dump import Operation, RankDump

RANKS = 5  # named in a sentence
MISSING = (
    "Look at what the rank did after its last collective: its log, `py-spy dump --pid PID`, or a branch that "
    "only some ranks take. A rank that had fewer batches than the others has left the loop."
)
DIFFERENT = (
    "Compare the two call sites: all ranks of a group must call the same collectives, in the same order and "
    "with the same sizes. Look for branches that depend on the rank or on its data."
)
NO_DUMP = (
    "Look at the log of the rank, and at dmesg of its node: a rank that crashed or was killed leaves no dump."
)
NOBODY = (
    "Look at the network and the GPUs: NCCL_DEBUG=INFO, Xid errors in dmesg, and the switches' counters. "
    "TORCH_NCCL_ENABLE_TIMING=1 records which ranks' GPUs have started a collective."
)
EACH_OTHER = "Call the collectives of different groups in the same order on all ranks. Compare the stacks."


def verdict(dumps: Sequence[RankDump]) -> Verdict:
    """Returns the verdict on a job whose ranks left dumps."""
    waits = DumpedWaits(dumps)
    found = bool(waits.waits)
    finding, remedy = _finding(waits)
    without = [rank for rank in waits.without_dump if found]
    if without and remedy != NO_DUMP:
        verb = "has" if len(without) == 1 else "have"
        finding += f" {_ranks(without, capital=True)} {verb} no dump, so what they do is not known."
    return Verdict(
        status_of(int(found), len(waits.dumps) if len(waits.dumps) > 1 else 0),
        finding,
        int(found),
        int(found),
        len(waits.dumps),
        recommendation=remedy or None,
        details=_details(waits),
    )


def _finding(waits: DumpedWaits) -> tuple[str, str]:
    """Returns the sentences, and what to do."""
    if len(waits.dumps) < 2 and not waits.waits:
        return "Only dumps of several ranks show who waits for whom.", ""
    if not waits.waits:
        return (
            f"No rank waits: all collectives in the dumps of {count(len(waits.dumps), 'rank')} are over.",
            "",
        )
    if waits.mismatch is not None:
        return _different(waits.mismatch), DIFFERENT
    if waits.culprits:
        return _culprits(waits), MISSING
    first = min(waits.waits.values(), key=lambda wait: (not wait.unknown, not wait.missing, wait.rank))
    who, where = _ranks([first.rank], capital=True), _words(first.operation)
    if first.unknown:
        verb = "has" if len(first.unknown) == 1 else "have"
        return (
            f"{who} waits in {where}. {_ranks(first.unknown, capital=True)} {verb} no dump and may block "
            "it; all other ranks of the group have reached it, or wait themselves.",
            NO_DUMP,
        )
    if first.missing:
        who = _ranks([wait.rank for wait in waits.waits.values() if wait.missing], capital=True)
        return f"{who} wait for each other, so nobody is accused: {_pairs(waits)}.", EACH_OTHER
    if len(waits.dumps) < 2:
        return f"{who} waits in {where}; only dumps of several ranks show for whom.", ""
    return (
        f"{_ranks(list(waits.waits), capital=True)} wait in {where}, and no rank of the group is missing: "
        "the network or a GPU may be at fault.",
        NOBODY,
    )


def _culprits(waits: DumpedWaits) -> str:
    first, *more = waits.culprits
    held, dump = waits.held_up_by(first), waits.dumps[first]
    waiting = next(wait for wait in waits.waits.values() if first in wait.missing)
    called = "its GPU has not started" if first in waits.waits else "it has not called"
    if waits.is_stuck(first):
        stuck = _words(waits.waits[first].operation)
        called = f"its GPU has not finished {stuck}, which all others have, and so it has not reached"
    last = dump.last_finished
    after = (
        f"Its last collective that is over is {_words(last)}." if last else "None of its collectives is over."
    )
    others = (
        f" {_ranks(more, capital=True)} {'is' if len(more) == 1 else 'are'} missing, too." if more else ""
    )
    return (
        f"Rank {first} blocks {_ranks(held)}: {called} {_words(waiting.operation)}, "
        f"in which rank {waiting.rank} waits. {after}{others}"
    )


def _different(found: Mismatch) -> str:
    forms: dict[str, list[int]] = {}
    for rank, each in found.calls:
        forms.setdefault(_call(each), []).append(rank)
    sides = sorted(forms.items(), key=lambda side: (set(side[1]).isdisjoint(found.differ), side[1]))
    said = "; ".join(f"{_ranks(ranks)} called {call}" for call, ranks in sides[:RANKS])
    operation = found.calls[0].operation
    return f"Ranks do not match in collective #{operation.sequence} of {_group(operation)}: {said}."


def _pairs(waits: DumpedWaits) -> str:
    waiting = [wait for wait in waits.waits.values() if wait.missing]
    said = [
        f"rank {wait.rank} in {_words(wait.operation)} for {_ranks(wait.missing)}" for wait in waiting[:RANKS]
    ]
    return "; ".join(said)


def _ranks(ranks: Sequence[int], capital: bool = False) -> str:
    """Writes "rank 3", "ranks 0, 1 and 2" or, if there are many, "12 ranks"."""
    if len(ranks) > RANKS:
        return count(len(ranks), "rank")
    word = "rank" if len(ranks) == 1 else "ranks"
    return f"{word.capitalize() if capital else word} {listing([str(rank) for rank in ranks])}"


def _group(operation: Operation) -> str:
    return operation.description or f"group {operation.group}"


def _words(operation: Operation) -> str:
    site = f" ({operation.call_site})" if operation.call_site else ""
    return f"{operation.name} #{operation.sequence} of {_group(operation)}{site}"


def _call(operation: Operation) -> str:
    """Writes "all_reduce of 32 Float (train.py:88 step)"."""
    size = "" if operation.elements is None else f" of {count(operation.elements, 'element')}"
    kinds = f" ({', '.join(sorted(set(operation.types)))})" if operation.types else ""
    site = f" at {operation.call_site}" if operation.call_site else ""
    return f"{operation.name}{size}{kinds}{site}"


def _details(waits: DumpedWaits) -> dict[str, object]:
    first = waits.culprits[0] if waits.culprits and waits.mismatch is None else None
    return {
        "rank": first,
        "node": None,
        "component": None,
        "ranks": [],
        "dumps": [_row(waits, dump) for dump in waits.dumps.values()],
        "stacks": [
            {"node": "", "rank": rank, "time": each.created, "text": "\n".join(each.stack)}
            for rank, each in ((rank, _shown(waits, dump)) for rank, dump in waits.dumps.items())
            if each is not None and each.stack
        ],
        "hangs": [],
        "culprits": waits.culprits if waits.mismatch is None else list(waits.mismatch.differ),
        "without_dump": waits.without_dump,
    }


def _shown(waits: DumpedWaits, dump: RankDump) -> Operation | None:
    """Returns the operation whose stack shows where a rank is, or was last."""
    wait = waits.waits.get(dump.rank)
    return wait.operation if wait else dump.last_finished


def _row(waits: DumpedWaits, dump: RankDump) -> dict[str, object]:
    wait, last = waits.waits.get(dump.rank), dump.last_finished
    return {
        "rank": dump.rank,
        "waits": wait is not None,
        "place": _place(wait) if wait else "in no collective",
        "missing": list(wait.missing) if wait else [],
        "unknown": list(wait.unknown) if wait else [],
        "last_finished": _words(last) if last else None,
    }


def _place(wait: Wait) -> str:
    whom = f" for {_ranks(wait.missing)}" if wait.missing else ""
    unknown = f"; {_ranks(wait.unknown)} without a dump" if wait.unknown else ""
    return f"waits in {_words(wait.operation)}{whom}{unknown}"
