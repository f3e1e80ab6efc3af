"""Masters on several ranks: what one device learns, in 16 bytes and in fewer."""

from functools import cache

import pytest
import torch

from stepladder.train import climb
from stepladder.train.optimizer.compact.compact_adam import state_of
from tests.ranks import run
from tests.soak import soak_after
from tests.train.toys import llama, ragged

ADAM = "adamw lr=1e-3 wd=0.1"
TWO = ["zero3", "zero1", "ddp", "tensor=2", "zero2", "pipeline=2 micro=3", "context=2"]


def begin(plan, seed=0):
    return climb(llama(seed), loss="cross_entropy", optimizer=ADAM, plan=plan, device="cpu")


def learn(plan, folder=None, steps=2):
    """Losses, and a checkpoint of the end."""
    torch.set_num_threads(1)
    learned = begin(plan)
    losses = [learned.step(batch, rows="global").loss for batch in ragged(steps)]
    if folder is not None:
        learned.save(folder)
    return losses


alone = cache(learn)


def masters(folder):
    """Of a checkpoint of several ranks, on one."""
    loaded = begin("bf16-master", seed=9)
    loaded.load(folder)
    return {n: state_of(loaded.optimizer, p) for n, p in loaded.module.named_parameters()}


@pytest.mark.parametrize("plan", soak_after(TWO, gate=4))
def test_two_ranks_learn_what_one_does(plan, tmp_path):
    wide, narrow = tmp_path / "16", tmp_path / "14"
    [losses, other] = run(learn, 2, f"bf16-master {plan}", wide, init=False)
    assert losses == other == pytest.approx(alone("bf16-master"), rel=3e-3)
    assert run(learn, 2, f"bf16-master state=14 {plan}", narrow, init=False)[0] == losses
    given = dict(llama().named_parameters())
    for (name, one), other in zip(masters(wide).items(), masters(narrow).values()):
        assert all(torch.equal(one[key], other[key]) for key in one), name
        moved = (one["master"] - given[name]).abs().max()
        assert moved < 2.5e-3, "two steps from the float32 values"


@pytest.mark.parametrize("plan", soak_after(["zero3", "zero1"], gate=1))
@pytest.mark.parametrize("size", [10, 7])
def test_fewer_bytes_learn_on_two_ranks_and_go_on_on_one(size, plan, tmp_path):
    words = f"bf16-master state={size}"
    [losses, _] = run(learn, 2, f"{words} {plan}", tmp_path, init=False)
    assert losses == pytest.approx(alone(words), rel=3e-3)
    again = begin(words, seed=9)
    again.load(tmp_path)
    expected = alone(words, steps=3)[2]
    assert again.step(ragged(3)[2]).loss == pytest.approx(expected, rel=5e-3)


def test_masters_begin_as_the_values_that_rank_0_was_given(tmp_path):
    run(learn, 2, "bf16-master zero3", tmp_path, 0, init=False)
    given = dict(llama().named_parameters())
    for name, state in masters(tmp_path).items():
        assert torch.equal(state["master"], given[name])
