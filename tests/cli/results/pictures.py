"""What lies where in a figure, once it is laid out."""

from contextlib import contextmanager
from itertools import combinations

from matplotlib import pyplot


@contextmanager
def laid_out(drawn):
    drawn.canvas.draw()
    yield drawn
    pyplot.close(drawn)


def overlapping(texts):
    """Pairs of texts that cover each other."""
    boxes = [(one.get_text(), one.get_window_extent()) for one in texts if one.get_text()]
    return [(a, b) for (a, one), (b, two) in combinations(boxes, 2) if one.overlaps(two)]


def outside(texts, figure):
    """Texts that the edge of the picture cuts."""
    edge = figure.bbox
    boxes = [(one.get_text(), one.get_window_extent()) for one in texts if one.get_text()]
    return [
        text
        for text, box in boxes
        if box.x0 < edge.x0 or box.x1 > edge.x1 or box.y0 < edge.y0 or box.y1 > edge.y1
    ]


def legend_covers_data(axes):
    return axes.get_legend().get_window_extent().overlaps(axes.get_window_extent())
