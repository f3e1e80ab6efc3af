"""What compression has not sent yet is part of a run: kept, gone on with, and never lost unsaid."""

import torch

from stepladder.train import climb
from tests.ranks import run
from tests.train.toys import llama, ragged, share_of

BATCHES = ragged(6)
THIN = "fp32 ddp compress=powersgd:1 micro=1"


def learn(plan: str, first: int, last: int, folder: str):
    """Losses of these steps, what is owed afterwards, and what the run said."""
    taken = climb(llama(seed=first), loss="cross_entropy", optimizer="sgd lr=0.5", plan=plan)
    if first:
        taken.load(folder)
    compression = taken.climbed.forward_backward.gradient_sync.compression
    owed = {}
    if compression is not None:
        named = dict(taken.module.named_parameters())
        owed = {
            n: compression.missed[p].clone() for n, p in named.items() if p in compression.missed
        }
    world = taken.world
    losses = []
    for batch in BATCHES[first:last]:
        mine = share_of(batch, world.data_index, world.layout.data_ranks, 1)
        losses.append(taken.step(mine, rows="rank").loss)
    if last < len(BATCHES):
        taken.save(folder)
        owed = {
            n: compression.missed[p].clone() for n, p in named.items() if p in compression.missed
        }
    events = list(taken.events)
    world.close()
    return losses, owed, events


def go(ranks: int, *args):
    return run(learn, ranks, *args, init=False, timeout_seconds=120)


def test_a_compressed_run_goes_on_bit_for_bit_and_on_other_ranks_with_all_that_was_owed(tmp_path):
    straight = go(2, THIN, 0, 6, str(tmp_path / "whole"))[0][0]
    parts = go(2, THIN, 0, 3, str(tmp_path / "run"))
    after = go(2, THIN, 3, 6, str(tmp_path / "run"))
    assert parts[0][0] + after[0][0] == straight

    before = [owed for _, owed, _ in parts]
    assert before[0] and any(not torch.equal(before[0][n], before[1][n]) for n in before[0])
    others = go(3, THIN, 3, 6, str(tmp_path / "run"))
    for _, owed, _ in others:
        for name, kept in owed.items():
            assert torch.equal(kept, torch.stack([b[name] for b in before]).mean(0))


def test_a_plan_that_cannot_pay_says_what_is_lost(tmp_path):
    go(2, THIN, 0, 3, str(tmp_path))
    (losses, _, events), _ = go(2, "fp32 zero3 micro=1", 3, 6, str(tmp_path))
    assert len(losses) == 3
    (said,) = events
    assert "that compression had not sent yet are lost" in said and "zero3" in said
