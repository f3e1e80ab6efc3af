"""Building Muon for what this rank owns: which parameters are matrices, and who computes which."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from functools import partial
from typing import Any

import torch
from torch import nn

from stepladder.errors import PlanError
from stepladder.model import find_anatomy
from stepladder.model.anatomy.hidden_matrices import MatrixShape, hidden_matrices, matrix_shape
from stepladder.plan import Optimizer, Precision, SettledPlan
from stepladder.planner.time.collective_time import network_of
from stepladder.planner.time.device_speed import NOMINAL, speed_of
from stepladder.planner.time.orthogonalise_time import STAGE, OrthogonaliseRates
from stepladder.rungs import Climbed, ParameterShard, float32_matmul_mode
from stepladder.train.optimizer.build_optimizer import rate_of_group, settings
from stepladder.train.optimizer.compact.masters import Masters
from stepladder.train.tuning.planner_inputs import cluster_for
from stepladder.world import World, deterministic
from stepladder.world.seed import one_thread

from .exchange import Exchange, Mail, rounds_of
from .matrix_shards import MatrixShard, find_matrix_shards
from .matrix_work import MatrixWork
from .muon import Muon
from .newton_schulz import newton_schulz, orthogonalise
from .row_means import row_messages
from .shared_work import share_work

MILLION = 1e6


@dataclass(frozen=True, slots=True)
class Chosen:
    """The matrices of a whole model that Muon updates; AdamW updates the rest."""

    shapes: Mapping[str, MatrixShape] = field(default_factory=dict)
    elements: int = 0
    others: int = 0  # parameters that AdamW updates

    def __str__(self) -> str:
        count = len(self.shapes)
        return (
            f"muon updates {count} hidden matri{'x' if count == 1 else 'ces'} "
            f"({self.elements / MILLION:.1f} M parameters), and adamw the other "
            f"{self.others / MILLION:.1f} M"
        )


def choose_matrices(how: Optimizer, module: nn.Module) -> Chosen:
    """The hidden matrices of a module as it was given, but for what groups say of them."""
    found = hidden_matrices(module, find_anatomy(module))
    parts = dict(module.named_modules(remove_duplicate=False))
    trained = {name: p for name, p in module.named_parameters() if p.requires_grad}
    for name, parameter in trained.items():
        rule = next((g for g in how.groups if fnmatchcase(name, g.pattern)), None)
        if rule is not None and rule.by == "adamw":
            found.pop(name, None)
        elif rule is not None and rule.by == "muon":
            shape = matrix_shape(parts[name.rpartition(".")[0]], parameter)
            if shape is None:
                problem = f"{rule} gives muon '{name}' of shape {tuple(parameter.shape)}"
                raise PlanError("optimizer", f"{problem}, which is no matrix", "Leave by=muon out.")
            found[name] = shape
    mine = sum(trained[name].numel() for name in found)
    return Chosen(found, mine, sum(p.numel() for p in trained.values()) - mine)


def make_muon(
    chosen: Chosen, climbed: Climbed, settled: SettledPlan, masters: Masters | None = None
) -> Muon:
    """The optimizer of this rank; every rank of the world calls it."""
    how, world = settled.plan.optimizer, climbed.forward_backward.world
    refuse_apart(climbed.shards)
    first = climbed.shared.first_names
    shapes = {
        shard.name: chosen.shapes[name]
        for shard in climbed.shards
        if (name := first.get(shard.name, shard.name)) in chosen.shapes
    }
    held = find_matrix_shards(climbed.shards, shapes, world)
    owned = [(shard.name, shard.owned) for shard in climbed.shards]
    # A pipeline stage may have no trainable parameter; torch's optimizers need one.
    named = owned or [("", nn.Parameter(torch.empty(0)))]
    groups = groups_of(how, named, climbed.anatomy.blocks, shapes)
    fused = not settled.slices and all(p.is_floating_point() for _, p in named)
    work = divide_work(held, settled, world)
    climbed.notes.extend(filter(None, [str(chosen), work.because]))
    kept = None if masters is None else masters.of(climbed.shards)
    return Muon(groups, how, work, names=chosen.shapes, fused=fused, masters=kept)


def refuse_apart(shards: Iterable[ParameterShard]) -> None:
    for shard in shards:
        if shard.apart:
            problem = (
                "muon shares out matrices that all ranks know of, and other ranks have other "
                f"{shard.apart} in the place of '{shard.name}'"
            )
            remedy = "Use adamw, or stack the experts, as transformers does."
            raise PlanError("optimizer", problem, remedy)


def groups_of(
    how: Optimizer,
    named: Iterable[tuple[str, nn.Parameter]],
    blocks: Sequence[str],
    shapes: Mapping[str, MatrixShape],
) -> list[dict[str, Any]]:
    """Parameters with the same algorithm, rate factor and decay together."""
    groups: dict[tuple[bool, float, float], list[nn.Parameter]] = {}
    for name, parameter in named:
        factor, decay = settings(how, name, blocks)
        groups.setdefault((name in shapes, factor, decay), []).append(parameter)
    return [
        {
            "params": members,
            "weight_decay": decay,
            "matrix": matrix,
            **rate_of_group(
                factor * (how.lr if matrix else how.adamw_lr),
                factor if matrix else share_of(how) * factor,
                f"{'muon' if matrix else 'adamw'} lr={factor}x wd={decay}",
            ),
        }
        for (matrix, factor, decay), members in sorted(
            groups.items(), key=lambda item: not item[0][0]
        )
    ]


def share_of(how: Optimizer) -> float:
    """AdamW's rate as a share of the matrices'."""
    return how.adamw_lr / how.lr if how.lr else 1.0


def divide_work(held: Sequence[MatrixShard], settled: SettledPlan, world: World) -> MatrixWork:
    """Who computes which matrix, by forecast."""
    how, device = settled.plan.optimizer, world.device
    dtype = getattr(torch, settled.plan.precision.work)
    several = world.mesh is not None and any(getattr(world.layout, axis) > 1 for axis in STAGE)
    group = world.group(*STAGE) if several else None
    ranks, rank = (group.size(), group.rank()) if group else (1, 0)
    rates = rates_of(settled, world)
    matrices = [one.matrix for one in held]
    share = share_work(matrices, ranks, how.ns_steps, dtype.itemsize, rates)
    return MatrixWork(
        Exchange(held, dtype, device, group),
        rounds_of(held, share, rank),
        Mail.of(row_messages(held, share), rank),
        partial(arithmetic, settled, device),
        compiled(settled, device),
        one_by_one=bool(settled.slices),
        because=share.because,
    )


def rates_of(settled: SettledPlan, world: World) -> OrthogonaliseRates:
    """What this machine's devices multiply and send a second, as far as the tables know."""
    precision: Precision = settled.plan.precision
    try:
        cluster = cluster_for(world.device, world.place)
    except LookupError:  # of a card that no table has: sharing is chosen as for nominal rates
        return OrthogonaliseRates(*NOMINAL, latency=1e-5)
    group = network_of(cluster).group(world.layout, *STAGE)
    speed = speed_of(cluster.device, precision)
    return OrthogonaliseRates(speed.wide, group.bytes_per_second, group.ring_latency)


def compiled(settled: SettledPlan, device: torch.device) -> Any:
    """Newton-Schulz as the plan compiles: the sizes of stacks are no part of the code."""
    if not settled.plan.compile or device.type != "cuda":
        return orthogonalise
    return partial(orthogonalise, iterate=torch.compile(newton_schulz, dynamic=True))


@contextmanager
def arithmetic(settled: SettledPlan, device: torch.device) -> Iterator[None]:
    """Context of an update: products as the plan has them, the same in every run if it says so."""
    alone = bool(settled.slices) and device.type == "cpu"
    with (
        one_thread(alone),
        deterministic(settled.deterministic, lenient=settled.lenient),
        float32_matmul_mode(settled.plan.precision, device),
    ):
        yield
