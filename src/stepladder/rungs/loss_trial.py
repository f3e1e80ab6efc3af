"""Before the first batch that is cut: how its pieces must be weighted, or why it cannot be cut.

A few rows are computed whole and in pieces by the module and loss that will train, on randomised
parameters: with zero weights in its last layer a module gives every row the same loss, and any
weighting seems right. Parameters, buffers and random generators are as before afterwards. All ranks
try the same rows, so that all decide alike.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from stepladder.data import Batch, iter_tensors
from stepladder.errors import StepladderError
from stepladder.loss import (
    OFTEN_IGNORED,
    ClassWeights,
    Loss,
    Observation,
    Weighting,
    all_fits,
    by_class,
    classes_of,
    count_classes,
    first_of_best,
    observe_all,
    propose,
    weigh_values,
)
from stepladder.loss.left_out_targets import left_out, without
from stepladder.loss.piece_gradients import ALLOWED, gradient_error, output_gradients
from stepladder.loss.piece_refusals import cannot_cut, changes_buffer, other_gradient
from stepladder.model.forward_state import state_restored
from stepladder.seam.modules import is_compiled
from stepladder.world import World

from .constant_draws import TrialDraws
from .loss_module import ModuleAndLoss, changed_buffer
from .parameter_shards import local, refuse_gathered, reshard
from .trial_copy import draws, noise
from .trial_rows import contents, gather_rows, shorten

DRAWS = 2  # of parameters
SCALES = (1.0, 0.3, 0.1, 0.0)  # of the noise, until the loss is neither infinite nor too large
TOO_LARGE = 100.0  # times the loss without noise: one term of it would hide every other


@dataclass(slots=True)
class LossTrial:
    """Tries a loss on a batch's rows."""

    module: nn.Module
    loss: Loss
    world: World
    outputs: Callable[[Batch], Any]  # the module's, as a training step computes them
    epsilon: float = torch.finfo(torch.float32).eps
    num_classes: int = 0
    known: dict[Any, Any] = field(default_factory=dict)  # outputs and losses, of these parameters
    may_draw: bool = True  # whether the module may draw noise with these parameters
    before: list[tuple[str, Tensor, Tensor]] = field(default_factory=list)  # parameters
    modes: dict[nn.Module, bool] = field(default_factory=dict)  # of training, before the trial
    drawing: TrialDraws = field(default_factory=TrialDraws)
    untried: str = ""  # why nothing is known of the weighting

    def find(self, batch: Batch, smallest: int) -> Loss:
        """The loss with its weighting; raises where none makes pieces add up to the whole.

        Args:
            smallest: rows of the smallest piece on this rank.
        """
        rows, smallest = gather_rows(batch, smallest, self.world)
        weighting, refused = None, None
        holders = (*self.module.modules(), self.loss.function)
        with self.drawing.put_back(self.world.device, holders), self.as_in_training():
            try:
                weighting = self.decide(rows, (1, 2, 3) if smallest == 1 else (2, 4))
            except StepladderError as problem:
                refused = problem
        return self.loss.weighted(self.agree(weighting, refused))

    def agree(
        self, weighting: Weighting | None, refused: StepladderError | None
    ) -> Weighting | None:
        """What all ranks found: one that could not try, or refuses, decides for all."""
        found: list[Any] = [(weighting, self.untried, refused)]
        if self.world.mesh is not None:
            found *= self.world.layout.num_ranks
            dist.all_gather_object(found, (weighting, self.untried, refused))
        for _, _, problem in found:
            if problem is not None:
                raise problem
        self.untried = next((untried for _, untried, _ in found if untried), "")
        return None if any(one is None for one, _, _ in found) else weighting

    def decide(self, rows: Batch, sizes: Sequence[int]) -> Weighting | None:
        """The weighting; None where the loss cannot be tried."""
        try:
            fitting, seen = self.search(rows, sizes)
            if not any(math.isfinite(one.whole) for one in seen):
                self.untried = f"it is {seen[0].whole} on random parameters"
                return None
            errors = self.gradient_errors(rows, sizes, fitting)
        except StepladderError:
            raise
        except Exception as problem:  # the step itself may raise it, and say more
            self.untried = f"{type(problem).__name__}: {str(problem).strip().partition(chr(10))[0]}"
            return None
        if not fitting:
            raise self.drawing.blamed(cannot_cut(seen, sizes))
        allowed = max(ALLOWED, 64 * self.epsilon)
        right = [one for one, error in zip(fitting, errors) if error <= allowed]
        if not right:
            raise self.drawing.blamed(other_gradient(min(errors), sizes))
        return first_of_best(right, seen)

    def gradient_errors(
        self, rows: Batch, sizes: Sequence[int], fitting: Sequence[Weighting]
    ) -> list[float]:
        """How far pieces' gradients are from the whole's by each weighting; 0 where unknown."""
        if self.loss.kind == "own" or not fitting:
            return [0.0] * len(fitting)
        rows = self.shortened(rows)
        ends = [sum(sizes[: index + 1]) for index in range(len(sizes))]
        parts = [rows.rows(slice(end - size, end)) for end, size in zip(ends, sizes)]
        whole, *pieces = (
            output_gradients(self.mean, self.outputs_of(part), part) for part in (rows, *parts)
        )
        return [gradient_error(whole, pieces, parts, one) for one in fitting]

    def search(
        self, rows: Batch, sizes: Sequence[int]
    ) -> tuple[list[Weighting], list[Observation]]:
        whole, rows = rows, self.shortened(rows)
        seen, proposed = list[Observation](), list[Weighting]()
        outside, num_classes = tuple[int, ...](), 0
        for draw in range(DRAWS):
            self.randomise(rows, draw)
            self.check_statistics(rows)
            with ClassWeights() as called:
                self.compute(rows)
            outside = (*called.ignored, *(OFTEN_IGNORED if self.harmless else ()))
            num_classes = self.num_classes or called.num_classes
            classes = classes_of(whole, called.tables, num_classes)
            drawing = torch.Generator().manual_seed(draw)
            seen += observe_all(self.value, rows, sizes, drawing, classes, outside)
            proposed += [] if proposed else propose(rows, called.tables)
            if not draw and not any(all_fits(proposed, seen, self.epsilon)):
                table = weigh_values(self.value, rows, num_classes, outside=self.harmless)
                if table:
                    proposed += [by_class(table, shifted=s, measured=True) for s in (False, True)]
        fitting = list(all_fits(proposed, seen, self.epsilon))
        if not fitting and (values := left_out(seen, outside, num_classes)):
            # Means over targets and over rows are one where every target counts.
            rest = without(seen, values)
            fitting = [replace(w, unless=values) for w in all_fits(proposed, rest, self.epsilon)]
            seen = rest if fitting else seen
        return fitting, seen

    def check_statistics(self, rows: Batch) -> None:
        """Refuse a loss that changes its buffers in every call, of which each piece needs one."""
        if isinstance(self.module, ModuleAndLoss):
            outputs = self.outputs_of(rows)
            called = partial(self.mean, outputs, rows)
            if name := changed_buffer(self.module.loss, self.modes, called):
                raise changes_buffer(name)

    def shortened(self, rows: Batch) -> Batch:
        """The first tokens of sequences, if the module takes shorter ones."""
        short = shorten(rows)
        if short is not rows:
            try:
                self.value(short)
            except Exception:  # a module for rows of one length
                return rows
        return short

    def perform(self, action: str, *args: Any) -> Any:
        """Do what every rank of a pipeline must do with this one."""
        return getattr(self, action)(*args)

    @property
    def harmless(self) -> bool:
        """Whether a target that is no class only makes the loss raise.

        On a GPU it ends the process. Inside a module it may end a forward pass between collectives.
        """
        return self.world.device.type == "cpu" and self.loss.kind != "own"

    def value(self, part: Batch) -> float:
        """The loss of these rows, computed once for the same numbers."""
        key = contents(part)
        if key not in self.known:
            self.known[key] = self.compute(part)
        return float(self.known[key])

    @torch.no_grad()
    def compute(self, part: Batch) -> float:
        outputs = self.outputs_of(part)
        logits = getattr(outputs, "logits", outputs)
        for tensor in iter_tensors(logits):
            if tensor.is_floating_point():
                self.epsilon = max(self.epsilon, torch.finfo(tensor.dtype).eps)
        self.num_classes = count_classes(logits, part.targets)
        return local(self.mean(outputs, part)).double().item()

    def mean(self, outputs: Any, part: Batch) -> Tensor:
        with self.drawing.constant():
            return self.loss.mean(outputs, part)

    def run_module(self, part: Batch) -> Any:
        with self.drawing.constant(self.may_draw) as noise:
            outputs = self.outputs(part)
        self.may_draw &= noise.any
        return outputs

    @torch.no_grad()
    def outputs_of(self, part: Batch) -> Any:
        """The module's outputs; computed once where only targets differ.

        Without a graph: DDP waits for the backward pass of a forward pass that could have one.
        """
        targets = {id(tensor) for tensor in iter_tensors(part.targets)}
        if self.loss.kind == "own" or any(id(t) in targets for t in iter_tensors(part.inputs)):
            return self.perform("run_module", part)
        key = tuple((tensor.data_ptr(), tensor.shape) for tensor in iter_tensors(part.inputs))
        if key not in self.known:
            # With the inputs, whose memory must not become that of others.
            self.known[key] = part.inputs, self.perform("run_module", part)
        return self.known[key][1]

    @contextmanager
    def as_in_training(self) -> Iterator[None]:
        """A context in which the module learns no statistics and is not compiled.

        It stays in training mode where that alone draws nothing: some losses are computed there
        only. Buffers and attributes are restored.
        """
        # A pass of the user's without a backward leaves it gathered: what would be randomised here
        # is freed by the trial's first pass.
        reshard(self.module)
        named_now = self.module.named_parameters()
        sharded = {name for name, p in named_now if isinstance(p, DTensor)}
        modes = [(part, part.training) for part in self.module.modules()]
        self.modes = dict(modes)
        named = [(name, local(p.detach())) for name, p in self.module.named_parameters()]
        self.before = [(name, p, p.clone()) for name, p in named if p.is_floating_point()]
        compiled = any(is_compiled(part) for part, _ in modes)
        for part, _ in modes:
            part.training = part.training and not draws(part)
        try:
            eager = torch.compiler.set_stance("force_eager") if compiled else nullcontext()
            with eager, state_restored(self.module):
                yield
        finally:
            for part, mode in modes:
                part.training = mode
            self.known.clear()
            # A pass that raised has left gathered parameters, which would be used again.
            reshard(self.module)
            with torch.no_grad():
                for _, parameter, first in self.before:
                    parameter.copy_(first)
            refuse_gathered(self.module, sharded)

    def randomise(self, rows: Batch, draw: int) -> None:
        """Make parameters random; deep modules without norms let noise grow, and the loss."""
        usual = max(1.0, abs(self.noisy_value(rows, draw, 0.0)))  # 1 where that is no number
        for scale in SCALES:
            once, again = (self.noisy_value(rows, draw, scale) for _ in range(2))
            if once != again and once == once:  # something still draws
                self.perform("stop_drawing")
                self.known.clear()
            if math.isfinite(once) and abs(once) <= TOO_LARGE * usual:
                return

    def noisy_value(self, rows: Batch, draw: int, scale: float) -> float:
        self.perform("add_noise", draw, scale)
        self.known.clear()
        return self.value(rows)

    @torch.no_grad()
    def add_noise(self, draw: int, scale: float) -> None:
        self.may_draw = True
        for name, parameter, first in self.before:
            parameter.copy_(first + noise(name, parameter, draw) * scale)

    def stop_drawing(self) -> None:
        self.module.eval()
