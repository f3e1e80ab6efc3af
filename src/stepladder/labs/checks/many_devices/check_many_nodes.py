"""Checks of many nodes: the bandwidth, checkpoints that survive, then torch's own."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp

from stepladder.errors import LostRank
from stepladder.labs.equipment.lab_ranks import on_ranks
from stepladder.labs.equipment.two_hosts import two_hosts
from stepladder.labs.grading.check_words import Mistake, expect, expect_close, is_times

MISTAKES = (
    Mistake(
        "the bandwidth is taken to be bytes by seconds",
        "2 * (num_ranks - 1) / num_ranks * num_bytes / seconds",
        "num_bytes / seconds",
        "a link carries 2(n - 1)/n of the bytes",
    ),
    Mistake(
        "the checkpoint is written under its final name",
        "    torch.save(state, beside)\n    os.replace(beside, target)\n",
        "    torch.save(state, target)\n",
        "half a file was left under its final name",
    ),
    Mistake(
        "each node resumes from its own newest step",
        "return max(set.intersection(*everyones), default=0)",
        "return max(mine, default=0)",
        "rank 0 would resume at step 6 and rank 1 at 4",
    ),
    Mistake(
        "momentum is not saved",
        '        optimizer.load_state_dict(state["optimizer"])\n',
        "",
        "is the optimizer's momentum saved and taken back?",
    ),
)


def check_the_bandwidth(lesson: ModuleType) -> None:
    """The bus bandwidth is what each link carried, by the seconds."""
    for ranks, wanted in ((2, 4e6), (8, 7e6)):
        found = lesson.bus_bandwidth(8e6, 2.0, ranks)
        expect(
            ranks == 2 or not is_times(found, 4e6, 1),
            "8 MB in 2 s on 8 ranks: a link carries 2(n - 1)/n of the bytes, not all of them.",
        )
        expect_close(found, wanted, f"the bandwidth of 8 MB in 2 s on {ranks} ranks")


def check_the_cable_is_not_outrun(lesson: ModuleType) -> None:
    """Between two hosts (where they can be made) no all-reduce outruns the cable."""
    size = 2**21
    with two_hosts(lesson.RATE) as hosts:
        seconds = on_ranks(hosts.at(lesson.time_all_reduce), 2, size, join=False)[0]
    found = lesson.bus_bandwidth(size, seconds, 2)
    most = 1.3 * lesson.RATE_BYTES  # a bucket of the kernel's lets a first burst pass
    if not hosts.reason:
        expect(found <= most, f"{found / 1e6:.1f} MB/s over a cable of 12.5: count again.")


def check_a_save_is_all_or_nothing(lesson: ModuleType) -> None:
    """A node that goes down while it writes leaves nothing that looks like a checkpoint."""

    def cut_short(folder: Path) -> None:
        torch.save = broken  # type: ignore[assignment]
        lesson.save(folder, 6, {"weights": torch.zeros(1000)})

    with tempfile.TemporaryDirectory() as name:
        try:
            on_ranks(cut_short, 1, Path(name))
            expect(False, "save wrote nothing with torch.save.")
        except LostRank:
            left = [path.name for path in Path(name).glob("step-6-rank-0.pt")]
        expect(
            not left,
            "half a file was left under its final name: write beside it, then os.replace.",
        )


def broken(state: Any, target: Any) -> None:
    """What a disk has when the power goes: the first bytes."""
    Path(target).write_bytes(b"PK\x03\x04 and no more")
    os._exit(9)


def check_all_resume_from_one_step(lesson: ModuleType) -> None:
    """All ranks resume from the newest step that every one of them has."""
    with tempfile.TemporaryDirectory() as name:
        for file in ("2-rank-0", "4-rank-0", "6-rank-0", "2-rank-1", "4-rank-1"):
            (Path(name) / f"step-{file}.pt").touch()
        first, second = on_ranks(lesson.newest, 2, Path(name))
    expect(
        first == second,
        f"rank 0 would resume at step {first} and rank 1 at {second}: agree on the newest step "
        "that all have.",
    )
    expect(first == 4, f"all would resume at step {first}: 4 is the newest that all have.")


def check_the_run_survives(lesson: ModuleType) -> None:
    """A run whose second node goes down while it writes step 6 goes on as if nothing happened."""

    def fails(folder: Path) -> None:
        write, written = torch.save, []

        def save(state: Any, target: Any) -> None:
            written.append(target)
            third = len(written) == 3 and dist.get_rank() == 1  # steps 2, 4 and 6 are saved
            (broken if third else write)(state, target)

        torch.save = save  # type: ignore[assignment]
        lesson.train(folder)

    with tempfile.TemporaryDirectory() as name:
        wanted = on_ranks(lesson.train, 2, Path(name))
    with tempfile.TemporaryDirectory() as name:
        lost = ""
        try:
            on_ranks(fails, 2, Path(name))
        except LostRank as gone:
            lost = str(gone)
        expect(lost, "nothing was saved at step 6.")
        first, second = on_ranks(lesson.newest, 2, Path(name))
        expect(first == second, f"rank 0 would resume at {first}, rank 1 at {second}: they hang.")
        found = on_ranks(lesson.train, 2, Path(name))
    for rank in range(2):
        expect(
            found[rank] == wanted[rank][4:],
            f"rank {rank}'s losses after resuming are not those of a run without failure, to the "
            "bit: is the optimizer's momentum saved and taken back? Did all resume at step 4?",
        )


def check_torch_saves_the_same(lesson: ModuleType) -> None:
    """torch.distributed.checkpoint.save and load give a rank its own state back, to the bit."""

    def through_torch(folder: Path) -> bool:
        rank = dist.get_rank()
        lesson.train(folder)
        state = torch.load(folder / f"step-{lesson.STEPS}-rank-{rank}.pt", weights_only=True)
        for part in ("model", "optimizer", "stream"):
            expect(part in state, f"the checkpoint has no '{part}': the next step needs it.")
        mine: dict[str, Any] = {f"rank{rank}": {"model": state["model"], "stream": state["stream"]}}
        dcp.save(mine, checkpoint_id=folder / "torch")
        empty = {key: torch.zeros_like(value) for key, value in state["model"].items()}
        back: dict[str, Any] = {
            f"rank{rank}": {"model": empty, "stream": torch.zeros_like(state["stream"])}
        }
        dcp.load(back, checkpoint_id=folder / "torch")
        now, then = back[f"rank{rank}"], mine[f"rank{rank}"]
        same = [torch.equal(now["model"][key], then["model"][key]) for key in empty]
        return all([*same, torch.equal(now["stream"], then["stream"])])

    with tempfile.TemporaryDirectory() as name:
        same = on_ranks(through_torch, 2, Path(name))
    expect(all(same), "what torch loaded is not what your checkpoint holds.")
