"""What a rank does with torch before the call itself: threads and a process group."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist


def import_torch() -> None:
    """Nothing more: whoever unpickles this function has imported torch."""


def call_with_torch(
    threads: int, init_method: str | None, function: Callable[..., Any], args: tuple[Any, ...]
) -> Any:
    torch.set_num_threads(threads)
    if init_method:
        rank, ranks = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
        dist.init_process_group("gloo", init_method, rank=rank, world_size=ranks)
        dist.barrier()  # a rank that fails at once must not leave while others still connect
    return function(*args)
