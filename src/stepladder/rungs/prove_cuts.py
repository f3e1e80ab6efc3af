"""Proof by trial, at the first batch, that a module cut by tensor or context parallelism computes
what the whole module does.

Copies with random weights, one whole and one cut on the real ranks, take a few rows of the real
batch: the gradients of all parameters must agree. That shows what no look at the structure does: a
norm or a softmax across a cut, statistics over tokens, windows, positions counted inside, in any
block. It is done in training mode (without dropout) and in evaluation mode, with other weights each
time. A model whose copies would need too much memory is only checked block by block.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from stepladder.data import Batch
from stepladder.errors import DataError, ModelError, StepladderError
from stepladder.loss import Loss
from stepladder.model import Anatomy, builtin_shape, evaluating, uncompiled
from stepladder.plan import AXES, FP32, Plan
from stepladder.rungs.context.context_parallel import (
    SequenceSplit,
    check_tried_on_loss,
    context,
    other_results,
)
from stepladder.rungs.data_parallel.batch_norm import combine_over
from stepladder.rungs.data_parallel.gradient_sync import GradientSync
from stepladder.rungs.data_parallel.zero2_zero3 import make_contiguous
from stepladder.rungs.precision.precision import float32_matmul_mode
from stepladder.rungs.tensor.tensor_parallel import tensor
from stepladder.world import World, device_memory_bytes

from .accumulate import Accumulate
from .trial_copy import Decisions, Drawing, WithoutDropout, worst_difference

ROWS = 2
MAX_TOKENS = 4096  # of a row: the whole of it is computed on every rank
MEMORY_SHARE = 1 / 16  # of a rank's memory that the parameters of one copy may take
DRAWS, DRAWS_OF_DECISIONS = 2, 10  # of weights; more where numbers decide what is computed
CONFIRMING = 100  # added to a draw's seed for the draw that confirms it
SAME = 2e-3  # relative; fp32 rounds to less, another computation differs by more

Gradients = dict[str, Tensor | None]


@dataclass(slots=True)
class CutProof:
    """What the trial of the first batch needs, taken before any rung changes the module."""

    drawing: Drawing
    anatomy: Anatomy
    loss: Loss
    plan: Plan
    world: World
    done: bool = False
    decides: bool = False  # whether the whole module compares computed numbers
    untried: ModelError | None = None  # the refusal, where blocks could not be tried alone
    cut_loss: Loss | None = None  # the run's, of a part of a batch
    notes: list[str] = field(default_factory=list)

    def watch(self, run: Accumulate) -> None:
        """Try the first batch of a run before the run takes it."""
        run.split_batch = partial(self.before_first, run, run.split_batch)

    @contextmanager
    def before_first(
        self, run: Accumulate, split: Callable[[Batch], Any], batch: Batch
    ) -> Iterator[Batch]:
        """The batch as `split` gives it; the first one is tried before."""
        if not self.done:
            check_tried_on_loss(run, self.axis)
            self.cut_loss = run.loss
            if not self.is_uneven(batch):
                with run.whole_outputs():  # a fused loss reads the weights of the run's own head
                    self.check(batch)
            self.done = True
        with split(batch) as mine:
            yield mine

    def is_uneven(self, batch: Batch) -> bool:
        """Whether context parallelism refuses the batch anyway."""
        ways = self.plan.layout.context
        return ways > 1 and batch.length % ways > 0

    def check(self, batch: Batch) -> None:
        """Raise on every rank where the cut module's gradients are not the whole module's."""
        device = self.world.device
        if not self.fits:
            self.notes.append(f"{self.axis}: too large to be tried whole; tried block by block")
            return
        batch = self.few(batch)
        cuda = [device] if device.type == "cuda" else []
        with (
            torch.random.fork_rng(cuda),
            torch.enable_grad(),
            float32_matmul_mode(FP32, device),
            WithoutDropout(),
        ):
            self.try_draws(batch, range(1, 1 + DRAWS))
            decides = torch.tensor(float(self.decides), device=device)
            if self.world.max(decides, *AXES):  # two draws may agree by chance
                self.try_draws(batch, range(1 + DRAWS, 1 + DRAWS_OF_DECISIONS))

    def try_draws(self, batch: Batch, seeds: range) -> None:
        """Compare copies with other weights each time, in training and in evaluation mode."""
        differed = False
        for seed in seeds:
            training = seed % 2 == 1
            worst = self.compare(batch, seed, training)
            if worst and (differed or self.compare(batch, seed + CONFIRMING, training)):
                raise self.refusal(*worst)  # twice: not by a chance of rounding
            differed |= worst is not None

    @property
    def fits(self) -> bool:
        """Whether copies of the whole module are small enough to be tried."""
        return self.drawing.num_bytes <= MEMORY_SHARE * device_memory_bytes(self.world.device)

    @property
    def axis(self) -> str:
        cut = [axis for axis in ("tensor", "context") if getattr(self.plan.layout, axis) > 1]
        return f"layout.{cut[0]}"

    def few(self, batch: Batch) -> Batch:
        """A few rows of the batch, shortened only where they are very long."""
        fullest = max(range(batch.num_rows), key=lambda row: batch.valid_by_row[row])
        rows = batch.rows(slice(fullest, fullest + ROWS))
        try:
            ways = self.plan.layout.context
            longest = MAX_TOKENS // ways * ways
            return rows.columns(slice(0, longest)) if rows.length > longest else rows
        except DataError:  # no sequences
            return rows

    def compare(self, batch: Batch, seed: int, training: bool) -> tuple[str, float] | None:
        """The gradient that differs most, on any rank, where it differs by more than rounding."""
        whole = self.whole_gradients(batch, seed, training, draw=0)
        if whole is None:
            return None
        cut = self.cut_gradients(batch, seed, training)
        worst = worst_difference(cut, whole)
        differs = torch.tensor(float(not worst[1] <= SAME), device=self.world.device)
        if not self.world.sum(differs, *AXES).item():
            return None
        if training and self.draws(batch, seed, whole):
            return None
        found: list[Any] = [None] * dist.get_world_size()
        dist.all_gather_object(found, worst)
        return max(found, key=lambda each: each[1] if each[1] == each[1] else float("inf"))

    def draws(self, batch: Batch, seed: int, whole: Gradients) -> bool:
        """Whether the whole module itself gives other gradients with other random numbers."""
        again = self.whole_gradients(batch, seed, True, draw=1)
        differs = again is None or not worst_difference(again, whole)[1] <= SAME
        return bool(self.world.max(torch.tensor(float(differs)).to(self.world.device), *AXES))

    def whole_gradients(
        self, batch: Batch, seed: int, training: bool, draw: int
    ) -> Gradients | None:
        """Of the whole module; None where a copy of it does not run on this batch."""
        copy = self.drawing.copy(self.world.device, seed)
        torch.manual_seed(draw)
        try:
            with Decisions() as decisions:
                found = self.gradients(copy, self.whole_loss, nullcontext, batch, training)
            self.decides |= decisions.any
        except StepladderError:
            raise
        except Exception:  # a step will raise it too, or only the copy cannot be run
            found = None
        failed = torch.tensor(float(found is None), device=self.world.device)
        if self.world.max(failed, *AXES):
            if self.untried is not None:
                raise self.untried
            self.notes.append(f"{self.axis}: a copy of the module does not run, so it is not tried")
            return None
        return found

    @property
    def whole_loss(self) -> Loss:
        """Of whole rows, which the run's loss weighs as it weighs their parts."""
        known = self.cut_loss
        if known is None or getattr(known, "weighting", None) is None:
            return self.loss
        return replace(known, function=self.loss.function)

    def cut_gradients(self, batch: Batch, seed: int, training: bool) -> Gradients:
        copy, layout = self.drawing.copy(self.world.device, seed), self.plan.layout
        loss: Loss = self.cut_loss or self.loss
        split: Any = nullcontext
        if layout.context > 1:
            if self.plan.batchnorm == "sync":
                combine_over(copy, self.world.group("context"))
            blocks = self.anatomy.blocks_of(copy) if self.anatomy.blocks else []
            sequences = context(copy, blocks, self.loss, self.plan, self.world)
            split = partial(cut_only, sequences)
        if layout.tensor > 1:
            whole_output = self.loss.kind != "cross_entropy"
            tensor(copy, self.anatomy, self.world, whole_output=whole_output, tried=True)
        torch.manual_seed(0)
        try:
            found = self.gradients(copy, loss, split, batch, training)
        except StepladderError:
            raise
        except Exception as problem:
            raise self.refusal(first_line(problem)) from problem
        # A rank whose part of the sequence skips a layer has no gradient of it, and others do.
        have = [float(gradient is not None) for gradient in found.values()]
        anywhere = self.world.max(torch.tensor(have, device=self.world.device), "context").tolist()
        parameters = dict(copy.named_parameters())
        return {
            name: self.whole(gradient, parameters[name]) if used else None
            for (name, gradient), used in zip(found.items(), anywhere)
        }

    def whole(self, gradient: Tensor | None, parameter: Tensor) -> Tensor:
        made = torch.zeros_like(parameter) if gradient is None else gradient
        made = made.full_tensor() if isinstance(made, DTensor) else made
        return self.world.sum(made.contiguous(), "context")

    def gradients(
        self, copy: nn.Module, loss: Loss, split: Any, batch: Batch, training: bool
    ) -> Gradients:
        """Gradients of one batch, by the name of the parameter."""
        trained = {name: p for name, p in copy.named_parameters() if p.requires_grad}
        found: Gradients = {}

        def take(value: Tensor) -> Tensor:
            """Only for the copy: a loss may also read the module that will be trained."""
            values = torch.autograd.grad(value, list(trained.values()), allow_unused=True)
            found.update(zip(trained, values))
            return torch.zeros((), requires_grad=True)

        run = Accumulate(GradientSync(copy), loss, nullcontext, self.world, split_batch=split)
        run.leaves_checked = True  # of the copy nothing is trained; the step itself checks
        with uncompiled(copy), nullcontext() if training else evaluating(copy):
            run(batch, take)
        return found

    def refusal(self, what: str, off: float | None = None) -> ModelError:
        kind, layout = type(self.drawing.structure).__name__, self.plan.layout
        why = f"by {off:.1g} in the gradient of {what}" if off is not None else what
        if layout.context > 1 and layout.tensor == 1:
            return other_results(kind, layout.context, why)
        plan = f"tensor={layout.tensor}" + f" context={layout.context}" * (layout.context > 1)
        return ModelError(
            "layout.tensor",
            f"{kind} computes something else with {plan} than whole ({why})",
            "Use shard or pipeline, or give it an `anatomy` that names its cuts.",
        )


def make_proof(
    module: nn.Module, anatomy: Anatomy, loss: Loss, plan: Plan, world: World
) -> CutProof | None:
    """The proof of a module's first batch; None for a built-in one, whose cuts are tested."""
    if builtin_shape(module) is not None or any(p.is_meta for p in module.parameters()):
        return None
    return CutProof(Drawing.of(module), anatomy, loss, plan, world)


@contextmanager
def cut_only(sequences: SequenceSplit, batch: Batch) -> Iterator[Batch]:
    with sequences.chunk.cutting():
        yield sequences.cut(batch)


def first_line(problem: Exception) -> str:
    return str(problem).split("\n", 1)[0][:120]


def cut_matrices(
    module: nn.Module,
    anatomy: Anatomy,
    loss: Loss,
    world: World,
    proof: CutProof | None,
    inputs: Any,
) -> None:
    make_contiguous(module)
    whole_output, proved = loss.kind != "cross_entropy", proof is not None and proof.fits
    untried = tensor(
        module, anatomy, world, whole_output=whole_output, proved=proved, inputs=inputs
    )
    if proof is not None:
        proof.untried = untried
