"""Floating-point operations of operators, from the shapes of their inputs."""

import pytest
from stepscope.runs.traces.flops import flops_of

QUERY, KEY, VALUE = [2, 4, 10, 8], [2, 4, 20, 8], [2, 4, 20, 16]
OF_ALL_HEADS = 2 * 4 * 10 * 20  # batch, heads, queries and keys


@pytest.mark.parametrize(
    ("operator", "shapes", "operations"),
    [
        ("mm", [[3, 5], [5, 7]], 2 * 3 * 5 * 7),
        ("mm", [[3, 5], [5, 7], [3, 7]], 2 * 3 * 5 * 7),  # into an output, as compiled code does
        ("addmm", [[7], [3, 5], [5, 7], [], []], 2 * 3 * 5 * 7),
        ("bmm", [[4, 3, 5], [4, 5, 7]], 2 * 4 * 3 * 5 * 7),
        ("baddbmm", [[4, 3, 7], [4, 3, 5], [4, 5, 7]], 2 * 4 * 3 * 5 * 7),
        ("_scaled_dot_product_flash_attention", [QUERY, KEY, VALUE], 2 * OF_ALL_HEADS * (8 + 16)),
        (
            "_scaled_dot_product_efficient_attention_backward",
            [VALUE, QUERY, KEY, VALUE],
            2 * OF_ALL_HEADS * 56,
        ),
        (
            "_scaled_dot_product_flash_attention_for_cpu_backward",
            [VALUE, QUERY, KEY, VALUE],
            2 * OF_ALL_HEADS * (3 * 8 + 2 * 16),
        ),
        ("add", [[3, 5], [3, 5]], None),
    ],
)
def test_operations_of_products_and_attention(
    operator: str, shapes: list[list[int]], operations: float | None
) -> None:
    assert flops_of(f"aten::{operator}", shapes, {}) == operations


def test_groups_of_a_convolution_take_fewer_operations() -> None:
    forward = ["", "", "", "[1, 1]", "[1, 1]", "[1, 1]", "False", "[0, 0]", "4"]
    shapes = [[2, 16, 9, 9], [32, 4, 3, 3], [32], [], [], [], [], [], []]
    one_pass = 2 * (2 * 9 * 9) * (32 * 4 * 3 * 3)
    assert flops_of("aten::convolution", shapes, {"Concrete Inputs": forward}) == one_pass
    backward = ["", "", "", "[32]", "[1, 1]", "[1, 1]", "[1, 1]", "False", "[0, 0]", "4"]
    for wanted, passes in (("[True, True, True]", 2), ("[False, True, False]", 1)):
        arguments = {"Concrete Inputs": [*backward, wanted]}
        of_backward = [[2, 32, 9, 9], *shapes[:2]]
        assert flops_of("aten::convolution_backward", of_backward, arguments) == passes * one_pass


STRIDE_0 = ["", "", "", "[0, 0]", "[1, 1]", "[1, 1]", "False", "[0, 0]", "1"]


@pytest.mark.parametrize(
    ("operator", "shapes", "arguments"),
    [
        ("mm", [[3, 5]], {}),
        ("mm", "many", {}),
        ("bmm", [[[1, 2]], [[3]]], {}),
        ("convolution", [[2, 16, 9, 9], [32, 4, 3, 3]], {}),  # of a PyTorch that records no numbers
        ("convolution", [[2, 16, 9, 9], [32, 4, 3, 3]], {"Concrete Inputs": ["", "", "", "[0]"] * 4}),
        ("convolution_backward", [[1]] * 3, {"Concrete Inputs": ["False"] * 11}),
        ("_scaled_dot_product_flash_attention", [[8]] * 3, {}),
        # Impossible
        ("mm", [[-3, 5], [5, 2]], {}),
        ("mm", [[10**400], [5]], {}),
        ("convolution", [[2, 16, 9, 9], [32, 4, 3, 3]], {"Concrete Inputs": STRIDE_0}),
        ("convolution", [[2, 16, 9, 9], [32, 4, 3, 3]], {"Concrete Inputs": [0] * 9}),
        ("convolution", [[2, 16, 9, 9], [32, 4, 3, 3]], {"Concrete Inputs": 5}),
        ("convolution_backward", [[1]] * 3, {"Concrete Inputs": ["False"] * 10 + ["[" * 100_000]}),
    ],
)
def test_operations_are_not_known_if_the_trace_does_not_say_enough(
    operator: str, shapes: object, arguments: dict[str, object]
) -> None:
    found = flops_of(f"aten::{operator}", shapes, arguments)
    assert found is not None
    assert found != found  # NaN
