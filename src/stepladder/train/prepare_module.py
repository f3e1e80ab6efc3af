"""What a user's module must be before any rung: refused in one line, or prepared.

Parameters of lazy modules are made from the sample. Sparse gradients become dense ones: every
optimizer here updates with them as with sparse ones, and the collectives reduce only dense ones.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import nn
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DataParallel, DistributedDataParallel
from torch.nn.parameter import UninitializedBuffer, UninitializedParameter

from stepladder.data import Batch
from stepladder.errors import ModelError
from stepladder.model.call_module import call
from stepladder.plan import SettledPlan
from stepladder.rungs.precision.precision import explain_given_types
from stepladder.train.checkpointing.rank_state import check_state

EMBEDDINGS = (nn.Embedding, nn.EmbeddingBag)


def prepare_module(module: nn.Module, settled: SettledPlan, sample: Batch | None) -> list[str]:
    """Refuse what no rung can train; make lazy parameters, and gradients dense.

    What comes back is to be said of the module as it was given.
    """
    refuse_wrapped(module)
    if lazy := lazy_parts(module):
        if sample is None:
            raise ModelError(
                f"model.{lazy[0]}",
                "has no parameters until it reads a batch",
                "Give climb sample=batch, or call the module once before.",
            )
        make_lazy_parameters(module, sample)
    if not any(parameter.requires_grad for parameter in module.parameters()):
        raise ModelError(
            type(module).__name__, "has no trainable parameter", "Unfreeze at least one."
        )
    if cuts_batches(settled):
        refuse_counts_of_batch(module)
    for part in module.modules():
        if isinstance(part, EMBEDDINGS) and part.sparse:
            part.sparse = False
    return explain_given_types(module, settled.plan.precision)


def refuse_wrapped(module: nn.Module) -> None:
    name = type(module).__name__
    if isinstance(module, torch.jit.ScriptModule):
        raise ModelError(
            name, "is TorchScript, which cannot be changed in place", "Give the nn.Module itself."
        )
    if isinstance(module, DataParallel | DistributedDataParallel):
        raise ModelError(
            name, "already spreads the model over devices", "Give the module inside it: .module."
        )
    sharded = [key for key, value in module.named_parameters() if isinstance(value, DTensor)]
    if sharded or isinstance(module, FSDPModule):
        raise ModelError(
            name,
            f"is already sharded ({sharded[0] if sharded else 'FSDP2'} is a DTensor)",
            "Give the module as it was before.",
        )


def check_loss_module(loss: object) -> None:
    """Refuse a loss that is a module which is already spread, or cannot be saved."""
    if isinstance(loss, nn.Module):
        refuse_wrapped(loss)
        check_state(loss)


def lazy_parts(module: nn.Module) -> list[str]:
    """Names of the parts whose parameters or buffers have no shape yet."""
    return [
        name
        for name, part in module.named_modules()
        if any(
            isinstance(tensor, UninitializedParameter | UninitializedBuffer)
            for tensor in (*part.parameters(recurse=False), *part.buffers(recurse=False))
        )
    ]


def make_lazy_parameters(module: nn.Module, sample: Batch) -> None:
    """Run the sample forward once; only the lazy parts change."""
    with torch.no_grad(), as_it_was(module):
        call(module, sample.inputs)


@contextmanager
def as_it_was(module: nn.Module) -> Iterator[None]:
    """A context in which the module evaluates; its modes and buffers are restored after it."""
    modes = [(part, part.training) for part in module.modules()]
    buffers = [(b, b.clone()) for b in module.buffers() if not isinstance(b, UninitializedBuffer)]
    module.eval()
    try:
        yield
    finally:
        for part, training in modes:
            part.training = training
        for buffer, value in buffers:
            buffer.copy_(value)


def cuts_batches(settled: SettledPlan) -> bool:
    """Whether a batch is computed in parts: micro-batches, rows of ranks, chunks of sequences."""
    layout = settled.layout
    parts = settled.micro_batch is not None or (settled.micro_batches or 1) > 1
    return parts or layout.data_ranks * layout.context * layout.pipeline > 1


def refuse_counts_of_batch(module: nn.Module) -> None:
    for name, part in module.named_modules():
        if isinstance(part, EMBEDDINGS) and part.scale_grad_by_freq:
            raise ModelError(
                f"model.{name}",
                "divides gradients by how often a token is in the batch (scale_grad_by_freq), "
                "and this plan computes a batch in parts",
                "Use scale_grad_by_freq=False, or one rank without micro.",
            )
