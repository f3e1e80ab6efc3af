"""Numbers of pictures are those that people write, and all of them can be read."""

import pytest
from matplotlib import pyplot

from stepladder.cli.results.plot_axes import count_whole, mark_bytes, mark_log, mark_thousands
from stepladder.cli.results.plots import bar_panels, figure
from stepladder.palette import OWNERS, owner_colour

from .pictures import laid_out, overlapping


@pytest.fixture
def axes():
    drawn, axes = figure()
    yield axes
    pyplot.close(drawn)


def labels(axis):
    return [one.get_text() for one in axis.get_ticklabels() if one.get_text()]


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ((0.2, 0.8), {"0.2", "0.5"}),
        ((300, 450), {"300", "400"}),
        ((0.002, 1.4), {"0.01", "0.1", "1"}),
        ((3, 40_000), {"10", "1,000", "10,000"}),
    ],
)
def test_a_logarithmic_axis_has_plain_numbers(axes, values, said):
    axes.loglog([1, 2], values)
    mark_log(axes.yaxis)
    assert said <= {*labels(axes.yaxis)} and len(labels(axes.yaxis)) < 10


@pytest.mark.parametrize(("largest", "said"), [(2**18, "256 KiB"), (2**26, "64 MiB")])
def test_an_axis_of_bytes_has_their_units(axes, largest, said):
    axes.loglog([2**10, largest], [1, 2])
    mark_bytes(axes.xaxis)
    assert {"1 KiB", said} <= {*labels(axes.xaxis)} and len(labels(axes.xaxis)) < 10


def test_thousands_are_told_in_groups_and_steps_have_no_halves(axes):
    axes.plot([0, 1, 2], [0, 60_000, 20_000])
    mark_thousands(axes.yaxis, 60_000)
    count_whole(axes.xaxis)
    axes.figure.canvas.draw()
    assert "60,000" in labels(axes.yaxis)
    assert all("." not in said for said in labels(axes.xaxis))


NAMES = ["1", "2", "4", "8", "16", "32", "64"]
SMALL = [0.014, 0.0182, 0.0271, 0.0447, 0.08, 0.151, 0.292]


def test_numbers_on_bars_lie_on_no_other_and_on_no_line():
    with laid_out(bar_panels(NAMES, {"peak GiB": SMALL}, "batch")) as drawn:
        (panel,) = drawn.axes
        assert overlapping(panel.texts) == []
        assert panel.get_title() == "peak MiB" and panel.get_xlabel() == "batch"
        assert panel.texts[0].get_text() == "14.3"
        assert all(one.get_bbox_patch() for one in panel.texts)
        assert panel.get_axisbelow() is True


def test_an_owner_of_memory_has_its_colour_and_an_unknown_number_its_word():
    from matplotlib.colors import to_hex

    panels = {f"{owner} MiB": [1.0, None] for owner in OWNERS}
    with laid_out(bar_panels(["a", "b"], panels, "stage")) as drawn:
        for owner, panel in zip(OWNERS, drawn.axes):
            assert to_hex(panel.patches[0].get_facecolor()) == owner_colour(owner)
            assert panel.texts[1].get_text() == "unknown"
