"""A mixture that was trained on some ranks goes on in any other layout, its experts included."""

import pytest

from stepladder.train import climb
from tests.ranks import run
from tests.rungs.experts.test_expert_parallel import (
    STEPS,
    WORDS,
    assert_same,
    batch,
    gather,
    model,
    plain,
    start_with_one_thread,
)


def first_half(folder, plan):
    start_with_one_thread()
    trained = climb(
        model(), loss="cross_entropy", optimizer=WORDS["adamw"], plan=plan, device="cpu"
    )
    trained.step(batch(0), rows="global").read()
    trained.save(folder)


def second_half(folder, plan):
    start_with_one_thread()
    trained = climb(
        model(balance=0.5), loss="cross_entropy", optimizer=WORDS["adamw"], plan=plan, device="cpu"
    )
    trained.resume(folder)
    losses = [trained.step(batch(step), rows="global").loss for step in range(1, STEPS)]
    return gather(trained.module), losses


@pytest.mark.parametrize(
    ("saved", "before", "resumed", "after"),
    [
        (4, "fp32 experts=4", 4, "fp32 zero3 shard=2 experts=2"),
        (4, "fp32 zero3 shard=2 experts=2", 1, "fp32"),
        (1, "fp32", 2, "fp32 zero1 shard=1 experts=2"),
        (2, "fp32 zero1 shard=1 experts=2", 2, "fp32 zero3"),
    ],
)
def test_a_run_goes_on_in_another_layout(tmp_path, saved, before, resumed, after):
    run(first_half, saved, str(tmp_path / "run"), before)
    values, losses = plain("adamw")
    for result in run(second_half, resumed, str(tmp_path / "run"), after):
        assert_same(result, (values, losses[1:]), rtol=1e-3, atol=1e-5)
