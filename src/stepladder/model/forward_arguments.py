"""What of a dict a module's forward is given: the entries that it names, or all in one piece."""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from stepladder.seam.pytree import tree_leaves


@dataclass(frozen=True, slots=True)
class ForwardArguments:
    """The arguments of a forward."""

    names: frozenset[str] | None = None  # its keywords; None: any
    single: bool = False  # it needs one argument, which may be a dict

    @classmethod
    def of(cls, module: nn.Module) -> ForwardArguments:
        try:
            known = inspect.signature(module.forward).parameters.values()
        except (TypeError, ValueError):  # a forward without a signature
            return cls()
        if any(each.kind in (each.VAR_KEYWORD, each.VAR_POSITIONAL) for each in known):
            return cls()
        needed = [each for each in known if each.default is each.empty]
        names = frozenset(each.name for each in known if each.kind is not each.POSITIONAL_ONLY)
        return cls(names, len(needed) == 1)

    def chosen(self, given: dict[str, Any]) -> Any:
        if self.names is None or self.names.issuperset(given):
            return given
        found = {name: part for name, part in given.items() if name in self.names}
        if any(isinstance(leaf, torch.Tensor) for leaf in tree_leaves(found)):
            return found
        return (given,) if self.single else given  # else the call says what is missing
