"""The RNG state of a run: seeds derived for each step, and the deterministic mode.

The generators are reseeded before every step from (seed, step, data rank), so what step k draws is
a function of k. A run resumed at step k on the same number of data ranks draws the same numbers
without saving any generator.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch


def derive_seed(seed: int, *keys: int | str) -> int:
    """A 63-bit seed derived by hashing a seed and keys such as the step and the rank."""
    text = ",".join(map(str, (seed, *keys)))
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little") >> 1


def seed_generators(device: torch.device, seed: int, *keys: int | str) -> None:
    """Seed the generators of the CPU and of one device from a seed and keys.

    Not `torch.manual_seed`: without a GPU it queues work for one that might appear, which takes
    longer than all other bookkeeping of a small step.
    """
    number = derive_seed(seed, *keys)
    torch.default_generator.manual_seed(number)
    if device.type == "cuda":
        torch.cuda.default_generators[device.index or 0].manual_seed(number)


@contextmanager
def host_generator_kept() -> Iterator[None]:
    """Context after which torch's generator of the CPU is as before.

    A step seeds it for its rank. What a loop draws between steps, such as an epoch's order or a
    batch that every rank is to have, must not depend on the rank.
    """
    before = torch.default_generator.get_state()
    try:
        yield
    finally:
        torch.default_generator.set_state(before)


@contextmanager
def one_thread(enabled: bool) -> Iterator[None]:
    """Context in which a CPU computes on one thread: kernels split their sums by threads."""
    before = torch.get_num_threads()
    if enabled and before > 1:
        torch.set_num_threads(1)
    try:
        yield
    finally:
        if enabled and before > 1:
            torch.set_num_threads(before)


def fix_library_algorithms() -> None:
    """Have cuBLAS and NCCL add up in one order; each reads its switch once, when it starts.

    NCCL's tree adds in another order where the network answers in another, its ring does not.
    """
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    os.environ.setdefault("NCCL_ALGO", "Ring")


@contextmanager
def deterministic(enabled: bool, *, lenient: bool = False) -> Iterator[None]:
    """Context in which torch uses only deterministic algorithms.

    Args:
        lenient: an operator that has none runs as it is, with torch's warning.
    """
    if not enabled:
        yield
        return
    before = torch.are_deterministic_algorithms_enabled()
    warned = torch.is_deterministic_algorithms_warn_only_enabled()
    benchmark = torch.backends.cudnn.benchmark
    fill: Any = torch.utils.deterministic  # a module whose class has the setting as a property
    filled = fill.fill_uninitialized_memory
    torch.use_deterministic_algorithms(True, warn_only=lenient)
    torch.backends.cudnn.benchmark = False
    # The fill finds kernels that read what nobody wrote. It writes all memory once more, and
    # changes nothing else.
    fill.fill_uninitialized_memory = False
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(before, warn_only=warned)
        torch.backends.cudnn.benchmark = benchmark
        fill.fill_uninitialized_memory = filled
