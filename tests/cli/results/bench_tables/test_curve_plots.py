"""Pictures of loss curves: what a line runs over, and that lines can be told apart."""

import pytest

from stepladder.bench.loss_curves.compression_curves import CASES, CompressionCurve
from stepladder.bench.loss_curves.learning_rates import RateCurve, learning_rate_cases
from stepladder.cli.results.bench_tables.curve_plots import (
    draw_compression,
    draw_rates,
    mean_curve,
    smoothed,
)
from tests.cli.results.pictures import laid_out, legend_covers_data, outside


def looks(axes):
    return [(line.get_color(), line.get_linestyle()) for line in axes.lines]


def test_stretches_of_a_curve_are_means_of_where_they_lie_and_of_their_losses():
    across, losses = smoothed(range(0, 320, 4), [float(each) for each in range(80)])
    assert across[:2] == [4.0, 16.0] and losses[:2] == [1.0, 4.0] and len(across) == 27
    assert smoothed(range(3), [3.0, 2.0]) == ([0.0, 1.0], [3.0, 2.0])


def test_a_curve_is_the_mean_of_its_seeds_as_far_as_all_of_them_go():
    case = learning_rate_cases(["sgd lr=1"], 4, 8, 10)[0]
    curves = [RateCurve(case, 0, (4.0, 2.0, 1.0)), RateCurve(case, 1, (6.0, 4.0))]
    assert mean_curve(curves) == [5.0, 3.0]


@pytest.mark.parametrize("optimizers", [["sgd lr=0.02"], ["sgd lr=0.02", "adamw lr=0.001"]])
def test_rates_are_drawn_over_samples_and_a_diverged_one_leaves_the_picture(optimizers):
    cases = learning_rate_cases(optimizers, 4, 8, 10)
    losses = {case: (5.0, 1e20 if case.rule == "linear" else 3.0) for case in cases}
    with laid_out(draw_rates([[RateCurve(case, 0, losses[case])] for case in cases])) as drawn:
        assert len(drawn.axes) == len(optimizers)
        for axes in drawn.axes:
            assert (axes.get_xlabel(), axes.get_ylabel()) == ("samples seen", "loss")
            assert axes.get_ylim()[1] == pytest.approx(5.5)
            assert len({*looks(axes)}) == len(axes.lines) == 7, "no line twice"
            assert list(axes.lines[0].get_xdata()) == [0, 4]
            assert list(axes.lines[1].get_xdata()) == [0, 32]
            assert not legend_covers_data(axes)
            assert outside(axes.get_legend().get_texts(), drawn) == []


def test_compressions_are_drawn_over_steps_without_a_look_twice():
    curves = [[CompressionCurve(case, 0, (5.0, 3.0), 1)] for case in CASES]
    with laid_out(draw_compression(curves)) as drawn:
        (axes,) = drawn.axes
        assert axes.get_xlabel() == "step" and len({*looks(axes)}) == len(CASES)
        assert not legend_covers_data(axes)
        assert outside(axes.get_legend().get_texts(), drawn) == []
