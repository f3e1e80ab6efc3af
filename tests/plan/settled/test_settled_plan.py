"""A settled plan answers each question once."""

import pytest

from stepladder.errors import PlanError, PlanErrors
from stepladder.plan import Plan, SettledPlan
from stepladder.plan.settled.limits import DeviceLimits
from stepladder.plan.settled.settle import legality_problems, settle
from stepladder.plan.shared_constants import FUSED_VOCABULARY, LARGE_BLOCK

GPU, CPU = DeviceLimits("H200"), DeviceLimits("cpu", kind="cpu")


def settled(text: str, ranks: int = 1, device: DeviceLimits = GPU) -> SettledPlan:
    return settle(Plan.parse(text), ranks, device=device)


@pytest.mark.parametrize(
    ("text", "ranks", "answer"),
    [
        ("zero1", 2, False),
        ("zero2", 2, True),
        ("zero3", 2, True),
        ("zero3", 1, False),
        ("zero3 offload=parameters", 1, True),
        ("zero3 context=2", 2, True),
        ("ddp", 2, False),
        ("zero3 tensor=2", 2, False),
    ],
)
def test_parameters_are_sliced_where_zero_2_or_3_has_ranks_to_slice_among(text, ranks, answer):
    assert settled(f"fp32 {text}", ranks).sliced is answer


def test_zero_1_slices_the_optimizer_alone():
    one, several = settled("fp32 zero1"), settled("fp32 zero1", 4)
    assert several.slices_optimizer_only and not one.slices_optimizer_only
    assert several.state_ranks == 4 and settled("fp32 ddp", 4).state_ranks == 1


def test_ranks_are_counted_by_what_they_share():
    plan = settled("fp32 replicate=2 shard=2 context=2 tensor=2 zero3", 16)
    assert (plan.data_ranks, plan.gradient_ranks, plan.state_ranks) == (4, 8, 4)


def test_only_zero_3_gathers_again_for_backward():
    assert settled("fp32 zero3", 2).drops_gathered
    assert not settled("fp32 zero2", 2).drops_gathered


def test_the_head_is_fused_with_many_classes_in_every_layout():
    plan = settled("bf16 kernels=on")
    assert plan.fuses_head(FUSED_VOCABULARY) and not plan.fuses_head(FUSED_VOCABULARY - 1)
    assert not settled("bf16").fuses_head(FUSED_VOCABULARY)
    for layout in ("replicate=2", "zero1 shard=2", "zero3 shard=2", "tensor=2", "pipeline=2"):
        assert SettledPlan(Plan.parse(f"bf16 kernels=on {layout}")).fuses_head(FUSED_VOCABULARY)


@pytest.mark.parametrize(
    ("text", "ranks", "device", "alike", "parameters", "scope"),
    [
        ("compile=off", 1, GPU, True, 1, "off"),
        ("compile=on", 1, GPU, True, 1, "module"),
        ("compile=on", 1, GPU, True, LARGE_BLOCK, "blocks"),
        ("compile=on", 1, CPU, True, 1, "blocks"),
        ("compile=on ddp", 2, GPU, True, 1, "blocks"),
        ("compile=on ddp", 2, GPU, False, LARGE_BLOCK, "module"),
        ("compile=on pipeline=2 accumulate=2", 2, GPU, False, 1, "blocks"),
    ],
)
def test_small_or_unlike_blocks_are_compiled_together(
    text, ranks, device, alike, parameters, scope
):
    plan = settled(f"fp32 {text}", ranks, device)
    assert plan.compile_scope(alike=alike, block_parameters=parameters) == scope


@pytest.mark.parametrize(
    ("text", "rows", "answer"), [("micro=3", 8, 3), ("accumulate=3", 8, 3), ("", 8, 8)]
)
def test_a_micro_batch_has_the_rows_that_the_plan_or_the_batch_gives_it(text, rows, answer):
    plan = settle(Plan.parse(f"fp32 {text}"), 1, open_batch=True)
    assert plan.rows_per_micro_batch(rows) == answer


def test_the_batch_stays_open_where_a_run_is_yet_to_see_one():
    plan = Plan.parse("fp32 ddp micro=3 batch=64")
    assert settle(plan, 2, open_batch=True).micro_batch == 3
    with pytest.raises(PlanError, match="64 does not divide by 6 "):
        settle(plan, 2)
    assert settle(Plan.parse("fp32 ddp micro=2 batch=64"), 4).micro_batches == 8


def test_a_folded_pipeline_gives_its_first_rank_both_ends():
    plan = settled("fp32 pipeline=2 schedule=zero-bubble micro=1 accumulate=4", 2)
    assert plan.folded and plan.num_stages == 4
    assert [plan.stages_of_rank(rank) for rank in range(2)] == [[0, 3], [1, 2]]
    assert plan.stage_split([1.0] * 8) == [range(0, 2), range(2, 4), range(4, 6), range(6, 8)]


def test_offloaded_parameters_take_the_optimizer_along():
    plan = settled("bf16 zero3 offload=parameters,optimizer", 2)
    assert plan.offloads_parameters and not plan.offloads_optimizer
    assert settled("bf16 offload=optimizer").offloads_optimizer


def test_every_problem_is_raised_at_once_with_those_found_elsewhere():
    plan = Plan.parse("tf32 zero2 shard=2 graphs=on kernels=on")
    lacking = PlanError("precision", "a package is missing", "Install it.")
    device = DeviceLimits("cpu", kind="cpu", computes=frozenset({"fp32", "bf16"}))
    with pytest.raises(PlanErrors) as raised:
        settle(plan, 4, device=device, also=[lacking])
    fields = [problem.field for problem in raised.value.problems]
    assert sorted(fields) == ["graphs", "graphs", "layout", "precision", "precision"]


def test_a_plan_that_cannot_be_laid_out_is_still_held_against_the_rules():
    found = legality_problems(Plan.parse("fp32 pipeline=-1 tensor=3 compress=bf16"), 4)
    assert [problem.field for problem in found] == ["layout.pipeline", "compress", "compress"]
    assert "and tensor=3 cuts them" in str(found[-1]), "an axis that stays open counts as one"
