"""The cause of an operation or a kernel, by its name.

Operations have torch's names. Kernels have the names of their libraries, in which a few words have
identified matmuls, attention and collectives for years. Everything else counts as memory-bound.
"""

from __future__ import annotations

MATRIX_OPS = frozenset(
    f"aten::{name}"
    for name in (
        "mm", "addmm", "bmm", "baddbmm", "addbmm", "matmul_backward", "mv", "addmv", "dot",
        "convolution", "_convolution", "mkldnn_convolution", "cudnn_convolution",
        "convolution_backward", "slow_conv2d_forward", "thnn_conv2d", "mkldnn_linear",
        "_scaled_mm", "_grouped_mm",
    )
)  # fmt: skip
VIEWS = frozenset(
    f"aten::{name}"
    for name in (
        "view", "_unsafe_view", "as_strided", "t", "transpose", "permute", "reshape", "expand",
        "slice", "select", "unsqueeze", "squeeze", "split", "chunk", "narrow", "detach", "alias",
        "unbind", "empty", "empty_like", "empty_strided", "resize_", "set_", "lift_fresh",
        "resolve_conj", "resolve_neg", "view_as", "expand_as", "flatten", "unflatten", "numpy_T",
        "result_type", "is_nonzero", "item", "_local_scalar_dense", "_has_same_storage_numel",
    )
)  # fmt: skip
ATTENTION_KERNELS = ("flash", "fmha", "attention", "sdpa", "efficient_attn")
MATRIX_KERNELS = (
    "gemm", "cutlass", "cublas", "xmma", "nvjet", "wgmma", "conv", "wgrad", "dgrad", "splitk",
    "triton_tem", "triton_mm", "cijk_", "gemv",
)  # fmt: skip
SYNCHRONISING = ("cudaStreamSynchronize", "cudaDeviceSynchronize", "cudaEventSynchronize")
COLLECTIVE_WORDS = {
    "allreduce": "all_reduce", "reducescatter": "reduce_scatter", "allgather": "all_gather",
    "alltoall": "all_to_all", "broadcast": "broadcast", "sendrecv": "send_recv",
    "send": "send_recv", "recv": "send_recv", "gather": "gather", "scatter": "scatter",
    "barrier": "barrier", "reduce": "reduce",
}  # fmt: skip
BETWEEN_STAGES = "send_recv"


def op_cause(name: str) -> str | None:
    """The cause of an operation and all that it calls; None if its name implies none."""
    if name.startswith(("c10d::", "_c10d_functional::", "gloo:", "nccl:")):
        return "communication"
    if "scaled_dot_product" in name or "_attention" in name:
        return "attention"
    return "matrix" if name in MATRIX_OPS else None


def is_launch(name: str) -> bool:
    """Whether an operation is a view, an allocation or autograd's bookkeeping."""
    return name in VIEWS or is_engine(name)


def is_engine(name: str) -> bool:
    """Whether this is autograd evaluating a node, including Python hooks and their waits."""
    return name.startswith("autograd::engine")


def kernel_cause(name: str) -> str:
    low = name.lower()
    if "nccl" in low or "rccl" in low:
        return "communication"
    if any(word in low for word in ATTENTION_KERNELS):
        return "attention"
    return "matrix" if any(word in low for word in MATRIX_KERNELS) else "memory_bound"


def collective_of(name: str) -> str:
    """The collective that a kernel, an operation or a backend's span performs."""
    squeezed = name.rpartition(":")[2].lower().replace("_", "")
    return next((known for word, known in COLLECTIVE_WORDS.items() if word in squeezed), squeezed)
