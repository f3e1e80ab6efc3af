"""The timeline of a schedule: every micro-batch's number can be read on its colour."""

import pytest
from matplotlib.colors import to_rgb

from stepladder.bench.pipeline_schedules import ScheduleCase, ScheduleTimeline
from stepladder.cli.results.bench_tables.pipeline_tables import draw_timeline
from stepladder.cli.results.plots import figure
from stepladder.rungs.pipeline.schedule import Event
from tests.cli.results.pictures import laid_out
from tests.test_palette import luminance

KINDS = ("forward", "backward", "input", "weight")


def in_hex(colour):
    return "#" + "".join(f"{round(255 * part):02x}" for part in to_rgb(colour))


@pytest.mark.parametrize("kind", KINDS)
def test_the_number_of_a_micro_batch_stands_out_from_its_colour(kind):
    events = tuple(Event(0, micro, kind, float(micro), micro + 0.9) for micro in range(8))
    row = ScheduleTimeline(ScheduleCase("gpipe", 1, 8, "waiting"), (events,), 1.0, 0.0, 1.0)
    drawn, axes = figure()
    draw_timeline(axes, row)
    with laid_out(drawn):
        for text, bar in zip(axes.texts, axes.patches, strict=True):
            *colour, seen = bar.get_facecolor()
            ground = [1 - seen * (1 - part) for part in colour]
            dark, light = sorted([luminance(in_hex(text.get_color())), luminance(in_hex(ground))])
            assert (light + 0.05) / (dark + 0.05) >= 4.5
