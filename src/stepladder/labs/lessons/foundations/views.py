"""Tensors, views, strides and storage.

A tensor is a way of reading: a storage, which is one row of numbers, and a shape, a stride for each
dim and an offset. The offset is the place where reading begins, a stride the number of places that
a step of one along its dim goes. Slicing, transposing, expanding and sliding a window change only
how the storage is read: no number moves and no byte is spent. `reshape` copies, but only where no
strides could read the old storage so.

Claim: a sliding window of 64 over 1,000 numbers is a matrix of 60 times the numbers, and it costs
not one byte; torch.Tensor.unfold gives the very same strides. A transpose costs nothing either,
until `contiguous` is asked of it.

Predict: How many bytes does it cost to flatten a transposed matrix of 12 floats with reshape(-1)?
[extra bytes; reading = transpose, flattened]

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
    # >>> Find the element's place from its index, the strides and the offset.
    # ??? A step of one along dim d goes strides[d] places. How far does index[d] go?
    # ??? Write down the storage of torch.arange(6.).view(2, 3) and find (1, 2) in it. Then find the
    # ???   same element of its transpose, and one of its slice [1:].
    # ??? The place is a single number: every dim adds its part to where reading begins.
    return offset + sum(i * stride for i, stride in zip(index, strides))
    # <<< return ...


def transposed(matrix: Tensor) -> Tensor:
    """The matrix with rows and columns exchanged, without moving a number."""
    rows, columns = matrix.shape
    # >>> Read the same storage with rows and columns exchanged (as_strided): no number moves.
    # ??? Print the shape and the strides of a 3 × 4 matrix and of its .T. What has changed?
    # ??? A slice has other strides than its shape would have by itself: ask the matrix for its own.
    return matrix.as_strided((columns, rows), (matrix.stride(1), matrix.stride(0)))
    # <<< return matrix


def windows(signal: Tensor, size: int) -> Tensor:
    """All windows of so many neighbours: row i holds signal[i : i + size]."""
    (step,) = signal.stride()
    # >>> A matrix whose rows overlap in the storage: as many rows as there are whole windows.
    # ??? Write down all windows of 3 in a signal of 5. How many are there?
    # ??? A row begins one element after the row above it, and its own elements are one element
    # ???   apart, too. How many places is one element in this signal?
    return signal.as_strided((len(signal) - size + 1, size), (step, step))
    # <<< return signal[None, :size]


def reads_in_order(shape: Sequence[int], strides: Sequence[int]) -> bool:
    """Whether a tensor of this shape and these strides is contiguous."""
    expected = 1
    for size, stride in zip(reversed(shape), reversed(strides)):
        # >>> Say no where this dim's stride is not that of a contiguous tensor.
        # ??? In a contiguous tensor, how far apart are neighbours along the last dim? Along the one
        # ???   before it?
        # ??? The loop goes from the last dim to the first. `expected` is how many numbers the dims
        # ???   behind this one have together.
        # ??? Along a dim of size 1 nobody ever steps. Does its stride matter?
        if size != 1 and stride != expected:
            return False
        # <<< pass
        expected *= size
    return True


def held_bytes(tensors: Iterable[Tensor]) -> int:
    """The memory that all these tensors keep alive together."""
    # >>> Count every storage once, however many tensors read it.
    # ??? A tensor and its transpose, a tensor and its clone: which pair holds more than one of the
    # ???   two alone?
    # ??? untyped_storage() gives a tensor's storage, which has nbytes() and data_ptr().
    # ??? By which key would a dict hold each storage only once?
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
