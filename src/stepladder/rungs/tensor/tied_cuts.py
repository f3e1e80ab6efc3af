"""Parameters that are one under several names: what is cut under one name is cut under all."""

from __future__ import annotations

from typing import Any

from torch import nn

from stepladder.errors import ModelError


def shared_names(module: nn.Module) -> list[list[str]]:
    """Names of parameters that are one, group by group."""
    names: dict[nn.Parameter, list[str]] = {}
    for name, parameter in module.named_parameters(remove_duplicate=False):
        names.setdefault(parameter, []).append(name)
    return [group for group in names.values() if len(group) > 1]


def tie(
    module: nn.Module, groups: list[list[str]], prefix: str = "", *, adopt: bool = False
) -> None:
    """Make those one again that were one before.

    Args:
        adopt: where only some were cut, have the others be the cut one. Right where no forward
            reads them under those names, such as the bias of BERT's head, and to be tried.
    """
    for first, *others in groups:
        every: list[Any] = [module.get_parameter(name) for name in (first, *others)]
        cut = [one for one in every if not one.placements[-1].is_replicate()]
        kept = cut[0] if cut and adopt else every[0]
        for name, other in zip((first, *others), every):
            owner, _, end = name.rpartition(".")
            whole = adopt and other.placements[-1].is_replicate()
            if other.placements != kept.placements and not whole:
                raise ModelError(
                    f"{prefix}{name}",
                    f"is one with '{prefix}{first}', and a tensor axis cuts only one of them",
                    "Use shard or pipeline.",
                )
            module.get_submodule(owner).register_parameter(end, kept)
