"""Whether a loss reads the module itself, of which every pipeline stage holds only a part.

A penalty over the module's parameters would see one stage's; an auxiliary loss that a forward pass
leaves in an attribute is on the stage that ran it, and may be of another batch. So the loss is
computed once, before the first step, of outputs without a graph, while reads of the module are
recorded. A loss that needs more than the outputs and the targets is refused.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from stepladder.data import Batch
from stepladder.errors import ModelError
from stepladder.loss import Loss
from stepladder.rungs.loss_leaves import parameters_beyond, trained_outside, untrained
from stepladder.rungs.loss_module import LossModule
from stepladder.seam.modules import CALL
from stepladder.seam.pytree import tree_leaves

Reads = list[tuple[str, nn.Module, str]]  # the part's name, the part, the attribute

WHOLE = frozenset(
    {"parameters", "named_parameters", "buffers", "named_buffers", "state_dict", "modules"}
    | {"named_modules", "children", "named_children", "forward", CALL, "apply"}
)  # methods that walk the module, or run it


def check_reads(
    loss: Loss,
    outputs: Any,
    part: Batch,
    module: nn.Module,
    view: nn.Module,
    own: LossModule | None,
) -> ModelError | None:
    """Why a loss cannot be computed on the last stage: it reads what that stage does not have.

    Args:
        outputs: of a forward pass without gradients.
        module: the user's, which the loss may refer to.
        view: this stage's copy, whose forward pass made the outputs.
        own: the loss as a module, whose parameters the stage has.
    """
    with recorded_reads(module) as reads, torch.enable_grad():
        try:
            value = loss.mean(outputs, part)
        except ModelError as refused:
            return refused
        except Exception:  # where it is not for what it reads, a step will raise it
            value = None
    for name, owner, word in reads:
        label = f"'{name}.{word}'".replace("'.", "'")
        if word in WHOLE:
            runs = word in ("forward", CALL)
            return refusal("the module's forward" if runs else f"{label}()")
        if value is None or holds_tensor(getattr(owner, word, None)):
            return refusal(label)
        if was_written(word, owner, find(view, name)):
            return refusal(label)
    return None if value is None else check_parameters(value, module, own)


def check_parameters(value: Tensor, module: nn.Module, own: LossModule | None) -> ModelError | None:
    """Why a loss must not read the parameters that its value depends on."""
    known = {id(parameter) for _, parameter in own.trained} if own else set()
    others = [each for each in parameters_beyond(value, ()) if id(each) not in known]
    if any(each is parameter for each in others for parameter in module.parameters()):
        return refusal("its parameters")
    lost = [each for each in others if not trained_outside(each, module)]
    return untrained(lost[0]) if lost else None


def holds_tensor(value: Any) -> bool:
    return not isinstance(value, nn.Module) and any(
        isinstance(leaf, Tensor) for leaf in tree_leaves(value)
    )


def find(view: nn.Module, name: str) -> nn.Module | None:
    return dict(view.named_modules()).get(name)


def was_written(word: str, owner: nn.Module, ran: nn.Module | None) -> bool:
    """Whether the forward pass set this attribute in the stage's copy of the part."""
    return ran is not None and vars(ran).get(word) is not vars(owner).get(word)


@contextmanager
def recorded_reads(module: nn.Module) -> Iterator[Reads]:
    """A context in which reads of attributes, of the module or any part, are recorded."""
    reads: Reads = []
    own: list[tuple[nn.Module, type]] = []
    # All of them first: a part that several others share would be walked once it records.
    for name, part in list(module.named_modules()):
        kind = type(part)
        try:
            part.__class__ = recording(kind, name, reads)
            own.append((part, kind))
        except TypeError:  # a class of another layout
            continue
    try:
        yield reads
    finally:
        for part, kind in own:
            part.__class__ = kind


def recording(kind: type, name: str, reads: Reads) -> type:
    base: Any = kind

    def read(self: Any, word: str) -> Any:
        if word in WHOLE or not word.startswith("_"):
            reads.append((name, self, word))
        return base.__getattribute__(self, word)

    return type(kind.__name__, (kind,), {"__getattribute__": read})


def refusal(what: str) -> ModelError:
    return ModelError(
        "loss",
        f"it reads {what} of the module, of which a pipeline stage holds only a part",
        "Compute that term inside the module's forward after its blocks, or use pipeline=1.",
    )
