"""Memory that runs out on one rank: all leave the step together, with one sentence."""

import os

import pytest
import torch

from stepladder.errors import OutOfMemory, RankOutOfMemory
from stepladder.train import climb
from stepladder.train.health.out_of_memory import largest_below, without_rehearsal
from tests.ranks import run
from tests.train.toys import llama, ragged, share_of

BATCHES = ragged(1)
FULL = "CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has 1.00 GiB free."


class Full(torch.autograd.Function):
    """A place in the graph whose backward finds no memory."""

    @staticmethod
    def forward(ctx, x):
        return x.view_as(x)

    @staticmethod
    def backward(ctx, grad):
        raise torch.OutOfMemoryError(FULL)


def plant(module, where: str, rows: int) -> None:
    """Have a pass with more than so many rows run out of memory in the last block."""

    def hook(_, inputs):
        (x, *rest) = inputs
        if x.shape[0] <= rows:
            return None
        if where == "forward":
            raise torch.OutOfMemoryError(FULL)
        return (Full.apply(x), *rest)

    module.blocks[-1].register_forward_pre_hook(hook)


def learn(plan: str, where: str, short: tuple[int, ...], leaves: bool):
    """One step; what this rank was told and when, as a value."""
    taken = climb(llama(), loss="cross_entropy", optimizer="sgd lr=0.5", plan=plan, device="cpu")
    world = taken.world
    if world.place.rank in short:
        plant(taken.module, where, rows=0)
    mine = share_of(BATCHES[0], world.data_index, world.layout.data_ranks, 1)
    try:
        taken.step(mine, rows="rank")
    except RankOutOfMemory:
        if leaves and world.place.rank in short:
            os._exit(3)  # as a process does that ends with this error
        raise
    return taken.index


@pytest.mark.parametrize("where", ["forward", "backward"])
@pytest.mark.parametrize("plan", ["ddp", "zero3"])
def test_all_leave_the_step_with_the_same_sentence(plan, where):
    with pytest.raises(RankOutOfMemory) as raised:  # nobody waits for the time-out, of 600 s
        run(learn, 2, f"fp32 {plan} micro=6", where, (1,), True, timeout_seconds=120)
    said = str(raised.value)
    assert said == "step 0: out of memory on rank 1 with micro-batches of 6. Go on with micro=3."
    assert "on rank 0 of 2" in raised.value.__notes__[0]  # it is the other one that speaks here
    assert raised.value.micro == 3


def test_ranks_that_both_run_out_agree():
    with pytest.raises(RankOutOfMemory, match="micro-batches of 6. Go on with micro=3."):
        run(learn, 2, "fp32 ddp micro=6", "forward", (0, 1), False)


def test_a_rank_that_lingers_does_not_keep_the_others():
    """It neither ends nor comes: their watch ends them, with the sentence."""
    with pytest.raises(RankOutOfMemory, match="out of memory on rank 1"):
        run(learn, 2, "fp32 ddp micro=6", "backward", (1,), False, timeout_seconds=120)


@pytest.mark.soak
def test_one_rank_is_told_where_its_step_ends_and_what_changes_free():
    taken = climb(llama(), loss="cross_entropy", plan="fp32", device="cpu")
    plant(taken.module, "forward", rows=0)
    batch = share_of(BATCHES[0], 0, 1, 1)
    with without_rehearsal(), pytest.raises(OutOfMemory) as raised:
        taken.step(batch)
    assert "Rehearsed" not in str(raised.value)
    with pytest.raises(OutOfMemory) as raised:
        taken.step(batch)
    said = str(raised.value)
    assert " GiB and the device has " in said and "Rehearsed, it ends in " in said
    assert "something else holds the rest. Cheapest ways down, rehearsed: " in said
    assert "recompute=" in said and " MiB); " in said


def test_micro_batches_of_one_row_cannot_shrink_further():
    with pytest.raises(RankOutOfMemory, match="on rank 1 with micro-batches of 1") as raised:
        run(learn, 2, "fp32 ddp micro=1", "forward", (1,), True)
    assert "Go on" not in str(raised.value) and raised.value.micro == 0


def test_rows_divide_by_what_is_agreed_on():
    assert [largest_below(now, 12) for now in (12, 6, 4, 3, 2, 1)] == [6, 3, 2, 1, 1, 0]
    assert largest_below(7, 7) == 1


@pytest.mark.parametrize(("rows", "said"), [(8, "Give batches of 4 rows, or micro=4 in the plan."),
                                            (1, "Shard the state, such as zero3")])  # fmt: skip
@pytest.mark.parametrize("call", ["evaluate", "predict"])
def test_an_evaluation_without_memory_names_smaller_batches(call, rows, said):
    module = torch.nn.Linear(4, 2)

    def hook(*_):
        raise torch.OutOfMemoryError(FULL)

    run = climb(module, loss="cross_entropy", plan="fp32", device="cpu")
    module.register_forward_pre_hook(hook)
    batch = torch.zeros(rows, 4), torch.zeros(rows, dtype=torch.long)
    with pytest.raises(OutOfMemory) as refused:
        getattr(run, call)([batch])
    text = str(refused.value)
    one = f"{rows} row{'s' * (rows > 1)}"
    assert text.startswith(f"memory: an evaluation ran out of it with {one} in a pass: the device")
    assert said in text and refused.value.__context__ is None
