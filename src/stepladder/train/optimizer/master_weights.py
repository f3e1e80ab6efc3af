"""Adam for parameters in 16 bits: moments in float32, and a master of each parameter beside them.

Learning adds small numbers to large ones, and 16 bits round most of them away; so the sum is kept
in float32 and only its rounded value is worked with. Autocast does the same the other way round:
it keeps the parameters in float32 and rounds them anew in every pass.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from stepladder.kernels import adamw_
from stepladder.rungs import ParameterShard

MASTER = "master"
KEPT = ("exp_avg", "exp_avg_sq", MASTER)


class MasterAdam(torch.optim.AdamW):
    """torch's AdamW in its names and groups; each state also holds the parameter's master."""

    def __init__(
        self,
        groups: Iterable[Any],
        masters: Mapping[nn.Parameter, Tensor],
        *,
        decoupled: bool = True,
        **options: Any,
    ) -> None:
        super().__init__(groups, **options)
        self.decoupled = decoupled
        self.grad_scale: Tensor | None = None
        self.found_inf: Tensor | None = None
        # What `update` asks: this optimizer divides and skips on the device, as fused ones do.
        self.defaults["fused"] = True
        self.parameters = [p for group in self.param_groups for p in group["params"]]
        self.places = {p: index for index, p in enumerate(self.parameters)}
        device = self.parameters[0].device
        self.counts = torch.zeros(len(self.parameters), device=device)  # steps, one a parameter
        for index, p in enumerate(self.parameters):
            master = masters.get(p)
            kept = p.detach().float().clone() if master is None else master.to(p.device)
            self.state[p] = {"step": self.counts[index], **self.begin(p, kept)}

    def begin(self, p: nn.Parameter, master: Tensor) -> dict[str, Tensor]:
        """The state of a parameter that was not updated yet."""
        zeros = torch.zeros_like(master)
        return {"exp_avg": zeros, "exp_avg_sq": torch.zeros_like(master), MASTER: master}

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> None:  # type: ignore[override]
        """One update from gradients divided by `grad_scale`, none where `found_inf` is 1."""
        one = torch.ones((), device=self.counts.device)
        divisor = one if self.grad_scale is None else self.grad_scale
        bad = 1 - one if self.found_inf is None else self.found_inf
        having = [p.grad is not None for p in self.parameters]
        if all(having):
            self.counts += 1 - bad
        else:
            for count, has in zip(self.counts, having):
                count += (1 - bad) * has
        for group in self.param_groups:
            self._update(group, divisor, bad)

    def _update(self, group: dict[str, Any], divisor: Tensor, bad: Tensor) -> None:
        steps = self.counts.double()  # in float32 1 − 0.999 keeps four digits
        corrections = torch.stack([1 - beta**steps for beta in group["betas"]], 1).float()
        rule = (group["lr"], *group["betas"], group["eps"], group["weight_decay"], self.decoupled)
        places, rows = [], []
        for p in group["params"]:
            if p.grad is None:
                continue
            kept = self.state[p]
            if MASTER not in kept:  # a checkpoint of a run without masters was loaded
                kept[MASTER] = p.detach().float().clone()
            places.append(self.places[p])
            rows.append((p, kept[MASTER], p.grad, kept["exp_avg"], kept["exp_avg_sq"]))
        mine = corrections if places == list(range(len(steps))) else corrections[places]
        adamw_(rows, mine, divisor, bad, rule)

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take a saved state; torch would round what is in float32 to the parameters' type."""
        super().load_state_dict(state_dict)
        saved = state_dict["state"]
        order = [index for group in state_dict["param_groups"] for index in group["params"]]
        with torch.no_grad():
            for place, (p, index) in enumerate(zip(self.parameters, order, strict=True)):
                kept = self.state[p]
                for name in KEPT:
                    kept[name] = saved[index][name].to(p.device, torch.float32, copy=True)
                self.counts[place] = saved[index]["step"]
                kept["step"] = self.counts[place]
                p.copy_(kept[MASTER])


def take_masters(*given: Any) -> dict[nn.Parameter, Tensor]:
    """The parameters of all modules among these in float32, before a rung rounds them.

    A parameter without values has no digits to lose: its master begins as what it is filled with.
    """
    return {
        p: p.detach().clone()
        for module in given
        if isinstance(module, nn.Module)
        for p in module.parameters()
        if p.requires_grad and p.dtype == torch.float32 and not p.is_meta
    }


def masters_of_shards(
    shards: Iterable[ParameterShard], masters: Mapping[nn.Parameter, Tensor] | None
) -> dict[nn.Parameter, Tensor] | None:
    """The same masters by what the optimizer updates, which may be a copy on the host."""
    if masters is None:
        return None
    return {shard.owned: masters[shard.parameter] for shard in shards if shard.parameter in masters}
