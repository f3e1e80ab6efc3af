"""The lab 'views' with the tools of torch and lambdas: no function of the starter is left."""

from itertools import accumulate
from operator import mul

import torch


def reads_in_order(shape, strides):
    wanted = list(accumulate(reversed(shape), mul, initial=1))[-2::-1]
    return all(size == 1 or step == want for size, step, want in zip(shape, strides, wanted))


def position(index, strides, offset):
    return int(torch.dot(torch.tensor(index), torch.tensor(strides))) + offset


transposed = torch.Tensor.t
windows = lambda signal, size: signal.unfold(0, size, 1)  # noqa: E731


def held_bytes(tensors):
    seen, total = set(), 0
    for tensor in tensors:
        if (key := tensor.untyped_storage().data_ptr()) not in seen:
            seen.add(key)
            total += tensor.untyped_storage().nbytes()
    return total
