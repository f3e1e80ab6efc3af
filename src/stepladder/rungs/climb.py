"""The whole ladder in order, on one screen.

Each rung changes the module in place at build time; the module keeps its class and its parameter
names. The order matters: each line says why it comes before the next.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from torch import Tensor, nn

from stepladder.data import Batch
from stepladder.kernels import choose
from stepladder.loss import Loss
from stepladder.model import Anatomy, find_anatomy, set_attention
from stepladder.model.structure import describe_structure
from stepladder.plan import SettledPlan
from stepladder.rungs.context.context_parallel import SequenceSplit, context
from stepladder.rungs.data_parallel.batch_norm import synchronise_batch_norm
from stepladder.rungs.data_parallel.broadcast_parameters import (
    broadcast_parameters,
    is_on_meta,
    materialize,
)
from stepladder.rungs.data_parallel.distribute import parameter_device, wrap_data_parallel
from stepladder.rungs.data_parallel.optimizer_shards import optimizer_shards
from stepladder.rungs.data_parallel.renormalised_rows import check_renormalised
from stepladder.rungs.exact_ranks.accumulate_slices import AccumulateSlices
from stepladder.rungs.exact_ranks.check_module import check_slices
from stepladder.rungs.exact_ranks.slices import Slices
from stepladder.rungs.experts.exchange import ExpertRanks
from stepladder.rungs.experts.expert_parallel import experts
from stepladder.rungs.experts.routers import Routers
from stepladder.rungs.memory.compiled_writes import CompiledWrites
from stepladder.rungs.memory.offload_activations import around_forward
from stepladder.rungs.memory.recompute import fully_recomputed, recompute
from stepladder.rungs.memory.recompute_budget import BlockCost, in_order
from stepladder.rungs.pipeline.find_stages import find_stages
from stepladder.rungs.pipeline.split_module import RankStages, split
from stepladder.rungs.pipeline.tied_parameters import TiedParameters
from stepladder.rungs.precision.precision import (
    accumulate_in_float32,
    cast_inputs,
    computes_in_float64,
    keep_epsilon,
    precision,
)
from stepladder.rungs.tensor.vocabulary_parallel import head_slice
from stepladder.world import World, seed_generators
from stepladder.world.single_rank_mesh import with_mesh

from .accumulate import Accumulate, Scale
from .cuda_graphs.checked_replay import recording
from .forward_effects.call_counters import count_once
from .loss_leaves import CLIMBED
from .loss_module import LossModule, take_loss, with_loss
from .overlapping_parameters import refuse_overlapping
from .parameter_hooks import ParameterHooks
from .parameter_shards import ParameterShard, parameters_apart
from .prove_cuts import CutProof, cut_matrices, make_proof


@dataclass(frozen=True, slots=True)
class Climbed:
    """A module that has been taken up the ladder."""

    module: nn.Module  # as the user gave it, changed in place: what is saved
    anatomy: Anatomy
    forward_backward: Accumulate  # how a batch becomes gradients
    shards: tuple[ParameterShard, ...]  # what this rank's optimizer updates; shared parameters once
    publish: Callable[[], None]  # tell other ranks what the optimizer changed
    recomputed: tuple[str, ...] = ()  # blocks whose activations are not saved
    fully_recomputed: frozenset[str] = frozenset()  # of them, those whose matmuls run again
    # Choices and their reasons, and what rungs find out as they run.
    notes: list[str] = field(default_factory=list)
    hooks: ParameterHooks | None = None  # on parameters, of the user's
    shared: TiedParameters = field(default_factory=TiedParameters)  # between pipeline stages
    structure: dict[str, Any] = field(default_factory=dict)  # of the module as it was given
    loss_module: LossModule | None = None  # with state, where this rank computes the loss
    narrows: bool = False  # the module was given in float64, so batches come in it too
    compiled_writes: CompiledWrites = field(default_factory=CompiledWrites)
    routers: Routers | None = None  # of mixtures of experts

    @property
    def state(self) -> nn.Module:
        """The module, together with a loss that has state of its own."""
        return with_loss(self.module, self.loss_module)

    def settle_compiled(self, run_batch: Callable[[], Any]) -> None:
        """Before the first batch counts: keep blocks that write buffers out of the compiler."""
        world = self.forward_backward.world
        self.notes.extend(self.compiled_writes.settle(self.state, world, run_batch))

    def gradients(self, batch: Batch, scale: Scale, keys: Sequence[int]) -> Tensor:
        """Add a batch's gradients to `.grad`, call the hooks on parameters; its mean loss.

        Args:
            keys: of random numbers that do not depend on the rank, such as those that hooks draw.
        """
        run = self.forward_backward
        run.keys = tuple(keys)
        whole = run.world.layout.num_ranks == 1 and (run.micro or math.inf) >= batch.num_rows
        if whole or self.hooks is None:
            return self.run_batch(batch, scale)
        seed = partial(seed_generators, run.world.device, *keys)
        with self.hooks.once_a_batch(self.state, scale, seed):
            return self.run_batch(batch, scale)

    def run_batch(self, batch: Batch, scale: Scale) -> Tensor:
        if self.routers:
            self.routers.prepare(self.forward_backward, self.module, batch, scale)
        mean = self.forward_backward(batch, scale)
        if self.loss_module:
            ways = self.forward_backward.gradient_sync.ways
            self.loss_module.average_gradients(self.forward_backward.world, ways)
        return mean


def climb(
    module: nn.Module,
    settled: SettledPlan,
    loss: Loss,
    world: World,
    costs: Sequence[BlockCost] | None = None,
    seed: int = 0,
    inputs: Any = None,
) -> Climbed:
    """Apply every rung the plan names; a module on the meta device is initialised from `seed`.

    Args:
        inputs: one row, to balance the stages of a pipeline; not needed for token models.
    """
    # Before any rung: which parameters are the loss's own is seen on the module as it was given.
    loss_module = take_loss(loss.function, module, settled, world)
    if settled.slices:
        check_slices(module, loss_module)
    if narrows := computes_in_float64(module):
        keep_epsilon(module)
    # Before any rung: tensors that replace parameters have no hooks.
    hooks = ParameterHooks(with_loss(module, loss_module))
    if settled.offloads_parameters:
        world = with_mesh(world)  # FSDP2, which fetches them, needs a mesh even of one rank
    part = cut_for_rank(module, settled, loss, world, costs, seed, inputs)
    blocks, ends = part.blocks, part.rank_stages is None or part.rank_stages.ends
    # After the move: memory layouts are the device's. Before compilation, which must see them.
    given = part.sequences.loss if part.sequences else loss
    parts, classes = [block for _, block in blocks], head_slice(module, part.anatomy, world)
    chosen = choose(module, part.anatomy, parts, given, settled, ends=ends, part=classes)
    # Before compilation: the compiler must see which activations it may drop.
    again = settled.plan.recompute.kind != "none"
    recomputed = recompute(blocks, settled.plan.recompute, costs=part.costs) if again else ()
    # Last: it fuses whatever the rungs below left.
    chosen.compile()
    # Around everything: data parallelism wraps what the rungs below made of the module.
    run = (part.rank_stages.run if part.rank_stages else partial(one_stage, module, blocks))(
        settled,
        world,
        loss=chosen.loss,
        head=chosen.head,
        forward_context=chosen.around(around_forward(module, settled, world.device)),
        read_inputs=chosen.reading(partial(cast_inputs, settled.plan.precision)),
        whole_outputs=chosen.whole_outputs,
        micro=settled.micro_batch,
    )
    if part.on_meta:  # after sharding: no rank ever has all of it
        materialize(module, parameter_device(settled, world), seed)
    part.watch_batches(run, chosen.notes)
    run.notes = chosen.notes if world.is_rank_zero else []
    run.loss_module = loss_module if ends else None
    run.follow_statistics(module)
    CLIMBED.add(module)
    return replace(assemble(module, part, run, hooks, recomputed, settled), narrows=narrows)


def assemble(
    module: nn.Module,
    part: RankModule,
    run: Accumulate,
    hooks: ParameterHooks,
    recomputed: tuple[str, ...],
    settled: SettledPlan,
) -> Climbed:
    """What the engine needs to know of a module that has been taken up the ladder."""
    loss = run.loss_module if run.loss_module and run.loss_module.has_state else None
    named = (*module.named_parameters(), *(loss.trained if loss else ()))
    shards, publish = optimizer_shards(named, settled, run.world, parameters_apart(module))
    tied = part.rank_stages.tied if part.rank_stages else TiedParameters()
    if (routers := Routers.of(module, run.world, part.expert_ranks)) and routers.losses:
        run.statistics = [*run.statistics, routers.losses]
    return Climbed(
        module,
        part.anatomy,
        run,
        tied.rename(shards),
        publish,
        recomputed=recomputed,
        fully_recomputed=fully_recomputed(part.blocks),
        notes=run.notes,
        hooks=hooks,
        shared=tied,
        structure=part.structure,
        loss_module=loss,
        compiled_writes=CompiledWrites.among(part.blocks, settled.plan),
        routers=routers,
    )


@dataclass(frozen=True, slots=True)
class RankModule:
    """A rank's part of the module, before kernels, recomputation and data parallelism."""

    anatomy: Anatomy
    blocks: Sequence[tuple[str, nn.Module]]
    costs: Sequence[BlockCost] | None  # of these blocks
    rank_stages: RankStages | None  # of a pipeline
    sequences: SequenceSplit | None  # with context parallelism
    on_meta: bool  # its parameters are not initialised yet
    proof: CutProof | None  # that tensor and context parallelism leave its results alone
    structure: dict[str, Any]  # of the module before any rung
    expert_ranks: ExpertRanks | None = None  # that experts are spread over

    def watch_batches(self, run: Accumulate, notes: list[str]) -> None:
        """Have the run split its batches along the sequence, and try the first one."""
        if self.sequences:
            run.split_batch = partial(self.sequences.local_chunk, run)
        if self.proof:
            self.proof.notes = notes
            self.proof.watch(run)


def cut_for_rank(
    module: nn.Module,
    settled: SettledPlan,
    loss: Loss,
    world: World,
    costs: Sequence[BlockCost] | None,
    seed: int,
    inputs: Any,
) -> RankModule:
    """The lower half of the ladder: precision, and this rank's part of the module."""
    plan = settled.plan
    check_renormalised(module, settled)
    refuse_overlapping(module, settled)
    structure, anatomy = describe_structure(module), find_anatomy(module)
    blocks = anatomy.blocks_of(module) if anatomy.blocks else []
    # Before anything else: FLOPs of a stage are counted on the module as it was given.
    piped = plan.layout.pipeline > 1
    ordered = find_stages(module, anatomy, settled, world, inputs) if piped else (None, anatomy)
    costs, (stages, anatomy) = in_order(costs, anatomy, ordered[1]), ordered
    broadcast_parameters(module, world)  # before anything cuts: every rank must cut the same model
    # Before anything changes the module: the first batch is also computed by a whole copy.
    cut = plan.layout.tensor > 1 or plan.layout.context > 1
    proof = make_proof(module, anatomy, loss, plan, world) if cut else None
    # Before anything cuts a layer: statistics are of whole channels.
    if plan.batchnorm == "sync" and not settled.slices:
        synchronise_batch_norm(module, world)
    # Before anything wraps a block: it changes what the block computes.
    if plan.attention != "auto":
        set_attention(module, plan.attention)
    # Before recomputation: what runs again in backward must gather from other ranks again.
    sequences = context(module, blocks, loss, plan, world) if plan.layout.context > 1 else None
    # Before the move: casting on the host needs no device memory for the wider copy.
    precision(module, plan.precision, plan.keep, world.device, kernels=bool(plan.kernels))
    if settled.sums_gradients_in_float32:
        accumulate_in_float32(module)
    # Before the move: no device ever has another stage's parts.
    rank_stages = split(module, anatomy, stages, settled, world) if stages else None
    if rank_stages:
        blocks, costs = anatomy.blocks_of(module), rank_stages.costs(costs, settled)
    on_meta, whole = is_on_meta(module), not settled.sliced or plan.layout.tensor > 1
    if whole:  # else FSDP2 moves it as it shards: it may be larger than the device
        materialize(module, world.device, seed) if on_meta else module.to(world.device)
    # Before recomputation and compilation: they wrap a block that is already cut.
    if plan.layout.tensor > 1:
        cut_matrices(module, anatomy, loss, world, proof, inputs)
    ranks = experts(module, world, anatomy.blocks)  # before data parallelism: over fewer ranks
    late = on_meta and not whole
    made = RankModule(anatomy, blocks, costs, rank_stages, sequences, late, proof, structure)
    return replace(made, expert_ranks=ranks)


def one_stage(
    module: nn.Module,
    blocks: Sequence[tuple[str, nn.Module]],
    settled: SettledPlan,
    world: World,
    **how: Any,
) -> Accumulate:
    sync = wrap_data_parallel(module, blocks, settled, world)
    sync = replace(sync, around_micro_batch=count_once(module, sync.around_micro_batch))
    if settled.slices:
        return AccumulateSlices(sync, world=world, slices=Slices.of(settled, world), **how)
    accumulate = recording(how["loss"]) if settled.records_graphs else Accumulate
    return accumulate(sync, world=world, **how)
