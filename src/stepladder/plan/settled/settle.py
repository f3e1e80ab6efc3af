"""Legality: the table of rules, and `settle`, which returns a settled plan or raises every problem.

Each rule has a name, looks at one thing, and answers with the problem or with None. All rules run,
so that every problem is reported at once; none computes a forecast, so all of them together take
well under a millisecond. A rule of the model or the device is left out where that is not known.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

from stepladder.errors import PlanError, raise_all
from stepladder.plan.layout import AXES, REST
from stepladder.plan.plan import Plan

from . import composition_rules as composition
from . import device_rules as on_device
from . import exact_rules as exact
from . import gathering_rules as gathering
from . import model_rules as of_model
from . import schedule_rules as schedule
from .limits import DeviceLimits, ModelLimits
from .settled_plan import SettledPlan

Find = Callable[[Plan, ModelLimits | None, DeviceLimits | None], PlanError | None]


@dataclass(frozen=True, slots=True)
class Rule:
    name: str
    find: Find


def settle(
    plan: Plan,
    num_ranks: int,
    *,
    model: ModelLimits | None = None,
    device: DeviceLimits | None = None,
    open_batch: bool = False,
    also: Iterable[PlanError] = (),
) -> SettledPlan:
    """The plan for so many ranks, or every problem it has, raised at once.

    Args:
        open_batch: leave open what the plan does not say of the batch; the first batch says it.
        also: problems found by who knows the installation, raised with the rest.
    """
    found, filled = fill_in(plan, num_ranks, open_batch=open_batch)
    raise_all([*found, *also, *broken_rules(filled, model, device)])
    return SettledPlan(filled, device.kind if device else "cpu")


def legality_problems(
    plan: Plan,
    num_ranks: int,
    *,
    model: ModelLimits | None = None,
    device: DeviceLimits | None = None,
    open_batch: bool = False,
) -> list[PlanError]:
    """Every problem that `settle` would raise."""
    found, filled = fill_in(plan, num_ranks, open_batch=open_batch)
    return [*found, *broken_rules(filled, model, device)]


def broken_rules(
    plan: Plan, model: ModelLimits | None = None, device: DeviceLimits | None = None
) -> list[PlanError]:
    """Every rule that a plan without open axes breaks."""
    return [found for rule in RULES if (found := rule.find(plan, model, device)) is not None]


def fill_in(plan: Plan, num_ranks: int, *, open_batch: bool) -> tuple[list[PlanError], Plan]:
    """The plan as far as its numbers can be filled in, and what stood in the way."""
    found = plan.problems()
    try:
        if not open_batch:
            return found, plan.settle(num_ranks)
        placed = replace(plan, layout=plan.layout.settle(num_ranks)).check()
        if not plan.exact.slices:  # which have rules of their own
            plan.batch.check_given(placed.layout.data_ranks)
        return found, placed
    except PlanError as problem:
        several = getattr(problem, "problems", (problem,))
        known = {str(each) for each in found}
        found += [each for each in several if str(each) not in known]
    closed = {axis: 1 for axis in AXES if getattr(plan.layout, axis) == REST}
    return found, replace(plan, layout=replace(plan.layout, **closed))


def of_plan(find: Callable[[Plan], PlanError | None]) -> Find:
    """A rule that holds whatever the model and the device."""
    return lambda plan, model, device: find(plan)


def with_model(find: Callable[[Plan, ModelLimits], PlanError | None]) -> Find:
    return lambda plan, model, device: None if model is None else find(plan, model)


def with_device(find: Callable[[Plan, DeviceLimits], PlanError | None]) -> Find:
    return lambda plan, model, device: None if device is None else find(plan, device)


RULES = (
    Rule("tensor ways divide the heads", with_model(of_model.heads_divide)),
    Rule("tensor ways divide the key-value heads", with_model(of_model.key_heads_divide)),
    Rule("tensor ways divide every width they cut", with_model(of_model.widths_divide)),
    Rule("tensor ways have something to cut", with_model(of_model.something_to_cut)),
    Rule("tensor ways slice the sequence", with_model(of_model.tokens_divide_by_tensor)),
    Rule("context ways slice the sequence", with_model(of_model.context_divides)),
    Rule("context ways need attention", with_model(of_model.context_needs_attention)),
    Rule("experts ways divide the experts", with_model(of_model.experts_divide)),
    Rule("experts that are modules stay whole", with_model(of_model.modules_stay_whole)),
    Rule("experts stay on the device", of_plan(composition.experts_stay_on_the_device)),
    Rule("every stage has a block", with_model(of_model.stages_have_blocks)),
    Rule("micro-batches fill the stages", of_plan(schedule.passes_fill_stages)),
    Rule("interleaving works in whole rounds", of_plan(schedule.interleaving_turns)),
    Rule("virtual stages need a pipeline", of_plan(schedule.virtual_needs_pipeline)),
    Rule("zero-bubble keeps its parameters", of_plan(schedule.zero_bubble_keeps_parameters)),
    Rule("zero-bubble runs again twice", of_plan(schedule.zero_bubble_runs_again_twice)),
    Rule("zero-bubble splits what it sees", of_plan(schedule.zero_bubble_splits_what_it_sees)),
    Rule(
        "a folded pipeline's ends share nothing sliced",
        with_model(of_model.folded_ends_share_nothing),
    ),
    Rule("the device multiplies in that type", with_device(on_device.device_multiplies)),
    Rule("masters need an optimizer that keeps them", of_plan(composition.optimizer_keeps_masters)),
    Rule("compact state is Adam's", of_plan(composition.compact_state_is_adams)),
    Rule("compact state needs masters", of_plan(composition.compact_state_needs_masters)),
    Rule("backward updates one by one", of_plan(composition.backward_updates_one_by_one)),
    Rule("float8 masters need one rank", of_plan(composition.float8_masters_need_one_rank)),
    Rule("flash attention works in 16 bits", of_plan(composition.flash_needs_half)),
    Rule("flash attention needs a device", with_device(on_device.flash_needs_device)),
    Rule("compression needs whole copies", of_plan(composition.compression_needs_copies)),
    Rule("compression needs whole matrices", of_plan(composition.compression_needs_whole_matrices)),
    Rule("graphs need a CUDA device", with_device(on_device.device_records_graphs)),
    Rule("whole modules stay whole", of_plan(composition.whole_modules_stay_whole)),
    Rule("graphs need one rank", of_plan(composition.graphs_need_one_rank)),
    Rule("graphs offload nothing", of_plan(composition.graphs_offload_nothing)),
    Rule("powersgd needs a steady scale", of_plan(composition.factors_need_a_steady_scale)),
    Rule("prefetching needs slices", of_plan(gathering.prefetch_needs_slices)),
    Rule("a limit of whole blocks needs zero3", of_plan(gathering.gathered_needs_zero3)),
    Rule(
        "a limit of whole blocks holds what is ahead",
        of_plan(gathering.gathered_holds_what_is_ahead),
    ),
    Rule("a limit of whole blocks needs turns", of_plan(gathering.gathered_needs_turns)),
    Rule("adafactor needs whole matrices", of_plan(composition.adafactor_needs_whole_matrices)),
    Rule("offloading needs a device", with_device(on_device.offload_needs_device)),
    Rule("parameters leave in slices", of_plan(composition.parameters_leave_in_slices)),
    Rule("exact ranks cut no layer", of_plan(exact.exact_cuts_no_layer)),
    Rule("exact ranks shard over all", of_plan(exact.exact_shards_over_all_ranks)),
    Rule("exact ranks run the same kernels", of_plan(exact.exact_runs_the_same_kernels)),
    Rule("exact ranks store float32", of_plan(exact.exact_stores_float32)),
    Rule("exact ranks send whole gradients", of_plan(exact.exact_sends_whole_gradients)),
    Rule("rechecked steps repeat", of_plan(exact.recheck_needs_exact)),
    Rule("the ceiling is below the device", with_device(on_device.ceiling_below_device)),
)
