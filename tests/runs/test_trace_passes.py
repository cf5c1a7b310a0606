"""Passes by module in a trace: whose time the nodes of a graph, computing again and kernels are."""

import json
from pathlib import Path
from typing import Any

import pytest
from stepscope.runs.traces.source import KinetoTraces
from stepscope.training.window_files import MODULE

from tests.support.profile_windows import event, modules_of_a_step, numbered

NODE = "autograd::engine::evaluate_function: "
NET, HEAD = "Net", "Net.head (Linear)"


def passes(folder: Path, *events: dict[str, Any]) -> dict[tuple[str, str, str], Any]:
    path = folder / "a.pt.trace.json"
    path.write_text(json.dumps({"traceEvents": events}))
    source = KinetoTraces(path)
    list(source.read())
    return {
        (each.device, each.part, each.module): pytest.approx(each.seconds, rel=1e-3)
        for each in source.facts.passes
    }


def test_a_node_of_the_graph_is_of_the_module_that_called_its_operator(tmp_path: Path) -> None:
    assert passes(tmp_path, *modules_of_a_step()) == {
        ("cpu", "forward", NET): 0.1,
        ("cpu", "forward", HEAD): 0.3,
        ("cpu", "backward", HEAD): 0.2,
        ("cpu", "optimizer", ""): 0.1,
    }


def test_a_module_that_the_backward_pass_calls_again_is_of_that(tmp_path: Path) -> None:
    again = [
        numbered(f"{NODE}CheckpointFunctionBackward", 2.9, 0.1, 90),
        event(HEAD, 2.92, 0.05, MODULE),
        numbered("aten::addmm", 2.93, 0.03, 91),
        numbered(f"{NODE}AddmmBackward0", 2.975, 0.02, 91),
    ]
    found = passes(tmp_path, *modules_of_a_step(), *again)
    assert found["cpu", "backward", HEAD] == 0.2 + 0.05 + 0.02
    assert found["cpu", "backward", ""] == 0.1 - 0.05 - 0.02


def test_a_node_of_an_operator_outside_of_modules_is_of_none(tmp_path: Path) -> None:
    loss = [numbered("aten::mse_loss", 2.41, 0.01, 8), numbered(f"{NODE}MseLossBackward0", 2.45, 0.02, 8)]
    # An operator without a node has the number of the next one that gets a node.
    inside = numbered("aten::detach", 2.31, 0.01, 8)
    assert passes(tmp_path, *modules_of_a_step(), inside, *loss)["cpu", "backward", ""] == 0.02


def test_kernels_are_of_the_module_that_launched_them(tmp_path: Path) -> None:
    launched = []
    for number, (begin, length) in enumerate([(2.15, 0.04), (2.6, 0.05), (2.85, 0.06), (2.95, 0.07)], 1):
        launch = event("cudaLaunchKernel", begin, 0.001, "cuda_runtime")
        kernel = event("gemm", begin + 0.5, length, "kernel") | {"pid": 0, "tid": 7}
        kernel["args"] = {"correlation": number, "device": 0}
        launched += [launch | {"args": {"correlation": number}}, kernel]
    found = passes(tmp_path, *modules_of_a_step(), *launched)
    assert {key[1:]: seconds for key, seconds in found.items() if key[0] == "gpu0"} == {
        ("forward", HEAD): 0.04,
        ("backward", HEAD): 0.05,
        ("optimizer", ""): 0.06,  # the last kernel is of nothing that is known
    }


def test_a_trace_without_modules_has_no_passes(tmp_path: Path) -> None:
    assert passes(tmp_path, *(each for each in modules_of_a_step() if each["cat"] != MODULE)) == {}


def test_an_update_counts_until_its_step_ends(tmp_path: Path) -> None:
    step = event("ProfilerStep#2", 2.0, 0.85, "user_annotation")
    assert passes(tmp_path, *modules_of_a_step(), step)["cpu", "optimizer", ""] == 0.05
