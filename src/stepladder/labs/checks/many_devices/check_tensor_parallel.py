"""Checks of tensor parallel by hand: pieces, output, gradients, then torch's own."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    parallelize_module,
)
from torch.nn import functional as F

from stepladder.labs.equipment.lab_ranks import on_ranks
from stepladder.labs.grading.check_words import Mistake, expect, expect_close, is_times, written

MISTAKES = (
    Mistake(
        "the bias of the second layer is added on every rank",
        "AddUp.apply(F.linear(hidden, self.down)) + self.down_bias",
        "AddUp.apply(F.linear(hidden, self.down, self.down_bias))",
        "the second bias is in it 2 ×: add it once, after the sum",
    ),
    Mistake(
        "the gradient of x is not added up",
        """        gradient = gradient.clone()
        dist.all_reduce(gradient)
        return gradient
""",
        "        return gradient\n",
        "the gradient of x holds only this rank's part",
    ),
    Mistake(
        "the gradient of the sum is added up once more",
        "        return gradient\n\n\nclass CutMLP",
        "        dist.all_reduce(gradient)\n        return gradient\n\n\nclass CutMLP",
        "2 × too large: the sum's gradient is already the same on all ranks",
    ),
)
WAYS = 2


def whole(lesson: Any) -> dict[str, Tensor]:
    """What one rank alone computes."""
    up, down, x = lesson.make_whole()
    y = down(F.gelu(up(x.requires_grad_())))
    y.square().sum().backward()
    named = {"up": up.weight, "up_bias": up.bias, "down": down.weight, "down_bias": down.bias}
    found = {name: parameter.grad for name, parameter in named.items()}
    return {"y": y.detach(), "x": x.grad, "bias": down.bias.detach(), **found}


def piece_of(gradients: dict[str, Tensor], name: str, rank: int) -> Tensor:
    if name == "down_bias":
        return gradients[name]
    return gradients[name].chunk(WAYS, dim=1 if name == "down" else 0)[rank]


def check_the_output_is_the_whole_mlp_s(lesson: ModuleType) -> None:
    """Two ranks with half of the weights each compute what one computes with all."""
    wanted = on_ranks(whole, 1, lesson)[0]
    for rank, found in enumerate(on_ranks(lesson.run, WAYS)):
        y = written(found["y"], "forward")
        kib = found["weights_kib"]
        expect(kib < 5, f"rank {rank} holds {kib:.1f} KiB of weights of 8.3: cut them.")
        expect(
            not torch.allclose(y, wanted["y"] + wanted["bias"], rtol=1e-4, atol=1e-6),
            "the second bias is in it 2 ×: add it once, after the sum.",
        )
        expect_close(y, wanted["y"], f"the output on rank {rank}")


def check_the_gradients_are_the_whole_mlp_s(lesson: ModuleType) -> None:
    """Each rank's gradients are pieces of the whole ones, and x has all of its gradient."""
    wanted, found = on_ranks(whole, 1, lesson)[0], on_ranks(lesson.run, WAYS)
    for rank, mine in enumerate(found):
        for name in ("down", "up", "up_bias"):
            piece = piece_of(wanted, name, rank)
            expect(
                not is_times(mine[name], piece, WAYS),
                f"the gradient of {name} is 2 × too large: the sum's gradient is already the same "
                "on all ranks, so pass it on as it is.",
            )
            expect_close(mine[name], piece, f"the gradient of {name} on rank {rank}")
        expect_close(mine["down_bias"], wanted["down_bias"], "the gradient of the second bias")
        parts = found[0]["x"] + found[1]["x"]
        expect(
            not torch.allclose(parts, wanted["x"], rtol=1e-4, atol=1e-6),
            "the gradient of x holds only this rank's part: add up all ranks'.",
        )
        expect_close(mine["x"], wanted["x"], f"the gradient of x on rank {rank}")


def check_two_messages_are_enough(lesson: ModuleType) -> None:
    """One all-reduce forward, one backward."""
    found = on_ranks(lesson.run, WAYS)[0]
    for when in ("forward", "backward"):
        expect(found[when] == 1, f"{found[when]} all-reduces {when}, where 1 is right.")


def check_torch_gives_the_same(lesson: ModuleType) -> None:
    """parallelize_module with ColwiseParallel and RowwiseParallel has the same output."""

    def by_torch() -> tuple[Tensor, Tensor, Tensor]:
        up, down, x = lesson.make_whole()
        mlp: Any = nn.Sequential(up, nn.GELU(), down)
        cuts = {"0": ColwiseParallel(), "2": RowwiseParallel()}
        parallelize_module(mlp, init_device_mesh("cpu", (WAYS,)), cuts)
        y = mlp(x.requires_grad_())
        y.square().sum().backward()
        assert x.grad is not None
        return y.detach(), x.grad, mlp[0].weight.grad.to_local()

    mine, theirs = on_ranks(lesson.run, WAYS), on_ranks(by_torch, WAYS)
    for rank in range(WAYS):
        y, x, up = theirs[rank]
        expect_close(mine[rank]["y"], y, "the output beside parallelize_module's")
        expect_close(mine[rank]["x"], x, "the gradient of x beside parallelize_module's")
        expect_close(mine[rank]["up"], up, "the first weight's gradient beside torch's")
