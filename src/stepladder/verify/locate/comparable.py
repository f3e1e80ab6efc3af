"""Which results of a rank's layers can be held against the reference's; the others are left out.

A tensor that a rank holds no part of, or only a share of a sum, would look like a difference.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from torch import nn

from stepladder.model import Anatomy
from stepladder.plan import Layout
from stepladder.rungs.pipeline.pipeline import Pipeline
from stepladder.rungs.pipeline.stage_module import RemotePart, StageModule

from .sites import Site


@dataclass(frozen=True, slots=True)
class Comparable:
    """Of one module, or of one stage of a pipeline."""

    shares: frozenset[str] = frozenset()  # modules that return shares of sums
    owners: tuple[str, ...] = ()  # modules whose inputs' gradients are shares of sums
    rows: frozenset[str] = frozenset()  # linears in them that add their shares up
    stage: tuple[bool, bool] | None = None  # of a pipeline: the first, the last
    own: tuple[str, ...] = ()  # the stage's blocks
    blocks: tuple[str, ...] = ()  # all blocks, in order
    hollow: frozenset[str] = frozenset()  # modules with parts that live on other stages

    def is_here(self, site: Site, expected: Mapping[Any, Any]) -> bool:
        """Whether the reference computes a site, and this rank does and not another."""
        return site in expected and (self.stage is None or self.on_stage(site, expected))

    def may_be_share(self, site: Site) -> bool:
        """Whether what is whole on this rank may be one share of a sum."""
        if site.kind != "output gradient":
            return site.name in self.shares
        return site.name in self.shares or (
            site.name not in self.rows
            and any(site.name.startswith(f"{owner}.") for owner in self.owners)
        )

    def on_stage(self, site: Site, expected: Mapping[Any, Any]) -> bool:
        """Whether this stage computes it, and not only passes by it on the way to its blocks."""
        assert self.stage is not None
        if site.name in self.hollow:
            return site.name == "" and (site.kind == "input" or self.stage[1])
        if is_inside(site.name, self.blocks):
            return is_inside(site.name, self.own)
        if Site("output", site.name, 1, site.part) in expected:
            return False  # called more than once: nobody knows for which stage
        order = {each: place for place, each in enumerate(expected)}
        here = order.get(site._replace(kind="output"), order[site])
        first = next(place for each, place in order.items() if each[1] == self.blocks[0])
        last = max(
            place for each, place in order.items() if each[:2] == ("output", self.blocks[-1])
        )
        return (self.stage[0] and here < first) or (self.stage[1] and here > last)


def comparable_in(module: nn.Module, anatomy: Anatomy, layout: Layout) -> Comparable:
    """Of a module that is whole, or whose matrices are cut."""
    if layout.tensor == 1:
        return Comparable()
    adapted = [n for n, part in module.named_modules() if hasattr(part, "base_layer")]
    inside = [n for n, _ in module.named_modules() if is_inside(n, adapted) and n not in adapted]
    cuts = {
        f"{block}.{name}": kind for block in anatomy.blocks for name, kind in anatomy.cuts.items()
    }
    return Comparable(
        frozenset(inside),
        tuple(dict.fromkeys(name.rpartition(".")[0] for name in cuts)),
        frozenset(name for name, kind in cuts.items() if kind == "row"),
    )


def comparable_on_stage(
    pipeline: Pipeline, chunk: StageModule, anatomy: Anatomy, layout: Layout
) -> Comparable:
    """Of one stage."""
    hollow = frozenset(
        name
        for name, part in chunk.view.named_modules()
        if any(type(inner) is RemotePart for inner in part.modules())
    )
    cut = comparable_in(chunk.view, anatomy, layout)
    own = tuple(name for name, _ in chunk.blocks)
    ends = chunk.index == 0, chunk.index == pipeline.stages.last
    return Comparable(cut.shares, cut.owners, cut.rows, ends, own, tuple(anatomy.blocks), hollow)


def is_inside(name: str, modules: Any) -> bool:
    return any(name == module or name.startswith(f"{module}.") for module in modules)
