"""Experts that are modules in a list, on several ranks: each rank has some of them, whole.

The forward that calls them runs as its author wrote it; see expert_calls.py. Rows go to the ranks
that hold their experts by one all-to-all and come back by another, so an expert must treat each row
by itself. That is tried, with random weights, before the first batch.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import dataclass
from types import MethodType
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule

from stepladder.errors import ModelError
from stepladder.model.anatomy.expert_lists import ExpertList
from stepladder.model.autocast_type import autocast_type
from stepladder.model.builtin.routing import scale_gradient
from stepladder.model.forward_state import state_restored
from stepladder.plan.layout import COPIES
from stepladder.rungs.parameter_shards import NOTE_USE, hold_apart
from stepladder.seam.modules import children_of
from stepladder.seam.pytree import tree_leaves, tree_map
from stepladder.world import World

from .exchange import AllToAll, ExpertRanks, Permute, find_route
from .expert_calls import (
    REMEDY,
    Anchor,
    Call,
    FirstCall,
    Generators,
    RemoteExpert,
    Replay,
    standing_in,
)

ROWS, SAME = 6, 0.02  # of the trial; relative, where another row changes a result by about 1


@dataclass(frozen=True, slots=True)
class Kind:
    """What experts are called with and give, by row."""

    width: int
    dtype: torch.dtype
    out_width: int
    out_dtype: torch.dtype


def spread_list(listed: ExpertList, world: World, ranks: ExpertRanks) -> None:
    """Keep this rank's experts of a list, and have its caller send rows to all others."""
    ways, index = world.layout.experts, world.layout.place(world.place.rank)["experts"]
    each = len(listed.experts) // ways
    mine = range(index * each, (index + 1) * each)
    trial = deepcopy(listed.experts[0])
    own = []
    for number, (key, expert) in enumerate(zip(listed.keys, listed.experts)):
        if number in mine:
            hold_apart(expert, "experts")
            own.append(expert)
        else:
            remote = RemoteExpert(f"{listed.name}.{key}", listed.caller_name)
            children_of(listed.container)[key] = remote
    caller: Any = listed.caller
    copies = world.group(*COPIES)
    caller._spread_experts = SpreadExperts(listed, own, caller.forward, ranks, copies, trial)
    # A method and no closure, as local_compute.py has it.
    caller.forward = MethodType(forward_on_ranks, caller)


def spread_lists(module: nn.Module) -> list[ExpertList]:
    """The lists of a module of which this rank has some experts."""
    spread = (vars(part).get("_spread_experts") for part in module.modules())
    return [experts.listed for experts in spread if experts is not None]


@torch.compiler.disable
def forward_on_ranks(caller: Any, *args: Any, **kwargs: Any) -> Any:
    return caller._spread_experts.forward_on_ranks(args, kwargs)


class SpreadExperts:
    """A list of experts of which this rank has some."""

    def __init__(
        self,
        listed: ExpertList,
        own: Sequence[nn.Module],
        forward: Any,
        ranks: ExpertRanks,
        copies: dist.ProcessGroup,
        trial: nn.Module,
    ) -> None:
        """Take part in the exchange of a group.

        Args:
            forward: the caller's own.
            copies: ranks that run the same forward passes.
            trial: an expert to be tried, whose values do not matter.
        """
        self.listed, self.own, self.forward = listed, own, forward
        self.ranks, self.copies, self.trial = ranks, copies, trial
        self.kinds: dict[tuple[Any, ...], Kind] = {}

    def forward_on_ranks(self, args: Any, kwargs: Any) -> Any:
        device = next(self.own[0].parameters()).device
        key = autocast_type(device), self.listed.caller.training
        generators = Generators(device)
        if first := key not in self.kinds:
            kind = self.find_kind(generators, args, kwargs)
            if kind is None:  # nobody calls any expert
                return self.forward(*args, **kwargs)
            self.kinds[key] = kind
        with self.refusing_together(first):
            before = generators.read()
            calls = self.record(self.kinds[key], args, kwargs)
        results, back = self.through_ranks(calls, self.kinds[key])
        with self.refusing_together(first):
            after = generators.read()
            generators.set(before)
            replay = Replay(self.listed, calls, results)
            with standing_in(self.listed, replay.answer):
                output = self.forward(*args, **kwargs)
            replay.finish()
            generators.set(after)
        return anchored(output, back) if torch.is_grad_enabled() else output

    def record(self, kind: Kind, args: Any, kwargs: Any) -> list[Call]:
        """The calls of a forward pass that leaves no trace."""
        calls: list[Call] = []

        def answer(index: int, rows: Tensor) -> Tensor:
            if (rows.shape[-1], rows.dtype) != (kind.width, kind.dtype):
                problem = f"is called with {described(rows)} and with {described(calls[0].rows)}"
                key = self.listed.keys[index]
                raise ModelError(f"'{self.listed.name}.{key}'", problem, REMEDY)
            calls.append(Call(index, rows))
            return rows.new_zeros(*rows.shape[:-1], kind.out_width, dtype=kind.out_dtype)

        with state_restored(self.listed.caller), standing_in(self.listed, answer):
            self.forward(*args, **kwargs)
        return calls

    def through_ranks(self, calls: list[Call], kind: Kind) -> tuple[list[Tensor], Tensor]:
        """Each call's result, and all of them as they came back."""
        order = sorted(range(len(calls)), key=lambda place: calls[place].expert)
        flat = [calls[place].rows.reshape(-1, kind.width) for place in order]
        device = next(self.own[0].parameters()).device
        nothing = torch.empty(0, kind.width, dtype=kind.dtype, device=device)
        route, called = self.find_route(calls, device)
        rows = AllToAll.apply(
            flowing(torch.cat([nothing, *flat])), route.sent, route.received, self.ranks
        )
        rows = Permute.apply(rows, route.order, route.inverse)
        sizes = torch.diff(route.ends, prepend=route.ends.new_zeros(1)).tolist()
        # Divided by as many ranks as all other gradients are, and reduced over fewer.
        rows = scale_gradient(rows, self.ranks.ways)
        made = [
            self.compute(expert, part, used, kind)
            for expert, part, used in zip(self.own, rows.split(sizes), called)
        ]
        given = scale_gradient(torch.cat(made), 1 / self.ranks.ways)
        given = Permute.apply(given, route.inverse, route.order)
        back = AllToAll.apply(given, route.received, route.sent, self.ranks)
        results = [back] * len(calls)
        for place, part in zip(order, back.split([len(one) for one in flat])):
            results[place] = calls[place].answer(part)
        return results, back

    def find_route(self, calls: list[Call], device: torch.device) -> tuple[Any, list[bool]]:
        """The way of the rows, and which of this rank's experts anybody calls."""
        table = torch.zeros(2, len(self.listed.keys), dtype=torch.long)
        for call in calls:
            table[0, call.expert] += call.rows.shape[:-1].numel()
            table[1, call.expert] = 1
        rows, mine = table.to(device)
        theirs = torch.empty_like(mine)
        each = self.ranks.ways * [len(self.own)]
        self.ranks.exchange(theirs, mine.contiguous(), each, each)
        called = theirs.view(self.ranks.ways, -1).amax(0).bool().tolist()
        return find_route(rows, self.ranks), called

    def compute(self, expert: nn.Module, rows: Tensor, called: bool, kind: Kind) -> Tensor:
        """What an expert makes of all ranks' rows; without a call it gets no gradient."""
        if torch.is_grad_enabled() and (note := getattr(expert, NOTE_USE, None)):
            note(called)
        # Its parameters are gathered by ranks that may have rows for it.
        if called or isinstance(expert, FSDPModule):
            return expert(rows).to(kind.out_dtype)
        return rows[:, :1].expand(-1, kind.out_width).to(kind.out_dtype)

    def find_kind(self, generators: Generators, args: Any, kwargs: Any) -> Kind | None:
        """What experts are called with; None where no rank calls one. Every rank takes part."""
        seen: Tensor | None = None

        def stop(index: int, rows: Tensor) -> Tensor:
            raise FirstCall(rows)

        before = generators.read()
        with self.refusing_together(True), torch.no_grad(), state_restored(self.listed.caller):
            try:
                with standing_in(self.listed, stop):
                    self.forward(*args, **kwargs)
            except FirstCall as call:
                seen = call.rows
        generators.set(before)
        found = None if seen is None else (seen.shape[-1], seen.dtype, seen.dim())
        every = [one for one in self.gather(found) if one is not None]
        if not every:
            return None
        width, dtype, _ = every[0]
        with self.refusing_together(True):
            return self.try_expert(width, dtype, max(dims for *_, dims in every))

    @torch.no_grad()
    def try_expert(self, width: int, dtype: torch.dtype, dims: int) -> Kind:
        """What an expert with random weights gives; it must treat each row by itself."""
        device = next(self.own[0].parameters()).device
        expert = deepcopy(self.trial).to(device).eval()
        generator = torch.Generator().manual_seed(1)
        for parameter in expert.parameters():
            drawn = torch.randn(parameter.shape, generator=generator) / width**0.5
            parameter.copy_(drawn + parameter.dim() % 2)  # what scales is about one
        rows = torch.randn(ROWS, width, generator=generator).to(device, dtype)
        whole = expert(rows)
        name = f"'{self.listed.name}.{self.listed.keys[0]}'"
        if not isinstance(whole, Tensor) or whole.dim() != 2 or len(whole) != ROWS:
            shape = tuple(whole.shape) if isinstance(whole, Tensor) else type(whole).__name__
            raise ModelError(name, f"gives {shape} for {ROWS} rows, and not a row for each", REMEDY)
        alone = torch.cat([expert(row) for row in rows.split(1)])
        shaped = expert(rows.view(2, -1, width)).reshape(ROWS, -1) if dims > 2 else whole
        for other in (alone, shaped):
            if (other - whole).abs().max() > SAME * whole.abs().max():
                problem = "gives a row another result beside other rows, which ranks would mix"
                raise ModelError(name, problem, REMEDY)
        return Kind(width, dtype, whole.shape[-1], whole.dtype)

    def gather(self, value: Any) -> list[Any]:
        every = [None] * self.copies.size()
        dist.all_gather_object(every, value, group=self.copies)
        return every

    @contextmanager
    def refusing_together(self, together: bool) -> Iterator[None]:
        """A context whose refusal on one rank is raised on all, which else would wait."""
        problem: ModelError | None = None
        try:
            yield
        except ModelError as refused:
            problem = refused
            if not together:
                raise
        if together:
            found = [one for one in self.gather(problem and problem.args) if one]
            if found:
                raise problem or ModelError(*found[0])


def described(rows: Tensor) -> str:
    return f"rows of {rows.shape[-1]} numbers of {str(rows.dtype).removeprefix('torch.')}"


def flowing(rows: Tensor) -> Tensor:
    """Rows that need gradients, on every rank: gradients travel where any rank's rows need them."""
    if rows.requires_grad or not torch.is_grad_enabled():
        return rows
    return rows.detach().requires_grad_()


def anchored(output: Any, rows: Tensor) -> Any:
    """An output of which the first tensor of numbers leads back through the exchange."""
    first = next((one for one in tree_leaves(output) if is_numbers(one)), None)
    if first is None:
        return output
    return tree_map(lambda leaf: Anchor.apply(leaf, rows) if leaf is first else leaf, output)


def is_numbers(leaf: Any) -> bool:
    return isinstance(leaf, Tensor) and leaf.is_floating_point()
