"""The label of a command's run: that of its ledgers, if the run's nodes have agreed on another one."""

import pytest
from stepscope.exporter.ledgers.presence import observed


@pytest.mark.parametrize(
    ("labels", "expected"),
    [
        ([], "my-train-00000001"),
        (["my-train-00000001"], "my-train-00000001"),
        (["my-train-00000002"], "my-train-00000002"),
        (["my-train-00000001", "my-train-00000002"], "my-train-00000001"),  # a second run of the script
        (["my-train-00000002", "my-train-00000003"], "my-train-00000001"),
        (["my-test-00000002"], "my-train-00000001"),  # a name that the script gave
    ],
)
def test_a_command_takes_the_label_on_which_its_nodes_have_agreed(labels: list[str], expected: str) -> None:
    assert observed("my-train-00000001", labels) == expected
