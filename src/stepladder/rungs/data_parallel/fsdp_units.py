"""Which parts of a module are gathered and reduced together.

Each block is a unit, and what lies outside the blocks is one more. Three things move a border. A
part that is kept in float32 travels in float32, so it is a unit of its own. So do the parameters of
norms that keep running statistics, which torch computes in the statistics' type. And a parameter
has one home: where parts share one, they are gathered together, or a part would find in its place
the slice that another part's unit left behind.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from torch import nn

Holders = dict[nn.Parameter, set[nn.Module]]


@dataclass(frozen=True, slots=True)
class Unit:
    parts: list[nn.Module]  # in the order the module names them
    full_width: bool = False  # gathered and reduced in float32
    last: bool = False  # no other block runs after it


def units_of(
    module: nn.Module, blocks: Sequence[tuple[str, nn.Module]], *, narrow: bool
) -> list[Unit]:
    """Inner units before those around them; the module itself comes last.

    Args:
        narrow: whether parameters outside `keep` are gathered in fewer bits.
    """
    holders: Holders = {}
    for part in module.modules():
        for parameter in part.parameters(recurse=False):
            holders.setdefault(parameter, set()).add(part)
    kept = [*full_width_units(module, holders), *counting_units(module)] if narrow else []
    settled = {part for unit in kept for one in unit.parts for part in one.modules()}
    alone = [
        block
        for _, block in blocks
        if block not in settled and keeps_to_itself(block, holders, settled)
    ]
    inner = [Unit([block], last=block is alone[-1]) for block in alone if has_own(block, settled)]
    return [*kept, *inner, Unit([module])]


def full_width_units(module: nn.Module, holders: Holders) -> list[Unit]:
    """Kept parts, each with whoever shares its parameters; those who share are one unit."""
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


COUNTING = (  # norms that may keep running statistics
    *(nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm),
    *(nn.InstanceNorm1d, nn.InstanceNorm2d, nn.InstanceNorm3d),
)


def counting_units(module: nn.Module) -> list[Unit]:
    """The norms with running statistics, as one unit: each is tiny."""
    kept = {part for one in kept_parts(module) for part in one.modules()}
    norms: list[nn.Module] = [
        part
        for part in module.modules()
        if isinstance(part, COUNTING) and part.affine and part not in kept
    ]
    return [Unit(norms, full_width=True)] if norms else []


def kept_parts(module: nn.Module) -> list[nn.Module]:
    """What the precision rung made compute in float32."""
    return [part for part in module.modules() if "_full_width" in vars(part)]


def outside(
    part: nn.Module, parameters: Iterable[nn.Parameter], holders: Holders
) -> set[nn.Module]:
    """Those that hold one of a part's parameters without being inside it."""
    sharing = set().union(*(holders[parameter] for parameter in parameters))
    return sharing - set(part.modules())


def keeps_to_itself(block: nn.Module, holders: Holders, settled: set[nn.Module]) -> bool:
    own = [p for p in block.parameters() if not holders[p] & settled]
    return not outside(block, own, holders)


def has_own(block: nn.Module, settled: set[nn.Module]) -> bool:
    """Whether any parameter is left to gather with the block."""
    return any(
        True
        for part in block.modules()
        if part not in settled
        for _ in part.parameters(recurse=False)
    )
