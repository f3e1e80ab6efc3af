"""Muon: momentum, orthogonalised, for hidden matrices; torch's AdamW for every other parameter.

Momentum is kept for the slices that this rank updates, as any optimizer's state is; so ZeRO slices
it, checkpoints hold it and a run goes on with it in another layout. Only the directions of a round
travel, in the type they are computed in: see [Note: rounds] in exchange.py. Parameters in 16 bits
have masters in float32, as MasterAdam has them; momentum is as wide as what is updated.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Container, Iterable, Iterator, Mapping
from itertools import chain
from typing import Any

import torch
from torch import Tensor, nn

from stepladder.plan import Optimizer
from stepladder.seam.operators import foreach_divide_
from stepladder.train.optimizer.master_weights import MASTER, MasterAdam

from .exchange import Round, nothing
from .matrix_shards import MatrixShard
from .matrix_work import MatrixWork, Pieces, UnderWay
from .newton_schulz import divide_by_row_means
from .row_means import row_shape, share_row_means

MOMENTUM, ROW_MEANS = "momentum_buffer", "row_mean_square"
ADAM = {"step", "exp_avg", "exp_avg_sq"}
MATCH = "match_rms_adamw"
SAME_SIZE = 0.2  # root mean square of AdamW's usual updates, which match_rms_adamw gives


class Muon(torch.optim.Optimizer):
    """Updates groups with `matrix`; an AdamW that shares groups and state updates the others."""

    def __init__(
        self,
        groups: list[dict[str, Any]],
        how: Optimizer,
        work: MatrixWork,
        *,
        names: Container[str],
        fused: bool,
        masters: Mapping[nn.Parameter, Tensor] | None = None,
    ) -> None:
        """Make the state of this rank's matrices.

        Args:
            names: of the matrices of all ranks.
            fused: torch's AdamW is.
            masters: values in float32 of parameters that are stored in fewer bits; None: the
                parameters themselves are updated.
        """
        super().__init__(groups, {"lr": how.lr, "fused": fused})
        self.how, self.work, self.names, self.masters = how, work, names, masters
        self.held = work.exchange.held
        self.grad_scale: Tensor | None = None
        self.found_inf: Tensor | None = None
        others = [group for group in self.param_groups if not group["matrix"]]
        self.adamw = others and self.make_adamw(others, fused)
        for one in self.held:
            self.state[one.owned] = self.begin(one)

    def make_adamw(self, groups: list[dict[str, Any]], fused: bool) -> torch.optim.Optimizer:
        """What updates all other parameters, and what it remembers from the start."""
        how: dict[str, Any] = {
            "lr": self.how.adamw_lr, "betas": self.how.betas, "eps": self.how.eps
        }  # fmt: skip
        if self.masters is None:
            return torch.optim.AdamW(groups, fused=fused, **how)
        made = MasterAdam(groups, self.masters, **how)
        self.state.update(made.state)
        return made

    def begin(self, one: MatrixShard) -> dict[str, Tensor]:
        """What a matrix starts with."""
        state: dict[str, Tensor] = {}
        if self.masters is not None:
            kept = self.masters.get(one.owned)
            state[MASTER] = one.owned.detach().float().clone() if kept is None else kept
        state[MOMENTUM] = torch.zeros_like(state.get(MASTER, one.owned), requires_grad=False)
        if self.how.keeps_row_means:
            state[ROW_MEANS] = torch.zeros(row_shape(one), device=one.owned.device)
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
        return matrices - {MASTER} in (set(), self.matrix_keys) and others <= {*ADAM, MASTER}

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> None:  # type: ignore[override]
        """One update from gradients divided by `grad_scale`, none where `found_inf` is 1."""
        divisor, bad = self.grad_scale, self.found_inf
        if bad is not None and (bad.device.type == "cpu" or not self.defaults["fused"]):
            if bad.item():
                return
            bad = None
        if bad is None and divisor is not None and self.masters is None:
            foreach_divide_([p.grad for p in self.parameters if p.grad is not None], divisor)
            divisor = None
        with self.work.around():
            self.step_matrices(divisor, bad)

    def step_matrices(self, divisor: Tensor | None, bad: Tensor | None) -> None:
        groups = {p: g for g in self.param_groups if g["matrix"] for p in g["params"]}
        coming, finish = deque(self.work.rounds), nothing
        under_way = self.start(coming, divisor, bad)
        self.step_others(divisor, bad)  # while the first slices travel

        def apply(index: int, pieces: Pieces) -> None:
            self.apply(self.held[index], groups[self.held[index].owned], pieces, bad)

        while under_way is not None:
            now, under_way = under_way, None
            results = self.work.compute(now, self.how.ns_steps)
            under_way = self.start(coming, divisor, bad)
            if self.how.keeps_row_means:
                results = {index: self.divide(index, part, bad) for index, part in results.items()}
            finish()
            finish = self.work.send_back(now.round, results, apply)
        finish()
        if self.how.keeps_row_means:
            share_row_means(self.work.exchange, self.work.rows, self.row_means)

    def start(
        self, coming: deque[Round], divisor: Tensor | None, bad: Tensor | None
    ) -> UnderWay | None:
        """Send the slices of the next round, if there is one."""
        if not coming:
            return None
        one = coming.popleft()
        return self.work.start(one, {i: self.direction(i, divisor, bad) for i in one.matrices})

    @property
    def parameters(self) -> Iterator[nn.Parameter]:
        return chain.from_iterable(group["params"] for group in self.param_groups)

    def step_others(self, divisor: Tensor | None, bad: Tensor | None) -> None:
        if not self.adamw:
            return
        # Anew each time: whoever loads a state replaces both.
        self.adamw.state = self.state
        self.adamw.param_groups = [g for g in self.param_groups if not g["matrix"]]
        fused: Any = self.adamw  # its kernel reads these two
        fused.grad_scale, fused.found_inf = divisor, bad
        self.adamw.step()

    def direction(self, index: int, divisor: Tensor | None, bad: Tensor | None) -> Tensor:
        """What is orthogonalised, of this rank's part; the momentum is updated."""
        owned = self.held[index].owned
        kept, momentum = self.state[owned][MOMENTUM], self.how.momentum
        if owned.grad is None:  # torch's optimizers leave such a parameter out
            return torch.zeros_like(kept, memory_format=torch.contiguous_format)
        gradient = owned.grad.to(kept.dtype)
        gradient = gradient if divisor is None else gradient / divisor
        if bad is None:
            now = kept.lerp_(gradient, 1 - momentum)
        else:
            now = kept.lerp(gradient, 1 - momentum)
            replace_unless(bad, kept, now)
        direction = gradient.lerp(now, momentum) if self.how.nesterov == "on" else now
        return direction.contiguous()

    def divide(self, index: int, part: Tensor, bad: Tensor | None) -> Tensor:
        kept, unit = self.row_means(index), self.how.adjust == MATCH
        means = kept.to(part.device).view(*part.shape[:-1], 1)
        part, now = divide_by_row_means(part, means, self.how.betas[1], self.how.eps, unit=unit)
        replace_unless(bad, kept, now.view(kept.shape).to(kept.device))
        return part

    def row_means(self, index: int) -> Tensor:
        means: Tensor = self.state[self.held[index].owned][ROW_MEANS]
        return means

    def apply(
        self, one: MatrixShard, group: dict[str, Any], pieces: Pieces, bad: Tensor | None
    ) -> None:
        """Update this rank's part of a matrix."""
        if one.owned.grad is None:
            return
        p = self.state[one.owned].get(MASTER, one.owned)
        update = torch.empty(p.shape, dtype=self.work.exchange.dtype, device=p.device)
        for piece, part in pieces:
            one.places[piece].view(update).copy_(part)
        shrink, rate = 1 - group["lr"] * group["weight_decay"], group["lr"] * self.factor(one)
        if bad is None:
            p.mul_(shrink).add_(update, alpha=-rate)
        else:
            replace_unless(bad, p, (p * shrink).add_(update, alpha=-rate))
        if p is not one.owned:
            one.owned.copy_(p)

    def factor(self, one: MatrixShard) -> float:
        """Of the learning rate, by the shape of the matrix."""
        rows, columns = one.matrix.shape.rows, one.matrix.shape.columns
        if self.how.adjust == MATCH:
            return SAME_SIZE * (1.0 if self.how.keeps_row_means else max(rows, columns) ** 0.5)
        return max(1.0, rows / columns) ** 0.5


def replace_unless(bad: Tensor | None, kept: Tensor, now: Tensor) -> None:
    """Take over new numbers, unless the step is bad."""
    if bad is None:
        kept.copy_(now)
    else:
        torch.where(bad.bool(), kept, now, out=kept)
