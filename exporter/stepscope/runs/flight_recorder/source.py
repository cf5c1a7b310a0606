"""A directory of flight-recorder dumps as a source: one file per rank, a pickle or JSON.

PyTorch writes `nccl_trace_rank_<rank>` where TORCH_NCCL_DEBUG_INFO_TEMP_FILE says, by default in /tmp, when
an operation exceeds its timeout. Other names count if they end in the rank: a dump does not contain it.
"""

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from stepscope.common.errors import UserError
from stepscope.runs.flight_recorder.pickled import loads
from stepscope.runs.malformed import moment, naming
from stepscope.runs.model import NodeSamples, Progress, RankFacts, RunFacts, Source, Steps, counter
from stepscope.runs.rank_dump import Operation, RankDump
from stepscope.runs.traces.json_stream import beginning

MOST_BYTES = 64 << 20  # of a dump; that of 20,000 collectives has 15 MB
HEAD = 1 << 16
STACK = 64  # frames of an operation
SIZES = 1024  # tensors of an operation
_NAME = re.compile(r".*?(?<!\d)(?P<rank>\d{1,6})(\.(json|pkl|pickle|bin|dump))?", re.DOTALL)
_PYTORCH = re.compile(r"(^|/)torch/|^<|^\?\?$")
_RANK = re.compile(r"\d+")


def dump_files(place: Path) -> list[Path]:
    """Returns the dumps in a directory and its folders, or the file itself."""
    paths = [place] if place.is_file() else sorted(place.rglob("*"))
    return [path for path in paths if _looks_like_dump(path)]


def _looks_like_dump(path: Path) -> bool:
    if _NAME.fullmatch(path.name) is None or not path.is_file():
        return False
    head = beginning(path, HEAD)
    has_entries = b"pg_config" in head or b"entries" in head
    if head.startswith(b"\x80"):
        return has_entries
    return head.lstrip().startswith(b"{") and has_entries and b"traceEvents" not in head


class FlightRecorderDumps(Source):
    """The dumps of a job. Raises UserError if there is none, or one cannot be read.

    While reading, raises it if one is not a dump.
    """

    def __init__(self, place: Path, progress: Progress | None = None) -> None:
        self._place, self._progress = place, progress
        # The pickle is kept if a dump has both forms: JSON has no stacks.
        self._paths = sorted(dump_files(place), key=lambda path: path.suffix == ".json")
        if not self._paths:
            raise UserError(f"{place} holds no dump of the flight recorder (nccl_trace_rank_0, ...)")
        if not place.is_file():
            _check_siblings(self._paths)
        self._dumps: dict[int, RankDump] = {}

    @property
    def facts(self) -> RunFacts:
        dumps = tuple(self._dumps[rank] for rank in sorted(self._dumps))
        times = [each.created for dump in dumps for each in dump.operations if each.created is not None]
        ranks = max((1 + max((dump.rank, *_members(dump))) for dump in dumps), default=0)
        return RunFacts(
            name=self._place.absolute().name,
            start=min(times, default=None),
            ranks=tuple(_rank_facts(dump, ranks) for dump in dumps),
            dumps=dumps,
            unknowns=("Dumps of the flight recorder list collectives: no step and no sample was recorded.",),
        )

    def read(self) -> Iterator[NodeSamples | Steps]:
        """Reads all dumps; they hold no samples and no steps."""
        read = counter(sum(path.stat().st_size for path in self._paths), self._progress)
        for path in self._paths:
            dump = read_dump(path)
            other = self._dumps.setdefault(dump.rank, dump)
            if other is not dump and (".json" in path.suffixes) == other.file.endswith(".json"):
                raise UserError(
                    f"{path} and {other.file} are both of rank {dump.rank}: give the dumps of one job"
                )
            read(path.stat().st_size)
        self._paths = []
        yield from ()


def _check_siblings(paths: Sequence[Path]) -> None:
    """Raises UserError if a file named as the dumps are cannot be read: its rank would seem to have none."""
    for folder, stem in sorted({(path.parent, _stem(path)) for path in paths}):
        for path in sorted(folder.iterdir()):
            if _stem(path) == stem and path.is_file():
                try:
                    open(path, "rb").close()
                except OSError as error:
                    raise UserError(
                        f"{path}: cannot be read ({error.strerror}); change its permissions, or remove it"
                    ) from error


def _stem(path: Path) -> str:
    """Returns a name up to the rank; "" without one."""
    match = _NAME.fullmatch(path.name)
    return path.name[: match.start("rank")] if match else ""


def _members(dump: RankDump) -> list[int]:
    return [rank for ranks in dump.groups.values() for rank in ranks]


def _rank_facts(dump: RankDump, world_size: int) -> RankFacts:
    start = next((each.created for each in dump.operations if each.created is not None), 0.0)
    return RankFacts(
        node="",
        rank=dump.rank,
        pid=0,
        start=start,
        first_step_start=None,
        last_step_end=None,
        end=None,
        world_size=world_size,
        phase_seconds={},
        component_seconds={},
        steps={},
        framework="pytorch",
    )


def read_dump(path: Path) -> RankDump:
    """Returns the dump in a file. Executes nothing in it. Raises UserError if it is another file."""
    if path.stat().st_size > MOST_BYTES:
        raise UserError(f"{path} has more than {MOST_BYTES >> 20} MiB; lower TORCH_FR_BUFFER_SIZE")
    with naming(path, "a dump of PyTorch's flight recorder", "copy the file again, or remove it"):
        data = path.read_bytes()
        content = loads(data) if data.startswith(b"\x80") else json.loads(data)
        match = _NAME.fullmatch(path.name)
        if match is None:
            raise ValueError("its name does not end in the rank")
        return _dump(int(match["rank"]), str(path), content)


def _dump(rank: int, file: str, content: dict[str, Any]) -> RankDump:
    rows = content["entries"]
    stacks: dict[int, tuple[str, str]] = {}
    operations = [_operation(row, stacks) for row in rows]
    groups = {str(name): _ranks(group) for name, group in (content.get("pg_config") or {}).items()}
    return RankDump(
        rank=rank,
        file=file,
        operations=tuple(_settled(operations)),
        groups={name: ranks for name, ranks in groups.items() if ranks},
        # Otherwise the first one is number 0. Without any, the dump may leave out what is over.
        cut=int(rows[0].get("record_id", 0)) > 0 if rows else bool(content.get("pg_status")),
    )


def _ranks(group: Any) -> tuple[int, ...]:
    """Returns the ranks of {"ranks": "[0, 1]"}, or of a list in old versions."""
    ranks = group.get("ranks", "") if isinstance(group, dict) else group
    return tuple(sorted({int(number) for number in _RANK.findall(str(ranks)[:HEAD])}))


def _operation(row: dict[str, Any], frames: dict[int, tuple[str, str]]) -> Operation:
    group, description = _group(row)
    backend, _, name = str(row["profiling_name"]).rpartition(":")
    is_p2p = bool(row.get("is_p2p", False))
    state, retired = row.get("state"), bool(row.get("retired", False))
    sequence = row["p2p_seq_id" if is_p2p else "collective_seq_id"] if "op_id" in row else row["seq_id"]
    stack = [_frame(frame, frames) for frame in (row.get("frames") or [])[:STACK]]
    created = row.get("time_created_ns")
    return Operation(
        group=group,
        description=description,
        name=name[:100],
        sequence=int(sequence),
        is_p2p=is_p2p,
        backend=backend,
        # gloo records no events: it only retires what is over. With NCCL that may be a timeout, too.
        finished=state == "completed" or (backend == "gloo" and retired),
        started=None if row.get("time_discovered_started_ns") in (None, 0) else True,
        sizes=tuple(tuple(map(int, size)) for size in (row.get("input_sizes") or [])[:SIZES]),
        types=tuple(map(str, (row.get("input_dtypes") or [])[:SIZES])),
        created=None if not created else moment(int(created) / 1e9),
        stack=tuple(place for place, _ in stack),
        call_site=next((place for place, file in stack if not _PYTORCH.search(file)), ""),
    )


def _group(row: dict[str, Any]) -> tuple[str, str]:
    group = row.get("process_group")
    if group is None:  # old versions
        return str(row.get("pg_id", 0)), ""
    name, description = group
    return str(name)[:100], str(description)[:100]


def _frame(frame: dict[str, Any], known: dict[int, tuple[str, str]]) -> tuple[str, str]:
    """Returns "train.py:88 step" and the file; operations share most frames."""
    if id(frame) not in known:
        file = str(frame.get("filename", ""))
        place = f"{file.rpartition('/')[2]}:{int(frame.get('line', 0))} {str(frame.get('name', ''))[:100]}"
        known[id(frame)] = place, file
    return known[id(frame)]


def _settled(operations: list[Operation]) -> Iterator[Operation]:
    """Yields the operations with what others of the rank say about them.

    Operations of a batch are never marked finished: the entry `coalesced` after them is. NCCL finishes the
    collectives of a group in order, gloo may not.
    """
    batches = {_place(each): each for each in operations if each.kind.endswith("coalesced")}
    last: dict[str, int] = {}
    for each in operations:
        if each.finished and not each.is_p2p and each.backend != "gloo":
            last[each.group] = max(last.get(each.group, 0), each.sequence)
    for each in operations:
        batch = batches.get(_place(each))
        if batch is not None and batch is not each:
            if each.is_p2p:
                yield replace(each, finished=batch.finished, started=batch.started)
        elif batch is None or not each.is_p2p:
            in_order = not each.is_p2p and each.backend != "gloo"
            over = in_order and each.sequence <= last.get(each.group, 0)
            yield replace(each, finished=True) if over else each


def _place(operation: Operation) -> tuple[str, str, bool, int]:
    return operation.backend, operation.group, operation.is_p2p, operation.sequence
