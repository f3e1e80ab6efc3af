"""Capstone: a small GPT through a node's failure, with 90 % of the work kept.

Four ranks on two nodes train a small GPT on the source of a Python module. At a step that you do
not know one node loses power: both of its ranks are killed, the other two cannot go on alone, and
torch's agents (elastic_launch, which torchrun is) start all four again. You write what is saved,
when, and how the run goes on. Graded by steps and bytes, so that a busy machine changes nothing:

                                     STEPS
    efficiency = ------------------------------------------------------
                 steps taken, repeated ones too + bytes saved / STORAGE

STORAGE is how many bytes the storage takes in the time of one step. Start your file yourself:

    mkdir saves && torchrun --nproc-per-node 4 node_failure.py saves

Claim: whenever the node is lost, the efficiency is at least 90 %, and the parameters at the end are
to the bit those of a run in which nothing happened.

Predict: A run of 80 steps loses a node once, at any of its steps. Which interval between saves
has the best mean efficiency? [every; case = best]

Often wrong:
- a failure is taken to destroy a whole interval
- nothing is saved, so everything is made again
- saves are too rare
- every step is saved
- the optimizer's moments are not taken back
- the data begins anew
- every rank continues rank 0's dropout
- the saved step is made a second time
"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.utils import parameters_to_vector, vector_to_parameters
from torch.optim import AdamW, Optimizer

from stepladder.model import build

STEPS, BATCH, LENGTH = 80, 16, 32  # BATCH: sequences of all ranks
SHAPE = "gpt:layers=2,hidden=32,heads=2,vocab=256,sequence=32"
STORAGE = 2_500_000  # bytes that are written in the time of one step


def save_interval(save_steps: float, between_failures: float) -> float:
    """Steps between saves that waste least; a save takes as long as `save_steps` steps."""
    # >>> The interval at which saves and steps that are made again cost least together.
    # ??? Saves: what do they cost each step? Failures: how many are there in a step, and how much
    # ???   of an interval does one destroy on average?
    # ??? Where the sum of a falling and a rising term is smallest, its derivative is zero: that is
    # ???   Young's rule.
    return (2 * save_steps * between_failures) ** 0.5
    # <<< return between_failures


# >>> Steps between two saves, for one failure in a run.
# ??? Save once and look at the size of the file: how many steps' time is that?
# ??? Round what your function says. Is it good enough if the node fails at the worst step?
EVERY = round(save_interval(0.2, STEPS))
# <<< EVERY = STEPS // 2


class Text:
    """Batches of a text, in an order that its own generator draws."""

    def __init__(self) -> None:
        self.tokens = torch.tensor(list(Path(argparse.__file__).read_bytes()))
        self.order = torch.Generator().manual_seed(1)

    def next(self, rank: int, num_ranks: int) -> tuple[Tensor, Tensor]:
        starts = torch.randint(len(self.tokens) - LENGTH, (BATCH,), generator=self.order)
        rows = [self.tokens[at : at + LENGTH + 1] for at in starts[rank::num_ranks].tolist()]
        return torch.stack(rows)[:, :-1], torch.stack(rows)[:, 1:]


def capture(model: nn.Module, optimizer: Optimizer, text: Text) -> dict[str, Any]:
    """What the rest of the run depends on; called on every rank."""
    # >>> All that the next step reads and this one has changed, of every rank.
    # ??? Go through the loop line by line: what does each line remember?
    # ??? Dropout draws from torch's own generator, on each rank another one: dist.all_gather can
    # ???   collect what torch.get_rng_state gives.
    dropout = [torch.empty_like(torch.get_rng_state()) for _ in range(dist.get_world_size())]
    dist.all_gather(dropout, torch.get_rng_state())
    state = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
    return {**state, "order": text.order.get_state(), "dropout": dropout}
    # <<< return {"model": model.state_dict()}


def restore(state: dict[str, Any], model: nn.Module, optimizer: Optimizer, text: Text) -> None:
    """Take back what was captured, on every rank."""
    # >>> Each thing where it came from.
    # ??? Whatever you saved and do not take back might as well not have been saved.
    # ??? Which of the ranks' generators is this one's?
    model.load_state_dict(state["model"])
    optimizer.load_state_dict(state["optimizer"])
    text.order.set_state(state["order"])
    torch.set_rng_state(state["dropout"][dist.get_rank()])
    # <<< model.load_state_dict(state["model"])


def average(model: nn.Module) -> None:
    """Mean gradients over the ranks."""
    # DistributedDataParallel orders its buckets anew after its first step: a run that is resumed
    # would add in another order, and end nearly the same, but not to the bit.
    grads = [p.grad for p in model.parameters() if p.grad is not None]
    dist.all_reduce(flat := parameters_to_vector(grads))
    vector_to_parameters(flat / dist.get_world_size(), grads)


def train(folder: Path) -> nn.Module:
    """Train on this rank, from wherever the newest save is, to the last step."""
    dist.init_process_group("gloo")
    rank, num_ranks, first = dist.get_rank(), dist.get_world_size(), 0
    model, text = build(SHAPE, seed=0, dropout=0.1), Text()
    optimizer = AdamW(model.parameters(), lr=3e-3, fused=True)
    torch.manual_seed(rank)  # each rank drops other activations
    if (folder / "state.pt").exists():
        state = torch.load(folder / "state.pt", weights_only=True)
        restore(state, model, optimizer, text)
        # >>> The step to go on with.
        # ??? After which step was it saved, and which is the first that is not in it?
        # ??? Count from zero: which step does the loop make first?
        first = state["step"] + 1
        # <<< first = 0
    for step in range(first, STEPS):
        x, y = text.next(rank, num_ranks)
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x).flatten(0, 1), y.flatten()).backward()
        average(model)
        optimizer.step()
        if (step + 1) % EVERY == 0:
            state = {**capture(model, optimizer, text), "step": step}
            if rank == 0:
                torch.save(state, folder / "state.part")
                # A file half written never has the name that is looked for.
                os.replace(folder / "state.part", folder / "state.pt")
    dist.destroy_process_group()
    return model


def measure() -> list[dict[str, Any]]:
    parameters = sum(p.numel() for p in build(SHAPE).parameters())
    save_steps = 3 * 4 * parameters / STORAGE  # each with two moments, in float32
    rows: list[dict[str, Any]] = []
    for every in range(1, STEPS // 2 + 1):
        taken = [STEPS + lost_at % every + STEPS // every * save_steps for lost_at in range(STEPS)]
        mean = sum(STEPS / each for each in taken) / STEPS
        rows.append({"case": "any", "every": every, "mean": mean, "worst": STEPS / max(taken)})
    return [*rows, {**max(rows, key=lambda row: row["mean"]), "case": "best"}]


if __name__ == "__main__":
    print(train(Path(sys.argv[1])) if "RANK" in os.environ else measure())
