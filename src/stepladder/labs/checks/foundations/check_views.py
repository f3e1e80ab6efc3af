"""Checks of views: every answer against torch's own strides and storages."""

from __future__ import annotations

from itertools import product
from types import ModuleType

import torch

from stepladder.labs.grading.check_words import Mistake, expect, expect_close, written

MISTAKES = (
    Mistake(
        "the offset of a view is forgotten",
        "return offset + sum(",
        "return sum(",
        "a view may begin in the middle of a storage: add the offset",
    ),
    Mistake(
        "there is one window too few",
        "len(signal) - size + 1, size",
        "len(signal) - size, size",
        "one window too few",
    ),
    Mistake(
        "a storage that two tensors share is counted twice",
        "t.untyped_storage().data_ptr(): t.untyped_storage()",
        "id(t): t.untyped_storage()",
        "counted more than once",
    ),
    Mistake(
        "a dim of size one is held against a tensor",
        "if size != 1 and stride != expected:",
        "if stride != expected:",
        "a dim of size 1 is never stepped along",
    ),
)


def check_position(lesson: ModuleType) -> None:
    """An element is found in the storage by its index, the strides and the offset."""
    view = torch.arange(60.0).view(3, 4, 5).transpose(0, 2)[1:, 2:]
    storage = torch.tensor(view.untyped_storage()).view(torch.float32)
    for index in product(*map(range, view.shape)):
        found = written(lesson.position(index, view.stride(), 0), "position")
        expect(
            found != lesson.position(index, view.stride(), view.storage_offset()),
            "the offset changes nothing: a view may begin in the middle of a storage: add the "
            "offset.",
        )
        found = lesson.position(index, view.stride(), view.storage_offset())
        expect_close(storage[found], view[index], f"the number at {index}", rtol=0)


def check_transposed(lesson: ModuleType) -> None:
    """A transpose shares the storage, and reads it the other way round."""
    matrix = torch.arange(12.0).view(3, 4)[:, 1:]
    found = lesson.transposed(matrix)
    expect_close(found, matrix.T, "the transpose", rtol=0)
    expect(found.data_ptr() == matrix.data_ptr(), "the transpose was copied: use as_strided.")
    expect(found.stride() == matrix.T.stride(), f"strides {found.stride()}, not those of .T.")


def check_windows(lesson: ModuleType) -> None:
    """Windows overlap in one storage, as torch.Tensor.unfold has them."""
    for signal in (torch.arange(10.0), torch.arange(20.0)[3::2]):
        found, theirs = lesson.windows(signal, 4), signal.unfold(0, 4, 1)
        expect(len(found) != len(theirs) - 1, "one window too few: the last one begins at n - 4.")
        expect_close(found, theirs, "the windows", rtol=0)
        expect(found.stride() == theirs.stride(), f"strides {found.stride()}: numbers were moved.")


def check_reads_in_order(lesson: ModuleType) -> None:
    """Whether a tensor is contiguous can be told from shape and strides."""
    whole = torch.zeros(3, 4, 5)
    odd = whole[:, :1]
    for tensor in (whole, whole.mT, whole[1:], whole[:, :, 1:], whole[:, 1:2, :].mT, odd[:1]):
        found = lesson.reads_in_order(tensor.shape, tensor.stride())
        about = f"shape {tuple(tensor.shape)} with strides {tensor.stride()}"
        if 1 in tensor.shape and found is False and tensor.is_contiguous():
            expect(False, f"{about} is contiguous: a dim of size 1 is never stepped along.")
        expect(found is tensor.is_contiguous(), f"{about} is not told apart: you say {found}.")


def check_held_bytes(lesson: ModuleType) -> None:
    """Views cost nothing; copies cost their storage; one number may hold a whole storage."""
    whole = torch.zeros(100, 10)
    cases = {
        "a tensor and its transpose": ([whole, whole.T], 4000),
        "a tensor and a copy": ([whole, whole.clone()], 8000),
        "one row of a tensor": ([whole[3]], 4000),
        "halves in half precision": ([whole.half()], 2000),
    }
    for name, (tensors, wanted) in cases.items():
        found = written(lesson.held_bytes(tensors), "held_bytes")
        if name == "a tensor and its transpose":
            expect(found != 8000, f"{name} hold 4000 bytes: a storage was counted more than once.")
        expect_close(found, wanted, f"bytes held by {name}", rtol=0)
    expect(lesson.measure()[0]["extra bytes"] == 0, "the windows should cost no byte.")
