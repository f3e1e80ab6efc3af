"""Tensors, views, strides and storage.

A tensor is a way of reading: a storage, which is one row of numbers, and a shape, a stride for each
dim and an offset. The element at (i, j) stands at offset + i × stride[0] + j × stride[1]. Slicing,
transposing, expanding and sliding a window change only how the storage is read: no number moves and
no byte is spent. `reshape` copies, but only where no strides could read the old storage so.

Claim: a sliding window of 64 over 1,000 numbers is a 937 × 64 matrix, 60 times the numbers, and it
costs not one byte; torch.Tensor.unfold gives the very same strides. A transpose costs nothing
either, until `contiguous` is asked of it.

Often wrong:
- the offset of a view is forgotten
- there is one window too few
- a storage that two tensors share is counted twice
- a dim of size one is held against a tensor
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch
from torch import Tensor


def position(index: Sequence[int], strides: Sequence[int], offset: int) -> int:
    """Where in the storage an element stands."""
    # >>> Each index times its stride, summed, from the offset on.
    return offset + sum(i * stride for i, stride in zip(index, strides))
    # <<< return ...


def transposed(matrix: Tensor) -> Tensor:
    """The matrix with rows and columns exchanged, without moving a number."""
    rows, columns = matrix.shape
    # >>> matrix.as_strided(shape, strides): exchange both.
    return matrix.as_strided((columns, rows), (matrix.stride(1), matrix.stride(0)))
    # <<< return matrix


def windows(signal: Tensor, size: int) -> Tensor:
    """All windows of so many neighbours: row i holds signal[i : i + size]."""
    (step,) = signal.stride()
    # >>> How many windows are there, and how far is it from one row to the next?
    return signal.as_strided((len(signal) - size + 1, size), (step, step))
    # <<< return signal[None, :size]


def reads_in_order(shape: Sequence[int], strides: Sequence[int]) -> bool:
    """Whether a tensor of this shape and these strides is contiguous."""
    expected = 1
    for size, stride in zip(reversed(shape), reversed(strides)):
        # >>> The last dim's stride is 1, the one before is the last one's size, and so on. The
        # >>> stride of a dim of size 1 is never used, so it may be anything.
        if size != 1 and stride != expected:
            return False
        # <<< pass
        expected *= size
    return True


def held_bytes(tensors: Iterable[Tensor]) -> int:
    """The memory that all these tensors keep alive together."""
    # >>> Add up the bytes of their storages (untyped_storage().nbytes()); two tensors share one if
    # >>> it has the same data_ptr(), and then it counts once.
    storages = {t.untyped_storage().data_ptr(): t.untyped_storage() for t in tensors}
    return sum(storage.nbytes() for storage in storages.values())
    # <<< return sum(tensor.numel() * 4 for tensor in tensors)


def measure() -> list[dict[str, object]]:
    signal, matrix = torch.arange(1000.0), torch.arange(12.0).view(3, 4)
    images = torch.zeros(2, 3, 8, 8)  # read by convolutions with the channels innermost
    readings = {
        "windows of 64": (signal, windows(signal, 64)),
        "transpose": (matrix, transposed(matrix)),
        "slice [:, 1:3]": (matrix, matrix[:, 1:3]),
        "expand": (matrix, matrix[:1].expand(1000, 4)),
        "transpose, flattened": (matrix, transposed(matrix).reshape(-1)),
        "channels last": (images, images.to(memory_format=torch.channels_last)),
    }
    return [
        {
            "reading": name,
            "shape": str(tuple(seen.shape)),
            "strides": str(seen.stride()),
            "in order": reads_in_order(seen.shape, seen.stride()),
            "numbers": seen.numel(),
            "extra bytes": held_bytes([whole, seen]) - held_bytes([whole]),
        }
        for name, (whole, seen) in readings.items()
    ]


if __name__ == "__main__":
    for row in measure():
        print(row)
