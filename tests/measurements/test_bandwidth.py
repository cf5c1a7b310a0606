"""The bandwidth of collectives, as nccl-tests define it."""

import json
from pathlib import Path
from typing import Any

import pytest
from stepscope.commands.cli import main
from stepscope.measurements.bandwidth import bandwidths, bus_factor
from stepscope.runs.model import TransferTime


@pytest.mark.parametrize(
    ("operation", "factor"),
    [
        ("allreduce", 2 * 7 / 8),
        ("allreducecoalesced", 2 * 7 / 8),
        ("allgatherbase", 7 / 8),
        ("reducescatterbase", 7 / 8),
        ("alltoall", 7 / 8),
        ("broadcast", 1),
        ("reduce", 1),
        ("sendrecv", 1),
        ("barrier", None),
        ("dispatch", None),
    ],
)
def test_the_factor_of_the_bus_is_that_of_nccl_tests(operation: str, factor: float | None) -> None:
    assert bus_factor(operation, 8) == factor


def test_only_operations_without_a_factor_for_their_ranks_know_the_bus_without_them() -> None:
    assert bus_factor("allreduce", None) is None
    assert bus_factor("broadcast", None) == 1
    assert bus_factor("allreduce", 1) == 0


def transfer(rank: int, seconds: float, shortest: float, **more: Any) -> TransferTime:
    known = {"operation": "allreduce", "group": "default_pg", "size": 4, "dtype": "Float", "bytes": 8 * 10**9}
    return TransferTime(**{**known, **more}, calls=2, seconds=seconds, shortest=shortest, rank=rank)


def test_all_ranks_count_together_and_the_shortest_call_is_that_of_the_last_rank() -> None:
    (found,) = bandwidths([transfer(0, 4.0, 1.5), transfer(1, 2.0, 0.5)])
    assert found.transfer.calls == 4
    assert found.algorithm == pytest.approx(8e9 / 1.5)
    assert found.bus == pytest.approx(1.5 * 8e9 / 1.5)
    assert found.fastest_bus == pytest.approx(1.5 * 8e9 / 0.5)
    assert found.link_percent(48e9) == pytest.approx(50)
    assert found.link_percent(0) is None


def test_without_bytes_or_time_there_is_no_bandwidth() -> None:
    for found in bandwidths([transfer(0, 1.0, 0.5, bytes=None), transfer(0, 0.0, 0.0)]):
        assert (found.algorithm if found.transfer.bytes is None else found.bus) is None
        assert found.link_percent(1e9) is None


def kernel(start: float, end: float, **arguments: Any) -> dict[str, Any]:
    told = {"device": 0, "stream": 20, "Collective name": "allreduce", **arguments}
    name = "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage)"
    times = {"ts": start * 1000, "dur": (end - start) * 1000}
    return {"ph": "X", "cat": "kernel", "name": name, "pid": 0, "tid": 20, **times, "args": told}


@pytest.mark.parametrize(
    ("link", "said"), [("0", "speed of the link is not in a trace"), ("400", "of the link’s")]
)
def test_a_report_shows_bytes_group_type_and_bandwidth(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], link: str, said: str
) -> None:
    moved = {"In msg nelems": 5 * 10**8, "Out msg nelems": 5 * 10**8, "dtype": "Float", "Group size": 2,
             "Process Group Description": "mesh_dp"}  # fmt: skip
    rows = [kernel(0, 20, **moved), kernel(30, 70, **moved), kernel(80, 90)]
    trace = tmp_path / "trace.json"
    trace.write_text(json.dumps({"baseTimeNanoseconds": 1_700_000_000 * 10**9, "traceEvents": rows}))
    setting = f"CommunicationBound.link_bandwidth={link}"
    assert main(["report", str(trace), "--out", str(tmp_path), "--set", setting]) == 0
    capsys.readouterr()
    page = (tmp_path / "report.html").read_text()
    assert said in page
    for cell in ("mesh_dp", "2.00 GB", "100 GB/s", "not known"):
        assert cell in page
    details = json.loads((tmp_path / "profiler-reports" / "CommunicationBound.json").read_text())["Details"]
    known, unknown = details["collectives"]
    assert (known["bytes"], known["group_ranks"], known["dtype"], known["calls"]) == (
        2 * 10**9,
        2,
        "Float",
        2,
    )
    assert known["algorithm_bytes_per_second"] == pytest.approx(2e9 / 0.030)
    assert known["fastest_bus_bytes_per_second"] == pytest.approx(100e9)
    assert known["link_percent"] == (None if link == "0" else pytest.approx(25))
    assert unknown["bytes"] is None
    assert unknown["bus_bytes_per_second"] is None
