"""The roofline: what bounds an operation, and that FLOPs and bytes are those it has."""

import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from stepladder.bench.device import operations
from stepladder.bench.device.operations import Operation, adamw, add, attention, scale, square
from stepladder.bench.device.roofline import (
    find_roofs,
    place,
    place_operations,
    supported_types,
    time_operations,
)
from stepladder.errors import WorldError
from stepladder.hardware import find_device

CPU = torch.device("cpu")
MATMUL = Operation("matmul", "8", "fp32", 1000.0, 10.0, None)
SLOW = Operation("matmul", "4", "fp32", 1000.0, 10.0, None)
ADD = Operation("add", "8", "fp32", 1.0, 12.0, None)


@pytest.fixture
def small(monkeypatch):
    """Every operation small enough for a test."""
    for name, size in (
        ("SQUARES", (16, 32)), ("STREAM", 1024), ("COPIED_BYTES", 1024), ("ROWS", (8, 16)),
        ("ATTENTION", (1, 2, 16, 8)), ("PARAMETERS", 1024),
    ):  # fmt: skip
        monkeypatch.setitem(getattr(operations, name), "cpu", size)


def test_the_roofs_are_the_best_matmul_and_the_best_of_what_passes_through_memory():
    slower = Operation("scale", "8", "fp32", 1.0, 8.0, None)
    timings = [(MATMUL, 1.0), (SLOW, 2.0), (ADD, 2.0), (slower, 2.0), (slower, None)]
    roofs = find_roofs(timings, find_device("H200"), host=5.0)
    assert roofs.peaks == {"fp32": 1000.0} and roofs.bytes_per_second == 6.0
    assert roofs.ridge("fp32") == pytest.approx(1000 / 6)
    assert roofs.stated_peaks == {"fp32": find_device("H200").peak("fp32")}
    assert roofs.roof("fp32", 2.0) == 12.0 and roofs.roof("fp32", 1e9) == 1000.0


def test_an_operation_is_bound_by_the_lower_roof_and_takes_a_share_of_it():
    roofs = find_roofs([(MATMUL, 1.0), (ADD, 2.0)], None, host=5.0)
    assert roofs.stated_peaks == {"fp32": None}
    lean = place(Operation("layer norm", "8", "fp32", 20.0, 10.0, None), 10.0, roofs)
    assert (lean.bound, lean.roof, lean.achieved) == ("memory", 12.0, 2.0)
    assert lean.share == pytest.approx(1 / 6)
    rich = place(Operation("attention", "8", "fp32", 4000.0, 10.0, None), 8.0, roofs)
    assert (rich.bound, rich.share) == ("compute", 0.5)
    absent = place(MATMUL, None, roofs)
    assert absent.share is None and absent.problem == "does not run here"


def test_without_a_roof_there_is_no_table():
    for timings in ([(MATMUL, 1.0), (ADD, None)], [(MATMUL, None), (ADD, 1.0)]):
        with pytest.raises(WorldError, match="no roof could be measured: neither matmuls nor"):
            find_roofs(timings, None, host=5.0)


def test_flops_of_products_are_those_that_torch_counts():
    for operation in (square(32, "fp32"), attention((2, 3, 16, 8), "fp32")):
        work = operation.make(CPU)
        # The fused attention of a processor is one operator, which torch does not count.
        with sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter:
            work()
        assert counter.get_total_flops() == operation.flops


def test_bytes_are_those_of_each_operand_once(small):
    assert square(32, "bf16").bytes == 3 * 32 * 32 * 2
    assert scale("cpu").bytes == 2 * 1024 * 4 and add("cpu").bytes == 3 * 1024 * 4
    assert adamw(1000).bytes == 28 * 1000, "parameter, two moments: read and written; gradient read"


def test_every_operation_runs_and_is_placed(small):
    roofs, points = place_operations(CPU, list(time_operations(CPU, budget=0.0)), budget=0.0)
    assert list(roofs.peaks) == supported_types("cpu") and "fp32" in roofs.peaks
    assert {point.operation for point in points} == {
        "matmul", "attention", "layer norm", "GELU", "scale", "add", "AdamW update",
    }  # fmt: skip
    assert all(point.seconds > 0 and point.share > 0 for point in points)
