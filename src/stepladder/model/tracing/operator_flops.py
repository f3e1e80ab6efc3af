"""FLOPs of operators other than matmuls, convolutions and attention, and which cannot be counted.

Recurrent layers, bilinear forms, products with a vector and Fourier transforms do the arithmetic of
a model and count towards it. Element-wise operations, reductions, norms and gates are counted
apart: the field's MFU leaves them out. An element-wise operation counts one for each element it
writes, whatever it computes: an exponential is one, and so is GELU. What has several steps in one
operator counts as those steps would. An operator whose arithmetic nobody has written down (a
factorisation, an extension's kernel) is named, so that a total without it is never given.
"""

from __future__ import annotations

from collections.abc import Callable
from math import log2
from typing import Any

import torch
from torch import Tensor

from stepladder.seam.pytree import tree_leaves

TORCHS_OWN = ("aten", "prims", "prim", "c10d", "_c10d_functional", "profiler", "rngprims")
RECURRENT = ("mkldnn_rnn_layer", "_cudnn_rnn", "miopen_rnn")
VECTOR_PRODUCTS = ("mv", "addmv", "dot", "vdot")  # their last two arguments are multiplied
# Words in the names of operators that multiply or factorise matrices, or sum over more elements
# than they read: one that has such a word and no formula cannot be counted.
HEAVY_WORDS = ("conv", "convolution", "attention", "rnn", "linear", "matmul", "linalg", "cholesky",
               "lu", "solve", "geqrf", "orgqr", "ormqr", "cdist", "pdist", "ctc", "fft",
               "sampler")  # fmt: skip
HEAVY_ENDINGS = ("mm", "mv", "dot")
LIGHT = ("linalg_vector_norm", "linalg_cross", "upsample_linear1d")  # though named like those


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


def vector_product(args: Any, out: Any) -> tuple[int, int]:
    """A matrix, or a vector, times a vector."""
    first, second = args[-2:]
    forward = 2 * first.numel()
    return forward, forward * (first.requires_grad + second.requires_grad)


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
    **dict.fromkeys(VECTOR_PRODUCTS, vector_product),
    **dict.fromkeys(("_fft_c2c", "_fft_r2c", "_fft_c2r"), fourier),
    "_trilinear": trilinear,
}


MOVES = ("clone", "fill", "fill_", "zero_", "where", "masked_fill", "masked_fill_")
SOFTMAX = 5  # largest, subtract, exponential, sum, divide
PER_ELEMENT_READ = {  # a norm: mean 1, variance 3, scaling 2, weight and bias 2
    **dict.fromkeys(("native_layer_norm", "native_group_norm", "native_batch_norm"), 8),
    **dict.fromkeys(("cudnn_batch_norm", "_native_batch_norm_legit"), 8),
    "_batch_norm_with_update": 8,
    "_fused_rms_norm": 4,
    **dict.fromkeys(("_softmax", "_safe_softmax", "_log_softmax"), SOFTMAX),
    **dict.fromkeys(("sum", "nansum", "mean", "prod", "cumsum", "cumprod"), 1),
    **dict.fromkeys(("amax", "amin", "aminmax", "max", "min"), 1),
    **dict.fromkeys(("var", "std", "var_mean", "std_mean"), 4),
    **dict.fromkeys(("max_pool2d_with_indices", "max_pool3d_with_indices"), 1),
    **dict.fromkeys(("avg_pool2d", "avg_pool3d"), 1),
    **dict.fromkeys(("_adaptive_avg_pool2d", "_adaptive_avg_pool3d"), 1),
    "native_dropout": 2,
    "linalg_vector_norm": 2,
    "logsumexp": 4,
    "logcumsumexp": 4,
}
PER_ELEMENT_WRITTEN = {  # an interpolation between k neighbours: k products and k - 1 sums
    "upsample_linear1d": 3,
    "upsample_bilinear2d": 7,
    "upsample_trilinear3d": 15,
    "upsample_bicubic2d": 31,
}
# A hidden unit and time step of a recurrent layer, by its gates: RNN, GRU, LSTM. Each gate adds two
# products and is squashed; a GRU mixes by 4 operations, an LSTM's cell and output take 5.
PER_UNIT = {1: 2, 3: 10, 4: 13}


def elementwise_flops(func: Any, args: Any, out: Any) -> int:
    """FLOPs of an operator beside matrix products; 0 for one that only moves elements."""
    name = name_of(func)
    if name in RECURRENT:
        return gate_flops(args, out)
    if name in PER_ELEMENT_READ:
        read = next((leaf for leaf in tree_leaves(args) if isinstance(leaf, Tensor)), None)
        return 0 if read is None else PER_ELEMENT_READ[name] * read.numel()
    if name in MOVES or (name not in PER_ELEMENT_WRITTEN and torch.Tag.pointwise not in func.tags):
        return 0
    floats = (t for t in tree_leaves(out) if isinstance(t, Tensor) and t.is_floating_point())
    return PER_ELEMENT_WRITTEN.get(name, 1) * sum(tensor.numel() for tensor in floats)


def gate_flops(args: Any, out: Any) -> int:
    """The gates of a recurrent layer, with its cell state among `out` where it has one."""
    rows, weights = args[0].numel() // args[0].shape[-1], recurrent_weights(args)
    state = out[2] if out[2].numel() else out[1]
    units = state.shape[-1]
    layers = len(weights) // 2  # and directions
    return rows * units * layers * PER_UNIT[weights[0].shape[0] // units]


def is_uncounted(func: Any) -> bool:
    """Whether an operator without a formula may do arithmetic that nobody here can count."""
    name = name_of(func)
    return not name or (name not in LIGHT and any(is_heavy(word) for word in name.split("_")))


def is_heavy(word: str) -> bool:
    return word.rstrip("123d") in HEAVY_WORDS or word.endswith(HEAVY_ENDINGS)


def name_of(func: Any) -> str:
    """An operator's name without its overload; "" for one that is not torch's own."""
    namespace, name = str(func.overloadpacket).split(".")[:2]
    return name if namespace in TORCHS_OWN else ""
