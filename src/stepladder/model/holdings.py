"""Which parameters each part of a module holds, each counted once, and which a tensor axis cuts."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from torch import nn

from .anatomy import Anatomy


@dataclass(frozen=True, slots=True)
class Owns:
    parameters: int = 0
    whole: int = 0  # of them, held whole by every rank of the tensor axis


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
    grouped: dict[str, list[tuple[str, int]]] = {}
    for name, parameter in module.named_parameters():
        part = next((owner[p] for p in prefixes(name) if p in owner), "entry")
        grouped.setdefault(part, []).append((name, parameter.numel()))
    parts = {part: owns(rows, cuttable) for part, rows in grouped.items()}
    tied = 0
    if anatomy.tied and anatomy.head is not None:
        tied = module.get_submodule(anatomy.head).weight.numel()  # type: ignore[operator]
        ends = parts.get("exit", Owns())
        parts["exit"] = Owns(ends.parameters + tied, ends.whole + (0 if anatomy.cuts else tied))
    return Holdings(parts, tied)


def owns(rows: Iterable[tuple[str, int]], cuttable: set[str]) -> Owns:
    rows = list(rows)
    return Owns(sum(n for _, n in rows), sum(n for name, n in rows if name not in cuttable))


def cuttable_parameters(module: nn.Module, anatomy: Anatomy) -> set[str]:
    """Weights of cut linears, biases of those cut by column, and both ends' tables of classes."""
    if not anatomy.cuts:
        return set()
    names = {f"{end}.weight" for end in (anatomy.head, anatomy.embedding) if end}
    names.add(f"{anatomy.head}.bias")
    for block in anatomy.blocks:
        for name, kind in anatomy.cuts.items():
            names.add(f"{block}.{name}.weight")
            if kind == "column":
                names.add(f"{block}.{name}.bias")
    return names


def prefixes(name: str) -> Iterable[str]:
    words = name.split(".")
    return [".".join(words[:count]) for count in range(len(words), 0, -1)]
