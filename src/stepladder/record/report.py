"""The report of one training step.

Loss, gradient norm, tokens and peak memory are of all ranks; times and rates are this
rank's, which waits for the others in every step.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from .html_table import html_table


@dataclass(frozen=True, slots=True)
class Report:
    """The numbers of one step.

    >>> report = Report(
    ...     step=3, loss=2.5, grad_norm=1.0, lr=0.1, tokens=64, seconds=0.5,
    ...     memory_bytes=2**30, tokens_per_second=128.0,
    ... )
    >>> report.to_dict()["loss"]
    2.5
    """

    step: int
    loss: float  # mean over the valid targets of the global batch
    grad_norm: float  # over all parameters, before clipping
    lr: float
    tokens: int  # valid targets in the global batch
    seconds: float  # of one step
    memory_bytes: int  # peak on the fullest rank, as the ranks last exchanged it
    tokens_per_second: float
    flops_per_second: float | None = None  # model FLOPs a rank; None: not counted
    mfu: float | None = None  # of the device's peak in the plan's compute type; None: unknown peak
    hfu: float | None = None  # the same with recomputed FLOPs counted
    loss_scale: float | None = None  # with fp16
    skipped: bool = False  # the update was skipped: the loss or a gradient was NaN or Inf
    length: int = 0  # of the longest sample in the batch, where samples have one
    data_seconds: float = 0.0  # of `seconds`, waiting for the batch
    rank_memory_bytes: int = 0  # peak on this rank
    # Of mixtures of experts, over the global batch; None: the model has none.
    expert_load: float | None = None  # tokens of the busiest expert over an even share, worst layer
    dead_experts: int | None = None  # that no token chose, in all layers
    # With experts on several ranks: rows of the busiest rank over an even share, worst layer.
    expert_rank_load: float | None = None
    expert_sent_bytes: int | None = None  # by this rank to others, for their experts
    unit: str = "tokens"  # what `tokens` count: samples where each has one target, or targets
    # Of the loss by name, where it has several; their sum is `loss`.
    terms: Mapping[str, float] = field(default_factory=dict, hash=False)
    # By layer, the share of the tokens' choices that each expert got.
    experts: Mapping[str, tuple[float, ...]] = field(default_factory=dict, hash=False)

    def to_dict(self) -> dict[str, Any]:
        """Every field by name; `terms` where there are some."""
        numbers = {name: getattr(self, name) for name in NUMBERS}  # no copies
        return {**numbers, "terms": dict(self.terms)} if self.terms else numbers

    def figures(self) -> dict[str, str]:
        """The numbers people look at, those that are known."""
        found = {
            "step": f"{self.step:,}",
            "loss": f"{self.loss:.4f}",
            **{name: f"{value:.4f}" for name, value in self.terms.items()},
            "gradient norm": f"{self.grad_norm:.4g}",
            "learning rate": f"{self.lr:.4g}",
            f"{self.unit}/s": f"{self.tokens_per_second:,.0f}",
            "step time": f"{1e3 * self.seconds:,.4g} ms",
            "peak memory": f"{self.memory_bytes / 2**30:.2f} GiB",
        }
        if self.mfu is not None:
            found["MFU"] = f"{self.mfu:.1%}"
        if self.expert_load is not None:
            found["busiest expert"] = f"{self.expert_load:.2f} × an even share"
            found["dead experts"] = f"{self.dead_experts}"
        if self.expert_rank_load is not None:
            found["busiest rank's experts"] = f"{self.expert_rank_load:.2f} × an even share"
            found["sent to experts"] = f"{(self.expert_sent_bytes or 0) / 2**20:,.1f} MiB"
        return {**found, "update": "skipped"} if self.skipped else found

    def __str__(self) -> str:
        return ", ".join(f"{name} {value}" for name, value in self.figures().items())

    def _repr_html_(self) -> str:
        return html_table(f"step {self.step:,}", list(self.figures().items())[1:])

    def line(self, *, memory_limit_bytes: int | None = None) -> str:
        """The log line of this step."""
        share = f" ({self.memory_bytes / memory_limit_bytes:.1%})" if memory_limit_bytes else ""
        mfu = "unknown" if self.mfu is None else f"{self.mfu:.1%}"
        flops = (
            "unknown" if self.flops_per_second is None else f"{self.flops_per_second / 1e12:.3g}"
        )
        named = ", ".join(f"{name} {value:.4f}" for name, value in self.terms.items())
        terms = f" ({named})" if named else ""
        return (
            f"step {self.step:>6}  loss {self.loss:8.4f}{terms}  grad_norm {self.grad_norm:8.4f}  "
            f"memory {self.memory_bytes / 2**30:.2f} GiB{share}  "
            f"{self.unit}/s {self.tokens_per_second:,.0f}  TFLOP/s {flops}  MFU {mfu}"
            + self.experts_line()
            + ("  skipped" if self.skipped else "")
        )

    def experts_line(self) -> str:
        if self.expert_load is None:
            return ""
        dead = f", {self.dead_experts} dead" if self.dead_experts else ""
        return f"  busiest expert {self.expert_load:.2f} x even{dead}"


TABLES = ("terms", "experts")
NUMBERS = tuple(each.name for each in fields(Report) if each.name not in TABLES)
