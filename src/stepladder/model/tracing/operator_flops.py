"""FLOPs of operators other than matmuls, convolutions and attention, and which cannot be counted.

Recurrent layers, bilinear forms and Fourier transforms do the arithmetic of a model and count
towards it. Element-wise operations, reductions and norms are counted apart: by the field's
convention they are no part of MFU. An operator whose arithmetic nobody has written down (a
factorisation, an extension's kernel) is named, so that a total without it is never given.
"""

from __future__ import annotations

from collections.abc import Callable
from math import log2
from typing import Any

import torch
from torch import Tensor
from torch.utils.flop_counter import flop_registry

from stepladder.seam.pytree import tree_leaves

TORCHS_OWN = ("aten", "prims", "prim", "c10d", "_c10d_functional", "profiler", "rngprims")
RECURRENT = ("mkldnn_rnn_layer", "_cudnn_rnn", "miopen_rnn")
# Their cost follows from a matrix's size by a factor that depends on the algorithm.
UNCOUNTED = ("linalg_", "_linalg_", "_cdist_", "cholesky", "lu_", "triangular_solve", "ormqr",
             "geqrf", "_scaled_grouped_mm", "grid_sampler")  # fmt: skip


def recurrent(args: Any, out: Any) -> tuple[int, int]:
    """A recurrent layer over all its time steps; out: its outputs and its last hidden state."""
    inputs, weights = args[0], recurrent_weights(args)
    rows, samples = inputs.numel() // inputs.shape[-1], out[1].shape[-2]
    forward = 2 * rows * sum(weight.numel() for weight in weights)
    trained = any(weight.requires_grad for weight in weights)
    if not trained and not inputs.requires_grad:
        return forward, 0
    # Gradients that nobody needs: of the first hidden state, and of inputs that are data.
    spared = 2 * samples * sum(weight.numel() for weight in weights[1::2])
    spared += 0 if inputs.requires_grad else 2 * rows * weights[0].numel()
    return forward, forward * (1 + trained) - spared


def recurrent_weights(args: Any) -> list[Tensor]:
    """The matrices of a recurrent layer: those of its inputs and of its hidden state in turn."""
    return [t for t in tree_leaves(args[1:4]) if isinstance(t, Tensor) and t.dim() == 2]


def trilinear(args: Any, out: Any) -> tuple[int, int]:
    """A bilinear form: a multiply-add for each row and each entry of the weight."""
    volume = torch.broadcast_shapes(*(expanded(args[i], args[3 + i]) for i in range(3))).numel()
    return 2 * volume, 2 * volume * sum(tensor.requires_grad for tensor in args[:3])


def expanded(tensor: Tensor, dimensions: list[int]) -> tuple[int, ...]:
    for dimension in sorted(dimensions):
        tensor = tensor.unsqueeze(dimension)
    return tuple(tensor.shape)


def fourier(args: Any, out: Any) -> tuple[int, int]:
    """5 n log2(n) for a complex transform of n points, half of it for a real one."""
    signal = args[0] if args[0].numel() >= out.numel() else out
    points = torch.Size(signal.shape[dimension] for dimension in args[1]).numel()
    real = not (args[0].is_complex() and out.is_complex())
    forward = round(5 * signal.numel() * log2(max(points, 1)) / (2 if real else 1))
    return forward, forward * args[0].requires_grad


Count = Callable[[Any, Any], tuple[int, int]]  # of forward and of backward
COUNTED: dict[str, Count] = {
    **dict.fromkeys(RECURRENT, recurrent),
    **dict.fromkeys(("_fft_c2c", "_fft_r2c", "_fft_c2r"), fourier),
    "_trilinear": trilinear,
}
PER_ELEMENT = {  # that is read; a norm: mean 1, variance 3, scaling 2, weight and bias 2
    **dict.fromkeys(("native_layer_norm", "native_group_norm", "native_batch_norm"), 8),
    **dict.fromkeys(("cudnn_batch_norm", "_native_batch_norm_legit"), 8),
    "_batch_norm_with_update": 8,
    "_fused_rms_norm": 4,
    **dict.fromkeys(("_softmax", "_safe_softmax", "_log_softmax"), 5),
    **dict.fromkeys(("sum", "mean", "amax", "amin", "max", "min", "prod", "cumsum"), 1),
    **dict.fromkeys(("var", "std", "var_mean"), 4),
    **dict.fromkeys(("max_pool2d_with_indices", "avg_pool2d", "_adaptive_avg_pool2d"), 1),
    "linalg_vector_norm": 2,
    "logsumexp": 4,
}


def elementwise_flops(func: Any, args: Any, out: Any) -> int:
    """FLOPs of an element-wise operation, a reduction or a norm; 0 for any other."""
    if name_of(func) in PER_ELEMENT:
        read = next((leaf for leaf in tree_leaves(args) if isinstance(leaf, Tensor)), None)
        return 0 if read is None else PER_ELEMENT[name_of(func)] * read.numel()
    if torch.Tag.pointwise not in func.tags:
        return 0
    floats = (t for t in tree_leaves(out) if isinstance(t, Tensor) and t.is_floating_point())
    return sum(tensor.numel() for tensor in floats)


def is_uncounted(func: Any) -> bool:
    """Whether an operator may do arithmetic that nobody here can count."""
    if func.namespace not in TORCHS_OWN:
        return func.overloadpacket not in flop_registry
    return name_of(func) not in PER_ELEMENT and name_of(func).startswith(UNCOUNTED)


def name_of(func: Any) -> str:
    """An operator's name without its overload; "" for one that is not torch's own."""
    namespace, name = str(func.overloadpacket).split(".")[:2]
    return name if namespace in TORCHS_OWN else ""
