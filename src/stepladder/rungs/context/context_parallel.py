"""Rung: context parallel: every sequence in equal chunks, one a rank, so that long sequences fit.

Everything in a language model works token by token except attention, which gathers the keys and
values of all chunks: see gather_keys_values.py. Chunks are contiguous, and the first rank has the
first tokens. Positions are those in the whole sequence, and are given to the module by name.

[Note: what may look across tokens] In a module stepladder did not write, torch's fused attention is
found wherever it is called; a convolution over the sequence, a recurrent state, an attention
written by hand or positions counted inside are not. So the first batch is also a test: the start of
one row is run whole and in chunks, and if outputs or losses differ, the module is refused.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from functools import partial, update_wrapper
from typing import Any

import torch
from torch import Tensor, nn

from stepladder.data import Batch, iter_tensors
from stepladder.errors import DataError, ModelError
from stepladder.loss import NO_LOSS, Loss
from stepladder.loss.loss import cross_entropy
from stepladder.model import base_model, evaluating
from stepladder.model.builtin.attention import Attention, document_mask
from stepladder.plan import Plan
from stepladder.plan.layout import COPIES
from stepladder.rungs.accumulate import Accumulate
from stepladder.rungs.parameter_shards import local
from stepladder.seam.modules import is_compiled
from stepladder.seam.operators import look_up_collectives
from stepladder.world import World, seed_generators

from .gather_keys_values import GatherInAttention, SequenceChunk, attend_to_all

POSITIONS = ("positions", "position_ids")  # names of the argument
TEST_TOKENS = 16  # tokens per rank of the row that is run both ways
TOLERANCES = {"fp32": 1e-4, "fp8": 0.15}  # relative error by rounding alone
OTHER_TOLERANCE = 3e-2  # in 16 bits


def context(
    module: nn.Module, blocks: Sequence[tuple[str, nn.Module]], loss: Loss, plan: Plan, world: World
) -> SequenceSplit:
    """Make the module's attention gather keys and values from the ranks that share a sequence."""
    group = world.group("context")
    look_up_collectives()
    chunk = SequenceChunk(group.rank(), group.size(), group.group_name)
    refuse_windows(module)
    attentions = [part for part in module.modules() if isinstance(part, Attention)]
    for attention in attentions:
        attention.attend = partial(attend_to_all, attention.attend, chunk)
    if not attentions:
        for block in [block for _, block in blocks] or [module]:
            block.forward = update_wrapper(
                partial(forward_gathering, block.forward, chunk), block.forward
            )
    part: Any
    for part in module.modules():
        if getattr(part, "mask", None) is document_mask:
            part.mask = partial(documents_of_all, chunk)
    limit = TOLERANCES.get(plan.precision.compute, OTHER_TOLERANCE)
    return SequenceSplit(module, chunk, loss, world, limit)


def refuse_windows(module: nn.Module) -> None:
    config = getattr(module, "config", None)
    window = getattr(config, "sliding_window", None)
    if window and getattr(config, "use_sliding_window", True):
        raise ModelError(
            type(module).__name__,
            f"sees {window} tokens back, and a chunk does not know where its window begins",
            "Use context=1.",
        )


def forward_gathering(
    forward: Callable[..., Any], chunk: SequenceChunk, *args: Any, **kwargs: Any
) -> Any:
    """A block's forward, in which every fused attention gathers from other ranks."""
    if not chunk.cut:
        return forward(*args, **kwargs)
    with GatherInAttention(chunk):
        return forward(*args, **kwargs)


def documents_of_all(chunk: SequenceChunk, documents: Tensor) -> Tensor:
    """The mask of packed documents for this chunk's tokens; documents may begin on any rank."""
    if not chunk.cut:
        return document_mask(documents)
    return document_mask(documents, chunk.gather(documents, 1, ahead=False))


@dataclass(slots=True)
class SequenceSplit:
    """Splits batches along the sequence."""

    module: nn.Module
    chunk: SequenceChunk
    whole: Loss  # of uncut sequences
    world: World
    limit: float  # relative error between a row and its chunks
    names: list[str] = field(init=False)  # of the module's arguments
    tested: bool = False

    def __post_init__(self) -> None:
        self.names = list(inspect.signature(base_model(self.module).forward).parameters)

    @property
    def loss(self) -> Loss:
        """Of a chunk. A module that shifts its labels itself would miss each chunk's last label, so
        they are shifted before the split and its loss is computed here."""
        if not self.whole.shifted:
            return self.whole
        return Loss(
            shifted_cross_entropy, shifted=True, kind="cross_entropy", known=True, takes=no_own_term
        )

    @contextmanager
    def local_chunk(self, run: Accumulate, batch: Batch) -> Iterator[Batch]:
        """A context in which the module is given this rank's chunk of the batch."""
        length, ways = batch.length, self.chunk.ways
        if length % ways:
            raise DataError(
                "layout.context",
                f"{ways} ways cannot slice {length} tokens evenly",
                f"Use sequences of {length // ways * ways}.",
            )
        if not self.tested:
            check_tried_on_loss(run, "layout.context")
            row = batch.rows(slice(0, 1)).columns(slice(0, min(length, TEST_TOKENS * ways)))
            self.test(run, row)
            self.tested = True
        # Ranks with the same rows have the same seed; each chunk must draw its own dropout. (The
        # word is part of the seed.)
        seed_generators(self.world.device, torch.initial_seed(), "stretch", self.chunk.index)
        with self.chunk.cutting():
            yield self.cut(batch)

    def cut(self, batch: Batch) -> Batch:
        part, inputs = self.chunk.of(batch.length), self.by_name(batch.inputs)
        if self.whole.shifted:  # labels would have the module compute a loss that nobody reads
            inputs = {name: value for name, value in inputs.items() if value is not batch.targets}
        inputs = {**self.places(batch), **inputs}
        return replace(batch, inputs=inputs).columns(part, ahead=int(self.whole.shifted))

    def by_name(self, inputs: Any) -> dict[str, Any]:
        if isinstance(inputs, dict):
            return inputs
        values = inputs if isinstance(inputs, tuple | list) else (inputs,)
        return dict(zip(self.names, values))

    def places(self, batch: Batch) -> dict[str, Tensor]:
        """Every token's position in its sequence, where the module takes any."""
        positions = torch.arange(batch.length, device=batch.targets.device)
        rows = positions.expand(batch.num_rows, -1)
        return {name: rows for name in POSITIONS if name in self.names}

    @torch.no_grad()
    def test(self, run: Accumulate, row: Batch) -> None:
        """Run a short row whole and in chunks: see [Note: what may look across tokens]."""
        part = self.chunk.of(row.length)
        own = self.whole if self.whole.shifted else run.loss  # weighted as its trial found
        with eager_evaluation(self.module), run.whole_outputs(), run.forward_context():
            outputs = run.module_outputs(row)
            whole, loss = per_token(outputs, row.length), summed(own, outputs, row)
            with self.chunk.cutting():
                mine = self.cut(row)
                outputs = run.module_outputs(mine)
                cut, part_loss = per_token(outputs, mine.length), summed(run.loss, outputs, mine)
        if run.loss.weighs_rows:  # every chunk has all rows
            part_loss = part_loss / self.chunk.ways
        error = distance(self.world.sum(part_loss, "context"), loss)
        if whole is not None and cut is not None:
            error = torch.maximum(error, distance(cut, whole[:, part]))
        far = (error.nan_to_num(1.0) > self.limit).float()
        # All ranks agree, so that none waits in a collective for one that stopped.
        said = torch.stack((far, far * error.nan_to_num(1.0)))
        num, total = self.world.sum(said, *COPIES, "tensor", "pipeline").tolist()
        if num:
            off = f"by {total / num:.1g}"
            raise other_results(type(self.module).__name__, self.chunk.ways, off)


def check_tried_on_loss(run: Accumulate, field: str) -> None:
    """Refuse a first batch that is only predicted: a cut is tried on the loss of one."""
    if run.loss is NO_LOSS:
        raise ModelError(
            field,
            "the cut module is tried on its first batch with a loss, and none has come yet",
            "Call run.step or run.evaluate before run.predict.",
        )


def other_results(kind: str, ways: int, why: str) -> ModelError:
    return ModelError(
        "layout.context",
        f"{kind} gives other results for {ways} chunks of a sequence than for the whole ({why})",
        "Use context=1. Only torch's fused attention may look across tokens, and positions must be "
        f"an argument called {' or '.join(POSITIONS)}.",
    )


@contextmanager
def eager_evaluation(module: nn.Module) -> Iterator[None]:
    """A context without dropout and without compilation."""
    compiled = any(is_compiled(part) for part in module.modules())
    eager = torch.compiler.set_stance("force_eager") if compiled else nullcontext()
    with evaluating(module), eager:
        yield


def per_token(outputs: Any, length: int) -> Tensor | None:
    """The first output that has one row for each token."""
    found = (each for each in iter_tensors(outputs) if each.dim() > 1 and each.shape[1] == length)
    return next((local(each).float() for each in found if each.is_floating_point()), None)


def summed(loss: Loss, outputs: Any, batch: Batch) -> Tensor:
    """The loss times what it is a mean over; zero on a stage that has no outputs."""
    weight = 1.0 if loss.sums else loss.count(batch)
    count = 0.0 if outputs is None else weight
    mean = loss.mean(outputs, batch) if count else torch.zeros((), device=batch.targets.device)
    return local(mean).float() * count


def distance(found: Tensor, expected: Tensor) -> Tensor:
    return (found - expected).norm() / expected.norm().clamp(min=1e-6)


def shifted_cross_entropy(outputs: Any, targets: Tensor) -> Tensor:
    """Cross-entropy with targets at the positions that predict them."""
    no_own_term(outputs)
    return cross_entropy(outputs, targets)


def no_own_term(outputs: Any) -> None:
    """Refuse outputs of a module that adds a term of its own to its loss."""
    if getattr(outputs, "aux_loss", None) is not None:
        raise ModelError(
            "layout.context",
            "the module adds a loss over whole sequences (aux_loss), which chunks do not have",
            "Use context=1, or output_router_logits=False.",
        )
