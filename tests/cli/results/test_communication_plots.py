"""Pictures of communication: a collective keeps its colour, no arrow crosses a number."""

import pytest
from matplotlib.colors import to_hex
from matplotlib.patches import FancyArrowPatch

from stepladder.bench import CollectiveRow
from stepladder.bench.ring_all_reduce import RingRow
from stepladder.cli.results.communication_plots import draw_collectives, draw_ring
from stepladder.palette import collective_colour

from .pictures import laid_out, legend_covers_data, outside

KINDS = ("all_reduce", "all_gather", "reduce_scatter", "send_receive")


def test_a_collective_keeps_its_colour_whatever_is_drawn_beside_it():
    rows = [
        CollectiveRow(kind, axes, 2, 2**power, power * 1e-5)
        for kind in KINDS
        for axes in ("all", "shard")
        for power in (10, 14, 18)
    ]
    keys = dict.fromkeys((row.collective, row.axes) for row in rows)
    with laid_out(draw_collectives(rows, keys)) as drawn:
        left, right = drawn.axes
        shown = {line.get_label(): to_hex(line.get_color()) for line in left.lines}
        for kind in KINDS:
            assert shown[f"{kind.replace('_', ' ')} over all (2)"] == collective_colour(kind)
        assert len({*shown.values()}) == len(shown) == 8, "no colour twice"
        assert "1 KiB" in [one.get_text() for one in right.get_xticklabels()]
        assert not legend_covers_data(right)


@pytest.mark.parametrize("ranks", [2, 4])
def test_the_ring_is_explained_within_the_picture_and_its_numbers_lie_on_top(ranks):
    rows = [
        RingRow(size, ranks, 0.3, 0.2, size, size, None, None, 0.0, exact=True, same=True)
        for size in (1024, 4096, 16384)
    ]
    with laid_out(draw_ring(ranks, rows)) as drawn:
        left, right = drawn.axes
        assert outside([left.title, right.title], drawn) == []
        assert not left.title.get_window_extent().overlaps(right.title.get_window_extent())
        arrows = [one.arrow_patch for one in left.texts if hasattr(one, "arrow_patch")]
        arrows = [one for one in arrows if isinstance(one, FancyArrowPatch)]
        assert len(arrows) == 2 * (ranks - 1) * ranks
        notes = [one for one in left.texts if getattr(one, "arrow_patch", None)]
        assert max(one.zorder for one in notes) < min(one.zorder for one in left.patches)
