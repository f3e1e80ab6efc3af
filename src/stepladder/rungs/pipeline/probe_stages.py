"""What flows between a pipeline's stages for micro-batches of a new shape, found by running them.

Each stage in turn runs once on zeros; not in training, where running statistics would count that
pass. A stage that cannot run says so to all: every rank then raises, and none waits for it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from stepladder.data import Batch
from stepladder.errors import ModelError, StepladderError
from stepladder.kernels.fused_head import FusedHead
from stepladder.model import evaluating, uncompiled
from stepladder.model.call_module import call
from stepladder.model.forward_state import state_restored
from stepladder.rungs.data_parallel.batch_norm import batch_norms, lacks_rows, one_row

from .loss_reads import check_reads
from .schedule import StageOutput, StageOutputs
from .stage_module import StageModule


@torch.no_grad()
def probe_stages(pipeline: Any, part: Batch) -> tuple[StageOutputs, ...]:
    """What every stage but the last sends on for a micro-batch of this shape."""
    sent: list[StageOutputs] = []
    for stage in range(pipeline.stages.last):
        sent.append(agree(pipeline, stage, lambda chunk: probe_output(pipeline, chunk, part, sent)))
    last = pipeline.stages.last
    if part.num_rows == 1:
        agree(pipeline, last, lambda chunk: check_statistics(pipeline, chunk, part, sent))
    if pipeline.tries_head:
        note = agree(pipeline, last, lambda chunk: try_head(pipeline, chunk, part, sent))
        pipeline.head_tried = True
        if note and pipeline.head is None:
            pipeline.notes.append(note)
    if pipeline.checks_loss:
        agree(pipeline, last, lambda chunk: check_loss(pipeline, chunk, part, sent))
        pipeline.loss_checked = pipeline.leaves_checked = True
    return tuple(sent)


def agree(pipeline: Any, stage: int, find: Callable[[StageModule], Any]) -> Any:
    """What one stage finds out, on all of them; where it raises, all do."""
    answer: list[Any] = [None]
    raised: Exception | None = None
    for chunk in pipeline.chunks:
        if chunk.index == stage:
            try:
                answer = [find(chunk)]
            except Exception as error:
                raised, answer = error, [as_refusal(stage, error)]
    owner = pipeline.stages.owners[stage]
    dist.broadcast_object_list(answer, group_src=owner, group=pipeline.group)
    if raised is not None:
        raise raised
    if isinstance(answer[0], StepladderError):
        raise answer[0]
    return answer[0]


def as_refusal(stage: int, error: Exception) -> StepladderError:
    """The error as one line that can be sent to the other ranks."""
    if isinstance(error, StepladderError):
        return error
    line = (str(error).strip() or "no reason given").splitlines()[0]
    return ModelError(
        "layout.pipeline",
        f"stage {stage} cannot run ({type(error).__name__}: {line})",
        "Its rank's own error says where; see whether the module runs with pipeline=1.",
    )


def probe_output(
    pipeline: Any, chunk: StageModule, part: Batch, sent: Sequence[StageOutputs]
) -> StageOutputs:
    """What a stage sends on when it is given zeros."""
    chunk.part = part
    given = [tensor.zero_() for flow in sent[-1:] for tensor in received(pipeline, flow)]
    # BatchNorm refuses one value per channel, and only in training.
    single = part.num_rows == 1 and bool(batch_norms(chunk))
    with uncompiled(chunk), state_restored(chunk) if single else evaluating(chunk):
        made = run_single(chunk, given) if single else chunk(*given)
    trained = any(p.requires_grad for p in chunk.parameters())
    trained = trained or any(one.trained for flow in sent[-1:] for one in flow)
    return tuple(
        StageOutput(tuple(one.shape), one.dtype, trained and one.is_floating_point())
        for one in made
    )


def run_single(chunk: StageModule, given: Sequence[Tensor]) -> Any:
    """A stage on one row, in training."""
    try:
        return chunk(*given)
    except ValueError as error:
        if lacks_rows(error):
            raise one_row() from error
        raise


def check_statistics(
    pipeline: Any, chunk: StageModule, part: Batch, sent: Sequence[StageOutputs]
) -> None:
    """Refuse one row where the last stage has a BatchNorm that needs several."""
    if not batch_norms(chunk):
        return
    chunk.part, pipeline.probed = part, []
    given = [tensor.zero_() for flow in sent[-1:] for tensor in received(pipeline, flow)]
    try:
        with uncompiled(chunk), state_restored(chunk):
            run_single(chunk, given)
    finally:
        pipeline.probed = None


def try_head(pipeline: Any, chunk: StageModule, part: Batch, sent: Sequence[StageOutputs]) -> str:
    """Why the head keeps its own loss, of a head that is to be fused with it; else nothing."""
    head: FusedHead | None = pipeline.head
    if head is None or head.checked:
        return ""
    given = [tensor.zero_() for tensor in received(pipeline, sent[-1])]
    inputs, run = pipeline.read_inputs(part.inputs), chunk.run

    def forward(inputs: Any) -> Any:
        chunk.run = lambda stage: call(stage.view, inputs)
        return chunk(*given)

    try:
        with uncompiled(chunk), state_restored(chunk), pipeline.forward_context():
            for mode in (nullcontext(), evaluating(chunk)):
                with mode:
                    if not head.refusal:
                        head.prove(forward, inputs)
    finally:
        chunk.run = run
    return head.note


def check_loss(
    pipeline: Any, chunk: StageModule, part: Batch, sent: Sequence[StageOutputs]
) -> None:
    """Refuse a loss that reads what the last stage does not have: see loss_reads.py."""
    chunk.part, pipeline.probed = part, []
    try:
        # Whole outputs: a loss that is fused with the head reads the head's weight.
        with (
            uncompiled(chunk), evaluating(chunk), state_restored(chunk), pipeline.whole_outputs()
        ):  # fmt: skip
            chunk(*(tensor.zero_() for tensor in received(pipeline, sent[-1])))
            outputs = pipeline.probed[0]
            own = pipeline.loss_module
            found = check_reads(pipeline.loss, outputs, part, pipeline.module, chunk.view, own)
    finally:
        pipeline.probed = None
    if found:
        raise found


def received(pipeline: Any, flow: StageOutputs) -> list[Tensor]:
    """Where what a stage sends is received."""
    device = pipeline.world.device
    return [torch.empty(one.shape, dtype=one.dtype, device=device) for one in flow]
