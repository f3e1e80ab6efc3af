"""Which parts of a module FSDP2 gathers and reduces together.

Each block is a unit, and what is outside the blocks is one more. Three things move the borders. A
part that is kept in float32 is gathered in float32, so it is a unit of its own. So are norms with
running statistics, which torch computes in the statistics' type. And a parameter belongs to one
unit: parts that share a parameter are gathered together, or one of them would find the shard that
another's unit left behind.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor

from stepladder.rungs.parameter_shards import parts_apart

Holders = dict[nn.Parameter, set[nn.Module]]


@dataclass(frozen=True, slots=True)
class Unit:
    parts: list[nn.Module]  # in the order of the module
    full_width: bool = False  # gathered and reduced in float32
    experts: bool = False  # of which the ranks of the experts axis have others


def units_of(
    module: nn.Module, blocks: Sequence[tuple[str, nn.Module]], *, narrow: bool
) -> list[Unit]:
    """Inner units before outer ones; the module itself comes last.

    Args:
        narrow: whether parameters outside `keep` are gathered in 16 bits.
    """
    holders: Holders = {}
    for part in module.modules():
        for parameter in part.parameters(recurse=False):
            holders.setdefault(parameter, set()).add(part)
    kept = []
    if narrow:
        norms = running_statistics_units(module, together=completes_units())
        kept = [*full_width_units(module, holders), *norms]
    kept += [Unit([part], experts=True) for part in spread_parts(module)]
    settled = {part for unit in kept for one in unit.parts for part in one.modules()}
    alone = [
        block
        for _, block in blocks
        if block not in settled and shares_nothing(block, holders, settled)
    ]
    inner = [Unit([block]) for block in alone if has_own(block, settled)]
    return [*kept, *inner, Unit([module])]


def spread_parts(module: nn.Module) -> list[nn.Module]:
    """Modules that the experts axis divides, or in whose place its other ranks have others."""
    spread = [
        part
        for part in module.modules()
        if any(is_spread(parameter) for parameter in part.parameters(recurse=False))
    ]
    return spread + parts_apart(module)


def blocks_among(units: Sequence[Unit]) -> list[nn.Module]:
    """The units that are blocks, sliced as a whole."""
    return [unit.parts[0] for unit in units[:-1] if not (unit.full_width or unit.experts)]


def is_spread(parameter: Tensor) -> bool:
    """Whether other ranks of the experts axis have other values of it."""
    return isinstance(parameter, DTensor) and any(
        name == "experts" and not placement.is_replicate()
        for name, placement in zip(parameter.device_mesh.mesh_dim_names or (), parameter.placements)
    )


def full_width_units(module: nn.Module, holders: Holders) -> list[Unit]:
    """Parts kept in float32, each together with the parts that share its parameters."""
    groups: list[set[nn.Module]] = []
    for part in kept_parts(module):
        if not any(True for _ in part.parameters()):
            continue
        group = {part, *outside(part, part.parameters(), holders)}
        for other in [known for known in groups if known & group]:
            groups.remove(other)
            group |= other
        groups.append(group)
    order = {part: index for index, part in enumerate(module.modules())}
    return [Unit(sorted(group, key=order.__getitem__), full_width=True) for group in groups]


RUNNING_STATISTICS = (  # norms that may keep running statistics
    *(nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm),
    *(nn.InstanceNorm1d, nn.InstanceNorm2d, nn.InstanceNorm3d),
)


def completes_units() -> bool:
    """Whether torch (2.13) gathers a unit of which backward recomputes only some parts."""
    return hasattr(FSDPModule, "set_reduce_scatter_unused_params")


def running_statistics_units(module: nn.Module, *, together: bool) -> list[Unit]:
    """The norms with running statistics as one unit, since each is small, or as one each."""
    kept = {part for one in kept_parts(module) for part in one.modules()}
    norms: list[nn.Module] = [
        part
        for part in module.modules()
        if isinstance(part, RUNNING_STATISTICS) and part.affine and part not in kept
    ]
    groups = [norms] if together and norms else [[norm] for norm in norms]
    return [Unit(group, full_width=True) for group in groups]


def kept_parts(module: nn.Module) -> list[nn.Module]:
    """Parts that the precision rung keeps in float32."""
    return [part for part in module.modules() if "_full_width" in vars(part)]


def outside(
    part: nn.Module, parameters: Iterable[nn.Parameter], holders: Holders
) -> set[nn.Module]:
    """Modules outside a part that hold one of these parameters."""
    sharing = set().union(*(holders[parameter] for parameter in parameters))
    return sharing - set(part.modules())


def shares_nothing(block: nn.Module, holders: Holders, settled: set[nn.Module]) -> bool:
    own = [p for p in block.parameters() if not holders[p] & settled]
    return not outside(block, own, holders)


def has_own(block: nn.Module, settled: set[nn.Module]) -> bool:
    """Whether the block has parameters that no other unit gathers."""
    return any(
        True
        for part in block.modules()
        if part not in settled
        for _ in part.parameters(recurse=False)
    )
