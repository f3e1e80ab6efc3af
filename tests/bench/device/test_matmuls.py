"""Products in several ways: each is the product, a wrong one is not timed, and shares add up."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch

from stepladder.bench.device import matmuls, operations
from stepladder.bench.device.matmuls import (
    MatmulTiming,
    MatmulVariant,
    measure_copies,
    measure_matmuls,
    measure_variant,
    occupancy_of,
    one_loop,
    three_loops,
)
from stepladder.hardware import find_device

CPU = torch.device("cpu")


@pytest.mark.parametrize("multiply", [three_loops, one_loop])
def test_loops_give_the_product(multiply):
    draw = torch.Generator().manual_seed(0)
    left, right = torch.randn(5, 7, generator=draw), torch.randn(7, 3, generator=draw)
    wanted = left.double().numpy() @ right.double().numpy()
    np.testing.assert_allclose(multiply(left, right).numpy(), wanted, rtol=1e-5, atol=1e-6)


def test_a_wrong_product_is_not_timed():
    row = measure_variant(MatmulVariant("wrong", 8, "fp32", lambda x, y: x @ y.T), CPU, 0.0)
    assert row.seconds is None and row.error > 0.1
    assert row.problem == f"wrong: off by {row.error:.1e} of the product"
    right = measure_variant(MatmulVariant("right", 8, "fp32", torch.mm), CPU, 0.0)
    assert right.problem == "" and right.seconds > 0 and right.error < 1e-6


def test_rates_are_shares_of_the_fastest_square_and_times_the_first_way(monkeypatch):
    monkeypatch.setitem(operations.SQUARES, "cpu", (16, 32))
    monkeypatch.setattr(matmuls, "LOOPED", 8)
    rows = list(measure_matmuls(CPU, 0.0))
    rates = [2 * row.size**3 / row.seconds for row in rows]
    assert [row.flops_per_second for row in rows] == rates
    assert [row.share_of_peak for row in rows] == [rate / rates[-1] for rate in rates]
    assert [row.times_first for row in rows] == [rate / rates[0] for rate in rates]
    assert rows[-1].size in (16, 32) and rows[-1].error is None
    assert {row.share_of_stated for row in rows} == {None}, "no table states a processor's peak"


def test_a_copy_within_memory_reads_and_writes(monkeypatch):
    monkeypatch.setitem(operations.COPIED_BYTES, "cpu", 1024)
    (row,) = measure_copies(CPU, 0.0)
    assert row.bytes == 2048 and row.bytes_per_second == 2048 / row.seconds
    assert row.stated is None


def test_a_compiled_program_occupies_what_its_registers_and_shared_memory_leave(monkeypatch):
    monkeypatch.setattr(matmuls, "table_row", lambda device: find_device("H200"))
    told = SimpleNamespace(n_regs=128, metadata=SimpleNamespace(num_warps=8, shared=147456))
    found = occupancy_of(told, CPU)
    assert (found.blocks, found.share, found.limited_by) == (1, 0.125, ("shared memory",))
    assert occupancy_of(None, CPU) is None, "interpreted: nothing was compiled"
    assert MatmulTiming("torch.mm", 8, "fp32").flops_per_second is None
