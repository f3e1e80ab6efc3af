"""Pictures of forecasts and profiles: names leave the bars their room, numbers fit their bars."""

from stepladder.cli.results.plan_plots import draw_forecasts
from stepladder.cli.results.profile_plots import draw_causes
from stepladder.planner import forecast
from stepladder.record import Profile

from .pictures import laid_out, legend_covers_data, overlapping

LONG = "bf16 zero2 pipeline=2 shard=4 batch=64 micro=1 recompute=selective schedule=interleaved:2"


def test_long_plans_leave_half_the_width_to_bars_and_the_legend_has_the_dashed_limit():
    found = [forecast("llama3-8b", plan, "8 x H100-80GB") for plan in (LONG, "bf16 zero3 micro=1")]
    with laid_out(draw_forecasts(found)) as drawn:
        for panel in drawn.axes:
            assert panel.get_window_extent().width > 0.3 * drawn.bbox.width
            assert not legend_covers_data(panel)
        memory, _ = drawn.axes
        handles = memory.get_legend().legend_handles
        styles = {one.get_label(): getattr(one, "get_linestyle", str)() for one in handles}
        assert styles["limit"] == "--"
        assert overlapping(memory.get_yticklabels()) == []


def test_a_number_is_on_a_bar_only_where_it_fits():
    causes = {"matrix": 0.0287, "attention": 0.0044, "memory_bound": 0.006, "optimizer": 0.0079,
              "data": 0.0002, "launch": 0.0089, "host": 0.0131}  # fmt: skip
    found = Profile("fp32", "CPU", 1, sum(causes.values()), 0.06, causes, bound="compute-bound")
    with laid_out(draw_causes(found, None)) as drawn:
        (axes,) = drawn.axes
        bars = [bar.get_window_extent() for bar in axes.patches if bar.get_width()]
        for text in axes.texts:
            box = text.get_window_extent()
            assert any(bar.x0 <= box.x0 and box.x1 <= bar.x1 for bar in bars), text
        assert {"matrix", "host"} <= {text.get_text().partition("\n")[0] for text in axes.texts}
