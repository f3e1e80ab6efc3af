"""Adam for bf16 weights whose masters and moments take 14, 10 or 7 bytes a parameter.

Its state in a checkpoint is that of `MasterAdam`: a master and two moments in float32, whatever the
bytes in memory. So a run goes on from it with any other number of bytes, and in any layout.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from zlib import crc32

import torch
from torch import Tensor, nn

from stepladder.kernels import adamw_
from stepladder.kernels.optimizer.compact_adamw import CompactRow, compact_adamw_, expand, shrink
from stepladder.train.optimizer.master_weights import MASTER, MasterAdam

AVERAGES = ("exp_avg", "exp_avg_sq")
PIECES = ("remainder", *AVERAGES, "exp_avg_scale", "exp_avg_sq_scale")  # as `shrink` lists them


@dataclass(frozen=True, slots=True)
class Identity:
    """What a parameter's random bits follow from, beside the seed and the step."""

    name: str
    start: int = 0  # place of this rank's first element in the whole parameter


class CompactAdam(MasterAdam):
    """Weights are their masters, rounded; the state holds what rounding took from them.

    A parameter in float32, as `keep=fp32:NAME` leaves one, is its own master.
    """

    def __init__(
        self,
        groups: Iterable[Any],
        masters: Mapping[nn.Parameter, Tensor],
        *,
        bytes_each: int,
        identities: Mapping[nn.Parameter, Identity],
        seed: int = 0,
        **options: Any,
    ) -> None:
        self.bytes_each, self.identities, self.seed = bytes_each, identities, seed
        super().__init__(groups, masters, **options)

    @torch.no_grad()
    def begin(self, p: nn.Parameter, master: Tensor) -> dict[str, Tensor]:
        zeros = torch.zeros_like(master)
        return self.keep(p, master, zeros, zeros)

    def keep(
        self, p: nn.Parameter, master: Tensor, mean: Tensor, square: Tensor
    ) -> dict[str, Tensor]:
        """Set a parameter to its master, rounded; its state."""
        if p.dtype != torch.bfloat16:
            p.copy_(master)
            return {"exp_avg": mean.clone(), "exp_avg_sq": square.clone()}
        weight, *pieces = shrink(master, mean, square, self.bytes_each, None)
        p.copy_(weight)
        return {name: piece.clone() for name, piece in zip(PIECES, pieces)}

    def row(self, p: nn.Parameter) -> CompactRow:
        identity, kept = self.identities.get(p, Identity("")), self.state[p]
        return CompactRow(
            p,
            p if p.grad is None else p.grad,
            kept["remainder"],
            kept["exp_avg"],
            kept["exp_avg_sq"],
            mean_scale=kept.get("exp_avg_scale"),
            square_scale=kept.get("exp_avg_sq_scale"),
            key=crc32(f"{self.seed}/{identity.name}".encode()),
            start=identity.start,
        )

    @torch.no_grad()
    def update_parameters(
        self,
        group: dict[str, Any],
        parameters: Sequence[nn.Parameter],
        counted: Tensor,
        divisor: Tensor,
        bad: Tensor,
    ) -> None:
        rule = self.rule(group)
        narrow = [p for p in parameters if p.dtype == torch.bfloat16]
        compact_adamw_([self.row(p) for p in narrow], self.of(narrow, counted), divisor, bad, rule)
        if wide := [p for p in parameters if p.dtype != torch.bfloat16]:
            mine = self.of(wide, counted)[:, :2].contiguous()
            adamw_([self.wide_row(p) for p in wide], mine, divisor, bad, rule)

    def wide_row(self, p: nn.Parameter) -> Any:
        return p, p, p.grad, *(self.state[p][name] for name in AVERAGES)

    @torch.no_grad()
    def expanded(self, p: nn.Parameter) -> dict[str, Tensor]:
        """A parameter's state as `MasterAdam` has it, in float32."""
        kept = self.state[p]
        if p.dtype != torch.bfloat16:
            values = p.detach(), kept["exp_avg"], kept["exp_avg_sq"]
        else:
            values = expand(self.row(p))
        master, mean, square = values
        return {"step": kept["step"], "exp_avg": mean, "exp_avg_sq": square, MASTER: master}

    @torch.no_grad()
    def restore(self, p: nn.Parameter, values: Mapping[str, Tensor]) -> None:
        """Take a parameter's state as `expanded` gives it, and set the parameter."""
        place = self.places[p]
        self.counts[place] = values["step"].to(self.counts)
        kept = self.keep(p, values[MASTER], values["exp_avg"], values["exp_avg_sq"])
        self.state[p] = {"step": self.counts[place], **kept}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take a saved state as it is; torch would round it to the parameters' type."""
        torch.optim.AdamW.load_state_dict(self, state_dict)
        order = [index for group in state_dict["param_groups"] for index in group["params"]]
        with torch.no_grad():
            for place, (p, index) in enumerate(zip(self.parameters, order, strict=True)):
                saved = state_dict["state"][index]
                self.counts[place] = saved["step"]
                pieces = {k: v.to(p.device, copy=True) for k, v in saved.items() if k != "step"}
                self.state[p] = {"step": self.counts[place], **pieces}


def state_of(optimizer: torch.optim.Optimizer, p: nn.Parameter) -> dict[str, Any]:
    """What an optimizer keeps of a parameter, as a checkpoint holds it."""
    if isinstance(optimizer, CompactAdam) and p in optimizer.state:
        return optimizer.expanded(p)
    kept: dict[str, Any] = optimizer.state.get(p, {})
    return kept


def master_of(optimizer: torch.optim.Optimizer, p: nn.Parameter) -> Tensor:
    """A parameter in the most digits that its optimizer keeps."""
    return state_of(optimizer, p).get(MASTER, p)
