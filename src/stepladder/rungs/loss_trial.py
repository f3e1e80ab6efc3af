"""Before the first batch that is cut: how its pieces must be weighted, or why it cannot be cut.

A few rows are computed whole and in pieces by the module and loss that will train, on randomised
parameters: with zero weights in its last layer a module gives every row the same loss, and any
weighting seems right. Parameters, buffers and random generators are as before afterwards. All ranks
try the same rows, so that all decide alike.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule

from stepladder.data import Batch, iter_tensors
from stepladder.errors import ModelError, StepladderError
from stepladder.loss import (
    OFTEN_IGNORED,
    ClassWeights,
    Loss,
    Observation,
    Weighting,
    by_class,
    classes_of,
    count_classes,
    first_fit,
    observe_all,
    propose,
    weigh_values,
)
from stepladder.model.forward_state import state_restored
from stepladder.seam.modules import is_compiled
from stepladder.world import World

from .parameter_shards import local
from .trial_rows import gather_rows, shorten

DRAWS = 2  # of parameters
SCALES = (1.0, 0.1, 0.0)  # of the noise, until the loss is finite


@dataclass(slots=True)
class LossTrial:
    """Tries a loss on a batch's rows."""

    module: nn.Module
    loss: Loss
    world: World
    outputs: Callable[[Batch], Any]  # the module's, as a training step computes them
    epsilon: float = torch.finfo(torch.float32).eps
    num_classes: int = 0
    known: dict[Any, Any] = field(default_factory=dict)  # outputs by inputs, of these parameters
    before: list[tuple[str, Tensor, Tensor]] = field(default_factory=list)  # parameters

    def find(self, batch: Batch, smallest: int) -> Loss:
        """The loss with its weighting; raises where none makes pieces add up to the whole.

        Args:
            smallest: rows of the smallest piece on this rank.
        """
        if runs_another_sharded(self.loss.function, self.module):
            return self.loss.weighted(None)
        rows, smallest = gather_rows(batch, smallest, self.world)
        with torch.random.fork_rng(self.devices()), self.as_in_training():
            return self.loss.weighted(self.decide(rows, (1, 2, 3) if smallest == 1 else (2, 4)))

    def decide(self, rows: Batch, sizes: Sequence[int]) -> Weighting | None:
        """The weighting; None where the loss cannot be tried."""
        try:
            weighting, seen = self.search(rows, sizes)
        except StepladderError:
            raise
        except Exception:  # the step itself will raise it, and say more
            return None
        if weighting is None:
            raise cannot_cut(seen, sizes)
        return weighting

    def search(
        self, rows: Batch, sizes: Sequence[int]
    ) -> tuple[Weighting | None, list[Observation]]:
        whole, rows = rows, self.shortened(rows)
        seen: list[Observation] = []
        proposed: list[Weighting] = []
        for draw in range(DRAWS):
            self.randomise(rows, draw)
            with ClassWeights() as called:
                self.value(rows.copy())
            outside = (*called.ignored, *(OFTEN_IGNORED if self.harmless else ()))
            classes = classes_of(whole, called.tables, self.num_classes)
            drawing = torch.Generator().manual_seed(draw)
            seen += observe_all(self.value, rows, sizes, drawing, classes, outside)
            proposed += [] if proposed else propose(rows, called.tables)
            if not draw and first_fit(proposed, seen, self.epsilon) is None:
                table = weigh_values(self.value, rows, self.num_classes, outside=self.harmless)
                proposed += [by_class(table, shifted=s) for s in (False, True) if table]
        return first_fit(proposed, seen, self.epsilon), seen

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

    @torch.no_grad()
    def value(self, part: Batch) -> float:
        """The loss of these rows."""
        outputs = self.outputs_of(part)
        logits = getattr(outputs, "logits", outputs)
        for tensor in iter_tensors(logits):
            if tensor.is_floating_point():
                self.epsilon = max(self.epsilon, torch.finfo(tensor.dtype).eps)
        self.num_classes = count_classes(logits, part.targets)
        return local(self.loss.mean(outputs, part)).double().item()

    def outputs_of(self, part: Batch) -> Any:
        """The module's outputs; computed once where only targets differ."""
        targets = {id(tensor) for tensor in iter_tensors(part.targets)}
        if self.loss.kind == "own" or any(id(t) in targets for t in iter_tensors(part.inputs)):
            return self.perform("outputs", part)
        key = tuple((tensor.data_ptr(), tensor.shape) for tensor in iter_tensors(part.inputs))
        if key not in self.known:
            # With the inputs, whose memory must not become that of others.
            self.known[key] = part.inputs, self.perform("outputs", part)
        return self.known[key][1]

    def devices(self) -> list[int]:
        device = self.world.device
        return [device.index or 0] if device.type == "cuda" else []

    @contextmanager
    def as_in_training(self) -> Iterator[None]:
        """A context in which the module draws nothing, learns no statistics and is not compiled.

        It stays in training mode where that alone draws nothing: some losses are computed there
        only. Buffers and attributes are restored.
        """
        modes = [(part, part.training) for part in self.module.modules()]
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
            with torch.no_grad():
                for _, parameter, first in self.before:
                    parameter.copy_(first)

    def randomise(self, rows: Batch, draw: int) -> None:
        """Make parameters random, with a loss that is a finite number."""
        for scale in SCALES:
            self.perform("add_noise", draw, scale)
            self.known.clear()
            once = self.value(rows)
            self.known.clear()
            if once != self.value(rows) and once == once:  # something still draws
                self.perform("stop_drawing")
                self.known.clear()
            if math.isfinite(once):
                return

    @torch.no_grad()
    def add_noise(self, draw: int, scale: float) -> None:
        for name, parameter, first in self.before:
            parameter.copy_(first + noise(name, parameter, draw) * scale)

    def stop_drawing(self) -> None:
        self.module.eval()


def noise(name: str, parameter: Tensor, draw: int) -> Tensor:
    """Noise of the size that keeps activations near 1; the same for copies on other ranks."""
    device = parameter.device
    generator = torch.Generator(device).manual_seed(zlib.crc32(f"{name}/{draw}".encode()))
    size = (parameter[0].numel() ** -0.5) if parameter.dim() > 1 and parameter.numel() else 0.2
    drawn = torch.randn(parameter.shape, generator=generator, device=device)
    return (drawn * size).to(parameter.dtype)


def draws(part: nn.Module) -> bool:
    """Whether a module is random, or keeps statistics of a batch, in training mode only."""
    random = getattr(part, "dropout", 0) if isinstance(part, nn.RNNBase) else 0
    return bool(random) or "Dropout" in type(part).__name__ or "BatchNorm" in type(part).__name__


def cannot_cut(seen: Sequence[Observation], sizes: Sequence[int]) -> ModelError:
    usual = next(propose(seen[0].parts[0], []))
    finite = [one for one in seen if math.isfinite(one.whole)]
    worst = max(finite, key=lambda one: one.error(usual))
    pieces = ", ".join(map(str, sizes[:-1])) + f" and {sizes[-1]}"
    return ModelError(
        "loss",
        f"is {worst.whole:.6g} for {sum(sizes)} rows at once and {worst.combined(usual):.6g} for "
        f"the same rows in pieces of {pieces}, and no weighting of the pieces makes up for it",
        "Do not cut the batch: one rank, without micro= and accumulate=; or use a loss that is a "
        "sum or one mean over rows or targets.",
    )


def runs_another_sharded(function: Any, module: nn.Module) -> bool:
    """Whether a loss runs another sharded module, such as a GAN's discriminator.

    Its forward gathers parameters for a backward that a trial never runs, so it is not tried.
    """
    cells = [cell.cell_contents for cell in getattr(function, "__closure__", None) or ()]
    return any(isinstance(one, FSDPModule) and one is not module for one in cells)
