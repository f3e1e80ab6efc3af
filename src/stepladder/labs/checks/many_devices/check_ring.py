"""Checks of the ring: what each chunk holds after each half, the sum, and the bytes."""

from __future__ import annotations

from types import ModuleType

import torch
import torch.distributed as dist
from torch import Tensor

from stepladder.labs.equipment.lab_ranks import on_ranks
from stepladder.labs.grading.check_words import Mistake, expect, expect_close

MISTAKES = (
    Mistake(
        "what arrives replaces the chunk in the first half",
        "chunks[arriving].add_(exchange(chunks[leaving]))",
        "chunks[arriving].copy_(exchange(chunks[leaving]))",
        "only 1 of 4 ranks is added up",
    ),
    Mistake(
        "what arrives is added in the second half too",
        "chunks[arriving].copy_(exchange(chunks[leaving]))",
        "chunks[arriving].add_(exchange(chunks[leaving]))",
        "more than there are: in the second half keep what arrives",
    ),
    Mistake(
        "the chunks go round the wrong way",
        "leaving, arriving = (rank - step) % num_ranks, (rank - step - 1) % num_ranks",
        "leaving, arriving = (rank + step) % num_ranks, (rank + step + 1) % num_ranks",
        "send on the chunk that has just arrived",
    ),
    Mistake(
        "the whole tensor is sent at every step",
        "chunks[arriving].add_(exchange(chunks[leaving]))",
        "chunks[arriving].add_(exchange(tensor).chunk(num_ranks)[arriving])",
        "tensors were sent by each rank, 1.5 are enough",
    ),
)


def check_the_first_half(lesson: ModuleType) -> None:
    """After three steps each of four ranks holds one chunk in which all four are added up."""
    for rank, (states, _) in enumerate(on_ranks(lesson.watched, 4)):
        held, done = states[3], (rank + 1) % 4
        expect(
            held[done] != 1,
            f"rank {rank}: only 1 of 4 ranks is added up in chunk {done} after the first half: add "
            "what arrives.",
        )
        expect(
            held[done] == 4,
            f"rank {rank}: chunks hold the sums of {held} ranks after the first half, and chunk "
            f"{done} should have 4: send on the chunk that has just arrived.",
        )


def check_the_second_half(lesson: ModuleType) -> None:
    """After three more steps every rank holds all chunks finished."""
    for rank, (states, _) in enumerate(on_ranks(lesson.watched, 4)):
        held = states[-1]
        expect(
            max(held) <= 4,
            f"rank {rank}: chunks hold the sums of {held} ranks, more than there are: in the "
            "second half keep what arrives instead of adding it.",
        )
        expect(
            min(held) == 4,
            f"rank {rank}: chunks hold the sums of {held} ranks, not of 4 each, at the end.",
        )


def check_no_byte_too_many(lesson: ModuleType) -> None:
    """Each rank sends 2(n - 1)/n of the tensor: 1.5 on four ranks."""
    for _, sent in on_ranks(lesson.watched, 4):
        expect(
            sent <= 1.5,
            f"{sent:g} tensors were sent by each rank, 1.5 are enough: send chunks.",
        )
        expect(sent == 1.5, f"only {sent:g} tensors were sent by each rank: 1.5 are needed.")


def check_torch_gives_the_same(lesson: ModuleType) -> None:
    """The sum is that of torch.distributed.all_reduce, on every rank the same bits."""

    def both() -> tuple[Tensor, Tensor]:
        mine = torch.randn(24, generator=torch.Generator().manual_seed(dist.get_rank()))
        theirs = mine.clone()
        lesson.ring_all_reduce(mine)
        dist.all_reduce(theirs)
        return mine, theirs

    for num_ranks in (2, 3):
        found = on_ranks(both, num_ranks)
        for rank, (mine, theirs) in enumerate(found):
            expect_close(mine, theirs, f"the sum on rank {rank} of {num_ranks}")
            expect(torch.equal(mine, found[0][0]), f"rank {rank}'s sum is not rank 0's.")
