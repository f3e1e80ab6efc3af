"""Checks of a script for torchrun: its parts with the environment of some rank, then as a whole.

The whole script is started once, by torch.distributed.run in processes of its own, and read from
what its ranks wrote.
"""

from __future__ import annotations

import os
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

import torch

from stepladder.labs.equipment.lab_ranks import on_ranks
from stepladder.labs.grading.check_words import Mistake, expect, expect_close, written

if TYPE_CHECKING:
    from collections.abc import Iterator

MISTAKES = (
    Mistake(
        "the local rank is taken for the rank",
        'int(env["RANK"]), int(env["WORLD_SIZE"])',
        'int(env["LOCAL_RANK"]), int(env["WORLD_SIZE"])',
        "the local rank counts the processes of one node",
    ),
    Mistake(
        "all ranks work on the same rows",
        "torch.arange(ROWS)[rank::num_ranks]",
        "torch.arange(ROWS)[: ROWS // num_ranks]",
        "has more than one owner",
    ),
    Mistake(
        "torchrun is told of one process",
        "--nproc-per-node={num_ranks}",
        "--nproc-per-node=1",
        "say how many processes a node has",
    ),
    Mistake(
        "gradients are not averaged over the ranks",
        "        dist.all_reduce(gradient)\n        gradient /= dist.get_world_size()\n",
        "        dist.barrier()\n",
        "the ranks end with different weights",
    ),
)


@contextmanager
def environment(**variables: str) -> Iterator[None]:
    before = dict(os.environ)
    os.environ.update(variables)
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)


def check_the_place(lesson: ModuleType) -> None:
    """A process knows its rank, how many there are, and which device of its node is its own."""
    with environment(RANK="9", WORLD_SIZE="16", LOCAL_RANK="1", LOCAL_WORLD_SIZE="8"):
        place = written(lesson.read_place(), "read_place")
    expect(
        place.rank != 1,
        "rank 9, the second of its node, takes itself for rank 1: the local rank counts the "
        "processes of one node.",
    )
    found = [place.rank, place.num_ranks, place.local_rank]
    expect(
        found == [9, 16, 1],
        f"with RANK=9, WORLD_SIZE=16 and LOCAL_RANK=1 the place is {found}, not [9, 16, 1].",
    )


def check_the_rows(lesson: ModuleType) -> None:
    """Every row has one owner, and the ranks have equally many."""
    for num_ranks in (1, 2, 4):
        owned = [written(lesson.rows_of(rank, num_ranks), "rows_of") for rank in range(num_ranks)]
        counts = torch.bincount(torch.cat(owned), minlength=12)
        twice, nobody = (counts > 1).nonzero(), (counts == 0).nonzero()
        expect(
            not len(twice),
            f"{num_ranks} ranks: row {int(twice[0]) if len(twice) else 0} has more than one owner.",
        )
        expect(
            not len(nobody),
            f"{num_ranks} ranks: row {int(nobody[0]) if len(nobody) else 0} is nobody's.",
        )
        sizes = {len(rows) for rows in owned}
        expect(len(sizes) == 1, f"{num_ranks} ranks: some have more rows than others, {sizes}.")


def check_the_gradients(lesson: ModuleType) -> None:
    """Ranks with other rows end with one weight, that of all rows."""
    rows = torch.arange(12)
    (alone,) = on_ranks(lesson.fit, 1, rows)

    def share() -> float:
        return lesson.fit(rows[torch.distributed.get_rank() :: 2])

    first, second = on_ranks(share, 2)
    expect(
        first == second,
        f"the ranks end with different weights, {first:.4f} and {second:.4f}: average their "
        "gradients at every step.",
    )
    expect_close(first, alone, "the weight on two ranks beside that on one")


def command_text(lesson: ModuleType, num_ranks: int) -> str:
    """The command with one way of writing an option, if it asks for so many processes."""
    words: list[Any] = written(lesson.command(Path("train.py"), num_ranks, "out"), "command")
    text = " ".join(map(str, words))
    expect(
        f"--nproc-per-node {num_ranks} " in text.replace("_", "-").replace("=", " "),
        f"{num_ranks} processes are asked for, and the command is '{text}': say how many processes "
        "a node has.",
    )
    return text


def check_the_command(lesson: ModuleType) -> None:
    """The command starts torchrun with the script, its words and the number of processes."""
    text = command_text(lesson, 4)
    expect("torch.distributed.run" in text or "torchrun" in text, f"no torchrun in '{text}'.")
    expect(text.endswith("train.py out"), f"the script and its words come last: '{text}'.")


def check_torchrun_starts_it(lesson: ModuleType) -> None:
    """torchrun starts two processes of this script, and both write what they found."""
    command_text(lesson, 2)
    found = lesson.launch(2)
    ranks = [row["rank"] for row in found]
    expect(
        found,
        "torchrun ran the file in which `main` stands to its end, and nothing was written: is main "
        "called at the end of that file?",
    )
    expect(ranks == [0, 1], f"ranks {ranks} wrote something, not [0, 1].")
    expect(all(row["started"] for row in found), "these ranks were not started by torchrun.")
    expect([row["ranks"] for row in found] == [2, 2], "the process group has not 2 ranks.")
    expect(sorted(found[0]["rows"] + found[1]["rows"]) == list(range(12)), "a row is nobody's.")
    (alone,) = on_ranks(lesson.fit, 1, torch.arange(12))
    for row in found:
        expect_close(row["weight"], alone, f"rank {row['rank']}'s weight beside that of one rank")
