"""Modules and losses that cannot give the same bits on any number of ranks, refused by name."""

from __future__ import annotations

from torch import nn

from stepladder.errors import PlanError, raise_all
from stepladder.model.builtin.mixture import mixtures_of
from stepladder.rungs.data_parallel.batch_norm import batch_norms
from stepladder.rungs.loss_module import LossModule

WITHOUT = "or leave exact=ranks out."


def check_slices(module: nn.Module, loss: LossModule | None) -> None:
    """Raise every reason why slices of a batch would not add up to the same bits."""
    names = {part: name for name, part in module.named_modules()}
    found = [
        PlanError(
            f"'{names[norm]}'",
            "has momentum=None, a mean over its calls, and ranks call it unequally often",
            f"Give it a momentum, such as 0.1, {WITHOUT}",
        )
        for norm in batch_norms(module)
        if getattr(norm, "momentum", None) is None
    ]
    found += [
        PlanError(
            f"'{name}'",
            f"shortens the rows it looks up (max_norm={part.max_norm}) for the slices that come "
            "after, which depends on the ranks",
            f"Leave max_norm out, {WITHOUT}",
        )
        for part, name in names.items()
        if isinstance(part, nn.Embedding | nn.EmbeddingBag) and part.max_norm is not None
    ]
    found += [
        PlanError(
            f"'{name}'",
            "has losses of its router over the whole batch, which slices do not see",
            f"Build the model with balance=0 and z_loss=0, {WITHOUT}",
        )
        for name, part in mixtures_of(module)
        if part.balance or part.z
    ]
    if loss is not None and loss.trained:
        problem = f"has {len(loss.trained)} trained parameters, whose gradients ranks average"
        found.append(PlanError("loss", problem, f"Make them part of the module, {WITHOUT}"))
    raise_all(found)
