"""The float32 values that masters begin with, taken before any rung and laid out after all."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from stepladder.rungs import ParameterShard
from stepladder.train.optimizer.lay_out_state import laid_out


@dataclass(frozen=True, slots=True)
class Masters:
    """The parameters of a run in float32, before a rung rounds, cuts or replaces them.

    A parameter without values has no digits to lose: its master begins as what it is filled with.
    """

    kept: Mapping[nn.Parameter, Tensor]
    named: Mapping[str, Tensor]  # of the module, under every name

    @classmethod
    def take(cls, module: nn.Module, *others: Any) -> Masters:
        """Those of a module, and of all modules among `others`."""
        modules = [module, *(one for one in others if isinstance(one, nn.Module))]
        every = [p for one in modules for p in one.parameters()]
        kept = {p: p.detach().clone() for p in every if has_digits(p)}
        named = module.named_parameters(remove_duplicate=False)
        return cls(kept, {name: kept[p] for name, p in named if p in kept})

    def of(self, shards: Iterable[ParameterShard]) -> dict[nn.Parameter, Tensor]:
        """By what this rank's optimizer updates, which may be a slice, or a copy on the host."""
        found = {}
        for shard in shards:
            master = self.kept.get(shard.parameter, self.named.get(shard.name))
            if master is not None:
                found[shard.owned] = laid_out(master, shard)
        return found


def has_digits(p: nn.Parameter) -> bool:
    return p.requires_grad and p.dtype == torch.float32 and not p.is_meta
