"""Muon where ranks hold different experts: each expert's matrices are whole on some rank."""

from functools import cache

import pytest
import torch

from stepladder.plan import Optimizer, Precision
from stepladder.train import climb
from stepladder.verify.plain.plain_loop import PlainLoop
from tests.ranks import run
from tests.rungs.experts.small_mixture import batch, mixture
from tests.soak import soak_after

from .toys import MUON, NORMUON, apart, whole

SHAPE = "llama:layers=2,hidden=16,heads=2,vocab=32,ffn=16,experts=4,active=2,sequence=8"
STEPS = 3


def learn(plan, optimizer=MUON, folder=None, start=0, stop=STEPS):
    torch.set_num_threads(1)
    trained = climb(
        mixture(SHAPE), loss="cross_entropy", optimizer=optimizer, plan=plan, device="cpu"
    )
    if start:
        trained.load(folder)
    losses = [trained.step(batch(s), rows="global").loss for s in range(start, stop)]
    if folder and not start:
        trained.save(folder)
    return losses, whole(trained.module)


alone = cache(learn)


@pytest.mark.parametrize(
    ("plan", "ranks"),
    [
        ("fp32 experts=2", 2),
        ("fp32 zero1 shard=1 experts=2 micro=2", 2),
        *soak_after(
            [
                ("fp32 zero3 shard=1 experts=2", 2),
                ("fp32 ddp replicate=2 experts=2", 4),
                ("fp32 zero3 shard=2 experts=2", 4),
                ("fp32 experts=2 pipeline=2 micro=2", 4),
                ("fp32 experts=2 context=2", 4),
            ],
            gate=2,
        ),
    ],
)
@pytest.mark.parametrize("optimizer", [MUON, NORMUON])
def test_ranks_with_other_experts_learn_what_one_device_does(plan, ranks, optimizer):
    losses, parts = alone("fp32", optimizer)
    found = run(learn, ranks, plan, optimizer)
    for mine, here in found:
        assert mine == pytest.approx(losses, rel=1e-5)
        assert apart(here, parts) < 1e-5
    assert set().union(*(here for _, here in found)) == set(parts)


@pytest.mark.parametrize("optimizer", [MUON, NORMUON])
def test_paper_says_the_same_of_stacked_experts(optimizer):
    other = mixture(SHAPE, balance=0, z_loss=0)
    plain = PlainLoop(
        other, "cross_entropy", Precision.parse("fp32"), Optimizer.parse(optimizer),
        blocks=["blocks.0", "blocks.1"], device="cpu",
    )  # fmt: skip
    trained = climb(
        mixture(SHAPE, balance=0, z_loss=0), loss="cross_entropy", optimizer=optimizer,
        plan="fp32", device="cpu",
    )  # fmt: skip
    for step in range(STEPS):
        assert trained.step(batch(step)).loss == pytest.approx(plain.step(*batch(step)).loss)
    assert apart(whole(trained.module), whole(other)) < 1e-4


def test_a_resumed_run_goes_on_to_the_last_bit_and_in_another_layout(tmp_path):
    words = "fp32 experts=2"
    whole_run = run(learn, 2, words, NORMUON)
    run(learn, 2, words, NORMUON, str(tmp_path), 0, 2)
    again = run(learn, 2, words, NORMUON, str(tmp_path), 2, STEPS)
    for (losses, parts), (now, others) in zip(whole_run, again):
        assert now == losses[2:]
        assert all(torch.equal(parts[name], others[name]) for name in parts)
    now, others = learn("fp32", NORMUON, str(tmp_path), 2, STEPS)
    assert now == pytest.approx(whole_run[0][0][2:], rel=1e-6)
    assert apart(others, whole_run[0][1]) < 1e-5
