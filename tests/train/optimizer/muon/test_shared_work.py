"""Who computes which matrix: every owner gets every number once, and work is even."""

from collections import Counter

import pytest

from stepladder.checkpoint import TensorSlice
from stepladder.model.anatomy.hidden_matrices import MatrixShape
from stepladder.plan.shared_constants import MUON_ROUND_BYTES
from stepladder.planner.time.orthogonalise_time import OrthogonaliseRates, newton_schulz_flops
from stepladder.train import climb
from stepladder.train.optimizer.muon.shared_work import (
    SHARINGS,
    Matrix,
    choose_owners,
    make_share,
    results_from_owners,
    seconds,
    share_work,
    slices_to_owners,
)
from tests.ranks import run

from .toys import MUON, make

RANKS = 4
FREE_LINKS = OrthogonaliseRates(1.0, 1e30, 0.0)
FREE_PRODUCTS = OrthogonaliseRates(1e30, 1.0, 0.0)


def halves(rows, columns):
    """Two copies of two halves, as `replicate=2 shard=2` has them."""
    half = rows // 2
    parts = [(TensorSlice((start, 0), (half, columns)),) for start in (0, half)]
    return Matrix("w", MatrixShape(rows, columns), (*parts, *parts), (0, 0, 1, 1))


def copies(rows, columns):
    whole = (TensorSlice((0, 0), (rows, columns)),)
    return Matrix("w", MatrixShape(rows, columns), (whole,) * RANKS, (0, 1, 2, 3))


def elements(messages):
    return [
        (row, column)
        for message in messages
        for part in message.slices
        for row in range(part.start[0], part.start[0] + part.size[0])
        for column in range(part.start[1], part.start[1] + part.size[1])
    ]


@pytest.mark.parametrize("sharing", SHARINGS)
@pytest.mark.parametrize("make", [halves, copies])
def test_every_owner_gets_each_number_once_and_every_rank_what_it_holds(sharing, make):
    matrix = make(6, 4)
    owners = choose_owners(sharing, matrix, [0.0] * RANKS)
    every = Counter((row, column) for row in range(6) for column in range(4))
    there = list(slices_to_owners(0, matrix, owners))
    for owner in owners:
        assert Counter(elements(m for m in there if m.receiver == owner)) == every
    back = list(results_from_owners(0, matrix, owners))
    assert all(message.sender in owners for message in back)
    assert all(
        [m.slices for m in back if m.receiver == rank] == [matrix.holdings[rank]]
        for rank in range(RANKS)
    )


def test_copies_do_not_send_to_each_other_where_each_has_an_owner():
    matrix = halves(6, 4)
    owners = choose_owners("each copy", matrix, [1.0, 0.0, 0.0, 1.0])
    assert owners == (1, 2)
    messages = [*slices_to_owners(0, matrix, owners), *results_from_owners(0, matrix, owners)]
    assert all(matrix.copies[m.sender] == matrix.copies[m.receiver] for m in messages)


def test_the_costliest_matrices_are_dealt_first():
    matrices = [copies(8, 8), copies(32, 32), copies(32, 32), copies(16, 16), copies(32, 32)]
    share = make_share("one", matrices, 3, 5, 2)
    busy = [0.0] * 3
    for matrix, owners in zip(matrices, share.owners):
        busy[owners[0]] += matrix.flops(5)
    assert share.owners[3] == (0,) and share.owners[0] == (1,)
    assert max(busy) == newton_schulz_flops(32, 32, 5) + newton_schulz_flops(16, 16, 5)


def test_the_forecast_chooses_who_computes():
    whole, sliced = [copies(64, 64)] * 8, [halves(64, 64)] * 8
    assert share_work(whole, RANKS, 5, 2, FREE_LINKS).sharing == "one"
    assert share_work(whole, RANKS, 5, 2, FREE_PRODUCTS).sharing == "each copy"
    assert share_work(sliced, RANKS, 5, 2, FREE_LINKS).sharing == "one"
    late = OrthogonaliseRates(1e30, 1e30, 1.0)  # one exchange instead of two
    assert share_work(whole, RANKS, 5, 2, late).sharing == "each copy"
    assert share_work(sliced, RANKS, 5, 2, late).sharing == "everyone"


def test_seconds_are_those_of_the_busiest_rank():
    share = make_share("one", [copies(8, 4)], RANKS, 5, 2)
    rates = OrthogonaliseRates(10.0, 4.0, 0.5)
    sent = 3 * 8 * 4 * 2  # results, to three other ranks: all of them have the slices
    wanted = newton_schulz_flops(8, 4, 5) / 10 + sent / 4 + 0.5
    assert seconds(share, [copies(8, 4)], RANKS, 5, 2, rates) == pytest.approx(wanted)


def test_a_round_holds_no_more_than_its_bytes():
    rows = 2048
    matrices = [copies(rows, rows)] * 70
    share = make_share("everyone", matrices, RANKS, 5, 2)
    sizes = [len(share.in_round(number)) * rows * rows * 2 for number in range(share.num_rounds)]
    assert share.num_rounds == 3 and max(sizes) <= MUON_ROUND_BYTES


def test_the_choice_says_what_the_forecast_is_of_each():
    share = share_work([copies(64, 32)], RANKS, 5, 4, OrthogonaliseRates(1e9, 1e6, 1e-4))
    assert share.sharing == "each copy"
    assert share.because == (
        "muon: a matrix is computed by one rank of each copy, 1.6 ms a step by forecast (by one "
        "rank of all 26, every rank 1.6)"
    )
    whole = copies(6, 4)
    alone = Matrix("w", whole.shape, whole.holdings[:1], (0,))
    assert share_work([alone], 1, 5, 4, FREE_LINKS).because == ""


def told():
    return climb(
        make(), loss="cross_entropy", optimizer=MUON, plan="fp32 zero3 micro=2", device="cpu"
    ).events


def test_a_run_says_who_computes_its_matrices():
    for events in run(told, 2, init=False):
        assert any(event.startswith("muon: a matrix is computed by ") for event in events)
