"""Joins the series of exporters by the name of the node. It imports no numpy, for `stepscope doctor`."""

from collections.abc import Sequence

# Names of nodes without their domain or port, and whole IP addresses: exporters differ in which they give.
NODE = r"(\\d+[.]\\d+[.]\\d+[.]\\d+|[\\w-]+).*"
DCGM_LABELS = ("instance", "hostname", "Hostname")  # labels of dcgm-exporter's versions; the last one counts
# Series of every GPU that dcgm-exporter reads, by their names before 4.9 and since.
GPUS_OF_DCGM = " or ".join(
    f"DCGM_FI_DEV_{name}" for name in ("FB_USED", "FB_USED_BYTES", "GPU_UTIL", "GPU_UTIL_RATIO")
)


def by_node(expression: str, names: Sequence[str], *kept: str) -> str:
    """Returns the largest value of each node, by the short name in the last of these labels that it has.

    A node may have several targets, and a GPU several pods.
    """
    for label in names:
        expression = f'label_replace({expression}, "node", "$1", "{label}", "{NODE}")'
    labels = ", ".join(("cluster", *kept))
    largest = f"max by ({labels}, node) ({expression})"
    return f'max by ({labels}, instance) (label_replace({largest}, "instance", "$1", "node", "(.+)"))'
