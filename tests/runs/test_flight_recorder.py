"""Dumps of PyTorch's flight recorder: who blocks the others, and that reading executes nothing."""

import errno
import json
import os
import pickle
import random
import struct
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from stepscope.commands.cli import main
from stepscope.common.errors import UserError
from stepscope.evaluation.analysis import RuleResult
from stepscope.evaluation.engine import evaluate
from stepscope.measurements.dumped_waits import DumpedWaits
from stepscope.rules.parts import dumped_hang
from stepscope.runs.flight_recorder import pickled
from stepscope.runs.flight_recorder import source as source_module
from stepscope.runs.flight_recorder.source import FlightRecorderDumps, read_dump
from stepscope.runs.open import open_source

from tests.support.commands import refusal
from tests.support.few_rules import of_rule
from tests.support.flight_recorder import Call, Group, run_ranks, write_dumps
from tests.support.pytorch import needs_torch
from tests.support.smallest import smallest
from tests.support.waiting import SECONDS

WORLD = {"0": Group("default_pg", (0, 1, 2, 3))}
STEP = Call("all_reduce", line=88)


def verdict(directory: Path) -> RuleResult:
    analysis = evaluate(open_source(directory))
    return of_rule("CollectiveHang", analysis)


def hang(
    directory: Path,
    programs: Mapping[int, Sequence[Call]],
    groups: dict[str, Group] | None = None,
    without: Sequence[int] = (),
    form: str = "pickle",
) -> RuleResult:
    groups = groups or WORLD
    entries = run_ranks(programs, groups)
    return verdict(write_dumps(directory, entries, groups, set(programs) - set(without), form))


@pytest.mark.parametrize("form", ["pickle", "json"])
def test_the_rank_that_has_not_called_the_collective_holds_up_the_others(tmp_path: Path, form: str) -> None:
    found = hang(tmp_path, {rank: [STEP] * (2 if rank == 2 else 3) for rank in range(4)}, form=form)
    assert found.status == "found"
    assert found.finding == (
        "Rank 2 blocks ranks 0, 1 and 3: it has not called all_reduce #3 of default_pg (train.py:88 train), "
        "in which rank 0 waits. "
        "Its last collective that is over is all_reduce #2 of default_pg (train.py:88 train)."
    )
    assert found.details["culprits"] == [2]
    assert [row["waits"] for row in found.details["dumps"]] == [True, True, False, True]


def test_ranks_that_wait_for_waiting_ranks_lead_to_the_one_that_waits_for_nobody(tmp_path: Path) -> None:
    groups = {**WORLD, "1": Group("tp", (0, 1)), "2": Group("dp", (1, 2)), "3": Group("pp", (2, 3))}
    found = hang(
        tmp_path,
        {
            0: [STEP, Call("all_reduce", "1")],
            1: [STEP, Call("all_reduce", "2")],
            2: [STEP, Call("all_gather", "3")],
        }
        | {3: [STEP]},
        groups,
    )
    assert found.finding.startswith("Rank 3 blocks ranks 0, 1 and 2: it has not called all_gather #1 of pp")
    assert [row["missing"] for row in found.details["dumps"]] == [[1], [2], [3], []]


@pytest.mark.parametrize(
    ("odd", "said"),
    [
        (Call("broadcast", line=70), "broadcast of"),
        (Call("all_reduce", size=33, line=70), "all_reduce of"),
    ],
)
def test_a_rank_with_another_collective_or_size_is_a_mismatch_with_both_call_sites(
    tmp_path: Path, odd: Call, said: str
) -> None:
    found = hang(tmp_path, {rank: [STEP, odd if rank == 1 else STEP] for rank in range(4)})
    assert found.finding == (
        f"Ranks do not match in collective #2 of default_pg: rank 1 called {said} {odd.size} elements "
        "(Float) at train.py:70 train; ranks 0, 2 and 3 called all_reduce of 32 elements (Float) at "
        "train.py:88 train."
    )
    assert found.details["culprits"] == [1]


def test_a_rank_that_skips_a_collective_is_found_where_the_order_differs(tmp_path: Path) -> None:
    usual = [STEP, Call("all_reduce", line=20), Call("broadcast", line=30)]
    found = hang(tmp_path, {rank: [usual[0], usual[2]] if rank == 3 else usual for rank in range(4)})
    assert "rank 3 called broadcast of 32 elements (Float) at train.py:30" in found.finding


def test_two_sides_of_equal_size_are_told_and_nobody_is_accused(tmp_path: Path) -> None:
    groups = {"0": Group("default_pg", (0, 1))}
    found = hang(tmp_path, {0: [STEP], 1: [Call("broadcast")]}, groups)
    assert found.finding.startswith("Ranks do not match")
    assert found.details["culprits"] == []


def test_groups_in_different_order_are_a_cycle_in_which_nobody_is_accused(tmp_path: Path) -> None:
    groups = {"0": Group("default_pg", (0, 1)), "1": Group("a", (0, 1)), "2": Group("b", (0, 1))}
    found = hang(
        tmp_path,
        {0: [STEP, Call("all_reduce", "1")], 1: [STEP, Call("all_reduce", "2")]},
        groups,
    )
    assert found.finding.startswith(
        "Ranks 0 and 1 wait for each other, so nobody is accused: rank 0 in all_reduce"
    )
    assert found.details["rank"] is None


def test_a_rank_whose_gpu_is_stuck_in_what_all_others_have_finished_is_accused(tmp_path: Path) -> None:
    """Its host called on. Dumps may have only what is not over, and no times."""
    groups = {"0": Group("expert", (0, 1, 2, 3)), "1": Group("tensor", (0, 1)), "2": Group("tensor", (2, 3))}
    both = {rank: [Call("all_gather", "12"[rank // 2]), Call("all_to_all", "0")] * 2 for rank in range(4)}
    entries = run_ranks({**both, 1: both[1][:2], 3: both[3][:2]}, groups)
    over = {"state": "scheduled", "retired": False, "time_discovered_completed_ns": None}
    for rank in (1, 3):  # in the first all_gather, which is over for its peer
        entries[rank] = [{**entry, **over} for entry in entries[rank]]
    for rank, of_rank in entries.items():
        unfinished = [entry for entry in of_rank if entry["state"] != "completed"]
        entries[rank] = [{**entry, "time_discovered_started_ns": None} for entry in unfinished]
    found = verdict(write_dumps(tmp_path, entries, groups, set(range(4))))
    assert found.details["culprits"] == [1, 3]
    assert "Rank 1 blocks" in found.finding
    assert (
        "its GPU has not finished all_gather #1 of tensor (train.py:10 train), which all others have"
        in found.finding
    )


def test_a_rank_without_a_dump_is_reported_and_not_accused(tmp_path: Path) -> None:
    found = hang(tmp_path, {rank: [STEP] * (1 if rank == 3 else 2) for rank in range(4)}, without=[3])
    assert "Rank 3 has no dump and may block it" in found.finding
    assert found.details["rank"] is None
    assert found.details["without_dump"] == [3]
    both = hang(tmp_path / "both", {rank: [STEP] * (1 if rank > 1 else 2) for rank in range(4)}, without=[3])
    assert both.finding.startswith("Rank 2 blocks ranks 0 and 1")
    assert both.finding.endswith("Rank 3 has no dump, so what they do is not known.")


def test_if_all_are_in_the_collective_nobody_is_accused(tmp_path: Path) -> None:
    entries = run_ranks({rank: [STEP, STEP] for rank in range(4)}, WORLD)
    for of_rank in entries.values():
        of_rank[-1].update(state="scheduled", retired=False, time_discovered_completed_ns=None)
    found = verdict(write_dumps(tmp_path, entries, WORLD))
    assert found.finding.startswith(
        "Ranks 0, 1, 2 and 3 wait in all_reduce #2 of default_pg (train.py:88 train), and no rank of the "
        "group is missing"
    )
    assert found.details["rank"] is None
    for rank, of_rank in entries.items():  # with timing, it is known whose GPU has not started it
        of_rank[0]["time_discovered_started_ns"] = 1
        of_rank[-1].update(state="started" if rank else "scheduled")
        of_rank[-1]["time_discovered_started_ns"] = 1 if rank else None
    late = verdict(write_dumps(tmp_path, entries, WORLD))
    assert late.finding.startswith("Rank 0 blocks ranks 1, 2 and 3: its GPU has not started all_reduce #2")


def test_dumps_of_a_healthy_job_accuse_nobody(tmp_path: Path) -> None:
    found = hang(tmp_path, {rank: [STEP] * 3 for rank in range(4)})
    assert (found.status, found.details["culprits"]) == ("healthy", [])


def test_collectives_of_nccl_that_are_over_say_nothing_about_those_of_gloo_in_the_same_group(
    tmp_path: Path,
) -> None:
    """As with init_process_group("cpu:gloo,cuda:nccl"): each backend counts its own."""
    entries = run_ranks({rank: [STEP] * 5 for rank in range(4)}, WORLD)
    for rank in (0, 1, 3):
        gloo = {"profiling_name": "gloo:all_reduce", "collective_seq_id": 1, "record_id": 5}
        entries[rank].append({**entries[rank][0], **gloo, "state": "scheduled", "retired": False})
    found = verdict(write_dumps(tmp_path, entries, WORLD))
    assert (found.status, found.details["culprits"]) == ("found", [2])


def test_overwritten_calls_are_not_missing_ones(tmp_path: Path) -> None:
    entries = run_ranks({rank: [STEP] * 3 if rank else [STEP] * 2 for rank in range(4)}, WORLD)
    other = {"1": Group("other", (0, 1))}
    entries[0] = [
        {**run_ranks({0: [Call("barrier", "1")], 1: [Call("barrier", "1")]}, other)[0][0], "record_id": 9}
    ]
    found = verdict(write_dumps(tmp_path, entries, WORLD | other))
    assert found.details["culprits"] == []


def test_a_receive_waits_for_the_rank_that_has_not_sent(tmp_path: Path) -> None:
    found = hang(tmp_path, {0: [STEP], 1: [STEP, Call("recv 1<-0")], 2: [STEP, Call("recv 2<-1")], 3: [STEP]})
    assert found.finding.startswith(
        "Rank 0 blocks ranks 1 and 2: it has not called recv 1<-0 #1 of default_pg"
    )


def test_a_batch_of_sends_and_receives_waits_only_for_the_peer_that_has_not_called(tmp_path: Path) -> None:
    entries = run_ranks({rank: [STEP] for rank in range(3)}, {"0": Group("default_pg", (0, 1, 2))})
    groups = {"0": Group("default_pg", (0, 1, 2))}
    template = run_ranks({0: [Call("send 0->1")], 1: []}, groups)[0][0]
    batch = [("send 1->2", 1), ("recv 1<-0", 2), ("coalesced", 3)]
    entries[1] += [{**template, "profiling_name": f"nccl:{name}", "record_id": n} for name, n in batch]
    over = {"state": "completed", "retired": True}
    entries[2] += [{**template, "profiling_name": "nccl:recv 2<-1", "record_id": 1, **over}]
    found = verdict(write_dumps(tmp_path, entries, groups))
    assert found.details["culprits"] == [0]
    assert found.details["dumps"][1]["missing"] == [0]


def test_operations_of_a_batch_that_is_over_do_not_wait(tmp_path: Path) -> None:
    entries = run_ranks({rank: [STEP] * (1 if rank == 2 else 2) for rank in range(4)}, WORLD)
    template = run_ranks({0: [Call("send 0->1")], 1: []}, WORLD)[0][0]
    zombie = {**template, "record_id": 1}
    over = {**template, "profiling_name": "nccl:coalesced", "state": "completed", "record_id": 2}
    entries[0][1:1] = [zombie, over]
    assert verdict(write_dumps(tmp_path, entries, WORLD)).details["culprits"] == [2]


KINDS = ["missing", "slow chain", "other op", "other size"]


@pytest.mark.parametrize("seed", smallest(range(25), range(3)))
@pytest.mark.parametrize("kind", KINDS)
def test_planted_hangs_are_found_whatever_the_order_of_files_and_entries_of_ranks(
    tmp_path: Path, kind: str, seed: int
) -> None:
    chance = random.Random(seed)
    size = chance.randint(3, 8)
    culprit, at = chance.randrange(size), chance.randint(1, 6)
    groups = {"0": Group("default_pg", tuple(range(size)))}
    programs = {rank: [STEP] * 8 for rank in range(size)}
    if kind == "missing":
        programs[culprit] = programs[culprit][:at]
    elif kind == "slow chain":  # pairs of neighbours, the culprit is at the end of the chain
        order = chance.sample(range(size), size)
        culprit = order[-1]
        for index, (first, second) in enumerate(pairwise(order), 1):
            groups[str(index)] = Group(f"pair {index}", tuple(sorted((first, second))))
            programs[first] = [STEP] * at + [Call("all_reduce", str(index))]
        programs[culprit] = [STEP] * at
    else:
        odd = Call("broadcast") if kind == "other op" else Call("all_reduce", size=33)
        programs[culprit] = [*programs[culprit][:at], odd]
    entries = run_ranks(programs, groups)
    ranks = chance.sample(range(size), size)
    dumps = [read_dump(path) for path in write_dumps(tmp_path, entries, groups, ranks).iterdir()]
    chance.shuffle(dumps)
    assert (DumpedWaits(dumps).mismatch is None) == (kind in KINDS[:2])
    assert dumped_hang.verdict(dumps).details["culprits"] == [culprit]
    assert dumped_hang.verdict(dumps) == dumped_hang.verdict(sorted(dumps, key=lambda dump: dump.rank))


# ----------------------------------------------------------------------------------- what is never trusted


class Evil:
    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return os.mkdir, (str(self.path),)


@pytest.mark.parametrize("protocol", range(6))
def test_a_hostile_pickle_executes_nothing(tmp_path: Path, protocol: int) -> None:
    dump, trap = tmp_path / "dumps" / "nccl_trace_rank_0", tmp_path / "executed"
    dump.parent.mkdir()
    content = {"version": "2.10", "pg_config": {}, "entries": [Evil(trap)]}
    dump.write_bytes(pickle.dumps(content, protocol=protocol))
    assert str(dump.parent) in refusal("report", dump.parent, "--out", tmp_path / "out")
    assert not trap.exists()
    assert not (tmp_path / "out").exists()


BOMBS = {
    "a memo of 2^31": b"\x80\x02}r\xff\xff\xff\x7f.",
    "a text of 4 GiB": b"\x80\x02X\xff\xff\xff\xffentries.",
    "a long of 255 bytes that are missing": b"\x80\x02\x8a\xffentries",
    "a deep tuple as key": b"\x80\x02})" + b"\x85" * 100_000 + b"K\x01s.entries",
    "nothing to pop": b"\x80\x02\x87\x87.entries",
    "an extension": b"\x80\x02\x82\x01.entries",
    "a persistent id": b"\x80\x02Pentries\n.",
    "no end": b"\x80\x02}entries",
    "a list in itself": b"\x80\x02]q\x00h\x00ah\x00.entries",
}


@pytest.mark.parametrize("bomb", BOMBS)
def test_a_bomb_is_refused_in_one_line(tmp_path: Path, bomb: str) -> None:
    path = tmp_path / "nccl_trace_rank_0"
    path.write_bytes(BOMBS[bomb])
    with pytest.raises(UserError, match="not a dump of PyTorch's flight recorder"):
        read_dump(path)


def test_a_pickle_of_too_many_values_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pickled, "MOST_OPERATIONS", 1000)
    assert pickled.loads(pickle.dumps([0] * 400, protocol=2)) == [0] * 400
    with pytest.raises(pickled.PickleError, match="more than 1,000 values"):
        pickled.loads(pickle.dumps([0] * 1100, protocol=2))


@pytest.mark.parametrize("protocol", range(2, 6))
def test_plain_values_are_read_as_pickle_reads_them(protocol: int) -> None:
    value = {
        "a": [1, -5, 70_000, 2**40, None, True, False, 1.5, "ü" * 300, (), (1,), (1, 2), (1, 2, 3), (1,) * 4]
    }
    assert pickled.loads(pickle.dumps(value, protocol)) == value


def test_random_bytes_are_refused_and_raise_nothing_else() -> None:
    chance = random.Random(1)
    good = pickle.dumps({"entries": [{"a": (1, "b")}] * 3}, protocol=2)
    for _ in range(3000):
        data = bytearray(good)
        for _ in range(chance.randint(1, 4)):
            data[chance.randrange(2, len(data))] = chance.randrange(256)
        with suppress(pickled.PickleError):
            pickled.loads(bytes(data))


def test_a_file_that_is_too_large_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("stepscope.runs.flight_recorder.source.MOST_BYTES", 1 << 20)
    path = tmp_path / "nccl_trace_rank_0"
    path.write_bytes(b"\x80" + b"entries" * 200_000)
    with pytest.raises(UserError, match="more than 1 MiB"):
        read_dump(path)


@pytest.mark.parametrize(
    "content",
    [
        {"entries": [{}]},
        {"entries": [{"profiling_name": "nccl:all_reduce", "collective_seq_id": "x", "op_id": 1}]},
        {"entries": {"a": 1}, "pg_config": []},
        {"entries": 5, "pg_config": {}},
        {"entries": [5]},
    ],
)
def test_a_dump_of_another_form_is_one_clear_line(tmp_path: Path, content: Any) -> None:
    path = tmp_path / "nccl_trace_rank_0.json"
    path.write_text(json.dumps(content))
    with pytest.raises(UserError, match=r"not a dump of PyTorch's flight recorder .* copy the file again"):
        read_dump(path)


def test_a_dump_that_cannot_be_read_is_named_and_its_rank_did_not_crash(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory = write_dumps(tmp_path, run_ranks({rank: [STEP] for rank in range(4)}, WORLD), WORLD)

    def refuse(path: Path, mode: str) -> Any:  # whoever runs the tests may read all files
        if path.name.endswith("_1"):
            raise PermissionError(errno.EACCES, "Permission denied", str(path))
        return open(path, mode)

    monkeypatch.setattr(source_module, "open", refuse, raising=False)
    with pytest.raises(UserError, match=r"nccl_trace_rank_1: cannot be read \(Permission denied\)"):
        open_source(directory)


def test_two_dumps_of_one_rank_are_not_mixed(tmp_path: Path) -> None:
    entries = run_ranks({rank: [STEP] for rank in range(4)}, WORLD)
    write_dumps(tmp_path / "a", entries, WORLD)
    write_dumps(tmp_path / "a", entries, WORLD, form="json")  # both forms of the same dump
    list(FlightRecorderDumps(tmp_path).read())
    write_dumps(tmp_path / "b", entries, WORLD, ranks=[0])
    with pytest.raises(UserError, match="both of rank 0"):
        list(FlightRecorderDumps(tmp_path).read())


def test_the_report_shows_where_every_rank_was_and_its_stack(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    entries = run_ranks({rank: [STEP] * (2 if rank == 2 else 3) for rank in range(4)}, WORLD)
    source = write_dumps(tmp_path / "job", entries, WORLD)
    assert main(["report", str(source), "--out", str(tmp_path / "out")]) == 0
    assert capsys.readouterr().err.startswith("▲ found: A hang in a collective ")
    page = (tmp_path / "out" / "report.html").read_text()
    assert "A hang in a collective stopped your run; for how long is not known" in page
    assert "waits in all_reduce #3 of default_pg (train.py:88 train) for rank 2" in page
    assert "Python stack of rank 2" in page
    assert "1970" not in page
    assert main(["report", str(source / "nccl_trace_rank_0"), "--out", str(tmp_path / "one")]) == 0


SCRIPT = """
import os, sys, threading, time
import torch, torch.distributed as dist
from torch._C._distributed_c10d import _dump_fr_trace
rank, out = 0, sys.argv[2]
for other in (1, 2):  # forks: PyTorch is imported once
    if rank == 0 and not os.fork():
        rank = other
dist.init_process_group("gloo", init_method=sys.argv[1], rank=rank, world_size=3)
data = torch.ones(4, 8)
pair = dist.new_group([0, 1], group_desc="pair")
for _ in range(2):
    dist.all_reduce(data)
if rank < 2:
    dist.all_reduce(data, group=pair)

def dump():
    time.sleep(3)
    with open(f"{out}/nccl_trace_rank_{rank}", "wb") as file:
        file.write(_dump_fr_trace())
    open(f"{out}/../done{rank}", "w").close()
    while not all(os.path.exists(f"{out}/../done{each}") for each in range(3)):
        time.sleep(0.01)
    os._exit(0)

threading.Thread(target=dump, daemon=True).start()
if rank == 1:
    time.sleep(60)  # the others wait for it
try:
    dist.all_reduce(data)
except RuntimeError:  # a rank that is gone ended the wait
    time.sleep(60)
"""


@needs_torch
def test_dumps_that_pytorch_writes_for_gloo_name_the_rank_that_sleeps(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(SCRIPT)
    (tmp_path / "dumps").mkdir()
    environment = {**os.environ, "TORCH_FR_BUFFER_SIZE": "100", "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "train.py", f"file://{tmp_path}/meet"]
    subprocess.run([*command, "dumps"], cwd=tmp_path, env=environment, check=True, timeout=SECONDS)
    found = verdict(tmp_path / "dumps")
    assert found.finding.startswith(
        "Rank 1 blocks ranks 0 and 2: it has not called all_reduce #3 of default_pg (train.py:30 <module>)"
    )
    assert "all_reduce #1 of pair" in found.finding


def test_a_length_that_lies_reserves_no_memory() -> None:
    claimed = struct.pack("<I", 2**32 - 1)
    with pytest.raises(pickled.PickleError, match="ends in the middle"):
        pickled.loads(b"\x80\x02X" + claimed)
