"""Parameters that several pipeline stages share: their gradients are summed over the stages.

An output layer tied to the embedding lives on the first stage and on the last; a parameter outside
every part may be read by any stage. All copies start equal and get the same gradient, so they stay
equal; the gradient norm counts the first.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

import torch
import torch.distributed as dist
from torch import nn

from stepladder.rungs.parameter_shards import ParameterShard, local
from stepladder.seam.modules import EXTRA_STATE, persistent_buffers
from stepladder.world import World

from .find_stages import Stages


@dataclass(frozen=True, slots=True)
class TiedParameters:
    """The parameters that this rank holds together with other stages' ranks."""

    names: dict[str, str] = field(default_factory=dict)  # here, to the whole model's first
    groups: dict[str, dist.ProcessGroup] = field(default_factory=dict)  # by the latter
    copies: frozenset[str] = frozenset()  # of the latter, those that an earlier stage counts
    first_names: dict[str, str] = field(default_factory=dict)  # of all state, here to whole model
    homes: dict[str, int] = field(default_factory=dict)  # by the latter: the rank that saves it

    def add_up(self, module: nn.Module) -> None:
        """Make each shared parameter's gradient the sum of what all its stages found."""
        here = dict(module.named_parameters())
        for name, first in sorted(self.names.items(), key=lambda pair: pair[1]):
            parameter = here[name]
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
            dist.all_reduce(local(parameter.grad), group=self.groups[first])

    def rename(self, shards: Sequence[ParameterShard]) -> tuple[ParameterShard, ...]:
        """Pieces under the names they have in the whole model, so that all copies are treated
        alike; only the first is counted."""
        return tuple(
            replace(shard, name=first, copy=first in self.copies)
            if (first := self.names.get(shard.name))
            else shard
            for shard in shards
        )


def find_tied(module: nn.Module, stages: Stages, world: World) -> TiedParameters:
    """Look through a whole module for parameters that will live on several ranks."""
    first: dict[int, str] = {}
    aliases: dict[str, list[str]] = {}
    for name, parameter in module.named_parameters(remove_duplicate=False):
        if parameter.requires_grad:
            aliases.setdefault(first.setdefault(id(parameter), name), []).append(name)
    names: dict[str, str] = {}
    groups: dict[str, dist.ProcessGroup] = {}
    copies: set[str] = set()
    known: dict[tuple[int, ...], dist.ProcessGroup] = {}
    for name, all_names in aliases.items():
        held = {alias: stages.holders(alias) for alias in all_names}
        ranks = tuple(sorted(set().union(*held.values())))
        if len(ranks) == 1:
            continue
        if ranks not in known:  # by every rank, holder or not: making a group is collective
            known[ranks] = group_of(ranks, world)
        here = next((alias for alias in all_names if stages.index in held[alias]), None)
        if here is not None:
            names[here], groups[name] = name, known[ranks]
            if stages.index != ranks[0]:
                copies.add(name)
    return TiedParameters(names, groups, frozenset(copies), *find_homes(module, stages))


def find_homes(module: nn.Module, stages: Stages) -> tuple[dict[str, str], dict[str, int]]:
    """For every name of a whole module's state the first name of the same state, and for each
    first name the pipeline rank that saves it."""
    first: dict[object, str] = {}
    first_names: dict[str, str] = {}
    homes: dict[str, int] = {}
    for name, key in named_state(module):
        first_names[name] = first.setdefault(key, name)
        rank = stages.keeper(name)
        homes[first_names[name]] = min(rank, homes.get(first_names[name], rank))
    return first_names, homes


def named_state(module: nn.Module) -> Iterator[tuple[str, object]]:
    """All that belongs to a module's state under all its names, with a key that aliases share."""
    for name, parameter in module.named_parameters(remove_duplicate=False):
        yield name, id(parameter)
    for prefix, part in module.named_modules(remove_duplicate=False):
        dot = f"{prefix}." if prefix else ""
        # Moving a module replaces its buffers: two names are one only where the module is one.
        for name in (*dict(persistent_buffers(part)), EXTRA_STATE):
            yield dot + name, (id(part), name)


def group_of(stages: tuple[int, ...], world: World) -> dist.ProcessGroup:
    """These ranks of this rank's pipeline, as a group."""
    pipeline = world.layout.pipeline
    if len(stages) == pipeline:
        return world.group("pipeline")
    apart = world.layout.num_ranks // pipeline  # ranks of a stage: pipeline is the first axis
    rows = [[apart * stage + one for stage in stages] for one in range(apart)]
    mine, _ = dist.new_subgroups_by_enumeration(rows)
    return mine
