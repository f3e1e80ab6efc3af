"""Muon: momentum, orthogonalised, for hidden matrices; torch's AdamW for every other parameter.

Momentum is kept for the slices that this rank updates, as any optimizer's state is; so ZeRO slices
it, checkpoints hold it and a run goes on with it in another layout. Only the directions of a round
travel, in the type they are computed in: see [Note: rounds] in exchange.py.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any

import torch
from torch import Tensor, nn

from stepladder.checkpoint import TensorSlice
from stepladder.model.anatomy.hidden_matrices import MatrixShape
from stepladder.plan import Optimizer
from stepladder.seam.operators import foreach_divide_

from .exchange import Exchange, Mail, Round, Stack, View, Wait, nothing, parts_of, split
from .held_matrices import HeldMatrix
from .newton_schulz import divide_by_row_means, orthogonalise
from .shared_work import Message

MOMENTUM, ROW_MEANS = "momentum_buffer", "row_mean_square"
ADAM = {"step", "exp_avg", "exp_avg_sq"}
MATCH = "match_rms_adamw"
SAME_SIZE = 0.2  # root mean square of AdamW's usual updates, which match_rms_adamw gives


@dataclass(frozen=True, slots=True)
class UnderWay:
    """A round between its slices and its results."""

    round: Round
    stacks: Sequence[Stack]
    came: Tensor
    wait: Wait


@dataclass(frozen=True, slots=True)
class Work:
    """How the ranks of a stage compute their matrices."""

    exchange: Exchange
    rounds: Sequence[Round]
    rows: Mail  # of all rounds' matrices, where means of rows are kept
    around: Callable[[], AbstractContextManager[None]]  # the mode of float32 products, threads
    orthogonalise: Callable[[Tensor, int], Tensor] = orthogonalise
    one_by_one: bool = False  # the same products whatever else a rank owns


class Muon(torch.optim.Optimizer):
    """Groups with `matrix` are updated by Muon, the others by an AdamW that shares groups and state."""

    def __init__(
        self,
        groups: list[dict[str, Any]],
        how: Optimizer,
        work: Work,
        *,
        names: Container[str],
        fused: bool,
    ) -> None:
        """Make the state of this rank's matrices.

        Args:
            names: of the matrices of all ranks.
            fused: torch's AdamW is.
        """
        super().__init__(groups, {"lr": how.lr, "fused": fused})
        self.how, self.work, self.names = how, work, names
        self.held = work.exchange.held
        self.grad_scale: Tensor | None = None
        self.found_inf: Tensor | None = None
        others = [group for group in self.param_groups if not group["matrix"]]
        self.adamw = others and torch.optim.AdamW(
            others, lr=how.adamw_lr, betas=how.betas, eps=how.eps, fused=fused
        )
        self.groups = {
            p: group for group in self.param_groups if group["matrix"] for p in group["params"]
        }
        for one in self.held:
            self.state[one.owned] = self.begin(one)

    def begin(self, one: HeldMatrix) -> dict[str, Tensor]:
        """What a matrix starts with."""
        state = {MOMENTUM: torch.zeros_like(one.owned, requires_grad=False)}
        if self.how.keeps_row_means:
            shape = row_shape(one.whole, one.matrix.shape)
            state[ROW_MEANS] = torch.zeros(shape, device=one.owned.device)
        return state

    def keys_of(self, name: str) -> set[str]:
        """What is remembered of a parameter."""
        return self.matrix_keys if name in self.names else ADAM

    @property
    def matrix_keys(self) -> set[str]:
        return {MOMENTUM, ROW_MEANS} if self.how.keeps_row_means else {MOMENTUM}

    def remembers_as(self, kept: Mapping[str, Iterable[str]]) -> bool:
        """Whether what was remembered of every parameter is what this optimizer remembers of it."""
        matrices = {key for name, keys in kept.items() if name in self.names for key in keys}
        others = {key for name, keys in kept.items() if name not in self.names for key in keys}
        return matrices in (set(), self.matrix_keys) and others <= ADAM

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> None:  # type: ignore[override]
        """One update from gradients divided by `grad_scale`, none where `found_inf` is 1."""
        divisor, bad = self.grad_scale, self.found_inf
        if bad is not None and (bad.device.type == "cpu" or not self.defaults["fused"]):
            if bad.item():
                return
            bad = None
        if bad is None and divisor is not None:
            foreach_divide_([p.grad for p in self.parameters if p.grad is not None], divisor)
            divisor = None
        with self.work.around():
            self.step_matrices(divisor, bad)

    def step_matrices(self, divisor: Tensor | None, bad: Tensor | None) -> None:
        rounds = deque(self.work.rounds)
        coming = self.send_slices(rounds.popleft(), divisor, bad) if rounds else None
        self.step_others(divisor, bad)  # while the first slices travel
        finish: Wait = nothing
        while coming is not None:
            now = coming
            self.fill(now)
            coming = self.send_slices(rounds.popleft(), divisor, bad) if rounds else None
            results = self.compute(now, bad)
            finish()
            finish = self.send_results(now.round, results, bad)
        finish()
        self.share_row_means()

    @property
    def parameters(self) -> Iterator[nn.Parameter]:
        return chain.from_iterable(group["params"] for group in self.param_groups)

    def step_others(self, divisor: Tensor | None, bad: Tensor | None) -> None:
        if not self.adamw:
            return
        # Anew each time: whoever loads a state replaces both.
        self.adamw.state = self.state
        self.adamw.param_groups = [g for g in self.param_groups if not g["matrix"]]
        self.adamw.grad_scale, self.adamw.found_inf = divisor, bad
        self.adamw.step()

    def direction(self, index: int, divisor: Tensor | None, bad: Tensor | None) -> Tensor:
        """What is orthogonalised, of this rank's part; the momentum is updated."""
        owned = self.held[index].owned
        if owned.grad is None:  # torch's optimizers leave such a parameter out
            return torch.zeros_like(owned, memory_format=torch.contiguous_format)
        gradient = owned.grad if divisor is None else owned.grad / divisor
        kept, momentum = self.state[owned][MOMENTUM], self.how.momentum
        now = (
            kept.lerp_(gradient, 1 - momentum) if bad is None else kept.lerp(gradient, 1 - momentum)
        )
        if bad is not None:
            replace_unless(bad, kept, now)
        direction = gradient.lerp(now, momentum) if self.how.nesterov == "on" else now
        return direction.contiguous()

    def send_slices(self, one: Round, divisor: Tensor | None, bad: Tensor | None) -> UnderWay:
        stacks = self.work.exchange.stacks(one.owned)
        directions = {index: self.direction(index, divisor, bad) for index in one.matrices}

        def view(message: Message) -> View:
            return self.view_of_part(message, directions[message.matrix])

        came, wait = self.work.exchange.send(one.slices, view)
        wholes = self.wholes(stacks)
        for message in one.slices.kept:
            for piece in message.slices:
                piece.view(wholes[message.matrix]).copy_(view(message)(piece))
        return UnderWay(one, stacks, came, wait)

    def fill(self, now: UnderWay) -> None:
        """Put what came where it belongs."""
        now.wait()
        wholes, got = self.wholes(now.stacks), now.round.slices.got
        for message, room in zip(got, split(now.came, got)):
            for piece, part in parts_of(message, room):
                piece.view(wholes[message.matrix]).copy_(part)

    def wholes(self, stacks: Sequence[Stack]) -> dict[int, Tensor]:
        """Each matrix of these stacks, in its parameter's shape."""
        return {
            index: part.view(self.held[index].whole)
            for stack in stacks
            for index, part in stack.parts(stack.numbers).items()
        }

    def view_of_part(self, message: Message, part: Tensor) -> View:
        places = self.held[message.matrix].places
        return lambda piece: places[piece].view(part)

    def compute(self, now: UnderWay, bad: Tensor | None) -> dict[int, Tensor]:
        """The results of the matrices that this rank owns, in their parameters' shapes."""
        results = {}
        for stack in now.stacks:
            size = 1 if self.work.one_by_one else len(stack.numbers)
            parts = [
                self.work.orthogonalise(s, self.how.ns_steps) for s in stack.numbers.split(size)
            ]
            for index, part in stack.parts(
                torch.cat(parts) if len(parts) > 1 else parts[0]
            ).items():
                if self.how.keeps_row_means:
                    part = self.divide(index, part, bad)
                results[index] = part.reshape(self.held[index].whole)
        return results

    def divide(self, index: int, part: Tensor, bad: Tensor | None) -> Tensor:
        kept = self.state[self.held[index].owned][ROW_MEANS]
        means, unit = kept.to(part.device).view(*part.shape[:-1], 1), self.how.adjust == MATCH
        part, now = divide_by_row_means(part, means, self.how.betas[1], self.how.eps, unit=unit)
        replace_unless(bad, kept, now.view(kept.shape).to(kept.device))
        return part

    def send_results(self, one: Round, results: Mapping[int, Tensor], bad: Tensor | None) -> Wait:
        """Send results to the ranks that hold the matrices; what applies those that come."""

        def view(message: Message) -> View:
            return lambda piece: piece.view(results[message.matrix])

        came, wait = self.work.exchange.send(one.results, view)
        for message in one.results.kept:
            self.apply(message, ((piece, view(message)(piece)) for piece in message.slices), bad)

        def finish() -> None:
            wait()
            for message, room in zip(one.results.got, split(came, one.results.got)):
                self.apply(message, parts_of(message, room), bad)

        return finish

    def apply(
        self,
        message: Message,
        pieces: Iterable[tuple[TensorSlice, Tensor]],
        bad: Tensor | None,
    ) -> None:
        """Update this rank's part of a matrix."""
        one = self.held[message.matrix]
        if one.owned.grad is None:
            return
        update = torch.empty(
            one.owned.shape, dtype=self.work.exchange.dtype, device=one.owned.device
        )
        for piece, part in pieces:
            one.places[piece].view(update).copy_(part)
        group = self.groups[one.owned]
        shrink, rate = 1 - group["lr"] * group["weight_decay"], group["lr"] * self.factor(one)
        if bad is None:
            one.owned.mul_(shrink).add_(update, alpha=-rate)
        else:
            replace_unless(bad, one.owned, (one.owned * shrink).add_(update, alpha=-rate))

    def factor(self, one: HeldMatrix) -> float:
        """Of the learning rate, by the shape of the matrix."""
        rows, columns = one.matrix.shape.rows, one.matrix.shape.columns
        if self.how.adjust == MATCH:
            return SAME_SIZE * (1.0 if self.how.keeps_row_means else max(rows, columns) ** 0.5)
        return max(1.0, rows / columns) ** 0.5

    def share_row_means(self) -> None:
        """Have every rank of the stage know the means of all rows, as owners do."""
        mail = self.work.rows
        if not self.how.keeps_row_means:
            return

        def view(message: Message) -> View:
            kept = self.state[self.held[message.matrix].owned][ROW_MEANS]
            return lambda piece: piece.view(kept)

        came, wait = replace(self.work.exchange, dtype=torch.float32).send(mail, view)
        wait()
        for message, room in zip(mail.got, split(came, mail.got)):
            for piece, part in parts_of(message, room):
                view(message)(piece).copy_(part)


def replace_unless(bad: Tensor | None, kept: Tensor, now: Tensor) -> None:
    """Take over new numbers, unless the step is bad."""
    if bad is None:
        kept.copy_(now)
    else:
        torch.where(bad.bool(), kept, now, out=kept)


def row_shape(whole: tuple[int, ...], matrix: MatrixShape) -> tuple[int, ...]:
    """Of one number for each row of a parameter's matrices."""
    rows = len(whole) - 1 if matrix.count > 1 or len(whole) == 2 else 1
    return (*whole[:rows], *(1 for _ in whole[rows:]))
