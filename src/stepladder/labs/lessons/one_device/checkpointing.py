"""Checkpointing by hand, and how many segments are best.

Backward needs what forward computed, so forward keeps it: one activation a layer. Checkpointing
keeps only the input of a segment of layers, and when backward arrives there, runs the segment's
forward once more to have the rest. The random state matters: a segment with dropout must drop the
same numbers the second time, or backward belongs to a forward pass that never happened, and no
error says so.

Few segments are long, and while backward works on one, all of its activations stand. Many segments
have many inputs to keep. Between the two lies a number that holds far fewer activations than there
are layers. (Chen and others, "Training deep nets with sublinear memory cost", 2016.) Every layer
runs forward twice; forward is a third of a step's work, so the step costs a third more.

Claim: 36 layers keep 37 activations; with the best number of segments the most ever held is 12.
Each layer runs twice, gradients are the same to the bit, and so they are with
torch.utils.checkpoint.checkpoint.

Predict: 36 layers in 18 segments: how many activations are held at most?
[activations held; segments = 18]

Often wrong:
- the random state is not put back
- the segment's input is not cut off from the graph before
- backward stops at the segment and gives its input no gradient
- as many segments as layers are said to be best
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from stepladder.labs.equipment.saved_bytes import Kept


class Checkpoint(torch.autograd.Function):
    """A function's result now, and the function again when its gradient is asked for."""

    @staticmethod
    def forward(ctx: Any, function: Callable[[Tensor], Tensor], x: Tensor, _: Tensor) -> Tensor:
        ctx.function = function
        ctx.random = torch.get_rng_state()
        ctx.save_for_backward(x)
        return function(x)  # inside an autograd function nothing is recorded

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        (saved,) = ctx.saved_tensors
        # >>> The saved input, as the beginning of a graph of its own.
        # ??? The saved input belongs to the graph before this segment. Where should the backward
        # ???   pass in here end?
        # ??? One method takes a tensor off its graph, another one asks for its gradient.
        x = saved.detach().requires_grad_()
        # <<< x = saved
        # >>> Run the function again just as it ran, and go backward through that run.
        # ??? In here torch records nothing, unless it is told to: torch.enable_grad.
        # ??? Dropout has to drop the same numbers, and whoever draws numbers later must not notice:
        # ???   torch.set_rng_state, torch.random.fork_rng.
        # ??? torch.autograd.backward begins at a tensor with a gradient that is given.
        with torch.enable_grad(), torch.random.fork_rng(devices=[]):
            torch.set_rng_state(ctx.random)
            result = ctx.function(x)
        torch.autograd.backward(result, gradient)
        # <<< raise NotImplementedError
        return None, x.grad, None


def checkpoint(function: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    """Call a function of a tensor, keeping only its input for backward."""
    # The first input is data and needs no gradient, and autograd skips a function none of whose
    # inputs does: an empty tensor that needs one makes it stay.
    return Checkpoint.apply(function, x, torch.empty(0, requires_grad=True))


def run(layers: Sequence[nn.Module], x: Tensor, segments: int) -> Tensor:
    """Run the layers in so many segments, each under a checkpoint; 0 for none."""
    length = -(-len(layers) // segments) if segments else len(layers)
    for start in range(0, len(layers), length):
        part = nn.Sequential(*layers[start : start + length])
        x = checkpoint(part, x) if segments else part(x)
    return x


def best_segments(num_layers: int) -> int:
    """How many segments hold the fewest activations at once: s + n/s is smallest."""
    # >>> The number of segments with which the fewest activations are held at once.
    # ??? How many inputs are kept for s segments? How long is a segment, and what stands beside
    # ???   those inputs while backward works on one?
    # ??? Count for 36 layers with 1, 6 and 36 segments on paper.
    # ??? There are only so many numbers to choose from.
    return min(range(1, num_layers + 1), key=lambda s: s + num_layers / s)
    # <<< return num_layers


def measure(num_layers: int = 36) -> list[dict[str, float]]:
    rows = []
    for segments in (0, 1, 2, 3, 4, 6, 9, 12, 18, 36):
        torch.manual_seed(0)
        layers = [nn.Sequential(nn.Linear(16, 16), nn.Tanh()) for _ in range(num_layers)]
        calls: list[int] = []
        for layer in layers:
            layer.register_forward_hook(lambda *_, calls=calls: calls.append(1))
        x = torch.randn(32, 16)
        with Kept(nn.ModuleList(layers)) as kept:
            run(layers, x, segments).sum().backward()
        held = kept.peak_bytes / x.nbytes
        rows.append({"segments": segments, "activations held": held, "layer calls": len(calls)})
    return rows


if __name__ == "__main__":
    for row in measure():
        print(row)
