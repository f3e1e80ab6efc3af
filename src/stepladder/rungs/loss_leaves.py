"""Parameters that a loss reads besides the module's outputs, found in the graph of its first value.

A penalty over the model's parameters is right where every rank has them whole; where they are
sharded or cut it is refused. Parameters of any other module that gets a gradient are refused too,
unless that module is a run of its own, as a GAN's discriminator is: nobody would train them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any
from weakref import WeakSet

from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor

from stepladder.errors import ModelError

from .data_parallel.renormalised_rows import renormalised
from .loss_module import LossModule
from .parameter_shards import has_shards

CLIMBED: WeakSet[nn.Module] = WeakSet()  # modules of every run in this process


def check_leaves(
    value: Tensor,
    outputs: Iterable[Tensor],
    module: nn.Module,
    loss: LossModule | None,
    *,
    cut: bool,
) -> None:
    """Refuse a loss that reads parameters which this plan shards, or which nobody trains.

    Args:
        cut: a batch is computed in parts, each of which shortens only the rows it looks up.
    """
    shortened = {id(table.weight) for table in renormalised(module)} if cut else set()
    own = {id(parameter) for _, parameter in loss.trained} if loss else set()
    model = {id(parameter): name for name, parameter in module.named_parameters()}
    for parameter in parameters_beyond(value, outputs):
        if id(parameter) in own:
            continue
        if id(parameter) in model:
            if isinstance(module, FSDPModule) or isinstance(parameter, DTensor):
                raise reads_shards(f"'{model[id(parameter)]}'")
            if id(parameter) in shortened:
                raise reads_shortened(model[id(parameter)])
        elif not trained_outside(parameter, module):
            raise untrained(parameter)


def parameters_beyond(value: Tensor, outputs: Iterable[Tensor]) -> Iterator[nn.Parameter]:
    """Parameters that a value depends on by other ways than through the outputs."""
    outputs = list(outputs)
    known = {tensor.grad_fn for tensor in outputs}
    given = {id(tensor) for tensor in outputs}
    waiting: list[Any] = [value.grad_fn]
    while waiting:
        node = waiting.pop()
        if node is None or node in known:
            continue
        known.add(node)
        leaf = getattr(node, "variable", None)
        if isinstance(leaf, nn.Parameter) and id(leaf) not in given:
            yield leaf
        waiting += [before for before, _ in node.next_functions]


def trained_outside(parameter: nn.Parameter, module: nn.Module) -> bool:
    """Whether a parameter is another run's.

    One that FSDP2 gathered for a pass is another object than the run's own: its shape must do.
    """
    return any(
        parameter is one or (isinstance(other, FSDPModule) and parameter.shape == one.shape)
        for other in CLIMBED
        if other is not module
        for one in other.parameters()
    )


@contextmanager
def shards_refused(module: nn.Module) -> Iterator[None]:
    """A context for a loss; torch raises where it mixes sharded tensors with others."""
    try:
        yield
    except RuntimeError as error:
        sharded = "DTensor" in str(error) or "DeviceMesh" in str(error)
        if sharded and has_shards(module):
            raise reads_shards("sharded tensors") from error
        raise


def reads_shards(what: str) -> ModelError:
    return ModelError(
        "loss",
        f"reads the module's parameters ({what}), of which this plan gives a rank only a part",
        "Use weight decay (wd=...) instead of a penalty, compute the term in the module's forward, "
        "or use ddp or zero1.",
    )


def reads_shortened(name: str) -> ModelError:
    return ModelError(
        "loss",
        f"reads '{name}', whose rows max_norm shortens in forward, and this plan computes a batch "
        "in parts, each of which shortens its own rows",
        "Use weight decay (wd=...) instead of a penalty, leave max_norm out, or compute a batch at "
        "once on one rank.",
    )


def untrained(parameter: nn.Parameter) -> ModelError:
    return ModelError(
        "loss",
        f"reads a trainable parameter of shape {tuple(parameter.shape)} that is not the module's, "
        "and nothing would train it",
        "Pass the module that holds it as loss=..., climb it as a run of its own, or freeze it "
        "(requires_grad_(False)).",
    )
