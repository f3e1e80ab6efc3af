"""Measured memory by owner at a step's peak, in the same type that the planner forecasts.

On a CPU the ledger's own count is the measurement, exact in tensors. On a GPU the allocator says
how high the peak was and the ledger who stood there; what the allocator saw beyond the ledger
(workspaces inside kernels, rounding) is temporary. A compiled module is left to the allocator
alone, because watching operations would switch the compiler off: what stands when backward begins,
beyond what stood before the step, are the activations.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from stepladder.model import uncompiled
from stepladder.record import Memory
from stepladder.seam import modules
from stepladder.seam.storages import plain_tensors

from .storage_ledger import Ledger, StorageLife

BLOCK = 512  # bytes: the caching allocator's smallest unit


def measure_memory(
    step: Callable[[], Any],
    module: nn.Module,
    optimizer: torch.optim.Optimizer,
    device: torch.device,
    *,
    vocab: int | None = None,
) -> Memory:
    """The memory of one whole step by owner; `vocab` tells the head's output from the rest."""
    with MemoryMeter(module, optimizer, device, vocab=vocab) as meter:
        step()
    return meter.memory


class MemoryMeter:
    """A context that measures the memory of the step inside it; read `memory` afterwards."""

    def __init__(
        self,
        module: nn.Module,
        optimizer: torch.optim.Optimizer,
        device: torch.device,
        *,
        vocab: int | None = None,
        where: Callable[[], str] = str,
    ) -> None:
        self.module, self.optimizer, self.device, self.vocab = module, optimizer, device, vocab
        self.ledger = Ledger(device, BLOCK if device.type == "cuda" else 1, where)
        self.memory = Memory()
        self.tracked_bytes = 0  # the ledger's own peak, before the allocator is asked
        self._open = ExitStack()
        self._kept_bytes = 0  # on a GPU: what stood when backward began, beyond what stood before

    def __enter__(self) -> MemoryMeter:
        self._claim_state()
        for parameter in self.module.parameters():
            if parameter.requires_grad:
                handle = parameter.register_post_accumulate_grad_hook(self._claim_gradient)
                self._open.callback(handle.remove)
        before = self.optimizer.register_step_pre_hook(lambda *_: self._claim_state())
        self._open.callback(before.remove)
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
            torch.cuda.reset_peak_memory_stats(self.device)
        if self.device.type == "cuda" and is_compiled(self.module):
            self._open.enter_context(backward_noticed(self._note_kept))
            self._before_bytes = torch.cuda.memory_allocated(self.device)
        else:
            self._open.enter_context(uncompiled(self.module))
            self._open.enter_context(self.ledger)
        return self

    def __exit__(self, *error: Any) -> None:
        self._claim_state()
        self._open.close()
        measured = self._by_owner()
        self.tracked_bytes = measured.peak_bytes
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
            measured = reconcile(measured, self._kept_bytes, *allocator_bytes(self.device))
        self.memory = measured

    def after_forward(self) -> None:
        """Say that forward is over, where no backward follows to say it."""
        self.ledger.begin_backward()

    def _claim_state(self) -> None:
        parameters = list(self.module.parameters())
        state = [value for entry in self.optimizer.state.values() for value in entry.values()]
        self.ledger.claim(parameters, "parameters")
        self.ledger.claim([p.grad for p in parameters if p.grad is not None], "gradients")
        self.ledger.claim(plain_tensors(state), "optimizer")

    def _claim_gradient(self, parameter: Tensor) -> None:
        if parameter.grad is not None:
            self.ledger.claim([parameter.grad], "gradients")

    def _note_kept(self) -> None:
        kept = torch.cuda.memory_allocated(self.device) - self._before_bytes
        self._kept_bytes = max(self._kept_bytes, kept)

    def _by_owner(self) -> Memory:
        sizes: Counter[str] = Counter()
        for life in self.ledger.at_peak():
            sizes[self.owner_of(life)] += life.num_bytes
        return Memory(**sizes)

    def owner_of(self, life: StorageLife) -> str:
        """Who held a storage, once the step is over."""
        if life.owner is not None:
            return life.owner
        if life.born and life.width == self.vocab:
            return "logits"
        return "activations" if self.ledger.kept(life) else "temporary"


def allocator_bytes(device: torch.device) -> tuple[int, int, int]:
    """What the allocator handed out at the peak, what it held, and what the device lost to all."""
    free, total = torch.cuda.mem_get_info(device)
    held = torch.cuda.max_memory_reserved(device)
    used = total - free - torch.cuda.memory_reserved(device)
    return torch.cuda.max_memory_allocated(device), held, max(used, 0)


def reconcile(
    tracked: Memory, kept_bytes: int, allocated_bytes: int, reserved_bytes: int, context_bytes: int
) -> Memory:
    """The tracked owners under the allocator's peak: the difference is temporary, and where the
    owners never all stood at once it is activations that had already gone."""
    activations = max(tracked.activations, kept_bytes)
    owned = replace(tracked, activations=activations, temporary=0).peak_bytes
    temporary = allocated_bytes - owned
    return replace(
        tracked,
        activations=max(activations + min(temporary, 0), 0),
        temporary=max(temporary, 0),
        reserved=max(reserved_bytes - allocated_bytes, 0),
        context=context_bytes,
    )


def is_compiled(module: nn.Module) -> bool:
    """Whether the module, or a part of it, runs compiled: by `.compile()` or `torch.compile`."""
    parts = list(module.modules())
    return any(modules.is_compiled(m) or hasattr(m, modules.COMPILED_CHILD) for m in parts)


@contextmanager
def backward_noticed(notice: Callable[[], None]) -> Iterator[None]:
    """Call `notice` whenever a backward pass begins."""
    backward = torch.autograd.backward

    def noticed(*args: Any, **kwargs: Any) -> None:
        notice()
        backward(*args, **kwargs)

    torch.autograd.backward = noticed
    try:
        yield
    finally:
        torch.autograd.backward = backward
