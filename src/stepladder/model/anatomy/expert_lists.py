"""Lists of modules that a router chooses from, found in any module.

A list counts as experts if its name says so, or if a linear beside it gives each entry a number.
The module that calls them is the nearest one around the list that has a forward of its own.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping
from dataclasses import dataclass

from torch import nn

from stepladder.seam.modules import children_of

CONTAINERS = (nn.ModuleList, nn.ModuleDict, nn.Sequential)


@dataclass(frozen=True, slots=True)
class ExpertList:
    """Experts that are modules of their own, and whose forward calls them."""

    name: str
    container: nn.Module
    caller_name: str
    caller: nn.Module

    @property
    def keys(self) -> list[str]:
        return list(children_of(self.container))

    @property
    def experts(self) -> list[nn.Module]:
        return list(self.container.children())


def expert_lists(module: nn.Module, blocks: Iterable[str] = ()) -> list[ExpertList]:
    """Every list of experts, the outermost where lists are nested.

    Args:
        blocks: names of the model's blocks, which run one after the other, if no name says else.
    """
    parts, layers = dict(module.named_modules()), {name.rpartition(".")[0] for name in blocks}
    found: list[ExpertList] = []
    for name, part in parts.items():
        inside = any(name.startswith(f"{one.name}.") for one in found)
        if inside or not isinstance(part, nn.ModuleList | nn.ModuleDict) or not name:
            continue
        if len(list(part.children())) > 1 and are_chosen(name, part, parts, layers):
            caller = caller_of(name, parts)
            found.append(ExpertList(name, part, caller, parts[caller]))
    return found


def are_chosen(
    name: str, part: nn.Module, parts: Mapping[str, nn.Module], layers: Container[str]
) -> bool:
    """Whether a router chooses among the entries of a list."""
    if is_named_expert(name):
        return all(any(True for _ in entry.parameters()) for entry in part.children())
    if name in layers:
        return False
    holder = parts[name.rpartition(".")[0]]
    beside = (one for one in holder.children() if isinstance(one, nn.Linear))
    kinds = {type(entry) for entry in part.children()}
    return len(kinds) == 1 and len(children_of(part)) in {one.out_features for one in beside}


def is_named_expert(name: str) -> bool:
    return "expert" in name.rpartition(".")[2].lower()


def caller_of(name: str, parts: Mapping[str, nn.Module]) -> str:
    """The nearest module that has a forward of its own; a list may have one."""
    while name and type(parts[name]).forward in [kind.forward for kind in CONTAINERS]:
        name = name.rpartition(".")[0]
    return name
