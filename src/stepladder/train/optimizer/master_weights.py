"""Adam for parameters in 16 bits: moments in float32, and a master of each parameter beside them.

Learning adds small numbers to large ones, and 16 bits round most of them away; so the sum is kept
in float32 and only its rounded value is worked with. Autocast does the same the other way round:
it keeps the parameters in float32 and rounds them anew in every pass.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from stepladder.kernels import adamw_
from stepladder.kernels.optimizer.adamw import Rule

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
        if not any(having):  # they were updated in backward
            return
        if all(having):
            self.counts += 1 - bad
        else:
            for count, has in zip(self.counts, having):
                count += (1 - bad) * has
        for group in self.param_groups:
            members = [p for p in group["params"] if p.grad is not None]
            self.update_parameters(group, members, self.counted(group), divisor, bad)

    def counted(self, group: dict[str, Any], ahead: int = 0) -> Tensor:
        """1 − beta^step for both moments, and the step; a row for every parameter.

        Args:
            ahead: steps that are not counted yet.
        """
        steps = self.counts.double() + ahead  # in float32 1 − 0.999 keeps four digits
        return torch.stack([*(1 - beta**steps for beta in group["betas"]), steps], 1).float()

    def of(self, parameters: Sequence[nn.Parameter], counted: Tensor) -> Tensor:
        """The rows of these parameters."""
        places = [self.places[p] for p in parameters]
        return counted if places == list(range(len(counted))) else counted[places]

    def rule(self, group: dict[str, Any]) -> Rule:
        settings = group["lr"], *group["betas"], group["eps"], group["weight_decay"]
        return *settings, self.decoupled

    @torch.no_grad()
    def update_parameters(
        self,
        group: dict[str, Any],
        parameters: Sequence[nn.Parameter],
        counted: Tensor,
        divisor: Tensor,
        bad: Tensor,
    ) -> None:
        """Update some parameters of a group, which have gradients."""
        rows = []
        for p in parameters:
            kept, gradient = self.state[p], p.grad
            assert gradient is not None
            if MASTER not in kept:  # a checkpoint of a run without masters was loaded
                kept[MASTER] = p.detach().float().clone()
            rows.append((p, kept[MASTER], gradient, kept["exp_avg"], kept["exp_avg_sq"]))
        mine = self.of(parameters, counted)[:, :2].contiguous()
        adamw_(rows, mine, divisor, bad, self.rule(group))

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
