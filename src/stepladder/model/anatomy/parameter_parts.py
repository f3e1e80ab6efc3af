"""Counting the parameters of each part of a module, and those that tensor parallelism cuts."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Set
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from stepladder.model.frozen_linears import frozen_linears

from .anatomy import Anatomy
from .expert_lists import expert_lists
from .hidden_matrices import MatrixShape, hidden_matrices
from .tensor_cuts import base_layer

ADAPTER_CUTS = {"column": "lora_B.", "row": "lora_A."}  # the adapter matrix cut with its linear


@dataclass(frozen=True, slots=True)
class ParameterCounts:
    """The number of parameters of one part, by how they are stored and trained."""

    parameters: int = 0
    whole: int = 0  # of them, replicated on every rank of the tensor axis
    frozen: int = 0  # of them, never trained
    frozen_whole: int = 0  # of those replicated, never trained
    narrowed: int = 0  # of the frozen ones, those that autocast lets be held in 16 bits
    narrowed_whole: int = 0  # of those replicated
    packed: int = 0  # of the frozen ones, bytes
    tensors: int = 0  # with trained parameters
    matrices: int = 0  # of the trained ones, those of hidden matrices
    whole_matrices: int = 0  # of those, replicated
    matrix_rows: int = 0
    in_lists: int = 0  # of experts that are modules


@dataclass(frozen=True, slots=True)
class PartParameters:
    """The parameter counts of every part of a model."""

    parts: dict[str, ParameterCounts]
    tied: int  # parameters that head and embedding share

    def of(self, name: str) -> ParameterCounts:
        return self.parts.get(name, ParameterCounts())


def count_parameters(module: nn.Module, anatomy: Anatomy) -> PartParameters:
    """Count the parameters of "entry", each block and "exit"; a tied head counts in both ends."""
    cuttable = cuttable_parameters(module, anatomy)
    owner = {name: name for name in anatomy.blocks} | dict.fromkeys(anatomy.exit, "exit")
    grouped: dict[str, list[tuple[str, nn.Parameter]]] = {}
    for name, parameter in module.named_parameters():
        part = next((owner[p] for p in prefixes(name) if p in owner), "entry")
        grouped.setdefault(part, []).append((name, parameter))
    hidden = hidden_matrices(module, anatomy)
    narrowed = frozen_linears(module).keys()
    lists = tuple([f"{one.name}." for one in expert_lists(module, anatomy.blocks)])
    parts = {
        part: replace(
            count_rows(rows, cuttable, hidden, narrowed),
            in_lists=sum(p.numel() for name, p in rows if name.startswith(lists)),
        )
        for part, rows in grouped.items()
    }
    tied = 0
    if anatomy.tied and anatomy.head is not None:
        head: Tensor = module.get_submodule(anatomy.head).weight  # type: ignore[assignment]
        tied = head.numel()
        ends = parts.get("exit", ParameterCounts())
        frozen, whole = 0 if head.requires_grad else tied, 0 if anatomy.cuts else tied
        parts["exit"] = replace(
            ends,
            parameters=ends.parameters + tied,
            whole=ends.whole + whole,
            frozen=ends.frozen + frozen,
            frozen_whole=ends.frozen_whole + min(frozen, whole),
        )
    return PartParameters(parts, tied)


def count_rows(
    rows: list[tuple[str, nn.Parameter]],
    cuttable: set[str],
    hidden: Mapping[str, MatrixShape],
    narrowed: Set[str],
) -> ParameterCounts:
    return ParameterCounts(
        sum(p.numel() for _, p in rows),
        sum(p.numel() for name, p in rows if name not in cuttable),
        sum(p.numel() for _, p in rows if not p.requires_grad),
        sum(p.numel() for name, p in rows if not p.requires_grad and name not in cuttable),
        sum(p.numel() for name, p in rows if name in narrowed),
        sum(p.numel() for name, p in rows if name in narrowed and name not in cuttable),
        sum(p.numel() for _, p in rows if p.dtype == torch.uint8),
        sum(p.requires_grad for _, p in rows),
        sum(p.numel() for name, p in rows if name in hidden),
        sum(p.numel() for name, p in rows if name in hidden and name not in cuttable),
        sum(hidden[name].rows * hidden[name].count for name, _ in rows if name in hidden),
    )


def cuttable_parameters(module: nn.Module, anatomy: Anatomy) -> set[str]:
    """Weights of cut linears, biases of column-cut ones, and the embedding and the head."""
    if not anatomy.cuts:
        return set()
    names = {f"{end}.weight" for end in (anatomy.head, anatomy.embedding) if end}
    names.add(f"{anatomy.head}.bias")
    for block in anatomy.blocks:
        for name, kind in anatomy.cuts.items():
            names |= cut_names(
                module.get_submodule(block).get_submodule(name), f"{block}.{name}", kind
            )
    return names


def cut_names(part: nn.Module, name: str, kind: str) -> set[str]:
    """The cut parameters of a linear and its adapters: see rungs/tensor/lora_cuts.py."""
    linear = name if base_layer(part) is part else f"{name}.base_layer"
    names = {f"{linear}.weight"} | ({f"{linear}.bias"} if kind == "column" else set())
    beside = ADAPTER_CUTS.get(kind)
    words = [word for word, _ in part.named_parameters() if beside and word.startswith(beside)]
    return names | {f"{name}.{word}" for word in words}


def prefixes(name: str) -> Iterable[str]:
    words = name.split(".")
    return [".".join(words[:count]) for count in range(len(words), 0, -1)]
