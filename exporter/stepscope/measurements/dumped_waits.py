"""Finds which ranks wait for which in the dumps of PyTorch's flight recorder.

Each rank waits, at its oldest unfinished operation, for the members of the group that have not reached it.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import NamedTuple

from stepscope.runs.rank_dump import Operation, RankDump

DEFAULT = "default_pg"  # the group of all ranks
# Collectives to which all ranks give, and types of which all ranks give, the same number of elements.
EQUAL_SIZES = ("all_reduce", "allreduce", "broadcast", "reduce", "_allgather_base", "_reduce_scatter_base")


class Wait(NamedTuple):
    """A rank at its oldest unfinished operation."""

    rank: int
    operation: Operation
    missing: tuple[int, ...]  # members whose dumps show that they have not reached it
    unknown: tuple[int, ...]  # members without a dump


class Call(NamedTuple):
    """An operation of a rank."""

    rank: int
    operation: Operation


class Mismatch(NamedTuple):
    """Ranks that call different collectives where one group expects the same."""

    calls: tuple[Call, ...]
    differ: tuple[int, ...]  # ranks that differ from more than half; empty: there is no such majority


class DumpedWaits:
    """The waits of a job. `dumps`: at most one per rank."""

    def __init__(self, dumps: Sequence[RankDump]) -> None:
        self.dumps = {dump.rank: dump for dump in sorted(dumps, key=lambda dump: dump.rank)}
        self._unfinished = {rank: dump.oldest_unfinished for rank, dump in self.dumps.items()}
        self._timed = {r: any(each.started for each in dump.operations) for r, dump in self.dumps.items()}
        self._calls: dict[tuple[str, str, int], dict[int, Operation]] = {}  # by backend, group and number
        self._last: dict[tuple[str, str], dict[int, int]] = {}  # number of each rank's last collective
        self._groups: dict[str, set[int]] = {}
        for rank, dump in self.dumps.items():
            for group, ranks in dump.groups.items():
                self._groups.setdefault(group, set()).update(ranks)
            for each in dump.operations:
                if each.is_p2p:
                    continue
                place = each.backend, each.group
                self._groups.setdefault(each.group, set()).add(rank)
                self._calls.setdefault((each.backend, each.group, each.sequence), {})[rank] = each
                last = self._last.setdefault(place, {})
                last[rank] = max(last.get(rank, 0), each.sequence)
                if each.description == DEFAULT:  # ranks are numbered without gaps
                    self._groups[each.group].update(range(max(self.dumps) + 1))

    @cached_property
    def waits(self) -> dict[int, Wait]:
        """Returns the ranks that wait, and for whom."""
        unfinished = ((rank, each) for rank, each in self._unfinished.items() if each is not None)
        return {rank: self._wait(rank, each) for rank, each in unfinished}

    @cached_property
    def without_dump(self) -> list[int]:
        """Returns members of groups, as far as these are known, that left no dump."""
        return sorted({rank for ranks in self._groups.values() for rank in ranks} - set(self.dumps))

    @cached_property
    def culprits(self) -> list[int]:
        """Returns the ranks that are waited for and wait for nobody, the most awaited one first."""
        awaited = Counter(rank for wait in self.waits.values() for rank in wait.missing)
        return sorted(
            (rank for rank in awaited if self._is_free(rank)), key=lambda rank: (-awaited[rank], rank)
        )

    @cached_property
    def mismatch(self) -> Mismatch | None:
        """Returns the first collective in which ranks of a waiting group differ; None: there is none."""
        found = (mismatch for wait in self.waits.values() for mismatch in self._mismatches(wait.operation))
        return min(found, key=lambda each: each.calls[0].operation.created or 0.0, default=None)

    def held_up_by(self, culprit: int) -> list[int]:
        """Returns the ranks that wait for a rank, directly or through others."""
        held = {culprit}
        while more := {r for r, wait in self.waits.items() if r not in held and held & {*wait.missing}}:
            held |= more
        return sorted(held - {culprit})

    def _is_free(self, rank: int) -> bool:
        """Returns whether a rank waits for nobody: its operations are over, or its GPU is late or stuck."""
        wait = self.waits.get(rank)
        if wait is None:
            return True
        alone = self._is_late(rank, wait.operation) or self.is_stuck(rank)
        return not wait.missing and not wait.unknown and alone

    def is_stuck(self, rank: int) -> bool:
        """Returns whether a rank's GPU has not finished a collective that all other members have finished."""
        wait = self.waits.get(rank)
        if wait is None or wait.operation.is_p2p:
            return False
        others = self._groups[wait.operation.group] - {rank}
        return bool(others) and all(self._has_finished(each, wait.operation) for each in others)

    def _has_finished(self, rank: int, operation: Operation) -> bool:
        """Returns whether a rank is beyond a collective: dumps may hold only those that are not over."""
        place = operation.backend, operation.group
        last = self._last[place].get(rank)
        if last is None or last < operation.sequence:
            return False
        return all(
            each.finished or each.is_p2p or each.sequence > operation.sequence
            for each in self.dumps[rank].operations
            if (each.backend, each.group) == place
        )

    def _wait(self, rank: int, operation: Operation) -> Wait:
        members = self._peers(rank, operation) if operation.is_p2p else self._groups[operation.group] - {rank}
        known = sorted(members & set(self.dumps))
        missing = tuple(each for each in known if not self._reached(each, operation, rank))
        return Wait(rank, operation, missing, tuple(sorted(members - set(self.dumps))))

    def _batch(self, rank: int, operation: Operation) -> list[Operation]:
        """Returns the sends and receives that a rank called together."""
        place = operation.group, operation.sequence
        return [
            each
            for each in self.dumps[rank].operations
            if each.is_p2p and (each.group, each.sequence) == place
        ]

    def _peers(self, rank: int, operation: Operation) -> set[int]:
        """Returns the peers of a batch of sends and receives; operations name them by their number."""
        members = sorted(self._groups.get(operation.group, ()))
        ends = (end for each in self._batch(rank, operation) for end in _ends(each))
        return {members[end] for end in ends if end < len(members)} - {rank} if rank in members else set()

    def _reached(self, rank: int, operation: Operation, waiting: int) -> bool:
        """Returns whether a rank has reached an operation of another one, or whether that is not known."""
        if operation.is_p2p:
            return self._answers(rank, operation, waiting)
        place = operation.backend, operation.group
        last = self._last[place].get(rank)
        if last is None:
            return self.dumps[rank].cut  # its calls may have been overwritten
        if last < operation.sequence:
            return False
        own = self._calls[operation.backend, operation.group, operation.sequence].get(rank)
        if own is None or own.finished or own is self._unfinished[rank]:
            return not self._is_late(rank, operation)
        first = self._unfinished[rank]
        return first is None or (first.backend, first.group, first.is_p2p) == (
            *place,
            False,
        )  # else another one comes first

    def _is_late(self, rank: int, operation: Operation) -> bool:
        """Returns whether a rank's GPU has not started a collective that others have started."""
        calls = self._calls.get((operation.backend, operation.group, operation.sequence), {})
        own = calls.get(rank)
        if own is None or own.finished or own.started or not self._timed[rank]:
            return False
        return any(each.started and not each.finished for each in calls.values())

    def _answers(self, rank: int, operation: Operation, waiting: int) -> bool:
        """Returns whether a peer has called the other ends of a batch, or whether that is not known."""
        members = sorted(self._groups[operation.group])
        ends = {members.index(waiting), members.index(rank)}
        batch = self._batch(waiting, operation)
        return all(self._answer(rank, waiting, each, len(batch) > 1) for each in batch if _ends(each) == ends)

    def _answer(self, rank: int, waiting: int, operation: Operation, batched: bool) -> bool:
        own, others = self.dumps[waiting], self.dumps[rank]
        same = {"send": "recv", "recv": "send"}
        there = [
            each
            for each in others.operations
            if each.group == operation.group
            and each.kind == same.get(operation.kind)
            and _ends(each) == _ends(operation)
        ]
        if not batched or any(not each.finished for each in there):
            return bool(there) and not there[-1].finished
        # The batch may wait for another peer: calls are counted, if none was overwritten.
        here = [e for e in own.operations if (e.group, e.name) == (operation.group, operation.name)]
        return own.cut or others.cut or len(there) > here.index(operation)

    def _mismatches(self, operation: Operation) -> Iterator[Mismatch]:
        if operation.is_p2p:
            return
        place = operation.backend, operation.group
        numbers = sorted(number for *where, number in self._calls if tuple(where) == place)
        for number in numbers:
            calls = self._calls[operation.backend, operation.group, number]
            if number > operation.sequence:
                return
            forms = Counter(_form(each) for each in calls.values())
            if len(forms) > 1 and not all(each.finished for each in calls.values()):
                usual, times = forms.most_common(1)[0]
                differ = tuple(rank for rank, each in sorted(calls.items()) if _form(each) != usual)
                majority = 2 * times > len(calls)
                yield Mismatch(
                    tuple(Call(*each) for each in sorted(calls.items())), differ if majority else ()
                )
                return


def _form(operation: Operation) -> tuple[str, int | None, tuple[str, ...]]:
    """Returns what must be equal on all ranks."""
    if operation.kind not in EQUAL_SIZES:
        return operation.kind, None, ()
    return operation.kind, operation.elements, tuple(sorted(set(operation.types)))


def _ends(operation: Operation) -> set[int]:
    """Returns the numbers in the group of both ranks of "send 0->1" or "recv 1<-0"; empty: not known."""
    numbers = operation.name.partition(" ")[2].replace("<-", "->").split("->")
    return {int(number) for number in numbers} if all(map(str.isdigit, numbers)) else set()
