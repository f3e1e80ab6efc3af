"""Checks of full sharding by hand: pieces, gradients, memory under an enforced limit."""

from __future__ import annotations

from types import ModuleType

import torch.distributed as dist
from torch import Tensor

from stepladder.errors import OutOfMemory
from stepladder.labs.equipment.lab_ranks import on_ranks
from stepladder.labs.equipment.layer_stack import copied, make_rows, make_weight, sharded
from stepladder.labs.grading.check_words import Mistake, expect, expect_close, is_times
from stepladder.labs.grading.finding import Wrong

MISTAKES = (
    Mistake(
        "the piece is a view, so the whole layer stays",
        "[dist.get_rank()].clone()",
        "[dist.get_rank()]",
        "a piece of 16 KiB holds on to 64 KiB",
    ),
    Mistake(
        "gathered weights are kept for backward",
        """        ctx.save_for_backward(x, piece)
        return x @ weight.T

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor]:
        # The input and the whole weight, from what was kept.
        x, piece = ctx.saved_tensors
        weight = gather(piece)
""",
        """        ctx.save_for_backward(x, weight)
        return x @ weight.T

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor]:
        x, weight = ctx.saved_tensors
""",
        "the gathered weights are kept for backward: save the piece and gather again",
    ),
    Mistake(
        "gradients are summed over ranks but not divided",
        "return mine / dist.get_world_size()",
        "return mine",
        "4 × too large: divide by the number of ranks",
    ),
)


def check_a_piece_is_a_piece(lesson: ModuleType) -> None:
    """Each rank cuts its own quarter off a layer and lets the rest go; gathered, it is whole."""

    def cut_and_gather() -> tuple[int, int, Tensor, Tensor]:
        weight = make_weight(0)
        piece = lesson.cut(weight)
        return piece.nbytes, piece.untyped_storage().nbytes(), piece, lesson.gather(piece)

    for rank, (size, held, piece, whole) in enumerate(on_ranks(cut_and_gather, 4)):
        kib = size // 1024
        expect(size == 16 * 1024, f"a piece takes {kib} KiB: a quarter of 64 KiB is 16.")
        expect(
            held == size,
            f"a piece of {kib} KiB holds on to {held // 1024} KiB: a view keeps the whole layer, "
            "so clone it.",
        )
        expect_close(piece, make_weight(0).flatten().chunk(4)[rank], "the piece", rtol=0)
        expect_close(whole, make_weight(0), "the gathered weight", rtol=0)


def check_gradients_are_pieces_of_the_mean(lesson: ModuleType) -> None:
    """Backward leaves this rank's piece of the mean gradient, and the input's gradient."""

    def gradients() -> list[Tensor]:
        found: list[Tensor] = []
        for by_hand in (True, False):
            x, weight = make_rows(dist.get_rank()).requires_grad_(), make_weight(0)
            leaf = (lesson.cut(weight) if by_hand else weight).requires_grad_()
            y = lesson.ShardedLinear.apply(x, leaf) if by_hand else x @ leaf.T
            y.square().mean().backward()
            assert x.grad is not None and leaf.grad is not None
            found += [leaf.grad, x.grad]
        dist.all_reduce(found[2])
        return found

    for rank, (piece, x_grad, total, x_wanted) in enumerate(on_ranks(gradients, 4)):
        wanted = total.flatten().chunk(4)[rank] / 4
        expect(
            not is_times(piece, wanted, 4),
            "your gradient is 4 × too large: divide by the number of ranks.",
        )
        expect_close(piece, wanted, f"rank {rank}'s piece of the gradient")
        expect_close(x_grad, x_wanted, f"rank {rank}'s gradient of x")


def check_it_stays_under_the_limit(lesson: ModuleType) -> None:
    """Weights of 1,024 KiB train on ranks of 800 KiB, as fully_shard does and copies cannot."""
    try:
        mine = on_ranks(lesson.train, 4, lesson.Pieces, lesson.LIMIT_BYTES)[0]
    except OutOfMemory as full:
        held = on_ranks(lesson.train, 4, lesson.Pieces)[0]["forward_kib"]
        kept = "the gathered weights are kept for backward: save the piece and gather again"
        raise Wrong(f"{full} {held:.0f} KiB are held when forward is over: {kept}.") from None
    theirs = on_ranks(lesson.train, 4, sharded, lesson.LIMIT_BYTES)[0]
    expect_close(mine["loss"], theirs["loss"], "the loss beside fully_shard's")
    expect_close(mine["sent_kib"], theirs["sent_kib"], "KiB sent in a step", rtol=0.01)
    whole = on_ranks(lesson.train, 4, copied)[0]
    expect_close(mine["loss"], whole["loss"], "the loss beside data parallel's")
    most = whole["peak_kib"]
    expect(most > 3000, f"whole copies took {most:.0f} KiB: data parallel needs over 3,000.")
