"""Where randomness comes from: a seed for a moment of a run, and the deterministic mode.

The generators are seeded anew before every step from (seed, step, rank's data share), so the
random state after k steps is a function of k. A run resumed at step k draws the same numbers
without any generator having been saved, on the same number of data ranks.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from contextlib import contextmanager

import torch


def moment_seed(seed: int, *moment: int | str) -> int:
    """A 63-bit seed for one moment, unrelated to those of its neighbours."""
    text = ",".join(map(str, (seed, *moment)))
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little") >> 1


def seed_moment(device: torch.device, seed: int, *moment: int | str) -> None:
    """Seed the generators of the CPU and of one device for one moment.

    Not `torch.manual_seed`: on a machine without a GPU it prepares each time for one that might
    come, which takes longer than a small step's whole bookkeeping.
    """
    number = moment_seed(seed, *moment)
    torch.default_generator.manual_seed(number)
    if device.type == "cuda":
        torch.cuda.default_generators[device.index or 0].manual_seed(number)


@contextmanager
def deterministic(enabled: bool) -> Iterator[None]:
    """Only algorithms that give the same bits each time, restored afterwards."""
    if not enabled:
        yield
        return
    before = torch.are_deterministic_algorithms_enabled()
    warned = torch.is_deterministic_algorithms_warn_only_enabled()
    benchmark = torch.backends.cudnn.benchmark
    # cuBLAS reads this when its first handle is made; it has no other switch.
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch.use_deterministic_algorithms(True)
    torch.backends.cudnn.benchmark = False
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(before, warn_only=warned)
        torch.backends.cudnn.benchmark = benchmark
