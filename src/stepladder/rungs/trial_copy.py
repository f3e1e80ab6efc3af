"""Copies of a module for trials: random weights, real buffers, no dropout, and none of its memory
before the trial.

Initial weights hide what a module computes: a projection that starts at zero hides everything
before it. So trials run on copies with random weights, of the initial weights' scale or larger.
"""

from __future__ import annotations

import zlib
from dataclasses import dataclass
from math import prod
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from stepladder.model import meta_copy
from stepladder.model.tracing.copy_module import copy_module
from stepladder.rungs.precision.precision import computes_in_float64
from stepladder.seam.dispatch import DispatchMode
from stepladder.seam.modules import buffers_of
from stepladder.seam.pytree import tree_map

SPREAD = 0.3  # the least standard deviation of a trial's biases, gains and gates
ATTEND = functional.scaled_dot_product_attention
DROPOUT_POSITION = 4  # of dropout_p among its arguments

Spread = tuple[float, float]  # mean and standard deviation


@dataclass(frozen=True, slots=True)
class Drawing:
    """A module's structure on the meta device, its buffers, and how its weights are spread."""

    structure: nn.Module
    buffers: dict[str, Tensor]
    spreads: dict[str, Spread]

    @classmethod
    def of(cls, module: nn.Module) -> Drawing:
        structure = meta_copy(module)
        if not structure.training:  # as the run puts it
            structure.train()
        buffers = {name: buffer.detach().clone() for name, buffer in module.named_buffers()}
        spreads = {name: spread_of(value) for name, value in module.named_parameters()}
        return cls(structure, buffers, spreads)

    @property
    def num_bytes(self) -> int:
        """Of the parameters in fp32."""
        return sum(4 * parameter.numel() for parameter in self.structure.parameters())

    def copy(self, device: torch.device, seed: int) -> nn.Module:
        """A module with random weights in fp32, the same on every rank."""
        made = copy_module(self.structure)
        narrow = computes_in_float64(made)
        made.to_empty(device=device)
        for part_name, part in made.named_modules():
            for name, buffer in buffers_of(part).items():
                kept = self.buffers.get(f"{part_name}.{name}".lstrip("."))
                if buffer is not None and kept is not None:
                    buffers_of(part)[name] = in_float32(kept.to(device, copy=True), narrow=narrow)
        for parameter in made.parameters():
            parameter.data = in_float32(parameter.data, narrow=narrow)
        randomise(made, self.spreads, seed)
        return made


def in_float32(tensor: Tensor, *, narrow: bool) -> Tensor:
    """A tensor as a run in fp32 stores it.

    Args:
        narrow: the module is given in float64.
    """
    return tensor.float() if narrow and tensor.dtype == torch.float64 else wide(tensor)


def wide(tensor: Tensor) -> Tensor:
    return tensor.float() if tensor.dtype in (torch.float16, torch.bfloat16) else tensor


def widened(outputs: Any) -> Any:
    """The same structure with its 16-bit tensors in float32."""
    return tree_map(lambda one: wide(one) if isinstance(one, Tensor) else one, outputs)


def autocast_rounding(device: str) -> float:
    """The unit in the last place of autocast's type, or of float32 outside of it."""
    mixed = torch.is_autocast_enabled(device)
    return torch.finfo(torch.get_autocast_dtype(device) if mixed else torch.float32).eps


def spread_of(parameter: Tensor) -> Spread:
    values = parameter.detach()
    if not values.is_floating_point() or not values.numel():
        return 0.0, 1.0
    std = values.float().std().item() if values.numel() > 1 else 0.0
    return values.float().mean().item(), std


@torch.no_grad()
def randomise(module: nn.Module, spreads: dict[str, Spread], seed: int) -> None:
    """Give every parameter random values, drawn on the CPU: the same on every rank."""
    draw = torch.Generator().manual_seed(seed)
    for name, parameter in module.named_parameters():
        mean, std = spreads.get(name, (0.0, 1.0))
        least = SPREAD if parameter.dim() < 2 else (prod(parameter.shape[1:]) or 1) ** -0.5
        dtype = parameter.dtype if parameter.is_complex() else torch.float32
        values = torch.randn(parameter.shape, generator=draw, dtype=dtype)
        parameter.copy_(mean + max(std, least) * values)


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


class WithoutDropout(TorchFunctionMode):
    """A context in which nothing is dropped, in training mode too."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func is ATTEND:
            if len(args) > DROPOUT_POSITION:
                args = (*args[:DROPOUT_POSITION], 0.0, *args[DROPOUT_POSITION + 1 :])
            elif "dropout_p" in kwargs:
                kwargs = {**kwargs, "dropout_p": 0.0}
            return func(*args, **kwargs)
        if "dropout" in getattr(func, "__name__", ""):
            return args[0] if args else kwargs["input"]
        return func(*args, **kwargs)


class Decisions(DispatchMode):
    """A context that sees whether anything is decided by computed numbers: a comparison, a choice
    of the largest, a number that Python reads. Such a module may agree with another by chance."""

    def __init__(self) -> None:
        self.any = False

    def __torch_dispatch__(self, op: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = op(*args, **(kwargs or {}))
        results = made if isinstance(made, (tuple, list)) else (made,)
        # An attention kernel also returns the integers of its random state, in a longer tuple.
        if any(map(is_float, args)) and len(results) <= 2:
            self.any |= made is not None and not all(map(is_float, results))
        return made


def is_float(value: Any) -> bool:
    return isinstance(value, Tensor) and value.is_floating_point()


def worst_difference(
    found: dict[str, Tensor | None], expected: dict[str, Tensor | None]
) -> tuple[str, float]:
    """The name whose values differ most, and by how much, relative to what is expected.

    A gradient that is zero but for rounding counts as much as the whole's smallest part.
    """
    sizes = {name: norm(value) for name, value in expected.items()}
    floor = max(1e-4 * sum(size**2 for size in sizes.values()) ** 0.5, 1e-9)
    worst = ("", 0.0)
    for name, size in sizes.items():
        off = distance(found.get(name), expected[name]) / max(size, floor)
        if not off <= worst[1]:  # NaN too
            worst = (name, off)
    return worst


def norm(value: Tensor | None) -> float:
    return 0.0 if value is None else value.float().norm().item()


def distance(found: Tensor | None, expected: Tensor | None) -> float:
    if found is None or expected is None:
        return norm(found if expected is None else expected)
    if found.shape != expected.shape:
        return float("inf")
    return (found.float() - expected.float()).norm().item()
