"""The roofline as a table and as a picture: what it concludes, what it draws."""

import pytest

from stepladder.bench.device.operations import Operation
from stepladder.bench.device.roofline import Roofs, place
from stepladder.cli.results.bench_tables.device_tables import (
    busy_note,
    cells_of,
    conclusion,
    draw_roofline,
    roof_rows,
)
from tests.cli.results.pictures import laid_out, legend_covers_data, outside

ROOFS = Roofs({"fp32": 2e12, "bf16": 8e12}, {"fp32": 4e12, "bf16": None}, 1e12, 2e12, 5e10)


def point(name, compute, flops, num_bytes, seconds):
    return place(Operation(name, "8x8", compute, flops, num_bytes, None), seconds, ROOFS)


@pytest.fixture
def points():
    return [
        point("matmul", "bf16", 8e12, 1e11, 2.0), point("GELU", "bf16", 1e12, 1e12, 1.25),
        point("add", "fp32", 1e11, 1.2e12, 0.6), point("matmul", "fp16", 1.0, 1.0, 1.0),
    ]  # fmt: skip


def test_the_conclusion_names_what_memory_bounds_and_what_is_furthest(points):
    assert conclusion(ROOFS, points) == (
        "Memory, not arithmetic, bounds what does fewer FLOPs a byte than the ridge point, "
        "2 (fp32), 8 (bf16): GELU, add.\nFurthest from its roof: matmul 8x8 in bf16, at 50.0%."
    )


def test_rows_say_their_share_and_why_it_is_none_or_above_the_roof(points):
    matmul, gelu, add, absent = map(cells_of, points)
    assert matmul[3:] == [80.0, 4000.0, 8000.0, "50.0%", "compute", ""]
    assert gelu[6:8] == ["80.0%", "memory"] and gelu[8] == ""
    assert add[6] == "200.0%" and add[8] == "operands stay in a cache"
    assert absent[4:] == [None, None, "unknown", "", "does not run here"]


def test_roofs_stand_beside_the_data_sheet_or_unknown():
    rows = roof_rows(ROOFS, "cuda")
    assert rows[0] == ["matmul fp32", "2 TFLOP/s", "4 TFLOP/s", "50.0%", "2"]
    assert rows[1] == ["matmul bf16", "8 TFLOP/s", "unknown", "unknown", "8"]
    assert rows[2] == ["memory", "1,000 GB/s", "2,000 GB/s", "50.0%", ""]
    assert rows[3][:2] == ["pinned host memory to the device", "50 GB/s"]


def test_each_type_has_its_colour_and_each_operation_its_marker(points):
    with laid_out(draw_roofline("Roofline", ROOFS, points)) as drawn:
        (axes,) = drawn.axes
        fp32, bf16 = axes.lines[:2]
        assert fp32.get_color() != bf16.get_color()
        assert list(fp32.get_xdata())[1] == 2.0 and max(fp32.get_ydata()) == 2000.0
        legend = [text.get_text() for text in axes.get_legend().get_texts()]
        assert legend == ["fp32 peak 2 TFLOP/s", "bf16 peak 8 TFLOP/s", "matmul", "GELU", "add"]
        markers = [line.get_marker() for line in axes.lines[2:] if not len(line.get_xdata())]
        assert len({*markers}) == len(markers) == 3
        drawn_points = [line for line in axes.lines[2:] if len(line.get_xdata())]
        assert [line.get_color() for line in drawn_points] == [
            bf16.get_color(), bf16.get_color(), fp32.get_color(),
        ]  # fmt: skip
        assert axes.get_xlabel().endswith("FLOP/byte") and axes.get_ylabel() == "GFLOP/s"
        assert not legend_covers_data(axes)
        assert outside(axes.get_legend().get_texts(), drawn) == []


def test_figures_of_a_busy_machine_say_so():
    assert busy_note(0.4, 2) == ""
    assert "busy (load 8.5 on 2 cores at the start): the figures are too low" in busy_note(8.5, 2)
