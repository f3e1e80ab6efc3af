"""Lists of like modules that a router chooses from, found in any module, and what they must be.

A list counts as experts if its name says so, or if a linear beside it gives each entry a number.
The module that calls them is the nearest one around the list that has a forward of its own.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass

from torch import nn

from stepladder.errors import ModelError, PlanError
from stepladder.rungs.data_parallel.replicated_parameters import cannot_be_sharded
from stepladder.seam.modules import children_of

CONTAINERS = (nn.ModuleList, nn.ModuleDict, nn.Sequential)
REMEDY = "Make them alike and whole, or leave experts out: zero3 slices such experts too."


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
    holder, _, word = name.rpartition(".")
    if "expert" in word.lower():
        return all(any(True for _ in entry.parameters()) for entry in part.children())
    if name in layers:
        return False
    beside = (one for one in parts[holder].children() if isinstance(one, nn.Linear))
    kinds = {type(entry) for entry in part.children()}
    return len(kinds) == 1 and len(children_of(part)) in {one.out_features for one in beside}


def caller_of(name: str, parts: Mapping[str, nn.Module]) -> str:
    """The nearest module that has a forward of its own; a list may have one."""
    while name and type(parts[name]).forward in [kind.forward for kind in CONTAINERS]:
        name = name.rpartition(".")[0]
    return name


def check_lists(module: nn.Module, lists: Sequence[ExpertList], tensor: int) -> None:
    """Refuse lists that ranks could not share, by name."""
    callers: dict[str, str] = {}
    for one in lists:
        other = callers.setdefault(one.caller_name, one.name)
        if other != one.name:
            problem = f"and '{other}' are both called by '{one.caller_name}'"
            raise ModelError(f"'{one.name}'", problem, "Give each a module of its own.")
        if tensor > 1:
            problem = f"'{one.name}' holds experts as modules, which {tensor} ways would cut"
            remedy = "Use tensor=1 beside experts=, or stack them, as transformers does."
            raise PlanError("layout.tensor", problem, remedy)
        check_alike(one, module)


def check_alike(found: ExpertList, module: nn.Module) -> None:
    """Refuse experts of which a rank could not hold some and call the others."""
    first, *others = zip(found.keys, found.experts)
    wanted = tensors_in(first[1])
    for key, expert in others:
        differ(found.name, (first[0], wanted), (key, tensors_in(expert)))
    holders: dict[int, str] = {}
    for path, part in module.named_modules():
        for word, parameter in part.named_parameters(recurse=False):
            name = f"{path}.{word}".lstrip(".")
            mine = name.startswith(f"{found.name}.")
            other = holders.setdefault(id(parameter), name)
            if other != name and (mine or other.startswith(f"{found.name}.")):
                raise ModelError(f"'{name}'", f"is the same parameter as '{other}'", REMEDY)
            if mine and cannot_be_sharded(parameter):
                said = f"is an expert's parameter of shape {tuple(parameter.shape)}"
                raise ModelError(f"'{name}'", f"{said}, which ranks cannot slice", REMEDY)
    for key, expert in zip(found.keys, found.experts):
        for word, _ in expert.named_buffers():
            problem = "is a buffer of an expert, which would see the rows of other ranks"
            raise ModelError(f"'{found.name}.{key}.{word}'", problem, REMEDY)


Tensors = Mapping[str, tuple[object, ...]]


def tensors_in(expert: nn.Module) -> Tensors:
    return {
        name: (tuple(p.shape), p.dtype, p.requires_grad) for name, p in expert.named_parameters()
    }


def differ(name: str, first: tuple[str, Tensors], other: tuple[str, Tensors]) -> None:
    """Refuse the first tensor in which two entries are not alike."""
    for word in (*first[1], *other[1]):
        one, two = (tensors.get(word) for _, tensors in (first, other))
        if one != two:
            problem = f"is {shown(two)}, and '{name}.{first[0]}.{word}' is {shown(one)}"
            raise ModelError(f"'{name}.{other[0]}.{word}'", problem, REMEDY)


def shown(tensor: tuple[object, ...] | None) -> str:
    if tensor is None:
        return "absent"
    shape, dtype, trained = tensor
    return f"{shape} of {str(dtype).removeprefix('torch.')}{'' if trained else ', frozen'}"
