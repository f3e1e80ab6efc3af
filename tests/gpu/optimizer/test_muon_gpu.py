"""Muon on a GPU: against paper, compiled, and through a step whose update is left out."""

import pytest
import torch

from stepladder.plan import Optimizer, Precision
from stepladder.train import climb
from stepladder.verify.plain.plain_loop import PlainLoop
from tests.train.optimizer.muon.toys import MUON, NORMUON, apart, batch, make, whole

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]


def begin(plan, optimizer):
    return climb(make(), loss="cross_entropy", optimizer=optimizer, plan=plan, device="cuda")


@pytest.mark.parametrize("optimizer", [MUON, NORMUON])
def test_float32_is_what_paper_says(optimizer):
    run, other = begin("fp32 micro=4", optimizer), make()
    plain = PlainLoop(
        other, "cross_entropy", Precision.parse("fp32"), Optimizer.parse(optimizer),
        blocks=["blocks.0", "blocks.1"], device="cuda",
    )  # fmt: skip
    for step in range(3):
        inputs, targets = (tensor.cuda() for tensor in batch(step))
        assert run.step((inputs, targets)).loss == pytest.approx(
            plain.step(inputs, targets).loss, rel=1e-4
        )
    assert apart(whole(run.module), whole(other)) < 1e-4


def test_compiled_in_bfloat16_it_learns_the_same():
    plain, compiled = begin("bf16 compile=off", MUON), begin("bf16 compile=on", MUON)
    assert compiled.optimizer.work.orthogonalise is not plain.optimizer.work.orthogonalise
    for step in range(3):
        losses = [run.step(batch(step)).loss for run in (plain, compiled)]
        assert losses[0] == pytest.approx(losses[1], rel=0.02)


def test_an_update_that_is_left_out_changes_nothing_and_waits_for_nothing():
    run = climb(
        make(), loss="cross_entropy", optimizer=NORMUON, plan="fp32", device="cuda",
        nonfinite="skip",
    )  # fmt: skip
    run.step(batch(0)).read()
    before = whole(run.module)
    kept = [run.optimizer.state[one.owned]["momentum_buffer"].clone() for one in run.optimizer.held]
    with torch.no_grad():
        weight = run.module.get_parameter("norm.weight")
        saved = weight.clone()
        weight[0] = float("nan")
    run.step(batch(1)).read()
    with torch.no_grad():
        weight.copy_(saved)
    assert all(torch.equal(value, before[name]) for name, value in whole(run.module).items())
    now = [run.optimizer.state[one.owned]["momentum_buffer"] for one in run.optimizer.held]
    assert all(torch.equal(a, b) for a, b in zip(kept, now))
