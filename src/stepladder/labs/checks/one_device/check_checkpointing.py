"""Checks of checkpointing by hand: gradients to the bit, activations counted."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from stepladder.labs.grading.check_words import Mistake, expect, expect_close, written

MISTAKES = (
    Mistake(
        "the random state is not put back",
        "            torch.set_rng_state(ctx.random)\n",
        "",
        "dropped other numbers the second time",
    ),
    Mistake(
        "the segment's input is not cut off from the graph before",
        "saved.detach().requires_grad_()",
        "saved",
        "cut the input off",
    ),
    Mistake(
        "backward stops at the segment and gives its input no gradient",
        "return None, x.grad, None",
        "return None, None, None",
        "layers before the last segment got no gradient",
    ),
    Mistake(
        "as many segments as layers are said to be best",
        "key=lambda s: s + num_layers / s",
        "key=lambda s: num_layers / s",
        "each segment's input is kept too",
    ),
)


def layers_of(num: int, *, dropout: bool = False) -> list[nn.Module]:
    torch.manual_seed(0)
    last = [nn.Dropout(0.5)] if dropout else []
    return [nn.Sequential(nn.Linear(8, 8), nn.Tanh(), *last) for _ in range(num)]


def gradients(
    run: Callable[[list[nn.Module], Tensor], Tensor], dropout: bool
) -> list[Tensor | None]:
    layers = layers_of(4, dropout=dropout)
    torch.manual_seed(1)
    run(layers, torch.randn(5, 8)).square().sum().backward()
    return [p.grad for layer in layers for p in layer.parameters()]


def check_gradients(lesson: ModuleType) -> None:
    """Two segments give the gradients of no segments, to the bit."""
    plain = gradients(lambda layers, x: lesson.run(layers, x, 0), dropout=False)
    try:
        found = gradients(lambda layers, x: lesson.run(layers, x, 2), dropout=False)
    except (TypeError, RuntimeError) as raised:
        cut = "does not require grad" in str(raised) or "second time" in str(raised)
        expect(not cut, f"{raised}: cut the input off (detach) and let it need a gradient.")
        raise
    expect(found[-1] is not None, "no layer got a gradient: go backward inside backward.")
    reached = found[0] is not None and bool(found[0].any())
    lost = "layers before the last segment got no gradient: give back that of the input, x.grad."
    expect(reached, lost)
    for mine, other in zip(found, plain, strict=True):
        same = mine is not None and other is not None and torch.equal(mine, other)
        expect(same, "a gradient differs: cut the input off (detach), and go backward once.")


def check_dropout(lesson: ModuleType) -> None:
    """Dropout drops the same numbers twice, as torch.utils.checkpoint.checkpoint sees to."""

    def theirs(layers: list[nn.Module], x: Tensor) -> Tensor:
        for part in (layers[:2], layers[2:]):
            x = checkpoint(nn.Sequential(*part), x, use_reentrant=False)
        return x

    found = gradients(lambda layers, x: lesson.run(layers, x, 2), dropout=True)
    for mine, other in zip(found, gradients(theirs, dropout=True), strict=True):
        same = mine is not None and other is not None and torch.equal(mine, other)
        expect(same, "a gradient differs from torch's: dropout dropped other numbers the second "
               "time. Put the random state back.")  # fmt: skip


def check_later_numbers(lesson: ModuleType) -> None:
    """Running again leaves the random numbers of later steps alone."""
    layers, x = layers_of(2, dropout=True), torch.randn(5, 8)
    out = lesson.run(layers, x, 1).sum()
    state = torch.get_rng_state()
    out.backward()
    same = torch.equal(state, torch.get_rng_state())
    expect(same, "backward drew random numbers that later steps miss: fork_rng gives them back.")


def check_the_best_number(lesson: ModuleType) -> None:
    """√n segments hold the fewest activations, measured and by formula."""
    for layers, wanted in ((36, 6), (100, 10), (4, 2)):
        found = written(lesson.best_segments(layers), "best_segments")
        expect(found != layers, f"{layers} segments of {layers} layers: each segment's input is "
               "kept too, so s + n/s counts.")  # fmt: skip
        expect(found == wanted, f"{found} segments for {layers} layers, and {wanted} hold fewer.")
    rows = {row["segments"]: row for row in lesson.measure()}
    expect_close(rows[0]["activations held"], 37, "activations held without segments", rtol=0)
    expect_close(rows[6]["activations held"], 12, "activations held with 6 segments", rtol=0)
    fewest = min(rows, key=lambda segments: rows[segments]["activations held"])
    expect(fewest == 6, f"{fewest} segments hold fewest, and 6 should.")
    expect(rows[6]["layer calls"] == 72, f"{rows[6]['layer calls']} calls of 36 layers, not 72.")
