"""Loss curves under compression: what is sent, what is owed, and what error feedback is worth."""

import pytest
import torch
from torch.nn.functional import cross_entropy

from stepladder.bench import make_workload
from stepladder.bench.loss_curves.compression_curves import (
    CASES,
    OPTIMIZER,
    CompressionCase,
    forget_errors,
    measure_compression_curves,
    share_of,
)
from stepladder.bench.loss_curves.final_loss import differences
from stepladder.errors import PlanError
from stepladder.launch import Ranks
from stepladder.train import climb
from tests.ranks import POOL, run

MODEL = "gpt:layers=1,hidden=16,heads=2,vocab=256"


class Pair:
    """The kept ranks, as many as a table asks for."""

    ranks = 2
    call = staticmethod(POOL.call)


def workload(batch=4, steps=12):
    return make_workload(MODEL, batch=batch, sequence=16, num_batches=steps, device="cpu")


def curves(*cases, batch=4, steps=3):
    return list(measure_compression_curves(Pair(), workload(batch, steps), cases, "sgd lr=0.5"))


@pytest.mark.soak
def test_every_row_sees_the_same_batches_and_sends_what_its_compression_says():
    plain, narrow, thin, lossy = curves(
        CompressionCase("none"),
        CompressionCase("bf16"),
        CompressionCase("powersgd:1"),
        CompressionCase("powersgd:1", error_feedback=False),
    )
    assert narrow.step_bytes * 2 == plain.step_bytes
    assert thin.step_bytes == lossy.step_bytes < plain.step_bytes / 3
    assert {curve.losses[0] for curve in (plain, narrow, thin, lossy)} == {plain.losses[0]}
    assert narrow.losses[1] == pytest.approx(plain.losses[1], rel=1e-3)
    assert thin.losses[1] == lossy.losses[1], "there is nothing to feed back in the first step"
    assert thin.losses[2] != lossy.losses[2], "in the second there is"


def test_a_seed_is_one_of_the_first_weights_on_the_same_batches():
    case = CompressionCase("none")
    first, second = measure_compression_curves(Pair(), workload(steps=1), [case], seeds=2)
    assert (first.seed, second.seed) == (0, 1) and first.losses != second.losses


def first_step():
    """By matrix, what a step at a rate of 1 applied and what this rank still owes; then forget."""
    work = workload(steps=1)
    model = work.make()
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    plan = "fp32 ddp compress=powersgd:1 batch=4"
    trained = climb(
        model, loss=work.loss, plan=plan, optimizer="sgd lr=1.0", clip=None, device="cpu"
    )
    trained.step(share_of(work.batches[0], trained))
    compression = trained.climbed.forward_backward.gradient_sync.compression
    after = {name.removeprefix("module."): p for name, p in trained.module.named_parameters()}
    found = {
        name: ((before[name] - after[name]).detach(), compression.missed[after[name]].clone())
        for name in before
        if after[name] in compression.missed
    }
    forget_errors(trained)
    return found, len(compression.missed)


def whole_gradient():
    """Of the whole batch, by autograd on one process."""
    work = workload(steps=1)
    model, batch = work.make(), work.batches[0]
    logits = model(batch.inputs)
    cross_entropy(logits.flatten(0, 1), batch.targets.flatten()).backward()
    return {name: parameter.grad for name, parameter in model.named_parameters()}


def test_what_was_sent_and_what_is_owed_add_up_to_the_gradient():
    (mine, left), (other, _) = run(first_step, 2)
    assert mine and left == 0, "without error feedback nothing is owed any more"
    whole = whole_gradient()
    for name, (sent, owed) in mine.items():
        owed = (owed + other[name][1]).view(sent.shape) / 2  # of the mean over both ranks
        assert owed.norm() > 0.05 * whole[name].norm(), "factors of one column miss something"
        torch.testing.assert_close(sent + owed, whole[name], atol=1e-5, rtol=1e-3)


@pytest.mark.soak
def test_error_feedback_ends_lower_in_every_seed():
    """With the weakest compression that is tried, over the usual training."""
    shape = "gpt:layers=2,hidden=64,heads=2,vocab=256"
    work = make_workload(shape, batch=8, sequence=64, num_batches=150, device="cpu")
    cases = [case for case in CASES if case.compress == "powersgd:1"]
    found = list(measure_compression_curves(Pair(), work, cases, OPTIMIZER, seeds=3))
    fed, lossy = ([row.final for row in found if row.case == case] for case in cases)
    assert all(gap > 0 for gap in differences(lossy, fed))


def test_a_training_that_breaks_off_says_where():
    cases = [CompressionCase("bf16")]
    (row,) = measure_compression_curves(Pair(), workload(steps=4), cases, "sgd lr=1e30")
    assert row.final is None and row.problem.startswith("diverged in step")


def test_what_cannot_be_compared_is_refused():
    with pytest.raises(PlanError, match=r"3 samples do not divide over 2 ranks. Nearest .* 2 or 4"):
        curves(CompressionCase("none"), batch=3)
    images = make_workload("mlp-tiny", batch=4, sequence=16, device="cpu")
    with pytest.raises(PlanError, match="mlp-tiny would learn random images"):
        next(measure_compression_curves(Pair(), images))
    assert Ranks(2).ranks == Pair.ranks, "what the function reads of a pool"
