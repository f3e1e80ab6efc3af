"""A copy that drifted is named, by every rank, whatever drifted and however little."""

import pytest
import torch

from stepladder.errors import WorldError
from stepladder.plan import Layout
from stepladder.train import climb
from stepladder.train.health.replica_check import deviating, fingerprint
from tests.ranks import run
from tests.train.toys import llama, ragged


def test_every_bit_counts():
    tensors = [torch.randn(3, 4), torch.randn(5).bfloat16()]
    before = fingerprint(tensors)
    assert fingerprint([t.clone() for t in tensors]) == before
    for tensor in tensors:
        bits = tensor.view(torch.uint8)
        for place in range(0, bits.numel(), 7):
            bits.view(-1)[place] ^= 1
            assert fingerprint(tensors) != before
            bits.view(-1)[place] ^= 1
    swapped = tensors[0].clone()
    swapped[0, 0], swapped[0, 1] = tensors[0][0, 1], tensors[0][0, 0]
    assert fingerprint([swapped, tensors[1]]) != before


@pytest.mark.parametrize("kind", [torch.float64, torch.float32, torch.bfloat16])
def test_one_number_in_many_is_seen_wherever_it_stands(kind):
    many = torch.zeros(2**20 + 5, dtype=kind)  # a table of words, and a rest
    found = {int(fingerprint([many]))}
    places = [*range(12), *range(1020, 1030), *range(4090, 4100), 2**19, 2**20 - 1, 2**20 + 4]
    for place in places:
        for value in (1.0, -0.0):
            many[place] = value
            found.add(int(fingerprint([many])))
            many[place] = 0.0
    assert len(found) == 1 + 2 * len(places)


def test_the_one_that_differs_from_most_is_named_among_its_copies():
    layout = Layout(replicate=4, tensor=2)  # ranks 0 2 4 6 hold one half, 1 3 5 7 the other
    prints = [1, 2, 1, 2, 9, 2, 1, 2]
    assert deviating(prints, layout, {"pipeline", "tensor"}) == [4]
    assert deviating([1, 2, 1, 2, 1, 2, 1, 2], layout, {"pipeline", "tensor"}) == []


def test_of_two_copies_that_differ_both_are_named():
    assert deviating([1, 2], Layout(replicate=2), {"pipeline"}) == [0, 1]
    assert deviating([1, 1, 2, 2], Layout(replicate=4), {"pipeline"}) == [0, 1, 2, 3]


def drift(plan: str, fault: str) -> str:
    taken = climb(llama(), loss="cross_entropy", optimizer="adamw lr=0.01", plan=plan, device="cpu")
    rank, ways = taken.world.place.rank, taken.world.layout.data_ranks
    (tokens, targets) = ragged(1)[0]
    mine = slice(taken.world.data_index, None, ways)
    taken.step((tokens[mine], targets[mine]), rows="rank")
    if fault == "one number" and rank == 1:
        with torch.no_grad():
            shard = taken.climbed.shards[3].owned
            shard.view(-1)[0] += 2**-20
    try:
        taken.check_copies()
    except WorldError as found:
        return str(found)
    return "alike"


@pytest.mark.parametrize("plan", ["fp32 ddp micro=1"])
def test_a_copy_that_drifted_is_named_on_every_rank(plan):
    said = run(drift, 3, plan, "one number", init=False)
    expected = "step 1: the parameters of rank 1 are not those of the other copies."
    assert all(message.startswith(expected) for message in said)
    assert run(drift, 3, plan, "none", init=False) == ["alike"] * 3
