"""Checks of mixed precision with sharding: what travels, what is added up, what is kept."""

from __future__ import annotations

from functools import partial
from types import ModuleType

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.fsdp import MixedPrecisionPolicy

from stepladder.labs.equipment.lab_ranks import on_ranks
from stepladder.labs.equipment.layer_stack import WIDTH, make_weight, sharded
from stepladder.labs.grading.check_words import Mistake, expect, expect_close
from stepladder.measure import Traffic

MISTAKES = (
    Mistake(
        "the piece is gathered in fp32 and cast afterwards",
        """    narrow = piece.to(torch.bfloat16)
    whole = narrow.new_empty(WIDTH, WIDTH)
    dist.all_gather(list(whole.flatten().chunk(dist.get_world_size())), narrow)
    return whole
""",
        """    whole = piece.new_empty(WIDTH, WIDTH)
    dist.all_gather(list(whole.flatten().chunk(dist.get_world_size())), piece)
    return whole.to(torch.bfloat16)
""",
        "64 KiB were gathered for a layer that is 32 KiB in bf16: cast the piece before",
    ),
    Mistake(
        "gradients are added up in bf16",
        "gradient.float().flatten()",
        "gradient.flatten()",
        "1 and 2^-9 added up to 1: cast gradients to fp32 before they are added",
    ),
    Mistake(
        "the pieces themselves are kept in bf16",
        "KEPT = torch.float32",
        "KEPT = torch.bfloat16",
        "of the weights never moved in 10 steps",
    ),
)


def check_layers_travel_in_bf16(lesson: ModuleType) -> None:
    """A layer is gathered in bf16: half of its bytes travel."""

    def gathered() -> tuple[Tensor, int]:
        piece = make_weight(0).flatten().chunk(2)[dist.get_rank()].clone()
        with Traffic() as traffic:
            whole = lesson.gather(piece)
        return whole, traffic.bytes["all_gather"] // 1024

    whole, kib = on_ranks(gathered, 2)[0]
    half = WIDTH * WIDTH * 2 // 1024
    expect(whole.dtype == torch.bfloat16, f"the gathered layer is {whole.dtype}, not bfloat16.")
    expect_close(whole, make_weight(0).bfloat16(), "the gathered layer", rtol=0)
    expect(
        kib == half,
        f"{kib} KiB were gathered for a layer that is {half} KiB in bf16: cast the piece before "
        "it travels.",
    )


def check_gradients_are_added_in_fp32(lesson: ModuleType) -> None:
    """The ranks' gradients are added up in fp32: what bf16 cannot hold survives."""

    def added() -> Tensor:
        value = 2.0**-9 if dist.get_rank() else 1.0
        return lesson.scatter_mean(torch.full((WIDTH, WIDTH), value, dtype=torch.bfloat16))

    piece = on_ranks(added, 2)[0].double()
    expect(piece.numel() == WIDTH * WIDTH // 2, f"a piece of {piece.numel()} numbers: half is due.")
    expect(
        not torch.all(piece * 2 == 1),
        "1 and 2^-9 added up to 1: cast gradients to fp32 before they are added.",
    )
    expect_close(piece, torch.full_like(piece, (1 + 2.0**-9) / 2), "the mean of 1 and 2^-9")


def check_small_steps_are_not_lost(lesson: ModuleType) -> None:
    """Pieces are kept so that the smallest step moves them."""
    moved = on_ranks(lesson.train, 2, lesson.Pieces, 10)[0]["moved"]
    expect(
        moved > 0.99,
        f"{1 - moved:.0%} of the weights never moved in 10 steps: a step below half a unit of bf16 "
        "rounds back. Keep pieces in fp32.",
    )


def check_torch_trains_the_same(lesson: ModuleType) -> None:
    """fully_shard under MixedPrecisionPolicy has the same losses and sends as many bytes."""
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    mine = on_ranks(lesson.train, 2, lesson.Pieces, 3)[0]
    theirs = on_ranks(lesson.train, 2, partial(sharded, mp_policy=policy), 3)[0]
    expect_close(mine["losses"], theirs["losses"], "losses beside fully_shard's", rtol=0)
    expect_close(mine["sent_kib"], theirs["sent_kib"], "KiB sent in a step", rtol=0.01)
