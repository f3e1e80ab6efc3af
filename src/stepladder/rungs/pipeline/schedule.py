"""Pipeline stages as torch's schedules take them: what they send, and when they compute."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from time import perf_counter
from typing import Any

import torch
from torch import Tensor
from torch.distributed.pipelining import (
    PipelineStage,
    Schedule1F1B,
    ScheduleGPipe,
    ScheduleInterleaved1F1B,
    ScheduleZBVZeroBubble,
)

from stepladder.data import Batch
from stepladder.errors import DataError, StepladderError
from stepladder.plan import Schedule
from stepladder.plan.settled.schedule_rules import fills, whole_rounds


@dataclass(frozen=True, slots=True)
class StageOutput:
    """What one stage sends to the next for each micro-batch."""

    shape: tuple[int, ...]
    dtype: torch.dtype
    trained: bool  # whether a gradient comes back

    def stand_in(self) -> Tensor:
        return torch.empty(self.shape, dtype=self.dtype, device="meta").requires_grad_(self.trained)


StageOutputs = tuple[StageOutput, ...]  # all that one stage sends for a micro-batch


@dataclass(frozen=True, slots=True)
class Event:
    """One stage's work on one micro-batch, in seconds of a clock that all processes share."""

    stage: int
    micro: int
    kind: str  # forward, backward, input (gradients of what was received), weight
    start: float
    end: float


class Stage(PipelineStage):
    """torch's stage, which tells its chunk whose turn it is and, if asked, notes when it worked."""

    parts: Sequence[Batch] = ()
    events: list[Event] | None = None

    def forward_one_chunk(self, fwd_chunk_id: int, *args: Any, **kwargs: Any) -> Any:
        chunk: Any = self.submod
        chunk.part = self.parts[fwd_chunk_id]
        with self.timing(fwd_chunk_id, "forward"):
            return super().forward_one_chunk(fwd_chunk_id, *args, **kwargs)

    def backward_one_chunk(self, bwd_chunk_id: int, *args: Any, **kwargs: Any) -> Any:
        kind = "backward" if kwargs.get("full_backward", True) else "input"
        _, received = self.fwd_cache[bwd_chunk_id]
        with self.timing(bwd_chunk_id, kind):
            super().backward_one_chunk(bwd_chunk_id, *args, **kwargs)
        # Zeros for what was received and played no part in the result: its sender waits for them.
        self.bwd_cache[bwd_chunk_id] = tuple(
            torch.zeros_like(one) if found is None and one.requires_grad else found
            for one, found in zip(received, self.bwd_cache[bwd_chunk_id])
        )

    def backward_weight_one_chunk(self, bwd_chunk_id: int, *args: Any, **kwargs: Any) -> Any:
        with self.timing(bwd_chunk_id, "weight"):
            return super().backward_weight_one_chunk(bwd_chunk_id, *args, **kwargs)

    @contextmanager
    def timing(self, micro: int, kind: str) -> Iterator[None]:
        start = perf_counter()
        yield
        if self.events is not None:
            if self.device.type == "cuda":
                torch.cuda.synchronize(self.device)
            self.events.append(Event(self.stage_index, micro, kind, start, perf_counter()))


def make_schedule(schedule: Schedule, stages: list[Any], micro_batches: int) -> Any:
    """torch's schedule of that name over this rank's stages; the last of all returns its loss."""
    settings: dict[str, Any] = {"loss_fn": lambda loss, micro: loss, "scale_grads": False}
    match schedule.kind:
        case "gpipe":
            return ScheduleGPipe(stages[0], micro_batches, **settings)
        case "1f1b":
            return Schedule1F1B(stages[0], micro_batches, **settings)
        case "interleaved":
            return ScheduleInterleaved1F1B(stages, micro_batches, **settings)
    return ScheduleZBVZeroBubble(stages, micro_batches, **settings)


def fits_schedule(schedule: Schedule, micro_batches: int, stages: int) -> bool:
    """Whether so many micro-batches keep to the schedule's rules."""
    return fills(schedule, micro_batches, stages) and whole_rounds(schedule, micro_batches, stages)


def micro_batch_size(
    schedule: Schedule, stages: int, rows: int, wanted: int, *, planned: bool
) -> int:
    """The largest size of at most so many rows that divides them all and keeps to the schedule.

    Args:
        planned: the size that is wanted is the plan's, and is refused where it divides but breaks
            a rule.
    """
    enough = [
        size for size in range(1, rows + 1)
        if rows % size == 0 and fits_schedule(schedule, rows // size, stages)
    ]  # fmt: skip
    sizes = [size for size in enough if size <= wanted]
    breaks_rule = planned and not fits_schedule(schedule, rows // wanted, stages)
    if sizes and not (breaks_rule and rows % wanted == 0):
        return sizes[-1]
    below = rows // stages * stages
    filling = f"{below} or {below + stages} rows" if below else f"{stages} rows or more"
    raise DataError(
        "batch.micro",
        f"{rows} rows in micro-batches of {wanted} cannot fill {stages} stages with {schedule}",
        f"Use micro={enough[-1]}." if enough else f"Use {filling} on a rank.",
    )


def cause(error: BaseException) -> BaseException:
    """What went wrong in a stage; torch wraps it in a report of the stage's inputs."""
    while error.__cause__ is not None and not isinstance(error, StepladderError):
        error = error.__cause__
    return error
