"""Which parameters each part of a module holds, each counted once, and which a tensor axis cuts."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from torch import Tensor, nn

from .anatomy import Anatomy
from .tensor_cuts import carried

CUT_BESIDE = {"column": "lora_B.", "row": "lora_A."}  # of an adapter, with the linear's cut


@dataclass(frozen=True, slots=True)
class Owns:
    parameters: int = 0
    whole: int = 0  # of them, held whole by every rank of the tensor axis
    frozen: int = 0  # of them, never trained
    frozen_whole: int = 0  # of those held whole, never trained
    tensors: int = 0  # that hold the trained ones


@dataclass(frozen=True, slots=True)
class Holdings:
    parts: dict[str, Owns]
    tied: int  # parameters of the head that are the embedding's

    def of(self, name: str) -> Owns:
        return self.parts.get(name, Owns())


def holdings_of(module: nn.Module, anatomy: Anatomy) -> Holdings:
    """By "entry", each block's name, "exit"; a tied head counts in both ends."""
    cuttable = cuttable_parameters(module, anatomy)
    owner = {name: name for name in anatomy.blocks} | dict.fromkeys(anatomy.exit, "exit")
    grouped: dict[str, list[tuple[str, nn.Parameter]]] = {}
    for name, parameter in module.named_parameters():
        part = next((owner[p] for p in prefixes(name) if p in owner), "entry")
        grouped.setdefault(part, []).append((name, parameter))
    parts = {part: owns(rows, cuttable) for part, rows in grouped.items()}
    tied = 0
    if anatomy.tied and anatomy.head is not None:
        head: Tensor = module.get_submodule(anatomy.head).weight  # type: ignore[assignment]
        tied = head.numel()
        ends = parts.get("exit", Owns())
        frozen, whole = 0 if head.requires_grad else tied, 0 if anatomy.cuts else tied
        parts["exit"] = Owns(
            ends.parameters + tied,
            ends.whole + whole,
            ends.frozen + frozen,
            ends.frozen_whole + min(frozen, whole),
            ends.tensors,
        )
    return Holdings(parts, tied)


def owns(rows: list[tuple[str, nn.Parameter]], cuttable: set[str]) -> Owns:
    return Owns(
        sum(p.numel() for _, p in rows),
        sum(p.numel() for name, p in rows if name not in cuttable),
        sum(p.numel() for _, p in rows if not p.requires_grad),
        sum(p.numel() for name, p in rows if not p.requires_grad and name not in cuttable),
        sum(p.requires_grad for _, p in rows),
    )


def cuttable_parameters(module: nn.Module, anatomy: Anatomy) -> set[str]:
    """Weights of cut linears, biases of those cut by column, and both ends' tables of classes."""
    if not anatomy.cuts:
        return set()
    names = {f"{end}.weight" for end in (anatomy.head, anatomy.embedding) if end}
    names.add(f"{anatomy.head}.bias")
    for block in anatomy.blocks:
        for name, kind in anatomy.cuts.items():
            names |= cut_in(
                module.get_submodule(block).get_submodule(name), f"{block}.{name}", kind
            )
    return names


def cut_in(part: nn.Module, name: str, kind: str) -> set[str]:
    """Of a linear and the adapters it may carry, what is cut: see rungs/tensor/lora_cuts.py."""
    linear = name if carried(part) is part else f"{name}.base_layer"
    names = {f"{linear}.weight"} | ({f"{linear}.bias"} if kind == "column" else set())
    beside = CUT_BESIDE.get(kind)
    words = [word for word, _ in part.named_parameters() if beside and word.startswith(beside)]
    return names | {f"{name}.{word}" for word in words}


def prefixes(name: str) -> Iterable[str]:
    words = name.split(".")
    return [".".join(words[:count]) for count in range(len(words), 0, -1)]
