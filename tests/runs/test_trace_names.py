"""Names in traces: categories of devices, kernels and operators of collectives, and where files are."""

from pathlib import Path
from typing import Any

import pytest
from stepscope.evaluation.engine import evaluate
from stepscope.rules.host_bound import gpu_name
from stepscope.runs.open import open_source
from stepscope.runs.traces.collectives import operation_of
from stepscope.runs.traces.source import KinetoTraces

from tests.runs.test_kineto import Row, marked, on_gpu, read, row, summary_of, write
from tests.support.few_rules import of_rule


@pytest.mark.parametrize(
    ("runtime", "kernel", "copy", "clear"),
    [
        ("cuda_runtime", "kernel", "gpu_memcpy", "gpu_memset"),  # CUDA, and ROCm
        ("cuda_driver", "kernel", "gpu_memcpy", "gpu_memset"),
        ("hip_runtime", "kernel", "gpu_memcpy", "gpu_memset"),
        ("xpu_runtime", "kernel", "gpu_memcpy", "gpu_memset"),
        ("xpu_driver", "concurrent_kernel", "gpu_memcpy", "gpu_memset"),
        ("mtia_runtime", "mtia_ccp_events", "gpu_memcpy", "gpu_memset"),
        ("privateuse1_runtime", "kernel", "gpu_memcpy", "gpu_memset"),
        ("privateuse1_driver", "kernel", "gpu_memcpy", "gpu_memset"),
        ("mlu_runtime", "kernel", "mlu_memcpy", "mlu_memset"),
        ("hpu_op", "kernel", "gpu_memcpy", "gpu_memset"),
        ("Runtime", "Kernel", "Memcpy", "Memset"),  # PyTorch before 1.11
    ],
)
def test_every_kind_of_device_has_the_same_shares_and_reasons(
    tmp_path: Path, runtime: str, kernel: str, copy: str, clear: str
) -> None:
    rows = [
        on_gpu(kernel, "gemm", 0, 10, correlation=1),
        on_gpu("gpu_user_annotation", "ProfilerStep#1", 0, 40),
        row(runtime, "launch", 14, 15, correlation=2),
        on_gpu(copy, "Memcpy HtoD", 16, 20, correlation=2),
        on_gpu(clear, "Memset", 20, 22),
    ]
    _, summaries, facts = read(write(tmp_path / "trace.json", rows))
    (device,) = summaries[0].devices
    times = (
        device.compute,
        device.copy,
        device.communication,
        device.idle_for["host"],
        device.idle_for["launch"],
    )
    assert [round(1000 * time, 6) for time in times] == [10, 6, 0, 5, 1]
    assert not any("not understood" in sentence for sentence in facts.unknowns)


def without_category(process: int | str, name: str, start: float, end: float, **args: Any) -> Row:
    known = row("", name, start, end, **args)
    return {**known, "cat": None, "pid": process, "ts": f"{known['ts']:.3f}"}  # Ascend writes times as texts


def test_tasks_of_ascend_compute_copy_wait_or_are_parts_of_a_collective(tmp_path: Path) -> None:
    rows = [
        {"ph": "M", "name": "process_name", "pid": 5, "args": {"name": "Overlap Analysis"}},
        without_category(5, "Computing", 0, 50),
        without_category(3, "MatMulV2", 0, 10, **{"Task Type": "AI_CORE", "connection_id": 1}),
        without_category(2, "Node@launch", 14, 15, connection_id=2),
        without_category(3, "MEMCPY_ASYNC", 16, 20, **{"Task Type": "MEMCPY_ASYNC", "connection_id": 2}),
        without_category(3, "Add", 20, 22, **{"Task Type": "KERNEL_AIVEC"}),
        without_category(4, "hcom_allReduce__123_0_1", 22, 30),
        without_category(4, "Reduce_Inline", 22, 40, **{"task type": "Reduce Inline"}),
        without_category(3, "Notify_Wait", 22, 40, **{"Task Type": "NOTIFY_WAIT_SQE"}),
    ]
    _, summaries, facts = read(write(tmp_path / "trace_view.json", rows))
    (device,) = summaries[0].devices
    times = device.compute, device.copy, device.communication, *device.idle_for.values()
    assert [round(1000 * time, 6) for time in times if time] == [12, 4, 8, 5, 1]
    assert [call.name for call in summaries[0].collectives] == ["allreduce"]
    assert (gpu_name(device), facts.damaged) == ("NPU 0", ())


def test_functions_of_the_profiler_before_kineto_are_operators_and_work_of_the_gpu(tmp_path: Path) -> None:
    rows = [
        without_category("CPU functions", "aten::mm", 0, 2),
        {**without_category("CUDA functions", "aten::mm", 3, 10), "tid": 1},
    ]
    _, (summary,), facts = read(write(tmp_path / "trace.json", rows))
    found = [(one.device, one.name, round(1000 * one.seconds, 6)) for one in summary.operators]
    assert found == [("cpu", "aten::mm", 2)]
    assert [(one.device, round(1000 * one.compute, 6)) for one in summary.devices] == [("gpu1", 7)]
    assert facts.damaged == ()


def test_waits_of_streams_are_no_work_and_unknown_categories_are_counted(tmp_path: Path) -> None:
    rows = [
        on_gpu("kernel", "gemm", 0, 10),
        on_gpu("cuda_sync", "Stream Wait Event", 10, 30),
        on_gpu("xpu_sync", "wait", 10, 30),
        *(on_gpu("mtia_insight", "x", 0, 50) for _ in range(3)),
        row("cuda_profiler_range", "range", 0, 50),
    ]
    _, summaries, facts = read(write(tmp_path / "trace.json", rows))
    assert [(one.device, round(one.seconds, 6)) for one in summaries[0].devices] == [("gpu0", 0.010)]
    said = "which count nowhere: cuda_profiler_range (1) and mtia_insight (3)"
    assert any(said in sentence for sentence in facts.unknowns)


@pytest.mark.parametrize(
    ("kernel", "operation"),
    [
        ("ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)", "allreduce"),
        ("ncclDevKernel_ReduceScatter_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)", "reducescatter"),
        ("ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096ul>)", "sendrecv"),
        ("ncclSymDevKernel_AllGather_LL(ncclSymDevArgs)", "allgather"),
        ("ncclKernel_AllReduce_RING_LL_Sum_float(ncclDevComm*, unsigned long, ncclWork*)", "allreduce"),
        ("ncclKernel_Broadcast_RING_LL_Sum_int8_t(ncclWorkElem)", "broadcast"),
        ("ncclAllReduceRingLLKernel_sum_f32(ncclColl)", "allreduce"),  # NCCL before 2.5
        ("ncclAllGatherRingLLKernel_copy_i8(ncclColl)", "allgather"),
        ("ncclDevKernel_Generic_4(ncclDevKernelArgsStorage<4096ul>)", "generic"),  # RCCL
        ("rccl_main_kernel", "rcclmainkernel"),
        ("void deep_ep::internode::dispatch<false, 8>(int4*)", "dispatch"),
        ("void deep_ep::internode_ll::combine<true, 7168>(void*)", "combine"),
        ("void deep_ep::intranode::notify_dispatch<8>(int const*)", "dispatch"),
        ("void deep_ep::layout::get_dispatch_layout<256, 4, 2>(long const*)", None),  # computes locally
        ("void nvshmemi_alltoall_kernel(int)", "alltoall"),
        ("multimem_all_reduce_kernel", "allreduce"),
        ("void multimem_one_shot_all_reduce_kernel<float, 16>(float*)", "allreduce"),
        ("void two_shot_all_reduce_kernel_inplace<c10::BFloat16, 16, 8>(c10::BFloat16**)", "allreduce"),
        ("void vllm::cross_device_reduce_1stage<__nv_bfloat16, 8>(RankData*)", "crossdevicereduce"),
        ("void at::native::vectorized_elementwise_kernel<4>(int)", None),
        ("void at::native::reduce_kernel<512, 1>(float)", None),
        ("void cutlass::Kernel2<dispatch_policy>(Params)", None),
    ],
)
def test_kernels_of_collectives_are_known_by_name(tmp_path: Path, kernel: str, operation: str | None) -> None:
    assert operation_of(kernel, on_device=True) == operation
    summary = summary_of(tmp_path, [on_gpu("kernel", "gemm", 0, 10), on_gpu("kernel", kernel, 10, 13)])
    assert [call.name for call in summary.collectives] == ([operation] if operation else [])
    assert round(summary.devices[0].communication, 6) == (0.003 if operation else 0)


@pytest.mark.parametrize(
    ("operator", "operation"),
    [
        ("gloo:all_reduce", "allreduce"),
        ("gloo:recv", "recv"),
        ("mpi:broadcast", "broadcast"),
        ("ucc:alltoall", "alltoall"),
        ("nccl:all_reduce", None),  # this and the next one only start a collective
        ("c10d::allreduce_", None),
        ("aten::all", None),
    ],
)
def test_operators_of_collectives_are_known_by_name(operator: str, operation: str | None) -> None:
    assert operation_of(operator, on_device=False) == operation


def test_components_that_overlap_count_once_and_shares_sum_to_the_whole(tmp_path: Path) -> None:
    rows = [
        marked(1, 0, 100),
        on_gpu("kernel", "gemm", 0, 30),
        on_gpu("kernel", "other stream", 10, 40, stream=8),
        on_gpu("gpu_memcpy", "Memcpy HtoD", 20, 50, stream=9),
        on_gpu("kernel", "ncclDevKernel_AllReduce_Sum_f32_RING_LL()", 30, 70, stream=20),
        row("cpu_op", "aten::mm", 0, 90),
        on_gpu("kernel", "last", 95, 100),
    ]
    summary = summary_of(tmp_path, rows)
    (device,), (step,) = summary.devices, summary.steps
    times = device.compute, device.copy, device.communication, device.idle
    assert [round(1000 * time, 6) for time in times] == [45, 10, 20, 25]
    assert sum(times) == pytest.approx(0.1)
    assert sum(device.idle_for.values()) == pytest.approx(device.idle)
    assert sum(step.slices.values()) == pytest.approx(step.seconds)


CAPTURE = [
    row("cuda_runtime", "cudaStreamBeginCapture", 12, 12.1),
    row("cpu_op", "aten::mm", 13, 20),
    row("cuda_runtime", "cudaLaunchKernel", 14, 15, correlation=7),
    row("cuda_runtime", "cudaStreamEndCapture", 37, 38),
]


@pytest.mark.parametrize(
    ("did", "kind", "helps"),
    [
        ([row("cuda_runtime", "cudaFree", 12, 38)], "memory", "empty_cache"),
        ([row("cuda_runtime", "hipHostMalloc", 12, 38)], "memory", "empty_cache"),
        ([row("cuda_driver", "cuMemCreate", 12, 38)], "memory", "empty_cache"),
        ([row("cuda_runtime", "cudaStreamSynchronize", 12, 38)], "synchronising", "less often"),
        ([row("cuda_runtime", "hipMemcpyWithStream", 12, 38)], "synchronising", "less often"),
        ([row("cuda_driver", "cuMemcpyDtoH_v2", 12, 38)], "synchronising", "less often"),
        ([row("xpu_runtime", "urQueueFinish", 12, 38)], "synchronising", "less often"),
        (
            [row("cuda_runtime", "cudaLaunchKernel", *times) for times in ((12, 38), (38, 38.1), (39, 39.1))],
            "slow call",
            "milliseconds instead",
        ),
        (
            [row("cuda_runtime", "cudaLaunchKernel", at / 2, at / 2 + 0.4) for at in range(24, 76)],
            "runtime",
            "graphs",
        ),
        (CAPTURE, "capture", "Graphs are captured once"),
        ([row("cuda_runtime", "cudaGraphInstantiateWithFlags", 12, 38)], "capture", "Graphs are captured"),
        ([row("python_function", "train.py(12): step", 12, 38)], "python", "Python code out of the steps"),
        ([], "not recorded", "with_stack=True"),
        ([row("user_annotation", "my step", 12, 38)], "not recorded", "with_stack=True"),
        ([row("cpu_op", "aten::normal_", 12, 38)], "computing", "compute on the host"),
        (
            [row("cpu_op", "aten::mm", at / 2, at / 2 + 0.4) for at in range(24, 76)],
            "operator",
            "CUDA graphs",
        ),
    ],
)
def test_the_advice_is_about_what_the_host_did_while_the_gpu_waited(
    tmp_path: Path, did: list[Row], kind: str, helps: str
) -> None:
    """The GPU is idle from 10 to 40 ms, because of the host."""
    analysis = evaluate(open_source(write(tmp_path / "trace.json", waiting_for_host(did))))
    (device,) = analysis.devices
    assert device.host[0].kind == kind, device.host
    assert sum(part.seconds for part in device.host) == pytest.approx(device.idle_for["host"])
    found = of_rule("HostBound", analysis)
    assert helps in found.recommendation
    assert ("CUDA graphs" in found.recommendation) == (kind in ("operator", "runtime"))


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("<built-in function collect>", "gc"),
        ("Python GC", "gc"),
        ("collections.py(12): step", "python"),
    ],
)
def test_a_host_that_collects_garbage_is_told_to_do_so_less(tmp_path: Path, name: str, kind: str) -> None:
    rows = waiting_for_host([row("python_function", name, 12, 38)])
    analysis = evaluate(open_source(write(tmp_path / "trace.json", rows)))
    (device,) = analysis.devices
    assert (device.host[0].kind, device.host[0].name) == (kind, name)
    found = of_rule("HostBound", analysis)
    assert ("Collect garbage between steps" in found.recommendation) == (kind == "gc")


@pytest.mark.parametrize(
    ("memory", "waits"), [("Pageable -> Device", ["aten::copy_ (pageable copy)"]), ("Pinned -> Device", [])]
)
def test_a_copy_from_pageable_memory_waits_for_the_device(
    tmp_path: Path, memory: str, waits: list[str]
) -> None:
    copy = [
        row("cpu_op", "aten::copy_", 12, 38),
        row("cuda_runtime", "cudaMemcpyAsync", 13, 37, correlation=5),
        on_gpu("gpu_memcpy", f"Memcpy HtoD ({memory})", 30, 31, correlation=5),
    ]
    device = summary_of(tmp_path, waiting_for_host(copy)).devices[0]
    assert [part.name for part in device.synchronising] == waits


def waiting_for_host(meanwhile: list[Row]) -> list[Row]:
    return [
        on_gpu("kernel", "a", 0, 10, correlation=1),
        row("cuda_runtime", "cudaLaunchKernel", 0, 1, correlation=1),
        *meanwhile,
        row("cuda_runtime", "cudaLaunchKernel", 40, 41, correlation=2),
        on_gpu("kernel", "b", 42, 50, correlation=2),
    ]


@pytest.mark.parametrize(
    "names",
    [
        ["trace.json"],
        ["trace.json.gz"],
        ["rank-0.json.gz", "rank-1.json.gz"],
        ["rank0.json", "rank1.json"],
        ["traces/rank_0.json.gz", "traces/rank_1.json.gz"],  # HolisticTraceAnalysis
        ["log/run/node-a_7.1700000000.pt.trace.json", "log/run/node-b_8.1700000001.pt.trace.json.gz"],
        ["0/trace.json", "1/trace.json"],
    ],
)
def test_files_and_folders_of_all_layouts_are_found_and_ranks_are_those_in_them(
    tmp_path: Path, names: list[str]
) -> None:
    for index, name in enumerate(reversed(names)):
        job: dict[str, Any] = {"distributedInfo": {"rank": index, "world_size": len(names)}}
        write(tmp_path / name, [marked(1, 0, 10 + index)], host_name=f"node-{index}", **job)
    (tmp_path / "config.json").write_text('{"lr": 0.1}')
    (tmp_path / names[0]).rename(tmp_path / "renamed")  # a file that the user names may have any name
    assert isinstance(open_source(tmp_path / "renamed"), KinetoTraces)
    (tmp_path / "renamed").rename(tmp_path / names[0])
    source = open_source(tmp_path)
    assert isinstance(source, KinetoTraces)
    list(source.read())
    found = [(rank.node, rank.rank, rank.steps["train"]) for rank in source.facts.ranks]
    assert found == [(f"node-{index}", index, 1) for index in range(len(names))]
