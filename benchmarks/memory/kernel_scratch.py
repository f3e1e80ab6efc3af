"""What each operation of a step allocates beside its results, measured on this GPU.

`scratch` is what was allocated while the operation ran and was gone after it; `kept` what is still
there beyond the results: a library's workspace. Operations with equal tensors are one row.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_iter

ALWAYS = ("conv", "attention", "rnn", "_sum", "sum.", "native_", "sort", "index", "embedding")
LEAST = 2**16  # bytes; what other operations take below that is not listed


class KernelScratch(TorchDispatchMode):
    """Every operation on the GPU while it is active; it makes a step slow."""

    def __init__(self) -> None:
        super().__init__()
        self.rows: dict[str, list[Any]] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        given = storages((args, kwargs))
        before = torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        result = func(*args, **(kwargs or {}))
        after, peak = torch.cuda.memory_allocated(), torch.cuda.max_memory_allocated()
        made = {
            t.untyped_storage()._cdata: block(t.untyped_storage().nbytes())
            for t in tensors(result)
            if t.is_cuda and t.untyped_storage()._cdata not in given
        }
        kept = after - before - sum(made.values())
        self.note(str(func), args, result, peak - max(before, after), kept)
        return result

    def note(self, name: str, args: Any, result: Any, scratch: int, kept: int) -> None:
        wanted = any(word in name for word in ALWAYS) or max(scratch, abs(kept)) >= LEAST
        if not wanted:
            return
        key = f"{name}({', '.join(map(told, args))}) -> {told(result)}"
        row = self.rows.setdefault(key, [0, 0, 0])
        row[0], row[1], row[2] = max(row[0], scratch), max(row[1], kept), row[2] + 1


def tensors(tree: Any) -> list[Tensor]:
    return [one for one in tree_iter(tree) if isinstance(one, Tensor)]


def storages(tree: Any) -> set[int]:
    return {one.untyped_storage()._cdata for one in tensors(tree)}


def block(num_bytes: int) -> int:
    """As the caching allocator rounds it up."""
    return -(-num_bytes // 512) * 512


def told(one: Any) -> str:
    """An argument in short: a tensor's type, shape and strides, or the value."""
    if isinstance(one, Tensor):
        kind = str(one.dtype).removeprefix("torch.")
        plain = "" if one.is_contiguous() else f" strides {tuple(one.stride())}"
        return f"{kind}{list(one.shape)}{plain}"
    if isinstance(one, list | tuple):
        few = [told(each) for each in one[:8]]
        return f"[{', '.join(few)}{', ...' if len(one) > 8 else ''}]"
    return str(one)
