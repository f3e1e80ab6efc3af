"""What experts that are modules in a list must be, for ranks to hold some of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from torch import nn

from stepladder.errors import ModelError, PlanError
from stepladder.model.anatomy.expert_lists import ExpertList
from stepladder.rungs.data_parallel.replicated_parameters import cannot_be_sharded

REMEDY = "Make them alike and whole, or leave experts out: zero3 slices such experts too."


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
        check_one_structure(one, module)


def check_one_structure(found: ExpertList, module: nn.Module) -> None:
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
