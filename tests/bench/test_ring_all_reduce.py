"""The ring: its schedule, its bytes (by formula, by count, by the kernel), its sums and bits."""

import hashlib
from dataclasses import replace

import pytest
import torch
import torch.distributed as dist
from hypothesis import given
from hypothesis import strategies as st

from stepladder.bench.ring_all_reduce import (
    chunk_lengths,
    ring_all_reduce,
    ring_bytes,
    ring_hops,
    ring_share,
    ring_states,
    row_of,
)
from stepladder.measure import sent_since, wire_bytes
from tests.ranks import run

LENGTHS = (0, 1, 2, 3, 7, 96, 1001)
TYPES = (torch.float32, torch.bfloat16, torch.float64)


@pytest.mark.parametrize("ranks", range(1, 9))
def test_at_each_step_every_rank_sends_one_chunk_and_receives_one(ranks):
    hops = ring_hops(ranks)
    assert len(hops) == 2 * (ranks - 1) * ranks
    for step in range(2 * (ranks - 1)):
        now = [hop for hop in hops if hop.step == step]
        assert sorted(hop.source for hop in now) == sorted(h.target for h in now) == [*range(ranks)]
        assert all(hop.target == (hop.source + 1) % ranks for hop in now)
        assert len({hop.chunk for hop in now}) == ranks


@pytest.mark.parametrize("ranks", range(1, 9))
def test_half_way_each_rank_has_one_whole_chunk_and_at_the_end_all(ranks):
    states = ring_states(ranks)
    assert [chunks.count(ranks) for chunks in states[ranks - 1]] == [1] * ranks
    assert states[-1] == [[ranks] * ranks] * ranks


@given(st.integers(0, 10_000), st.integers(1, 64), st.sampled_from([2, 4, 8]))
def test_the_volume_is_exactly_two_times_n_less_one_over_n(elements, ranks, width):
    sent = [ring_bytes(elements, width, ranks, rank) for rank in range(ranks)]
    whole = elements * width
    assert sum(sent) == 2 * (ranks - 1) * whole
    assert max(sent) - min(sent) <= 2 * width
    if elements % ranks == 0:
        assert all(one * ranks == 2 * (ranks - 1) * whole for one in sent)


@given(st.integers(0, 1000), st.integers(1, 9))
def test_chunks_are_what_torch_cuts(elements, ranks):
    cut = torch.zeros(elements).tensor_split(ranks)
    assert chunk_lengths(elements, ranks) == [len(chunk) for chunk in cut]


def sums() -> list[tuple[str, bool, float, int, int]]:
    """Each length and type: digest, exactness on whole numbers, difference, sent, formula."""
    rank, ranks = dist.get_rank(), dist.get_world_size()
    draw = torch.Generator().manual_seed(rank)
    found = []
    for length in LENGTHS:
        for kind in TYPES:
            whole = torch.randint(0, 20, (length,), generator=draw).to(kind)
            mine, theirs = whole.clone(), whole.clone()
            sent = ring_all_reduce(mine)
            dist.all_reduce(theirs)
            some = torch.randn(length, generator=draw, dtype=torch.float64).to(kind)
            ring, backend = some.clone(), some.clone()
            ring_all_reduce(ring)
            dist.all_reduce(backend)
            apart = (ring - backend).abs().max().item() if length else 0.0
            bits = hashlib.sha256(ring.view(torch.uint8).numpy().tobytes()).hexdigest()
            formula = ring_bytes(length, kind.itemsize, ranks, rank)
            found.append((bits, torch.equal(mine, theirs), apart, sent, formula))
    return found


ROUNDING = {torch.float32: 2e-6, torch.bfloat16: 0.13, torch.float64: 1e-14}


@pytest.mark.parametrize("ranks", [1, 2, 3, 4])
def test_the_sum_is_the_backends_and_the_same_bits_everywhere(ranks):
    by_rank = run(sums, ranks)
    cases = [(length, kind) for length in LENGTHS for kind in TYPES]
    for (length, kind), seen in zip(cases, zip(*by_rank)):
        bits, exact, apart, sent, formula = zip(*seen)
        assert len(set(bits)) == 1, (length, kind)
        assert all(exact), (length, kind)
        assert max(apart) <= ROUNDING[kind] * (ranks > 1), (length, kind)
        assert sent == formula, (length, kind)


def odd_ones() -> tuple[list, list, list]:
    """A tensor not stored in a row, one that wants gradients, and a group of some ranks."""
    rank = dist.get_rank()
    turned = (torch.arange(6.0).reshape(2, 3) + rank).t()
    ring_all_reduce(turned)
    wanted = torch.full((5,), float(rank), requires_grad=True)
    ring_all_reduce(wanted.data)
    some = dist.new_group([0, 2])
    few = torch.full((5,), float(rank + 1))
    if rank != 1:
        ring_all_reduce(few, some)
    return turned.tolist(), wanted.tolist(), few.tolist()


def test_any_layout_in_memory_and_any_group():
    expected = (3 * torch.arange(6.0).reshape(2, 3) + 3).t().tolist()
    first, second, third = run(odd_ones, 3)
    assert first[0] == second[0] == third[0] == expected
    assert first[1] == [3.0] * 5
    assert (first[2], second[2], third[2]) == ([4.0] * 5, [2.0] * 5, [4.0] * 5)


def sent_by_the_kernel(elements: int) -> tuple[int, int]:
    values = torch.ones(elements)
    ring_all_reduce(values)
    dist.barrier()
    before = wire_bytes()
    sent = ring_all_reduce(values)
    dist.barrier()
    wire = sent_since(before)
    dist.barrier()  # whoever leaves before the others have counted takes their count along
    return wire, sent


@pytest.mark.parametrize("ranks", [2, 3])
def test_the_kernel_counts_the_bytes_the_formula_says(ranks):
    elements = 250_001
    for rank, (wire, sent) in enumerate(run(sent_by_the_kernel, ranks, elements)):
        assert sent == ring_bytes(elements, 4, ranks, rank)
        assert sent <= wire < sent + 4096, "headers and a barrier come on top"


def test_a_row_is_the_slowest_rank_and_says_what_is_wrong():
    shares = run(ring_share, 2, 2, 1001, "cpu", 2, init=False)
    row = row_of(4004, shares)
    assert row.exact and row.same and row.ring_ms > 0 and row.backend_ms > 0
    assert row.sent_bytes == row.formula_bytes == 4004
    assert row.difference < 1e-6
    slow = replace(shares[1], ring_seconds=9.0)
    assert row_of(4004, [shares[0], slow]).ring_ms == 9000
    assert not row_of(4004, [shares[0], replace(shares[1], digest="other")]).same
    assert not row_of(4004, [shares[0], replace(shares[1], sent_bytes=1)]).exact
