"""Sums over equal indices: the indices are sorted, and each stretch of them is summed by itself.

As in torch/ATen/native/cuda/EmbeddingBackwardKernel.cu and Indexing.cu.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor

INDEX, FLOAT = 8, 4  # bytes
SORTED = 6.7  # arrays of indices: given, sorted, where they were, the sort's own
UNSORTED = 3072  # as many indices as a kernel takes without sorting them
AT_ONCE = 10  # rows that a thread adds up


def embedding_backward_bytes(args: Any, result: Any) -> int:
    count = args[1].numel()
    if count <= UNSORTED:
        return 0
    parts = count + count // AT_ONCE
    return int(SORTED * INDEX * count + parts * result.shape[-1] * FLOAT)


def index_put_bytes(args: Any, result: Any) -> int:
    """Of an `index_put` that accumulates: the values in one piece, and the sorted indices."""
    if not (len(args) > 3 and args[3]):
        return 0
    given = [one for one in args[1] if isinstance(one, Tensor)]
    count = max((one.numel() for one in given), default=0)
    return int(SORTED * INDEX * count + args[2].numel() * args[2].element_size())
