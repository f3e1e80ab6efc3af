"""The reference of a proof: a plain torch training loop, one process, each batch as a whole.

It takes the mathematics from a plan (precision, kept modules, optimizer) and nothing else: no
micro-batches, no ranks, no compiled code. It must not share code with the engine that it judges,
or a mistake in shared code would go unseen; a test reads this file's imports.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from stepladder.plan import Optimizer, Precision

from .plain_muon import Matrices, PlainMuon, hidden_matrices

Loss = str | Callable[[Any, Any], Tensor] | None
MATMUL_MODES = {"fp32": "ieee", "tf32": "tf32"}  # torch's words for how float32 is multiplied


@dataclass(frozen=True, slots=True)
class StepNumbers:
    """What one step of the loop computed."""

    loss: float
    norm: float  # of all gradients, before clipping
    norms: dict[str, float]  # of each parameter's gradient


class PlainLoop:
    """A module, its loss and its optimizer, trained batch by batch."""

    def __init__(
        self,
        module: nn.Module,
        loss: Loss,
        precision: Precision,
        optimizer: Optimizer,
        *,
        keep: Sequence[str] = (),
        device: torch.device | str = "cpu",
        blocks: Sequence[str] = (),
        classes_last: bool | None = None,
    ) -> None:
        """Prepare the module, which is trained itself and not copied.

        Args:
            keep: names, or ends of names, of modules that stay in float32.
            blocks: names of the module's blocks, for an optimizer with a rate for each depth.
            classes_last: where a named loss's logits have their classes, if both would fit.
        """
        self.module, self.loss = module.to(device), loss
        self.device, self.precision = torch.device(device), precision
        self.optimizer_plan, self.classes_last = optimizer, classes_last
        if not module.training:  # whoever hands over a module in evaluation wants it trained
            module.train()
        self.trained: dict[str, Tensor] = {
            name: p for name, p in module.named_parameters() if p.requires_grad
        }
        if isinstance(loss, nn.Module):
            loss.to(device)
            self.trained |= {f"loss.{n}": p for n, p in loss.named_parameters() if p.requires_grad}
        self.updated = self.trained  # what the optimizer changes
        if precision.masters:  # copies from before the cast, with all their digits
            self.updated = {n: p.detach().float().clone() for n, p in self.trained.items()}
        store_as(module, precision, kept_modules(module, keep))
        hidden = hidden_matrices(module, self.updated, optimizer, blocks)
        self.optimizer = make_optimizer(optimizer, self.updated, blocks, hidden)
        self.scaler = torch.amp.GradScaler(self.device.type, enabled=precision.scaled)

    def step(self, inputs: Any, targets: Any) -> StepNumbers:
        """Train on one batch, which must be on the loop's device."""
        with float32_matmuls(self.precision, self.device):
            with self.autocast():
                loss = self.loss_of(inputs, targets)
            self.scaler.scale(loss).backward()
        self.hand_over_gradients()
        self.scaler.unscale_(self.optimizer)
        norms = {name: gradient_norm(p) for name, p in self.updated.items() if p.grad is not None}
        norm = sum(each**2 for each in norms.values()) ** 0.5
        if self.optimizer_plan.clip is not None:
            nn.utils.clip_grad_norm_(list(self.updated.values()), self.optimizer_plan.clip)
        self.scaler.step(self.optimizer)
        self.scaler.update()
        self.take_over_masters()
        self.optimizer.zero_grad(set_to_none=True)
        return StepNumbers(loss.item(), norm, norms)

    def loss_of(self, inputs: Any, targets: Any) -> Tensor:
        if not self.precision.mixed:
            inputs = floats_to(inputs, getattr(torch, self.precision.work))
        if isinstance(inputs, Mapping):
            outputs = self.module(**inputs)
        else:
            outputs = (
                self.module(*inputs) if isinstance(inputs, tuple | list) else self.module(inputs)
            )
        if self.loss is None:
            if isinstance(outputs, Mapping):
                return outputs["loss"].reshape(())
            return getattr(outputs, "loss", outputs).reshape(())
        if self.loss == "squared_error":
            return functional.mse_loss(
                logits_in(outputs).reshape(targets.shape).float(), targets.float()
            )
        if isinstance(self.loss, str):
            return self.cross_entropy(logits_in(outputs).float(), targets)
        found = self.loss(outputs, targets)
        return (sum(found.values()) if isinstance(found, dict) else found).reshape(())

    def cross_entropy(self, logits: Tensor, targets: Tensor) -> Tensor:
        if targets.is_floating_point():
            return functional.cross_entropy(logits, targets.float())
        second = (*logits.shape[:1], *logits.shape[2:]) == targets.shape
        if logits.shape[:-1] == targets.shape and (self.classes_last or not second):
            logits, targets = logits.flatten(0, -2), targets.flatten()
        return functional.cross_entropy(logits, targets)

    def autocast(self) -> AbstractContextManager[Any]:
        if not self.precision.mixed:
            return nullcontext()
        return torch.autocast(self.device.type, dtype=getattr(torch, self.precision.work))

    def hand_over_gradients(self) -> None:
        """Give the optimizer's own copies the gradients of the stored parameters."""
        for name, copy in self.updated.items() if self.precision.masters else ():
            gradient, self.trained[name].grad = self.trained[name].grad, None
            copy.grad = None if gradient is None else gradient.float()

    @torch.no_grad()
    def take_over_masters(self) -> None:
        for name, copy in self.updated.items() if self.precision.masters else ():
            self.trained[name].copy_(copy)


def make_optimizer(
    how: Optimizer,
    parameters: Mapping[str, Tensor],
    blocks: Sequence[str],
    hidden: Mapping[str, Matrices],
) -> torch.optim.Optimizer:
    groups: dict[tuple[float, float, Matrices | None], list[Tensor]] = {}
    for name, parameter in parameters.items():
        top = how.adamw_lr if how.name == "muon" and name not in hidden else how.lr
        rate, decay = top * how.layers ** height(name, blocks), how.wd
        for group in how.groups:
            if fnmatchcase(name, group.pattern):
                rate, decay = rate * group.lr_factor, decay if group.wd is None else group.wd
                break
        groups.setdefault((rate, decay, hidden.get(name)), []).append(parameter)
    settings: list[dict[str, Any]] = [
        {"params": members, "lr": r, "weight_decay": d, "matrices": make}
        for (r, d, make), members in groups.items()
    ]
    if how.name == "muon":
        return PlainMuon(settings, how)
    for each in settings:
        del each["matrices"]
    if how.name == "sgd":
        return torch.optim.SGD(settings, momentum=how.momentum, foreach=False)
    if how.name == "adafactor":
        return torch.optim.Adafactor(settings)
    make = torch.optim.AdamW if how.name == "adamw" else torch.optim.Adam
    return make(settings, betas=how.betas, eps=how.eps, foreach=False)


def height(name: str, blocks: Sequence[str]) -> int:
    """Blocks from this parameter to the top: none in the head, all of them and one in the stem."""
    inside = [len(blocks) - at for at, block in enumerate(blocks) if name.startswith(f"{block}.")]
    if inside or not blocks:
        return inside[0] if inside else 0
    stem = any(word in name for word in ("embed", "position", "stem", "patch"))
    return len(blocks) + 1 if stem else 0


def kept_modules(module: nn.Module, keep: Sequence[str]) -> list[nn.Module]:
    """Modules whose name, or the end of it, is among those that stay in float32."""
    named = module.named_modules(remove_duplicate=False)
    return [part for name, part in named if any(f".{name}".endswith(f".{word}") for word in keep)]


@torch.no_grad()
def store_as(module: nn.Module, precision: Precision, kept: Sequence[nn.Module]) -> None:
    """Cast parameters, and buffers in a parameter's type, to the type they are stored in."""
    wide = {id(tensor) for one in kept for tensor in (*one.parameters(), *one.buffers())}
    saved, types = module.state_dict().keys(), {p.dtype for p in module.parameters()}
    buffers = [b for name, b in module.named_buffers() if name in saved and b.dtype in types]
    for tensor in (*module.parameters(), *buffers):
        if tensor.is_floating_point():
            name = "float32" if id(tensor) in wide else precision.store
            tensor.data = tensor.data.to(getattr(torch, name))
    for one in kept:
        run_in_float32(one, torch.float32 if precision.mixed else getattr(torch, precision.work))


def run_in_float32(module: nn.Module, answer: torch.dtype) -> None:
    """Have a module compute in float32 and answer in the type that its surroundings work in."""
    narrow = module.forward

    def forward(*args: Any, **kwargs: Any) -> Any:
        args, kwargs = floats_to((args, kwargs), torch.float32)
        device = next((t.device.type for t in module.parameters()), "cpu")
        with torch.autocast(device, enabled=False):
            return floats_to(narrow(*args, **kwargs), answer)

    module.forward = forward


def floats_to(value: Any, dtype: torch.dtype) -> Any:
    if isinstance(value, Tensor):
        return value.to(dtype) if value.is_floating_point() else value
    if isinstance(value, Mapping):
        return {key: floats_to(each, dtype) for key, each in value.items()}
    if type(value) in (tuple, list):
        return type(value)(floats_to(each, dtype) for each in value)
    return value


def logits_in(outputs: Any) -> Tensor:
    """The tensor a named loss compares: the output, its logits, or the only tensor in it."""
    if isinstance(outputs, Mapping):
        return outputs["logits"] if "logits" in outputs else only_one(outputs.values())
    found = getattr(outputs, "logits", outputs)
    return found if isinstance(found, Tensor) else only_one(found)


def only_one(values: Any) -> Tensor:
    (found,) = [value for value in values if isinstance(value, Tensor)]
    return found


def gradient_norm(parameter: Tensor) -> float:
    gradient = parameter.grad
    assert gradient is not None
    dense = gradient.coalesce().values() if gradient.is_sparse else gradient
    wide = torch.complex128 if dense.is_complex() else torch.float64
    return dense.to(wide).norm().item()


@contextmanager
def float32_matmuls(precision: Precision, device: torch.device) -> Iterator[None]:
    """Multiply float32 as the precision says: exactly, or in TF32; only a GPU has a choice."""
    mode = MATMUL_MODES.get(precision.compute)
    if mode is None or device.type != "cuda":
        yield
        return
    cudnn: Any = torch.backends.cudnn
    parts: list[Any] = [torch.backends.cuda.matmul, cudnn.conv, cudnn.rnn]
    before = [part.fp32_precision for part in parts]
    try:
        for part in parts:
            part.fp32_precision = mode
        yield
    finally:
        for part, value in zip(parts, before):
            part.fp32_precision = value
