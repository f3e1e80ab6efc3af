"""Adam whose state is kept in 14, 10 and 7 bytes a parameter, against masters in float32."""

import pytest
import torch

from stepladder.kernels import adamw_
from stepladder.kernels.backend import INTERPRETED
from stepladder.kernels.optimizer import compact_state as formats
from stepladder.kernels.optimizer.compact_adamw import CompactRow, compact_adamw_, expand, shrink

RULE = (1e-2, 0.9, 0.999, 1e-8, 0.1, True)
ONE, ZERO = torch.ones(()), torch.zeros(())


def row_of(master, size, *, mean=None, square=None, key=7, start=0):
    none = torch.zeros_like(master)
    given = none if mean is None else mean, none if square is None else square
    weight, remainder, *rest = shrink(master, *given, size, None)
    return CompactRow(weight, none.bfloat16(), remainder, *rest, key=key, start=start)


def step(row, gradient, number, bad=ZERO):
    row.gradient.copy_(gradient)
    counted = torch.tensor([[1 - 0.9**number, 1 - 0.999**number, number]])
    compact_adamw_([row], counted, ONE * 2, bad, RULE)


def every_kind_of_float():
    torch.manual_seed(0)
    anything = torch.randint(-(2**31), 2**31, (20000,)).int().view(torch.float32)
    halves = torch.randint(-(2**15), 2**15, (5000,)).int() * 65536 + 0x8000
    finite = torch.cat([anything, halves.view(torch.float32)])
    return finite[finite.isfinite()]


def test_a_weight_and_its_remainder_are_the_master_to_the_bit():
    master = every_kind_of_float()
    weight, remainder, raised = formats.split_master(master)
    assert remainder.dtype == torch.int16 and raised.any() and not raised.all()
    assert torch.equal(weight, master.bfloat16())
    back = formats.join_master(weight, remainder, raised)
    assert torch.equal(back.view(torch.int32), master.view(torch.int32))


def test_a_master_that_is_no_number_stays_none():
    weight, remainder, raised = formats.split_master(torch.tensor([float("nan"), float("inf")]))
    assert weight.isnan().tolist() == [True, False]
    assert formats.join_master(weight, remainder, raised).isnan().tolist() == [True, False]


def test_eight_bits_beside_a_weight_keep_its_master_to_24_bits():
    master = every_kind_of_float()
    master = master[(master.abs() > 1e-30) & (master.abs() < 1e30)]
    kept = formats.join_master24(*formats.split_master24(master, None))
    assert ((kept - master).abs() <= 2.0**-16 * master.abs()).all()
    again = formats.join_master24(*formats.split_master24(kept, None))
    assert torch.equal(kept, again)


def test_fourteen_bytes_give_the_bits_of_sixteen():
    torch.manual_seed(0)
    master = torch.randn(5003)
    row = row_of(master, 14)
    weight, kept = master.bfloat16(), master.clone()
    moments = torch.zeros(5003), torch.zeros(5003)
    for number in range(1, 31):
        gradient = torch.randn(5003).bfloat16()
        step(row, gradient, number)
        corrections = torch.tensor([[1 - 0.9**number, 1 - 0.999**number]])
        adamw_([(weight, kept, gradient, *moments)], corrections, ONE * 2, ZERO, RULE)
    for ours, theirs in zip(expand(row), (kept, *moments)):
        assert torch.equal(ours, theirs)
    assert torch.equal(row.weight, kept.bfloat16())
    assert row.bytes == 14


@pytest.mark.parametrize("size", [14, 10, 7])
def test_moments_and_masters_follow_those_in_float32(size):
    torch.manual_seed(0)
    shape = (63, 65)
    master, exact = torch.randn(shape), None
    row, kept = row_of(master, size), master.clone()
    moments = torch.zeros(shape), torch.zeros(shape)
    for number in range(1, 11):
        gradient = torch.randn(shape).bfloat16()
        step(row, gradient, number)
        corrections = torch.tensor([[1 - 0.9**number, 1 - 0.999**number]])
        adamw_([(kept.bfloat16(), kept, gradient, *moments)], corrections, ONE * 2, ZERO, RULE)
    for ours, theirs, within in zip(expand(row), (kept, *moments), (0.01, 0.02, 0.02)):
        exact = theirs.double()
        assert (ours - exact).norm() < (0.0 if size == 14 else within) * exact.norm() + 1e-9
    moved = (expand(row)[0] - master).double()
    assert (moved - (kept - master)).norm() < 0.05 * (kept - master).norm()


@pytest.mark.parametrize("size", [14, 10, 7])
def test_a_bad_step_changes_nothing(size):
    row = row_of(torch.randn(300), size, mean=torch.randn(300), square=torch.rand(300))
    before = [t.clone() for t in row.tensors if t is not row.gradient]
    step(row, torch.full((300,), float("nan")), 2, bad=ONE)
    after = [t for t in row.tensors if t is not row.gradient]
    assert all(torch.equal(a, b) for a, b in zip(before, after))


@pytest.mark.parametrize("size", [10, 7])
def test_what_is_rounded_again_stays(size):
    torch.manual_seed(0)
    row = row_of(torch.randn(1000), size, mean=torch.randn(1000), square=torch.rand(1000) ** 4)
    again = shrink(*expand(row), size, None)
    kept = (row.weight, *(t for t in row.tensors[1:] if t is not row.gradient))
    assert all(torch.equal(a, b) for a, b in zip(kept, again))


@pytest.mark.parametrize("size", [10, 7])
def test_random_bits_are_the_elements_own_wherever_it_is_kept(size):
    torch.manual_seed(0)
    master, gradient = torch.randn(512), torch.randn(512)
    whole, other = row_of(master, size), row_of(master, size, key=8)
    half = row_of(master[256:].clone(), size, start=256)
    for number in (1, 2):
        step(whole, gradient, number)
        step(other, gradient, number)
        step(half, gradient[256:], number)
    assert all(torch.equal(a[256:], b) for a, b in zip(expand(whole), expand(half)))
    assert not torch.equal(expand(whole)[1], expand(other)[1]), "another parameter draws others"


def test_stochastic_rounding_is_right_on_average():
    value = torch.full((200_000,), 1.0 + 2.0**-9)  # a quarter of the way to the next bf16
    noise = formats.random_bits(3, torch.tensor(1.0), 0, value)
    assert noise.min() >= 0 and noise.max() < 2**32
    rounded = formats.round_to_bfloat16(value, noise & 0xFFFF).double()
    assert rounded.unique().numel() == 2
    assert abs(rounded.mean().item() - value[0].item()) < 2e-5
    assert not torch.equal(noise, formats.random_bits(3, torch.tensor(2.0), 0, value))


def test_no_second_moment_is_lost_beside_a_large_one():
    square = torch.tensor([1.0] + [1e-12] * 63)
    code, scale = formats.compand_square(square, None)
    assert formats.expand_square(code, scale).min() > 0


@pytest.mark.skipif(not INTERPRETED, reason="needs TRITON_INTERPRET=1")
@pytest.mark.parametrize("size", [14, 10, 7])
@pytest.mark.parametrize("kind", [torch.bfloat16, torch.float32])
def test_the_program_computes_what_torch_does(size, kind, monkeypatch):
    torch.manual_seed(0)
    made = [torch.randn(4100), torch.randn(64, 32), torch.randn(7)]
    gradients = [torch.randn_like(m).to(kind) for m in made]
    results = []
    for on in (True, False):
        if not on:
            monkeypatch.setattr(
                "stepladder.kernels.optimizer.compact_adamw.fits_triton", lambda row: False
            )
        rows = []
        for m, g in zip(made, gradients):
            one = row_of(m, size, mean=m * 0.1, square=m * m, start=100)
            kept = [t for t in one.tensors[1:] if t is not one.gradient]
            rows.append(CompactRow(one.weight, g, *kept, key=5, start=100))
        counted = torch.tensor([[0.5, 0.25, 3.0]] * 3)
        compact_adamw_(rows, counted, ONE * 2, ZERO, RULE)
        results.append(rows)
    for ours, theirs in zip(*results):
        within = {"rtol": 1e-2, "atol": 2e-3} if size == 7 else {"rtol": 1e-5, "atol": 1e-6}
        for a, b in zip(expand(ours), expand(theirs)):
            assert torch.allclose(a, b, **within)
