"""The programs of Adam in 14, 10 and 7 bytes a parameter, on the device that compiles them."""

import pytest
import torch

from stepladder.kernels import adamw_
from stepladder.kernels.optimizer import compact_adamw as ours
from stepladder.kernels.optimizer.compact_adamw import CompactRow, compact_adamw_, expand, shrink

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]
RULE = (1e-2, 0.9, 0.999, 1e-8, 0.1, True)
SHAPES = [(4096, 33), (64, 64), (77,)]


def rows_of(size, kind=torch.bfloat16):
    torch.manual_seed(0)
    rows = []
    for index, shape in enumerate(SHAPES):
        master = torch.randn(shape, device="cuda")
        weight, remainder, *rest = shrink(master, master * 0.1, master * master, size, None)
        gradient = torch.randn(shape, device="cuda").to(kind)
        kept = [piece.contiguous() for piece in (weight, gradient, remainder, *rest)]
        rows.append(CompactRow(*kept, key=index + 5, start=3 * index))
    return rows


def step(rows, number, bad=0.0):
    counted = torch.tensor([[1 - 0.9**number, 1 - 0.999**number, number]] * 3, device="cuda")
    two = torch.full((), 2.0, device="cuda")
    compact_adamw_(rows, counted, two, torch.full((), bad, device="cuda"), RULE)


def test_fourteen_bytes_give_the_bits_of_sixteen():
    rows = rows_of(14)
    wide = [tuple(t.clone() for t in (row.weight, *expand(row))) for row in rows]
    wide = [(w, m, row.gradient, a, b) for (w, m, a, b), row in zip(wide, rows)]
    two, zero = torch.full((), 2.0, device="cuda"), torch.zeros((), device="cuda")
    for number in range(1, 31):
        for row in rows:
            row.gradient.copy_(torch.randn_like(row.gradient))
        step(rows, number)
        corrections = torch.tensor([[1 - 0.9**number, 1 - 0.999**number]] * 3, device="cuda")
        adamw_(wide, corrections, two, zero, RULE)
    for row, (weight, master, _, *moments) in zip(rows, wide):
        for one, other in zip(expand(row), (master, *moments)):
            assert torch.equal(one, other)
        assert torch.equal(row.weight, weight)


@pytest.mark.parametrize("size", [14, 10, 7])
@pytest.mark.parametrize("kind", [torch.bfloat16, torch.float32])
def test_the_program_computes_what_torch_does(size, kind, monkeypatch):
    compiled, plain = rows_of(size, kind), rows_of(size, kind)
    assert all(ours.fits_triton(row) for row in compiled)
    step(compiled, 3)
    monkeypatch.setattr(ours, "fits_triton", lambda row: False)
    step(plain, 3)
    for row, other in zip(compiled, plain):
        for one, expected, within in zip(expand(row), expand(other), (1e-4, 1e-2, 2e-2)):
            error = (one - expected).norm() / expected.norm()
            assert error < (1e-5 if size == 14 else within)


@pytest.mark.parametrize("size", [14, 10, 7])
def test_a_bad_step_changes_nothing(size):
    rows = rows_of(size)
    before = [[t.clone() for t in row.tensors] for row in rows]
    step(rows, 2, bad=1.0)
    for row, kept in zip(rows, before):
        assert all(torch.equal(a, b) for a, b in zip(row.tensors, kept))
