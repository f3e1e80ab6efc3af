"""The tables of one workload on one device: by precision, batch size and recomputation."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from stepladder.plan import Plan
from stepladder.train.user_code.user_code import UserCode
from stepladder.world import pick_device

from .time_plans import Row, Workload, measure_plans, with_batch
from .workloads import make_workload

PRECISIONS = ("fp32", "tf32", "fp16", "bf16", "bf16-pure", "fp8")
RECOMPUTES = ("none", "selective", "every:4", "every:2", "blocks")
LARGEST_BATCH = 64


@dataclass(frozen=True, slots=True)
class TableSettings:
    """What is measured, with defaults for the device: gpt-tiny on a CPU, GPT-2 on a GPU."""

    model: UserCode | str
    batch: int
    sequence: int
    device: str = "auto"

    @classmethod
    def fill(
        cls,
        device: str = "auto",
        *,
        model: UserCode | str | None = None,
        batch: int | None = None,
        sequence: int | None = None,
    ) -> TableSettings:
        on_gpu = pick_device(device).type == "cuda"
        return cls(
            model=model or ("gpt2" if on_gpu else "gpt-tiny"),
            batch=batch or (16 if on_gpu else 8),
            sequence=sequence or (1024 if on_gpu else 128),
            device=device,
        )

    def workload(self) -> Workload:
        return make_workload(
            self.model, batch=self.batch, sequence=self.sequence, device=self.device
        )


def measure_precisions(settings: TableSettings, words: str, *, steps: int) -> Iterator[Row]:
    """A row a precision; `words` are what every plan has in common."""
    plans = [(name, Plan.parse(f"{name} {words}")) for name in PRECISIONS]
    return measure_plans(settings.workload(), plans, steps=steps)


def measure_recomputes(settings: TableSettings, words: str, *, steps: int) -> Iterator[Row]:
    """A row for each kind of activation checkpointing."""
    plans = [(how, Plan.parse(f"{words} recompute={how}")) for how in RECOMPUTES]
    return measure_plans(settings.workload(), plans, steps=steps)


def measure_batch_sizes(
    settings: TableSettings, words: str, *, largest: int = LARGEST_BATCH, steps: int
) -> Iterator[Row]:
    """A row for each power of two up to the largest batch."""
    base = Plan.parse(words or "fp32")
    for size in batch_sizes(largest):
        workload = replace(settings, batch=size).workload()
        yield from measure_plans(workload, [(str(size), with_batch(base, size))], steps=steps)


def batch_sizes(largest: int) -> list[int]:
    return [2**power for power in range(largest.bit_length())]
