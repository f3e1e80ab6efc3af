"""What one step did, in numbers every rank agrees on."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any


@dataclass(frozen=True, slots=True)
class Report:
    step: int
    loss: float  # mean over the valid targets of the global batch
    grad_norm: float  # over all parameters, before clipping
    lr: float
    tokens: int  # valid targets in the global batch
    seconds: float  # since the step before
    memory_bytes: int  # peak on the fullest rank
    tokens_per_second: float
    flops_per_second: float | None = None  # model FLOPs a rank; None: not counted
    mfu: float | None = None  # of the device's peak in the plan's compute type; None: unknown peak
    hfu: float | None = None  # the same with recomputed FLOPs counted
    loss_scale: float | None = None  # with fp16
    skipped: bool = False  # the update was left out because a gradient was not finite
    length: int = 0  # of the longest sample in the batch, where samples have one
    data_seconds: float = 0.0  # of `seconds`, waiting for the batch

    def to_dict(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in NAMES}  # no copies: all are numbers

    def line(self, *, memory_limit_bytes: int | None = None) -> str:
        """The field's own log line."""
        share = f" ({self.memory_bytes / memory_limit_bytes:.1%})" if memory_limit_bytes else ""
        mfu = "unknown" if self.mfu is None else f"{self.mfu:.1%}"
        flops = (
            "unknown" if self.flops_per_second is None else f"{self.flops_per_second / 1e12:.3g}"
        )
        return (
            f"step {self.step:>6}  loss {self.loss:8.4f}  grad_norm {self.grad_norm:8.4f}  "
            f"memory {self.memory_bytes / 2**30:.2f} GiB{share}  "
            f"tokens/s {self.tokens_per_second:,.0f}  TFLOP/s {flops}  MFU {mfu}"
            + ("  skipped" if self.skipped else "")
        )


NAMES = tuple(field.name for field in fields(Report))
