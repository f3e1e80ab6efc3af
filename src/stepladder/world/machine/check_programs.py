"""Checks that can crash or hang, as programs that run in separate processes.

A program prints one line on success, or fails with an exception whose last line is the reason.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from datetime import timedelta

import torch
import torch.distributed as dist


def gloo(rank: str, num_ranks: str, meeting: str) -> str:
    """All-reduce over gloo; the ranks rendezvous at a file."""
    return _all_reduce("gloo", int(rank), int(num_ranks), meeting, torch.device("cpu"))


def nccl(meeting: str) -> str:
    """All-reduce over NCCL on a single rank, since two ranks may not share a GPU."""
    return _all_reduce("nccl", 0, 1, meeting, torch.device("cuda", 0))


def _all_reduce(backend: str, rank: int, num_ranks: int, meeting: str, device: torch.device) -> str:
    store = dist.FileStore(meeting, num_ranks)
    dist.init_process_group(
        backend, store=store, rank=rank, world_size=num_ranks, timeout=timedelta(seconds=60)
    )
    value = torch.full((1024,), rank + 1.0, device=device)
    dist.all_reduce(value)
    total, expected = value[0].item(), num_ranks * (num_ranks + 1) / 2
    dist.destroy_process_group()
    if total != expected:
        raise RuntimeError(f"the sum was {total}, not {expected}")
    ranks = "1 rank" if num_ranks == 1 else f"{num_ranks} ranks"
    return f"all-reduce over {ranks} on {device.type}: right"


def compile() -> str:
    """Compile a small function with Inductor and compare its result with eager."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    value = torch.linspace(-1, 1, 4096, device=device)
    got, want = torch.compile(_gelu_square)(value), _gelu_square(value)
    torch.testing.assert_close(got, want)
    return f"compiled and right on {device}"


def _gelu_square(value: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.gelu(value).square().sum()


def triton() -> str:
    """Build and run a small Triton kernel."""
    return importlib.import_module("stepladder.world.machine.check_triton").double()


PROBES: dict[str, Callable[..., str]] = {
    "gloo": gloo,
    "nccl": nccl,
    "compile": compile,
    "triton": triton,
}


def main(name: str, *words: str) -> None:
    sys.stdout.write(PROBES[name](*words) + "\n")
