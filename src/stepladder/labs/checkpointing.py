"""Lesson: recomputation from scratch, and why √n segments are the right number.

Backward needs what forward computed, so forward keeps it: one activation a layer, n layers, n
activations. Checkpointing keeps only the input of a segment of layers, and when backward arrives
at that segment, runs its forward pass once more to have the rest. It is one autograd function:

    forward    run the segment without recording; save its inputs, the random state, autocast
    backward   run it again, recording; then go backward through what was just recorded

The random state matters. A segment with dropout must drop the same numbers the second time, or
backward belongs to a forward pass that never happened, and no error says so.

With s segments of n/s layers, s inputs are kept, and while backward works on a segment its n/s
activations stand beside them: s + n/s in all, smallest at s = √n, where it is 2√n instead of n.
(Chen and others, "Training deep nets with sublinear memory cost", 2016.) Every layer runs forward
twice instead of once. Forward is a third of a step's work, so the step costs a third more.

**Claim**: for 36 layers, 39 activations are kept without checkpointing (one a layer, the batch and
two for the dropout) and 12 with 6 segments; 3 or 12 segments keep more. Each layer runs twice.
Losses and gradients are the same to the bit, and torch's own checkpoint keeps just as much between
forward and backward. `run` shows it.
"""

from __future__ import annotations

import weakref
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks

Function = Callable[..., Tensor]


class Checkpoint(torch.autograd.Function):
    """A function's result now, and the function again when its gradient is asked for."""

    @staticmethod
    def forward(ctx: Any, function: Function, _: Tensor, *inputs: Tensor) -> Tensor:
        ctx.function = function
        ctx.surroundings = Surroundings(inputs)
        ctx.save_for_backward(*inputs)
        return function(*inputs)  # inside an autograd function nothing is recorded

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        # Cut off from the graph before, so that the inner backward stops at the segment's inputs.
        inputs = [saved.detach().requires_grad_(saved.requires_grad) for saved in ctx.saved_tensors]
        with torch.enable_grad(), ctx.surroundings.restored():
            result = ctx.function(*inputs)
        # Fills the .grad of the segment's parameters, as any backward does, and of these inputs.
        torch.autograd.backward(result, gradient)
        return (None, None, *(tensor.grad for tensor in inputs))


def checkpoint(function: Function, *inputs: Tensor) -> Tensor:
    """Call a function of tensors, keeping only its inputs for backward."""
    # The first segment's input is data and needs no gradient, and autograd skips a function none
    # of whose inputs does. An empty tensor that needs one makes it stay.
    anchor = torch.empty(0, requires_grad=True)
    return Checkpoint.apply(function, anchor, *inputs)


class Surroundings:
    """What a function's result depends on beside its inputs."""

    def __init__(self, inputs: Sequence[Tensor]) -> None:
        self.kind = inputs[0].device.type
        self.devices = sorted({t.device.index for t in inputs if t.device.type == "cuda"})
        self.random = torch.get_rng_state()
        self.device_random = [torch.cuda.get_rng_state(device) for device in self.devices]
        self.autocast = torch.is_autocast_enabled(self.kind)
        self.dtype = torch.get_autocast_dtype(self.kind)

    def restored(self) -> ExitStack:
        """The same surroundings once more; afterwards those of now."""
        stack = ExitStack()
        stack.enter_context(torch.random.fork_rng(self.devices))
        torch.set_rng_state(self.random)
        for device, state in zip(self.devices, self.device_random):
            torch.cuda.set_rng_state(state, device)
        stack.enter_context(torch.autocast(self.kind, self.dtype, self.autocast))
        return stack


def run_segments(
    layers: Sequence[nn.Module], x: Tensor, num_segments: int, keep: Callable[..., Tensor]
) -> Tensor:
    """Run layers in so many segments, each under a checkpoint function."""
    length = -(-len(layers) // num_segments)
    for start in range(0, len(layers), length):
        x = keep(nn.Sequential(*layers[start : start + length]), x)
    return x


class Keeper(saved_tensors_hooks):
    """Counts the storages that autograd holds, parameters left out, and the most it ever held."""

    def __init__(self, parameters: Sequence[Tensor]) -> None:
        super().__init__(self.keep, lambda box: box.tensor)
        self.known = {p.untyped_storage()._cdata for p in parameters}
        self.holders: Counter[int] = Counter()
        self.bytes = self.peak_bytes = 0

    def keep(self, tensor: Tensor) -> Box:
        storage = tensor.untyped_storage()
        box = Box(tensor.detach())  # cut off: a graph that holds its own result is never let go
        if storage._cdata not in self.known:
            weakref.finalize(box, self.let_go, storage._cdata, storage.nbytes())
            self.bytes += storage.nbytes() * (not self.holders[storage._cdata])
            self.holders[storage._cdata] += 1
            self.peak_bytes = max(self.peak_bytes, self.bytes)
        return box

    def let_go(self, address: int, num_bytes: int) -> None:
        self.holders[address] -= 1
        self.bytes -= num_bytes * (not self.holders[address])


class Box:
    """Holds a saved tensor; autograd drops the box when it drops the tensor."""

    def __init__(self, tensor: Tensor) -> None:
        self.tensor = tensor


@dataclass(frozen=True, slots=True)
class Result:
    held: float  # activations held when forward is over, in activations of one layer
    kept: float  # the most held at once, backward included
    calls: int  # of layers, forward
    loss: Tensor
    gradients: tuple[Tensor, ...]

    def same(self, other: Result) -> bool:
        pairs = zip((self.loss, *self.gradients), (other.loss, *other.gradients), strict=True)
        return all(torch.equal(mine, theirs) for mine, theirs in pairs)


def run(
    num_segments: int, keep: Callable[..., Tensor] = checkpoint, *, num_layers: int = 36
) -> Result:
    """One step of a deep chain with dropout, in so many segments; none of them for 0."""
    torch.manual_seed(0)
    width, rows, calls = 16, 32, Counter[str]()
    layers = [nn.Sequential(nn.Linear(width, width), nn.Tanh()) for _ in range(num_layers)]
    layers[num_layers // 2].append(nn.Dropout(0.5))
    for layer in layers:
        layer.register_forward_hook(lambda *_: calls.update(["layer"]))
    x = torch.randn(rows, width)
    parameters = [p for layer in layers for p in layer.parameters()]
    keeper = Keeper(parameters)
    with keeper:
        out = run_segments(layers, x, num_segments, keep) if num_segments else chain(layers, x)
        loss = out.square().mean()
        held_bytes = keeper.bytes
        loss.backward()
    gradients = tuple(p.grad for p in parameters if p.grad is not None)
    one = rows * width * 4
    sizes = held_bytes / one, keeper.peak_bytes / one
    return Result(*sizes, calls["layer"], loss.detach(), gradients)


def chain(layers: Sequence[nn.Module], x: Tensor) -> Tensor:
    for layer in layers:
        x = layer(x)
    return x
