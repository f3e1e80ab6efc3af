"""Bytes that a CUDA kernel allocates and frees while it runs, by operator.

The rules say what torch's own code allocates, or what was measured around single operations on an
H200 (benchmarks/memory_gpu.py); each test states the numbers. Libraries may choose otherwise for
shapes that were not measured.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor

from stepladder.seam.operators import Operators

from .attention import attention_backward_bytes
from .convolution import convolution_backward_bytes, convolution_bytes
from .reductions import column_sum_bytes
from .sorting import embedding_backward_bytes, index_put_bytes

# Of cuBLAS, from its first product on: 4,096 KiB x 8 from Hopper on, and 8.1 MiB before
# (torch/ATen/cuda/CublasHandlePool.cpp).
CUBLAS = 32 * 2**20
PRODUCTS = Operators(("aten.mm", "aten.addmm", "aten.bmm", "aten.baddbmm"))
Rule = Callable[[Any, Any], int]  # of an operation's arguments and result


class Workspaces:
    """What kernels take for themselves on a type of device; nothing on a CPU."""

    def __init__(self, device: str) -> None:
        self.device, self.multiplied = device, False

    def keeps(self, op: Any) -> int:
        """What a library keeps from this call, its first, to the end of the process."""
        if self.device == "cpu" or self.multiplied or op.overloadpacket not in PRODUCTS:
            return 0
        self.multiplied = True
        return CUBLAS

    def __call__(self, op: Any, args: Any, result: Any) -> int:
        if self.device == "cpu" or op not in RULES:
            return 0
        rule: Rule = RULES[op]
        return rule(args, result)


def copies(args: Any, result: Any) -> int:
    """Of a kernel that first copies what is not contiguous."""
    given = [one for one in args if isinstance(one, Tensor)]
    return sum(num_bytes(one) for one in given if not one.is_contiguous())


def whole_result(args: Any, result: Any) -> int:
    """The product of the gradient and the result, of a softmax's backward pass."""
    return num_bytes(result)


def num_bytes(tensor: Tensor) -> int:
    return tensor.numel() * tensor.element_size()


RULES = Operators(
    {
        "aten.convolution.default": convolution_bytes,
        "aten.convolution_backward.default": convolution_backward_bytes,
        "aten._scaled_dot_product_flash_attention_for_cpu_backward.default": (
            attention_backward_bytes
        ),
        "aten._scaled_dot_product_flash_attention_backward.default": attention_backward_bytes,
        "aten._softmax_backward_data.default": whole_result,
        "aten.native_layer_norm.default": copies,
        "aten.native_layer_norm_backward.default": copies,
        "aten.upsample_nearest2d_backward.default": copies,
        "aten.embedding_dense_backward.default": embedding_backward_bytes,
        "aten.index_put.default": index_put_bytes,
        "aten.index_put_.default": index_put_bytes,
        "aten.sum.dim_IntList": column_sum_bytes,
    }
)
