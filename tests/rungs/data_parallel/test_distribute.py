"""Any module is spread over ranks by any plan: what comes out is what one device computes."""

import os
from functools import cache, partial

import pytest

from stepladder.errors import ModelError, PlanError
from tests.kernels.graph.compiling import without_machine_code
from tests.ranks import run
from tests.rungs.rank_toys import feed, learn, odd, same, start
from tests.soak import soak_after
from tests.train.toys import llama, ragged

SGD, ADAM = "sgd lr=0.5", "adamw lr=1e-2 wd=0.1 clip=0.5"
alone = cache(learn)


ODD = [("fp32 ddp", SGD), ("fp32 zero1", ADAM), ("fp32 zero2", SGD), ("fp32 zero3", ADAM)]
ODD += [("fp32 ddp", ADAM), ("fp32 zero1", SGD), ("fp32 zero2", ADAM), ("fp32 zero3", SGD)]


@pytest.mark.parametrize(("plan", "optimizer"), soak_after(ODD, gate=4))
def test_an_odd_module_learns_the_same_on_two_ranks(plan, optimizer):
    """Its branch is used in some steps, in some passes, and on one rank only; sizes are uneven."""
    expected = alone("fp32", odd, optimizer)
    for found in run(learn, 2, plan, odd, optimizer, init=False):
        same(found, expected)


@pytest.mark.parametrize("optimizer", soak_after([SGD, ADAM]))
@pytest.mark.parametrize(
    "plan",
    soak_after(
        [
            "fp32 zero3 shard=4",
            "fp32 zero2 replicate=2 shard=2",
            "fp32 zero3 replicate=2 shard=2",
            "fp32 zero1 replicate=2 shard=2",
        ],
        gate=2,
    ),
)
def test_four_ranks_in_copies_and_slices(plan, optimizer):
    """Of four slices of a parameter with one or three rows some are empty."""
    expected = alone("fp32", odd, optimizer)
    for found in run(learn, 4, plan, odd, optimizer, init=False):
        same(found, expected)


def engines(plan):
    taken = start(plan, odd)
    return type(taken.climbed.forward_backward.gradient_sync.module).__name__


def test_whole_copies_of_plain_tensors_are_ddps():
    assert run(engines, 2, "fp32 ddp", init=False) == ["DistributedDataParallel"] * 2
    assert run(engines, 2, "fp32 zero3", init=False) == ["FSDPOdd"] * 2


def from_different_modules(plan):
    """Every rank hands over a module of its own."""
    return learn(plan, partial(odd, seed=int(os.environ["RANK"])), steps=2)


@pytest.mark.parametrize("plan", ["fp32 ddp", "fp32 zero1", "fp32 zero3"])
def test_rank_0s_values_win_wherever_ranks_hand_over_different_modules(plan):
    expected = alone("fp32", odd, steps=2)
    for found in run(from_different_modules, 2, plan, init=False):
        same(found, expected)


def test_a_frozen_module_is_refused_before_it_is_spread():
    def frozen():
        return odd().requires_grad_(False)

    with pytest.raises(ModelError, match="Odd: has no trainable parameter"):
        start("fp32", frozen)


@pytest.mark.parametrize(
    ("plan", "optimizer", "problem"),
    [
        (
            "fp32 compress=bf16",
            "sgd",
            "compress: bf16 shrinks gradients that whole copies exchange, and there are none. "
            "Use ddp with several ranks, or compress=none.",
        ),
        (
            "fp32 offload=parameters",
            "sgd",
            "offload: parameters can wait on the host only where each block gathers them before "
            "use. Use zero3, or offload=optimizer.",
        ),
    ],
)
def test_what_cannot_be_asked_for_together_is_refused(plan, optimizer, problem):
    with pytest.raises(PlanError) as raised:
        start(plan, odd, optimizer)
    assert str(raised.value) == problem


def refused(plan, optimizer):
    with pytest.raises(PlanError) as raised:
        start(plan, odd, optimizer)
    return str(raised.value)


def test_adafactor_is_refused_on_slices():
    for problem in run(refused, 2, "fp32 zero1", "adafactor", init=False):
        assert problem == (
            "optimizer: adafactor averages rows and columns of whole matrices, "
            "and shard=2 slices them. Use adamw, or ddp with whole copies."
        )


def sequences(plan, optimizer):
    taken = start(plan, llama, optimizer)
    return feed(taken, ragged(3))


@pytest.mark.parametrize("optimizer", soak_after([SGD, ADAM]))
@pytest.mark.parametrize(
    "plan",
    soak_after(
        [
            "fp32 ddp replicate=2 tensor=2",  # cut parameters, which DDP does not take
            "fp32 zero3 shard=2 tensor=2",
            "fp32 zero1 shard=2 context=2",
            "fp32 zero1 shard=2 tensor=2",
            "fp32 zero3 shard=2 context=2",
        ],
        gate=2,
    ),
)
def test_copies_and_slices_of_what_other_axes_cut(plan, optimizer):
    losses, norms = sequences("fp32", optimizer)
    for found in run(sequences, 4, plan, optimizer, init=False):
        assert found[0] == pytest.approx(losses, rel=1e-5)
        assert found[1] == pytest.approx(norms, rel=1e-5)


def compiled(plan):
    with without_machine_code():
        return sequences(f"{plan} compile=on", SGD)[0]


@pytest.mark.parametrize("plan", soak_after(["fp32 zero3", "fp32 ddp"]))
def test_compiled_blocks_are_copied_and_sliced(plan):
    expected = sequences("fp32", SGD)[0]
    for found in run(compiled, 2, plan, init=False):
        assert found == pytest.approx(expected, rel=1e-5)
