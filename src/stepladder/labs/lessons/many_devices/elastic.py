"""Elastic training through a node's failure.

With a thousand nodes one fails every few hours. A run that goes on with those that are left needs
three habits, none of them about failures:

    data         which rows a step learns from is a function of the step alone; who reads which
                 of them, of rank and number of ranks. So any number of ranks makes the same step
    checkpoint   everything the next step depends on: weights, the optimizer's memory, the step
    supervision  somebody outside notices that a rank is lost, ends the others (they would wait
                 for it for ever) and starts those that are left, from the newest checkpoint

Claim: three ranks begin twelve steps, one loses power at the seventh, two go on from the newest
checkpoint, and the losses are those of a run in which nothing happened, to five digits; no step but
the one since that checkpoint is made twice. torch's elastic_launch, which torchrun is, sees the
same training through the same failure.

Predict: Undisturbed, three ranks end at a loss of 2.0384. Where does the run end that loses a rank
at step 7 and goes on with two? [loss; case = a rank is lost]

Often wrong:
- rows are drawn from the rank
- the optimizer's memory is not saved
- training begins anew instead of at the checkpoint
- the lost rank is waited for
"""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from stepladder.errors import LostRank
from stepladder.labs.equipment.lab_ranks import on_ranks

BATCH, STEPS, SAVE_EVERY, LOST = 12, 12, 2, (1, 7)  # rank 1 is lost at step 7


def rows_of(step: int, rank: int, num_ranks: int) -> tuple[Tensor, Tensor]:
    """This rank's rows of the step's batch."""
    # >>> This rank's rows of the step's batch: all ranks' together are the same for any number of
    # >>> ranks.
    # ??? What may the draw depend on, if two ranks are to learn from the rows that three would have
    # ???   had?
    # ??? Draw the whole batch, then take this rank's share of it: a slice can take steps.
    x = torch.randn(BATCH, 8, generator=torch.Generator().manual_seed(step))[rank::num_ranks]
    # <<< x = torch.randn(BATCH // num_ranks, 8, generator=torch.Generator().manual_seed(rank))
    return x, x.sin().sum(dim=1, keepdim=True)


def save(folder: Path, state: dict[str, Any]) -> None:
    """All or nothing: a file half written never has the name that is looked for."""
    torch.save(state, folder / "state.part")
    os.replace(folder / "state.part", folder / "state.pt")


def train(rank: int, num_ranks: int, meeting: str, folder: Path) -> list[dict[str, float]]:
    """Train to the last step from wherever the newest checkpoint is."""
    dist.init_process_group("gloo", init_method=meeting, rank=rank, world_size=num_ranks)
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9)
    first, rows = 0, []
    if (folder / "state.pt").exists():
        state = torch.load(folder / "state.pt", weights_only=True)
        # >>> Take back all that was saved.
        # ??? Two of the things have load_state_dict.
        # ??? From which step on should the loop go, and which rows has it told of already?
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        first, rows = state["step"], state["rows"]
        # <<< model.load_state_dict(state["model"])
    for step in range(first, STEPS):
        lose_power(folder, rank, step)
        optimizer.zero_grad()
        x, y = rows_of(step, rank, num_ranks)
        loss = (model(x) - y).square().mean()
        loss.backward()
        for tensor in [*(p.grad for p in model.parameters()), shown := loss.detach()]:
            dist.all_reduce(tensor)
            tensor /= num_ranks
        optimizer.step()
        rows.append({"step": step, "loss": shown.item(), "ranks": num_ranks})
        if rank == 0 and (step + 1) % SAVE_EVERY == 0:
            # >>> All that the rest of the run depends on.
            # ??? SGD with momentum remembers something from step to step.
            # ??? The run's own result so far is part of it, too.
            kept = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "rows": rows}
            # <<< kept = {"model": model.state_dict()}
            save(folder, {**kept, "step": step + 1})
    return rows


def lose_power(folder: Path, rank: int, step: int) -> None:
    """Once, and without a word to anybody."""
    if (rank, step) == LOST and not (folder / "quiet").exists():
        (folder / "quiet").touch()
        os._exit(9)


def supervise(folder: Path, num_ranks: int) -> list[dict[str, float]]:
    """Start the ranks; when one is lost, start those that are left."""
    # >>> Start the ranks. As often as one is lost, go on with those that are left.
    # ??? on_ranks gives a list by rank, or raises LostRank.
    # ??? How many are left after each loss, and when are there none?
    while num_ranks:
        try:
            return on_ranks(train, num_ranks, folder, join=False)[0]
        except LostRank:
            num_ranks -= 1
    raise LostRank("ranks", "none is left", "Start again with more.")
    # <<< return on_ranks(train, num_ranks, folder, join=False)[0]


def measure() -> list[dict[str, Any]]:
    rows = []
    for case in ("nothing happens", "a rank is lost"):
        with tempfile.TemporaryDirectory() as name:
            if case == "nothing happens":
                (Path(name) / "quiet").touch()
            rows += [{"case": case, **row} for row in supervise(Path(name), 3)]
    return rows


if __name__ == "__main__":
    for row in measure():
        print(row)
