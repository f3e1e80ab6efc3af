"""A report that is still on the device: reading its numbers is what waits for it.

`run.step` returns at once. `report.step` is known without waiting; any other field waits for the
device, once, and from then on the report is plain numbers. Time is measured between two reports
that were read, divided by the steps between them: that is the rate the device kept up, whether
every step was read or every hundredth.

FLOPs are counted when one of their rates is first asked for, in a log line or by `read`, and not
for a loss: counting traces the module, which takes longer than a step of a small one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from stepladder.record import Report

from .flop_rate import Rates


class PendingReport:
    """What `run.step` returns: the fields of a `Report`, read from the device when first asked for.

    >>> report = PendingReport(
    ...     3,
    ...     lambda: Report(
    ...         step=3, loss=2.5, grad_norm=1.0, lr=0.1, tokens=64, seconds=0.5,
    ...         memory_bytes=2**30, tokens_per_second=128.0,
    ...     ),
    ... )
    >>> report
    PendingReport(step=3, not read yet)
    >>> report.loss
    2.5
    """

    __slots__ = ("_rates", "_report", "_resolve", "step")

    step: int  # known without waiting

    def __init__(
        self,
        step: int,
        resolve: Callable[[], Report],
        rates: Callable[[float], Rates] | None = None,
    ) -> None:
        self.step = step
        self._resolve: Callable[[], Report] | None = resolve
        self._report: Report | None = None
        self._rates = rates  # by the seconds of the step; None: the report has them

    def read(self) -> Report:
        """The numbers. Waits for the device the first time."""
        report = self._without_rates()
        if self._rates is not None:
            found, self._rates = self._rates(report.seconds), None
            report = self._report = replace(
                report, flops_per_second=found.model, mfu=found.mfu, hfu=found.hfu
            )
        return report

    def _without_rates(self) -> Report:
        """The numbers that need no FLOPs."""
        if self._report is None:
            assert self._resolve is not None
            self._report = self._resolve()
            self._resolve = None  # let go of the device tensors it held
        return self._report

    @property
    def loss(self) -> float:
        """Mean over the valid targets of the global batch."""
        return self._without_rates().loss

    @property
    def terms(self) -> Mapping[str, float]:
        """The loss's terms by name, which add up to `loss`; empty where it is one number."""
        return self._without_rates().terms

    @property
    def grad_norm(self) -> float:
        """Norm of the gradients of all parameters, before clipping."""
        return self._without_rates().grad_norm

    @property
    def lr(self) -> float:
        """Learning rate of this step."""
        return self._without_rates().lr

    @property
    def tokens(self) -> int:
        """Valid targets in the global batch."""
        return self._without_rates().tokens

    @property
    def seconds(self) -> float:
        """Time of a step, averaged over the steps since a report was last read."""
        return self._without_rates().seconds

    @property
    def data_seconds(self) -> float:
        """Of `seconds`, the time spent waiting for the batch."""
        return self._without_rates().data_seconds

    @property
    def tokens_per_second(self) -> float:
        """Tokens of all ranks together, by the second."""
        return self._without_rates().tokens_per_second

    @property
    def memory_bytes(self) -> int:
        """Peak memory of the rank that needed most, as the ranks last exchanged it."""
        return self._without_rates().memory_bytes

    @property
    def rank_memory_bytes(self) -> int:
        """Peak memory of this rank."""
        return self._without_rates().rank_memory_bytes

    @property
    def flops_per_second(self) -> float | None:
        """Model FLOPs per second on this rank; None: not counted."""
        return self.read().flops_per_second

    @property
    def mfu(self) -> float | None:
        """Model FLOPs as a share of the device's peak; None: the peak is unknown."""
        return self.read().mfu

    @property
    def hfu(self) -> float | None:
        """The same with recomputed FLOPs counted."""
        return self.read().hfu

    @property
    def loss_scale(self) -> float | None:
        """The loss scale of fp16; None in other precisions."""
        return self._without_rates().loss_scale

    @property
    def skipped(self) -> bool:
        """Whether the update was skipped because the loss or a gradient was NaN or Inf."""
        return self._without_rates().skipped

    @property
    def length(self) -> int:
        """Tokens of the longest sample in the batch; 0 where samples are not sequences."""
        return self._without_rates().length

    @property
    def unit(self) -> str:
        """What `tokens` count: tokens, samples where each has one target, or targets."""
        return self._without_rates().unit

    @property
    def expert_load(self) -> float | None:
        """Tokens of the busiest expert over an even share, in the worst layer; None: no experts."""
        return self._without_rates().expert_load

    @property
    def dead_experts(self) -> int | None:
        """Experts that no token of the batch chose, in all layers; None: no experts."""
        return self._without_rates().dead_experts

    @property
    def expert_rank_load(self) -> float | None:
        """Rows of the busiest rank's experts over an even share; None: experts are not spread."""
        return self._without_rates().expert_rank_load

    @property
    def expert_sent_bytes(self) -> int | None:
        """Bytes that this rank sent to others for their experts; None: experts are not spread."""
        return self._without_rates().expert_sent_bytes

    @property
    def experts(self) -> Mapping[str, tuple[float, ...]]:
        """By layer, the share of the tokens' choices that each expert got."""
        return self._without_rates().experts

    def line(self, *, memory_limit_bytes: int | None = None) -> str:
        """The log line of this step."""
        return self.read().line(memory_limit_bytes=memory_limit_bytes)

    def to_dict(self) -> dict[str, Any]:
        """Every field by name."""
        return self.read().to_dict()

    def __reduce__(self) -> tuple[Callable[[Report], PendingReport], tuple[Report]]:
        # What waits on the device belongs to this process and this run: a copy holds its numbers.
        return known_report, (self.read(),)

    def __str__(self) -> str:
        return str(self.read())

    def _repr_html_(self) -> str:
        return self.read()._repr_html_()

    def __repr__(self) -> str:
        if self._report is None:
            return f"PendingReport(step={self.step}, not read yet)"
        return f"Pending{self.read()!r}"


def known_report(report: Report) -> PendingReport:
    """A report whose numbers are known already."""
    return PendingReport(report.step, lambda: report)
