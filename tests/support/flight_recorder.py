"""Dumps of PyTorch's flight recorder for ranks that call what a test says, and hang where they must."""

import json
import pickle
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

START_NS = 1_700_000_000_000_000_000
TORCH = {"name": "all_reduce", "filename": "/venv/torch/distributed/distributed_c10d.py", "line": 3245}


class Call(NamedTuple):
    """A collective of a group (its name), or `send 0->1`; `line` is its place in train.py."""

    name: str
    group: str = "0"
    size: int = 32
    line: int = 10


class Group(NamedTuple):
    description: str
    ranks: tuple[int, ...]


def run_ranks(
    programs: Mapping[int, Sequence[Call]], groups: dict[str, Group]
) -> dict[int, list[dict[str, Any]]]:
    """Runs each rank's calls in order until nobody gets further, and returns the entries of each dump.

    A collective is over when all members of its group are in it; a send when the other side receives. Ranks
    block in each call, so that nothing is called after the first unfinished one.
    """
    done = dict.fromkeys(programs, 0)
    entries: dict[int, list[dict[str, Any]]] = {rank: [] for rank in programs}
    numbers: dict[tuple[int, str, bool], int] = {}
    while True:
        waiting = {}
        for rank, calls in programs.items():
            if done[rank] == len(entries[rank]) < len(calls):
                entries[rank].append(_entry(rank, calls[done[rank]], len(entries[rank]), groups, numbers))
            if done[rank] < len(entries[rank]):
                waiting[rank] = entries[rank][-1]
        over = [rank for rank, entry in waiting.items() if _is_over(rank, entry, waiting, groups)]
        if not over:
            return entries
        for rank in over:
            entries[rank][-1].update(state="completed", retired=True, time_discovered_completed_ns=START_NS)
            done[rank] += 1


def _entry(
    rank: int, call: Call, record: int, groups: dict[str, Group], numbers: dict[tuple[int, str, bool], int]
) -> dict[str, Any]:
    is_p2p = call.name.startswith(("send", "recv"))
    number = numbers[rank, call.group, is_p2p] = numbers.get((rank, call.group, is_p2p), 0) + 1
    return {
        "frames": [TORCH, {"name": "train", "filename": "/job/train.py", "line": call.line}],
        "record_id": record,
        "pg_id": int(call.group),
        "process_group": (call.group, groups[call.group].description),
        "collective_seq_id": 0 if is_p2p else number,
        "p2p_seq_id": number if is_p2p else 0,
        "op_id": record + 1,
        "profiling_name": f"nccl:{call.name}",
        "time_created_ns": START_NS + record * 1_000_000,
        "input_sizes": [[call.size]],
        "input_dtypes": ["Float"],
        "output_sizes": [[call.size]],
        "output_dtypes": ["Float"],
        "state": "scheduled",
        "time_discovered_started_ns": None,
        "time_discovered_completed_ns": None,
        "retired": False,
        "timeout_ms": 600_000,
        "is_p2p": is_p2p,
    }


def _is_over(rank: int, entry: dict[str, Any], waiting: dict[int, Any], groups: dict[str, Group]) -> bool:
    group = groups[entry["process_group"][0]].ranks
    if entry["is_p2p"]:
        kind, _, ends = entry["profiling_name"].removeprefix("nccl:").partition(" ")
        first, second = (group[int(end)] for end in ends.replace("<-", "->").split("->"))
        other = waiting.get(second if rank == first else first)
        expected = f"recv {ends[-1]}<-{ends[0]}" if kind == "send" else f"send {ends[-1]}->{ends[0]}"
        return other is not None and other["profiling_name"] == f"nccl:{expected}"
    same = ("process_group", "collective_seq_id", "profiling_name", "input_sizes")
    return all(m in waiting and all(waiting[m][key] == entry[key] for key in same) for m in group)


def write_dumps(
    directory: Path,
    entries: dict[int, list[dict[str, Any]]],
    groups: dict[str, Group],
    ranks: Iterable[int] | None = None,
    form: str = "pickle",
) -> Path:
    """Writes the dumps of these ranks (of all, if None) as PyTorch names them."""
    directory.mkdir(parents=True, exist_ok=True)
    for rank in entries if ranks is None else ranks:
        of_rank = {name: group for name, group in groups.items() if rank in group.ranks}
        content = {
            "version": "2.10",
            "pg_config": {
                name: {"name": name, "desc": group.description, "ranks": str(list(group.ranks))}
                for name, group in of_rank.items()
            },
            "pg_status": {},
            "entries": entries[rank],
        }
        if form == "pickle":
            (directory / f"nccl_trace_rank_{rank}").write_bytes(pickle.dumps(content, protocol=2))
        else:
            (directory / f"nccl_trace_rank_{rank}.json").write_text(json.dumps(content))
    return directory
