"""Rung: tensor parallel: matrices split over ranks, each computing its part of every matmul.

Linears come in pairs. The first is split by columns, so each rank computes some of the heads or
hidden features; the second by rows, so each rank's result is a part of a sum. Between pairs the
residual stream is split along the sequence where the model says that positions are independent
there (sequence parallel): a pair starts with an all-gather and ends with a reduce-scatter, norms
and dropout see a slice, and nothing but matrices is stored or computed twice. Where positions may
depend on each other (a class token, a foreign block) every rank has the whole stream, and a pair
ends with an all-reduce.

Dropout: where ranks have slices, each draws its own pattern; where they have the same values, all
draw the same. With a whole stream a rank's own heads are dropped by the same pattern as every other
rank's, which does not change the mean.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cache, partial
from typing import Any

import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard

from stepladder.errors import ModelError, PlanError
from stepladder.model import Anatomy, base_layer
from stepladder.model.anatomy.tensor_cuts import normalises_whole
from stepladder.plan.settled.model_rules import divisors
from stepladder.seam.modules import parameters_of
from stepladder.seam.sharding import strided_shard
from stepladder.world import World

from .block_calls import BlockCall, capture_calls
from .check_cuts import try_cuts
from .local_compute import change_first, distribute, move, move_to_copy, run_on_local
from .lora_cuts import check_adapters, cut_narrowing, cut_widening
from .sequence_parallel import SEQUENCE, slice_residual_stream
from .tied_cuts import shared_names, tie
from .vocabulary_parallel import cut_embedding, cut_head

# What attentions call the counts that a cut divides.
COUNTS = (
    *("num_heads", "n_heads", "n_head", "nhead", "heads", "num_attention_heads"),
    *("num_kv_heads", "n_kv_heads", "n_kv_head", "kv_heads", "num_key_value_heads"),
)
WIDTHS = ("split_size",)
HEAD_WIDTHS = ("head_dim", "head_width", "head_size", "d_head", "dim_head")


def tensor(
    module: nn.Module,
    anatomy: Anatomy,
    world: World,
    *,
    whole_output: bool = True,
    tried: bool = False,
    proved: bool = False,
    inputs: Any = None,
) -> ModelError | None:
    """Cut the module in place; every parameter is then a distributed tensor under its old name.

    Args:
        whole_output: have every rank see all logits; else each keeps its classes'.
        tried: the cuts of such a module were already tried.
        proved: the whole module will be tried before its first step.
        inputs: one row, for blocks that take more than one tensor.

    Returns the refusal of a block that could not be tried alone, where the whole module will be.
    """
    mesh, blocks = world.submesh("tensor"), anatomy.blocks_of(module)
    if not anatomy.cuts:
        block, beside = blocks[0][1], ""
        if whole := [name for name, part in block.named_modules() if normalises_whole(part)]:
            beside = f": '{whole[0]}' normalises queries over all heads, which no rank would have"
        problem = f"its blocks ({type(block).__name__}) show no pair of linears that can be cut"
        remedy = "Use shard or pipeline, or give it an `anatomy` that names its cuts."
        raise ModelError(type(module).__name__, problem + beside, remedy)
    check_adapters(module)
    ties, untried = shared_names(module), None
    sliced = is_sliced_between(anatomy, blocks)
    cut = partial(
        cut_block, cuts=anatomy.cuts, mesh=mesh, sliced=sliced, at_owner=not anatomy.guessed
    )
    if anatomy.guessed and not tried:
        capture = cache(partial(capture_same_calls, module, blocks, inputs, mesh))
        alone = partial(cut_and_tie, cut)
        untried = try_cuts(blocks, anatomy.cuts, world.device, alone, capture)
        if untried and not proved:
            raise untried
    for name, block in blocks:
        cut(name, block)
    if sliced:
        slice_residual_stream(blocks[0][1], blocks[-1][1], mesh, world.device)
    cut_ends(module, anatomy, mesh, whole_output=whole_output)
    replicate_rest(module, mesh, shares=False)
    tie(module, ties, adopt=tried or proved)
    return untried


def capture_same_calls(
    module: nn.Module, blocks: Sequence[tuple[str, nn.Module]], inputs: Any, mesh: DeviceMesh
) -> dict[str, BlockCall]:
    """What the module gives each block for the first rank's inputs; empty where there are none."""
    given = [inputs]
    dist.broadcast_object_list(given, group_src=0, group=mesh.get_group())
    return {} if given[0] is None else capture_calls(module, blocks, given[0])


def is_sliced_between(anatomy: Anatomy, blocks: Sequence[tuple[str, nn.Module]]) -> bool:
    """Whether a position is computed alone between cuts: tokens, norms, and owners of cuts."""
    owners = {name.rpartition(".")[0] for name in anatomy.cuts}
    if anatomy.guessed or anatomy.embedding is None or "" in owners:
        return False
    return all(
        "Norm" in type(part).__name__
        or name.rpartition(".")[0] in owners
        or name in owners
        or name.startswith(tuple(f"{cut}." for cut in anatomy.cuts))
        for _, block in blocks
        for name, part in block.named_modules()
        if parameters_of(part)
    )


def cut_block(
    name: str,
    block: nn.Module,
    cuts: Mapping[str, str],
    mesh: DeviceMesh,
    *,
    sliced: bool,
    at_owner: bool,
) -> None:
    """Cut a block's linears; the rest of it is held whole."""
    between = SEQUENCE if sliced else Replicate()
    enter = partial(move, mesh=mesh, source=between, target=Replicate(), gradient=Partial())
    # A block that nobody here knows may write to what its layers return, as Falcon's do.
    share = move if at_owner else move_to_copy
    leave = partial(share, mesh=mesh, source=Partial(), target=between, gradient=between)
    for owner_name in dict.fromkeys(cut.rpartition(".")[0] for cut in cuts):
        owner = block.get_submodule(owner_name)
        once = at_owner and owner is not block  # queries, keys and values share what flows in
        divide_counts(owner, f"{name}.{owner_name}".rstrip("."), mesh.size())
        for cut, kind in cuts.items():
            if cut.rpartition(".")[0] == owner_name:
                part = block.get_submodule(cut)
                check_width(f"{name}.{cut}", owner, base_layer(part), kind, mesh.size())
                cut_linear(
                    f"{name}.{cut}", part, kind, mesh, None if once else enter, leave, sliced
                )
        if once:
            replicate_rest(owner, mesh, shares=True)
            enter_at(owner, enter)
    replicate_rest(block, mesh, shares=sliced)


def cut_linear(
    name: str, part: Any, kind: str, mesh: DeviceMesh, enter: Any, leave: Any, sliced: bool
) -> None:
    """Cut a linear, and the adapters it carries, if any."""
    linear: Any = base_layer(part)
    plain = linear is part
    across, along = (1, 0) if is_transposed(linear) else (0, 1)  # the weight's out and in
    if kind == "row":
        distribute(linear, mesh, {"weight": Shard(along)}, shares=sliced)
        own = leave if plain else None  # adapters add to it before it leaves
        run_on_local(linear, [linear], shares=sliced, added_after=biases(linear), leave=own)
        if not plain:
            cut_narrowing(name, part, mesh, leave, sliced=sliced)
        return
    if is_transposed(linear):
        linear.nf //= mesh.size()
    own, pick = enter if plain else None, None
    if kind == "fused":
        # Each rank has a third of its columns for queries, keys and values. The bias is whole: a
        # row of numbers cannot be cut in thirds and then sliced again by a shard axis.
        weight, pick = strided_shard(across, 3), partial(pick_thirds, mesh=mesh)
        distribute(linear, mesh, {"weight": weight}, shares=True)
        run_on_local(linear, [linear], shares=True, pick={"bias": pick}, enter=own)
    else:
        distribute(linear, mesh, {"weight": Shard(across), "bias": Shard(0)}, shares=False)
        run_on_local(linear, [linear], shares=False, enter=own)
    if not plain:
        cut_widening(part, mesh, pick, enter)


def pick_thirds(whole: Tensor, mesh: DeviceMesh) -> Tensor:
    """This rank's part of each third, of a bias or of rows."""
    return whole.unflatten(0, (3, mesh.size(), -1))[:, mesh.get_local_rank()].flatten(0, 1)


def biases(part: nn.Module) -> frozenset[str]:
    """A row's bias is added once, to the sum, and not to every share of it."""
    return frozenset({"bias"}) if parameters_of(part).get("bias") is not None else frozenset()


def is_transposed(part: nn.Module) -> bool:
    return not isinstance(part, nn.Linear)


def enter_at(owner: nn.Module, enter: Any) -> None:
    owner.register_forward_pre_hook(
        lambda _, args, kwargs: change_first(enter, args, kwargs), with_kwargs=True
    )


def cut_ends(module: nn.Module, anatomy: Anatomy, mesh: DeviceMesh, *, whole_output: bool) -> None:
    """Cut the table that reads tokens and the linear that answers, each along its classes."""
    embedding, head = anatomy.part(module, anatomy.embedding), anatomy.part(module, anatomy.head)
    # Not by attribute: a parametrized weight is computed anew, and spectral norm iterates.
    ends = [parameters_of(end).get("weight") for end in (embedding, head) if end is not None]
    ends = [weight for weight in ends if weight is not None]
    tables = [
        (name, part)
        for name, part in module.named_modules()
        if isinstance(part, nn.Embedding) and any(part.weight is weight for weight in ends)
    ]
    for name, table in tables:
        cut_embedding(name, table, mesh)
    if isinstance(head, nn.Linear):
        cut_head(str(anatomy.head), head, mesh, whole_output=whole_output)


def replicate_rest(module: nn.Module, mesh: DeviceMesh, *, shares: bool) -> None:
    """Hold whole, on every rank, the parameters that nobody has cut."""
    for part in module.modules():
        if is_distributed(part):
            continue
        owners = [p for p in part.modules() if parameters_of(p)] if reaches(part) else [part]
        for owner in owners:
            distribute(owner, mesh, {}, shares=shares)
        run_on_local(part, owners, shares=shares)


def is_distributed(part: nn.Module) -> bool:
    """Whether there is nothing left to do: no parameters, or all of them distributed."""
    mine = [p for p in parameters_of(part).values() if p is not None]
    return all(isinstance(p, DTensor) for p in mine)


def reaches(part: nn.Module) -> bool:
    """Whether a module reads its children's weights and does not call them."""
    return isinstance(part, nn.MultiheadAttention)


def divide_counts(owner: nn.Module, name: str, ways: int) -> None:
    """Have an attention that keeps its counts in attributes see this rank's."""
    for count in (*COUNTS, *WIDTHS):
        number = vars(owner).get(count)
        if not isinstance(number, int):
            continue
        if number % ways:
            raise PlanError(
                "layout.tensor",
                f"{ways} ways cannot cut the {number} {count} of '{name}' evenly",
                divisors(number),
            )
        setattr(owner, count, number // ways)


def check_width(name: str, owner: nn.Module, part: Any, kind: str, ways: int) -> None:
    """Refuse a cut that does not divide, or that would go through a head."""
    inner, width = part.weight.shape if is_transposed(part) else part.weight.shape[::-1]
    width = inner if kind == "row" else width // 3 if kind == "fused" else width
    heads = [n for a in HEAD_WIDTHS if isinstance(n := vars(owner).get(a), int) and width % n == 0]
    number, what = (width // heads[0], "heads") if heads else (width, "numbers")
    if number % ways:
        problem = f"{ways} ways cannot cut the {number} {what} of '{name}' evenly"
        raise PlanError("layout.tensor", problem, divisors(number))


def cut_and_tie(cut: Callable[[str, nn.Module], None], name: str, block: nn.Module) -> None:
    """Cut a block alone."""
    ties = shared_names(block)
    cut(name, block)
    tie(block, ties, f"{name}.")
