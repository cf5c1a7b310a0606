"""Sorts the kernels of GPUs by what they compute, as their names say.

Names are those of PyTorch's own kernels, cuBLAS, cuDNN, CUTLASS, FlashAttention, hipBLASLt, MIOpen and
Triton.
"""

import re
from collections.abc import Iterable

from stepscope.rules.parts.shares import summed
from stepscope.runs.model import DeviceTime, OperatorTime

OTHERS = "other kernels"
# The first kind counts of which the name has a part. Kernels of attention contain products of matrices, those
# of fused operators name all of them.
KINDS = {
    "fused by torch.compile": r"^triton_(?!tem_)",
    "attention": r"flash|fmha|attention|attn",
    "normalisation": r"(layer|batch|rms|group|instance)_?norm|\bbn_|cudnn::bn",
    "convolution": r"conv|winograd|cudnn|miopen|wgrad|dgrad|fprop|nchw|nhwc",
    "matrix products": r"gemm|gemv|cublas|cutlass|nvjet|xmma|Cijk_|matmul|splitk|^triton_tem_",
    "softmax and loss": r"softmax|nll_?loss|cross_?entropy",
    "optimizer": r"multi_tensor_apply|adam",
    "dropout and random numbers": r"dropout|distribution|random|philox",
    "embeddings and indices": r"embedding|index|gather|scatter",
    "sorting and scans": r"sort|topk|scan|radix",
    "pooling": r"pool",
    "reductions": r"reduce",
    "elementwise": r"elementwise|catarray|fill",
}
_PATTERNS = {kind: re.compile(pattern, re.IGNORECASE) for kind, pattern in KINDS.items()}


def kind_of(kernel: str) -> str:
    """Returns the kind of a kernel."""
    return next((kind for kind, pattern in _PATTERNS.items() if pattern.search(kernel)), OTHERS)


def kernel_kinds(kernels: Iterable[OperatorTime], device: DeviceTime | None) -> dict[str, float]:
    """Returns the seconds of one GPU by kind, the longest first; copies and collectives if they are known."""
    sums = summed({kind_of(kernel.operator): kernel.seconds} for kernel in kernels)
    if device is not None:
        sums |= {"memory copies": device.copy, "exposed communication": device.communication}
    return dict(sorted(((kind, each) for kind, each in sums.items() if each), key=lambda item: -item[1]))
