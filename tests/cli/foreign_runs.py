"""What each rank does with a converted plan."""

import torch

from stepladder.model import build
from stepladder.train import climb

SHAPE = "gpt:layers=4,hidden=32,heads=4,vocab=64,sequence=16"


def take_steps(plan):
    run = climb(build(SHAPE), loss="cross_entropy", plan=plan, device="cpu")
    tokens = torch.randint(0, 64, (32, 17), generator=torch.Generator().manual_seed(0))
    source = [(row[:-1], row[1:]) for row in tokens]
    with run.batches(source) as feed:
        return [run.step(batch).loss for _, batch in zip(range(2), feed)]
