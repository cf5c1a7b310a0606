"""Profiles of JAX and TensorFlow (XLA), and Nsight Systems' SQLite export: small ones with exact numbers.

All four show the same step pattern, in milliseconds: compute 0-40, a collective 30-60, a copy 60-70, nothing
70-100, compute 100-120. The host launches the last kernel at 90. So of 120 ms, 60 are computed, 10 copied,
20 exposed communication, and 30 idle: for the host until its call returns, then for the launch.
"""

import gzip
import json
import sqlite3
from pathlib import Path
from typing import Any

import pytest
from stepscope.commands.cli import main
from stepscope.common.errors import UserError
from stepscope.evaluation.engine import evaluate
from stepscope.runs.model import DeviceTime, RunFacts, Steps
from stepscope.runs.open import open_source
from stepscope.runs.traces.source import KinetoTraces
from stepscope.training.window_files import ANCHOR, LINE

from tests.support.few_rules import of_rule

BASE = 1_700_000_000 * 10**9
COMPUTE, COLLECTIVE, COPY, LATE = (0, 40), (30, 60), (60, 70), (100, 120)
SHARES = {"compute": 0.060, "communication": 0.020, "copy": 0.010, "idle": 0.030}
Row = dict[str, Any]


def read(place: Path) -> tuple[RunFacts, list[Steps]]:
    source = KinetoTraces(place)
    steps = [chunk for chunk in source.read() if isinstance(chunk, Steps)]
    return source.facts, steps


def the_only(devices: tuple[DeviceTime, ...]) -> DeviceTime:
    (device,) = devices
    return device


def shares(device: DeviceTime) -> Any:
    return pytest.approx({part: getattr(device, part) for part in SHARES})


# ------------------------------------------------------------------------------------ JAX and TensorFlow


def name(kind: str, text: str, pid: int, tid: int = 0) -> Row:
    return {"ph": "M", "pid": pid, "tid": tid, "name": f"{kind}_name", "args": {"name": text}}


def event(pid: int, tid: int, text: str, start: float, end: float, **args: str) -> Row:
    times = {"ts": start * 1000, "dur": (end - start) * 1000}
    return {"ph": "X", "pid": pid, "tid": tid, "name": text, **times, "args": args}


HOST = [name("process", "/host:CPU", 701), name("thread", "python", 701, 1)]
STEPS = [event(701, 1, "train", 50 * n, 50 * n + 5, step_num=str(n + 3)) for n in range(2)]
GPU = [
    *HOST,
    name("process", "/device:GPU:0", 1),
    name("thread", "Stream #13(Compute)", 1, 13),
    name("thread", "Stream #20(Compute,MemcpyH2D)", 1, 20),
    name("thread", "XLA Ops", 1, 99),
    *STEPS,
    event(1, 13, "loop_add_fusion", *COMPUTE, kernel_details="regs:32", correlation_id="1"),
    event(
        1, 20, "ncclDevKernel_AllReduce_Sum_f32_RING_LL()", *COLLECTIVE, kernel_details="", correlation_id="2"
    ),
    event(1, 20, "MemcpyH2D", *COPY, memcpy_details="kind_src:pinned", correlation_id="3"),
    event(1, 13, "loop_add_fusion", *LATE, kernel_details="regs:32", correlation_id="4"),
    event(1, 99, "add.7", 0, 120),  # repeats the kernels, without the gaps between them
    event(701, 1, "cuLaunchKernel", 90, 95, correlation_id="4"),
    event(701, 1, "$train.py:12 step", 70, 95),
    {},
]
TPU = [
    *HOST,
    name("process", "/device:TPU:3", 5),
    name("thread", "Steps", 5, 1),
    name("thread", "XLA Modules", 5, 2),
    name("thread", "XLA Ops", 5, 3),
    *STEPS,
    event(5, 1, "7", 0, 70),
    event(5, 1, "8", 100, 120),
    event(5, 2, "jit_train_step(1)", 0, 120),
    event(5, 3, "while.2", 0, 70, hlo_category="while"),  # contains the operations that it runs
    event(5, 3, "fusion.1", *COMPUTE, hlo_category="loop fusion"),
    event(5, 3, "fusion.9", *COLLECTIVE, hlo_category="all-reduce fusion"),
    event(5, 3, "infeed.4", *COPY, hlo_category="infeed"),
    event(5, 3, "fusion.1", *LATE, hlo_category="loop fusion"),
    {},
]


def profile(root: Path, rows: list[Row], host: str = "node-a", run: str = "2026_11_23_03_42_37") -> Path:
    path = root / "plugins" / "profile" / run / f"{host}.trace.json.gz"
    path.parent.mkdir(parents=True, exist_ok=True)
    document = {"displayTimeUnit": "ns", "metadata": {"highres-ticks": True}, "traceEvents": rows}
    path.write_bytes(gzip.compress(json.dumps(document).encode()))
    return root


def test_a_gpu_in_a_profile_of_jax_has_the_same_shares_and_reasons(tmp_path: Path) -> None:
    facts, (steps,) = read(profile(tmp_path, GPU))
    device = the_only(facts.devices)
    assert shares(device) == SHARES
    assert device.idle_for["host"] == pytest.approx(0.025)
    assert device.idle_for["launch"] == pytest.approx(0.005)
    assert [part.name for part in device.host] == ["train.py(12): step", "cuLaunchKernel"]
    (collective,) = facts.collectives
    assert collective.operation == "allreduce"
    assert collective.seconds == pytest.approx(0.030)
    assert (device.device, device.node, facts.ranks[0].pid, facts.ranks[0].framework) == (
        "gpu0",
        "node-a",
        0,
        "",
    )
    assert steps.numbers.tolist() == [3, 4]
    assert steps.durations.tolist() == pytest.approx([0.050, 0.005])  # a step ends when the next one begins


def test_a_window_of_jax_has_its_own_steps_and_lines_and_waits_are_no_operators(tmp_path: Path) -> None:
    marks = [
        {**event(99, 99, f"ProfilerStep#{5 + n}", 60 * n, 60 * n + 60), "cat": "user_annotation"}
        for n in range(2)
    ]
    line = {"ph": "i", "cat": LINE, "pid": 99, "tid": 99, "name": "train.py:12"}
    moments = [{**line, "ts": 1000 * (2 + at)} for at in range(3)]
    work = [
        *HOST,
        event(701, 1, f"{ANCHOR}{BASE}", 0, 0),
        *STEPS,  # the script's own
        event(701, 1, "PjitFunction(train)", 1, 11),
        event(701, 1, "np.asarray(jax.Array)", 12, 55),
        event(701, 2, "ThunkExecutor::Execute (wait for completion)", 10, 50),
        event(701, 2, "dot.3", 12, 42, hlo_op="dot.3"),
    ]
    path = tmp_path / "rank-0.steps-5-6.99-0.pt.trace.json"
    document = {"host_name": "node-a", "baseTimeNanoseconds": BASE, "traceEvents": [*marks, *moments, *work]}
    path.write_text(json.dumps(document))
    facts, (steps,) = read(path)
    assert steps.numbers.tolist() == [5, 6]
    assert steps.durations.tolist() == pytest.approx([0.060, 0.060])
    assert steps.starts[0] == BASE / 1e9
    own = {each.operator: each.self_seconds for each in facts.operators}
    assert own == pytest.approx({"PjitFunction(train)": 0.010, "dot.3": 0.030})
    assert {each.operator: each.place for each in facts.operators if each.place} == {
        "PjitFunction(train)": "train.py:12"
    }
    assert (facts.operators[0].node, facts.ranks[0].pid, facts.unrecognised) == ("node-a", 99, 0)


def test_a_tpu_counts_what_its_control_flow_runs_and_its_own_steps(tmp_path: Path) -> None:
    facts, (steps,) = read(profile(tmp_path, TPU))
    device = the_only(facts.devices)
    assert device.device == "tpu3"
    assert shares(device) == SHARES
    assert device.idle_for["unknown"] == pytest.approx(0.030)  # nobody records what launches work on a TPU
    assert steps.numbers.tolist() == [7, 8]
    assert steps.durations.tolist() == pytest.approx([0.100, 0.020])


def test_the_report_of_a_profile_has_no_date_and_names_what_is_missing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source = profile(tmp_path, [*GPU[:-1], event(701, 1, "IteratorGetNext", 70, 88), {}])
    assert main(["report", str(source), "--out", str(tmp_path / "report")]) == 0
    capsys.readouterr()
    report = json.loads((tmp_path / "report" / "report.json").read_text())
    assert report["run"]["start"] is None
    assert "1970" not in (tmp_path / "report" / "report.html").read_text()
    said = " ".join(report["measurement"]["unknowns"])
    assert "does not contain the date" in said
    assert "It waited mostly for" in " ".join(report["verdict"]["sentences"])


def test_a_step_ends_with_its_work_although_the_host_marks_the_next_one_before(tmp_path: Path) -> None:
    calls = [
        event(701, 1, "cuLaunchKernel", 50 * n, 50 * n + 1, correlation_id=str(70 + n)) for n in range(2)
    ]
    work = [
        event(1, 13, "fusion", 120 + 100 * n, 220 + 100 * n, kernel_details="", correlation_id=str(70 + n))
        for n in range(2)
    ]
    _, (steps,) = read(profile(tmp_path, [*GPU, *calls, *work]))
    assert steps.starts.tolist() == pytest.approx([0.0, 0.220])
    assert steps.durations.tolist() == pytest.approx([0.220, 0.100])


def test_steps_of_a_host_that_runs_ahead_of_unknown_launches_are_not_known(tmp_path: Path) -> None:
    work = event(701, 2, "dot.1", 2, 300, hlo_op="dot.1")
    facts, steps = read(profile(tmp_path, [*HOST, *STEPS, work]))
    assert steps == []
    assert any("the host ran ahead of its device" in sentence for sentence in facts.unknowns)


def test_a_wait_for_the_input_pipeline_of_tensorflow_is_a_wait_for_data(tmp_path: Path) -> None:
    rows = [*GPU, event(701, 1, "IteratorGetNextOp::DoCompute", 70, 85)]
    facts, _ = read(profile(tmp_path, rows))
    assert the_only(facts.devices).idle_for["data"] == pytest.approx(0.015)
    assert the_only(facts.devices).idle_for["host"] == pytest.approx(0.010)


def test_hosts_are_ranks_captures_add_up_and_jax_s_copy_counts_once(tmp_path: Path) -> None:
    for host in ("node-a", "node-b"):
        for run, last in (("run-1", 120), ("run-2", 130)):
            profile(tmp_path, [*GPU, event(701, 1, "cuEventRecord", 95, last)], host, run)
    whole = tmp_path / "plugins" / "profile" / "run-1" / "node-a.trace.json.gz"
    (whole.parent / "perfetto_trace.json.gz").write_bytes(whole.read_bytes())
    facts, _ = read(tmp_path)
    assert [(rank.node, rank.rank) for rank in facts.ranks] == [("node-a", 0), ("node-b", 1)]
    assert [device.compute for device in facts.devices] == pytest.approx([0.120, 0.120])
    assert facts.ranks[0].end == pytest.approx(facts.ranks[0].start + 0.250)


def test_lines_that_nobody_here_knows_are_reported(tmp_path: Path) -> None:
    rows = [
        name("process", "/device:TPU:0 SparseCore 1", 6),
        name("thread", "Ops", 6, 1),
        event(6, 1, "x", 0, 1),
    ]
    facts, _ = read(profile(tmp_path, [*TPU[:-1], *rows]))
    assert any("/device:tpu:0 sparsecore 1, ops (1)" in sentence for sentence in facts.unknowns)


def test_a_binary_profile_is_refused_with_the_way_out(tmp_path: Path) -> None:
    for file, way in (("host.xplane.pb", "trace.json.gz"), ("job.nsys-rep", "nsys export --type sqlite")):
        directory = tmp_path / way[:4]
        directory.mkdir()
        (directory / file).write_bytes(b"\n\0")
        for place in (directory, directory / file):
            with pytest.raises(UserError, match=way):
                open_source(place)


# ----------------------------------------------------------------------------------------- Nsight Systems

TABLES = """
CREATE TABLE StringIds (id INTEGER PRIMARY KEY, value TEXT NOT NULL);
CREATE TABLE TARGET_INFO_GPU (id INTEGER, name TEXT, busLocation TEXT);
CREATE TABLE TARGET_INFO_CUDA_DEVICE (gpuId INTEGER, cudaId INTEGER, pid INTEGER);
CREATE TABLE TARGET_INFO_SYSTEM_ENV (globalVid INTEGER, name TEXT, value TEXT);
CREATE TABLE TARGET_INFO_SESSION_START_TIME (utcEpochNs INTEGER, utcTime TEXT);
CREATE TABLE ENUM_CUDA_MEMCPY_OPER (id INTEGER, name TEXT, label TEXT);
CREATE TABLE ENUM_CUDA_MEM_KIND (id INTEGER, name TEXT, label TEXT);
CREATE TABLE CUPTI_ACTIVITY_KIND_KERNEL (start INTEGER, end INTEGER, deviceId INTEGER, streamId INTEGER,
  correlationId INTEGER, globalPid INTEGER, demangledName INTEGER, shortName INTEGER);
CREATE TABLE CUPTI_ACTIVITY_KIND_MEMCPY (start INTEGER, end INTEGER, deviceId INTEGER, streamId INTEGER,
  correlationId INTEGER, globalPid INTEGER, copyKind INTEGER, srcKind INTEGER, dstKind INTEGER);
CREATE TABLE CUPTI_ACTIVITY_KIND_RUNTIME (start INTEGER, end INTEGER, globalTid INTEGER,
  correlationId INTEGER, nameId INTEGER);
CREATE TABLE NVTX_EVENTS (start INTEGER, end INTEGER, eventType INTEGER, text TEXT, textId INTEGER,
  globalTid INTEGER);
INSERT INTO TARGET_INFO_GPU VALUES (0, 'NVIDIA A100', 'a'), (1, 'NVIDIA H100', 'b');
INSERT INTO TARGET_INFO_SYSTEM_ENV VALUES (0, 'Hostname', 'node-a');
INSERT INTO TARGET_INFO_SESSION_START_TIME VALUES (1700000000000000000, '');
INSERT INTO ENUM_CUDA_MEMCPY_OPER VALUES (1, '', 'Host-to-Device');
INSERT INTO ENUM_CUDA_MEM_KIND VALUES (0, '', 'Pageable'), (2, '', 'Device');
INSERT INTO StringIds VALUES (1, 'gemm'), (2, 'ncclDevKernel_AllReduce_Sum_f32_RING_LL(args)'),
  (3, 'cudaLaunchKernel_v7000'), (4, 'cudaMemcpyAsync_v3020'), (5, 'step 4');
"""


def nanoseconds(*milliseconds: float) -> tuple[int, ...]:
    return tuple(round(time * 1_000_000) for time in milliseconds)


def export(path: Path, processes: tuple[int, ...] = (100,), more: str = "") -> Path:
    """Writes the pattern for each process: process 100 on the CUDA device 0, which is the GPU 1."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with sqlite3.connect(path) as database:
        database.executescript(TABLES)
        for pid in processes:
            whose = pid << 24
            kernels = [(COMPUTE, 7, 1, 1), (COLLECTIVE, 9, 2, 2), (LATE, 7, 4, 1)]
            for times, stream, correlation, text in kernels:
                database.execute(
                    "INSERT INTO CUPTI_ACTIVITY_KIND_KERNEL VALUES (?, ?, 0, ?, ?, ?, ?, ?)",
                    (*nanoseconds(*times), stream, correlation, whose, text, text),
                )
            database.execute(
                "INSERT INTO CUPTI_ACTIVITY_KIND_MEMCPY VALUES (?, ?, 0, 7, 3, ?, 1, 0, 2)",
                (*nanoseconds(*COPY), whose),
            )
            calls = [(56, 71, 3, 4), (90, 92, 4, 3)]
            for start, end, correlation, text in calls:
                database.execute(
                    "INSERT INTO CUPTI_ACTIVITY_KIND_RUNTIME VALUES (?, ?, ?, ?, ?)",
                    (*nanoseconds(start, end), whose + 101, correlation, text),
                )
            ranges = [
                (0, 50, "step 3", None),
                (60, 118, None, 5),
                (0, 3, "aten::add", None),
                (1, None, "step 9", None),
            ]
            for start, last, mark, registered in ranges:
                stop = None if last is None else last * 1_000_000
                database.execute(
                    "INSERT INTO NVTX_EVENTS VALUES (?, ?, 59, ?, ?, ?)",
                    (start * 1_000_000, stop, mark, registered, whose + 101),
                )
            database.execute("INSERT INTO TARGET_INFO_CUDA_DEVICE VALUES (1, 0, ?)", (pid,))
        database.executescript(more)
    database.close()
    return path


def test_an_export_of_nsight_systems_has_the_same_shares_reasons_and_steps(tmp_path: Path) -> None:
    facts, (steps,) = read(export(tmp_path / "job.sqlite"))
    device = the_only(facts.devices)
    assert shares(device) == SHARES
    assert device.idle_for["host"] == pytest.approx(0.022)
    assert device.idle_for["launch"] == pytest.approx(0.008)
    assert [(part.name, part.calls) for part in device.synchronising] == [("pageable copy", 1)]
    (collective,) = facts.collectives
    assert collective.operation == "allreduce"
    assert collective.exposed_seconds == pytest.approx(0.020)
    assert steps.numbers.tolist() == [3, 4]
    assert steps.starts.tolist() == pytest.approx([1_700_000_000.000, 1_700_000_000.070])
    # The copy that step 3 launched ends at 70, the last kernel at 120.
    assert steps.durations.tolist() == pytest.approx([0.070, 0.050])
    assert (facts.ranks[0].node, facts.ranks[0].pid) == ("node-a", 100)
    assert [(gpu.gpu, gpu.model) for gpu in facts.nodes[0].gpus] == [("0", "NVIDIA H100")]


def test_each_process_of_an_export_is_a_rank(tmp_path: Path) -> None:
    export(tmp_path / "job.sqlite", processes=(100, 200))
    facts, _ = read(tmp_path)
    assert [(rank.rank, rank.pid) for rank in facts.ranks] == [(0, 100), (1, 200)]
    assert [shares(device) == SHARES for device in facts.devices] == [True, True]
    assert [call.calls for call in facts.collectives] == [1, 1]


def test_whole_cuda_graphs_count_as_compute_and_that_is_said(tmp_path: Path) -> None:
    graphs = """
    CREATE TABLE CUPTI_ACTIVITY_KIND_GRAPH_TRACE (start INTEGER, end INTEGER, deviceId INTEGER,
      streamId INTEGER, correlationId INTEGER, globalPid INTEGER, graphId INTEGER);
    INSERT INTO CUPTI_ACTIVITY_KIND_GRAPH_TRACE VALUES (70000000, 90000000, 0, 7, 8, 1677721600, 5);
    """
    facts, _ = read(export(tmp_path / "job.sqlite", more=graphs))
    assert the_only(facts.devices).compute == pytest.approx(0.080)
    assert any("--cuda-graph-trace=node" in sentence for sentence in facts.unknowns)


def test_an_export_of_an_older_nsys_lacks_columns_and_tables(tmp_path: Path) -> None:
    older = """
    ALTER TABLE CUPTI_ACTIVITY_KIND_KERNEL DROP COLUMN demangledName;
    ALTER TABLE CUPTI_ACTIVITY_KIND_KERNEL DROP COLUMN globalPid;
    ALTER TABLE CUPTI_ACTIVITY_KIND_MEMCPY DROP COLUMN globalPid;
    DROP TABLE ENUM_CUDA_MEMCPY_OPER;
    DROP TABLE NVTX_EVENTS;
    DROP TABLE TARGET_INFO_CUDA_DEVICE;
    """
    facts, steps = read(export(tmp_path / "job.sqlite", more=older))
    assert shares(the_only(facts.devices)) == SHARES
    assert steps == []
    assert any("mark each step with a range of NVTX" in sentence for sentence in facts.unknowns)


def test_a_row_of_an_export_without_a_time_costs_itself(tmp_path: Path) -> None:
    without = """
    INSERT INTO CUPTI_ACTIVITY_KIND_KERNEL SELECT start, NULL, deviceId, streamId, 99, globalPid,
      demangledName, shortName FROM CUPTI_ACTIVITY_KIND_KERNEL LIMIT 1;
    INSERT INTO NVTX_EVENTS SELECT NULL, 9, eventType, text, textId, globalTid FROM NVTX_EVENTS LIMIT 1;
    """
    facts, _ = read(export(tmp_path / "job.sqlite", more=without))
    assert shares(the_only(facts.devices)) == SHARES
    assert any("kernel without a duration" in sentence for sentence in facts.unknowns)


NO_WORK = "DELETE FROM CUPTI_ACTIVITY_KIND_KERNEL; DELETE FROM CUPTI_ACTIVITY_KIND_MEMCPY;"
DAMAGES = {
    "no CUDA activity": NO_WORK.replace("DELETE FROM", "DROP TABLE")
    + "DROP TABLE CUPTI_ACTIVITY_KIND_RUNTIME",
    "no event": NO_WORK + "DELETE FROM CUPTI_ACTIVITY_KIND_RUNTIME; DELETE FROM NVTX_EVENTS",
    "not an export": "UPDATE CUPTI_ACTIVITY_KIND_KERNEL SET start = 'soon'",
    "not an export of Nsight": "UPDATE CUPTI_ACTIVITY_KIND_KERNEL SET globalPid = 'mine'",
    "not an export of Nsight Systems": "UPDATE CUPTI_ACTIVITY_KIND_KERNEL SET correlationId = 'first'",
}


@pytest.mark.parametrize(("said", "damage"), DAMAGES.items())
def test_an_export_without_work_or_with_other_values_is_one_line(
    tmp_path: Path, said: str, damage: str
) -> None:
    path = export(tmp_path / "job.sqlite")
    _run(path, damage)
    _is_refused(path, said)


@pytest.mark.parametrize("kept", [200, 5000, 20000])
def test_a_damaged_export_is_one_line_that_names_the_file(tmp_path: Path, kept: int) -> None:
    path = export(tmp_path / "job.sqlite")
    path.write_bytes(path.read_bytes()[:kept])
    _is_refused(path, "cannot be read")


def _is_refused(path: Path, said: str) -> None:
    with pytest.raises(UserError, match=said) as failure:
        read(path)
    assert str(path) in str(failure.value)
    assert "\n" not in str(failure.value)


def _run(path: Path, statements: str) -> None:
    with sqlite3.connect(path) as database:
        database.executescript(statements)
    database.close()


def test_an_export_is_opened_by_its_content_and_judged_whole(tmp_path: Path) -> None:
    source = open_source(export(tmp_path / "job.sqlite").rename(tmp_path / "job.db"))
    analysis = evaluate(source)
    host_bound = of_rule("HostBound", analysis)
    assert host_bound.details["devices"][0]["percent"]["idle"] == pytest.approx(25)
