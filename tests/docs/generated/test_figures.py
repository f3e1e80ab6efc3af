"""The site's pictures: every colour that can be seen has a key, and so has the dashed limit."""

import pytest
from matplotlib import pyplot

from stepladder.cli.results.plots import figure
from stepladder.palette import owner_colour
from tests.docs.site_scripts import load


@pytest.fixture(scope="module")
def figures():
    return load("figures")


def test_what_can_be_seen_is_in_the_legend_and_the_limit_is_dashed(figures):
    drawn, axes = figure()
    rows = [{"parameters": 50.0, "temporary": 0.4, "logits": 0.0}]
    figures.stacked(axes, rows, owner_colour, 40.0)
    legend = axes.get_legend()
    said = [one.get_text() for one in legend.get_texts()]
    assert said == ["usable", "parameters", "temporary"]
    assert legend.legend_handles[0].get_linestyle() == "--"
    pyplot.close(drawn)
