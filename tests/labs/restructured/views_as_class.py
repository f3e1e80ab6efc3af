"""The lab 'views' as methods of a class, behind an adapter that names each part."""

from __future__ import annotations

import torch
from torch import Tensor


class Reading:
    def __init__(self, shape, strides, offset=0):
        self.shape, self.strides, self.offset = tuple(shape), tuple(strides), offset

    @classmethod
    def of(cls, tensor: Tensor) -> Reading:
        return cls(tensor.shape, tensor.stride(), tensor.storage_offset())

    def place(self, index) -> int:
        place = self.offset
        for at, step in zip(index, self.strides):
            place += at * step
        return place

    def of_tensor(self, tensor: Tensor) -> Tensor:
        return torch.as_strided(tensor, self.shape, self.strides)

    def dense(self) -> bool:
        dims = [(size, step) for size, step in zip(self.shape, self.strides) if size != 1]
        need = 1
        for size, step in dims[::-1]:
            if step != need:
                return False
            need = size * step
        return True

    def slide(self, size: int) -> Reading:
        return Reading((self.shape[0] + 1 - size, size), self.strides * 2, self.offset)

    def turned(self) -> Reading:
        return Reading(self.shape[::-1], self.strides[::-1], self.offset)


def position(index, strides, offset):
    return Reading((), strides, offset).place(index)


def transposed(matrix):
    return Reading.of(matrix).turned().of_tensor(matrix)


def windows(signal, size):
    return Reading.of(signal).slide(size).of_tensor(signal)


def reads_in_order(shape, strides):
    return Reading(shape, strides).dense()


def held_bytes(tensors):
    storages = {}
    for tensor in tensors:
        storage = tensor.untyped_storage()
        storages.setdefault(storage.data_ptr(), storage.nbytes())
    return sum(storages.values())
