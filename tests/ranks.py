"""Several ranks in one test: `run(function, 2, *args)` calls a function on real processes.

The processes are kept for the whole session, because importing torch takes seconds. No test sees
what another left behind: every call gets a process group of its own (gloo), and `settle` sets back
what torch keeps in a process.
"""

from __future__ import annotations

import atexit
import gc
import random
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.utils._pytree import tree_map

import stepladder.train.flop_rate as flop_rate
import stepladder.world.world as world
from stepladder.launch import Ranks
from stepladder.world.ranks import agreement


def run(
    function: Callable[..., Any],
    ranks: int = 2,
    *args: Any,
    init: bool = True,
    timeout_seconds: float = 120,
) -> list[Any]:
    """Call `function(*args)` on every rank; the results by rank, or the first failure.

    With `init=False` there is no process group, only the launcher's variables.
    """
    method = "env://" if init else None
    return POOL.call(
        function, *args, ranks=ranks, init_method=method, timeout_seconds=timeout_seconds
    )


def settle() -> None:
    """What every call finds: the first of a process as any other."""
    # A group that could not be made was counted, and the next one is called by that count: ranks
    # that count differently never meet.
    dist.distributed_c10d._world.group_count = 0
    # A group that is remembered by torch, or in a circle of references, lives with three threads
    # that wake a hundred times a second. What else is there by now stays, and need not be walked
    # again; a group among it would stay too.
    if "torch.distributed.tensor" in sys.modules:
        world.forget_routes()
    gc.collect()
    gc.freeze()
    torch.set_default_dtype(torch.float32)
    torch.set_float32_matmul_precision("highest")
    torch.use_deterministic_algorithms(False)
    torch.backends.mkldnn.enabled = True  # torch may turn it off at the first matmul in bf16
    torch.set_grad_enabled(True)
    torch.manual_seed(0)
    random.seed(0)


def remember_flops() -> None:
    """Count the FLOPs of a module and a batch's shapes once a process, not once a run.

    Counting traces the module, on every rank: a fifth of what a run of three steps takes.
    """
    count, known = flop_rate.count_flops, {}

    def look_up(module: nn.Module, *given: Any, **named: Any) -> Any:
        parameters = [(p.shape, p.dtype, p.requires_grad) for p in module.parameters()]
        kinds = [(name, type(part), id(type(part))) for name, part in module.named_modules()]
        shapes = tree_map(lambda x: getattr(x, "shape", x), (given, named))
        key = repr((parameters, kinds, shapes))
        if key not in known:
            known[key] = count(module, *given, **named)
        return known[key]

    flop_rate.count_flops = look_up


def remember_fingerprints() -> None:
    """Hash stepladder's files once a process, not once a run: a twelfth of a short run on ranks."""

    @cache
    def hashed(package: Path, script: str | None) -> dict[str, str]:
        return agreement.fingerprints()

    def look_up() -> dict[str, str]:
        return hashed(agreement.PACKAGE, getattr(sys.modules["__main__"], "__file__", None))

    world.fingerprints = look_up


remember_flops()
remember_fingerprints()
POOL = Ranks(64, threads=1, between_calls=settle, grace_seconds=15)
POOL.__enter__()
atexit.register(POOL.__exit__)
