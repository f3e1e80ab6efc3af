from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepladder.errors import StepladderError
from stepladder.plan import Layout, Schedule
from stepladder.planner import bubble_share
from stepladder.planner.pipeline_stages import in_flight, rank_parameters, stages_of
from stepladder.workload import find_facts

FACTS = find_facts("llama3-8b")
ONE = Schedule()


def test_stages_of_a_model_without_blocks_are_refused() -> None:
    bare = replace(FACTS, parts=(FACTS.entry, FACTS.exit))
    assert len(stages_of(bare, Layout(), ONE)) == 1
    with pytest.raises(StepladderError) as refused:
        stages_of(bare, Layout(pipeline=2), ONE)
    assert str(refused.value) == (
        "layout.pipeline: llama3-8b shows no list of blocks, and what each stage would hold is "
        "unknown. Forecast it with pipeline=1."
    )


@given(st.integers(1, 32))
def test_stages_hold_every_block_once(pipeline: int) -> None:
    stages = stages_of(FACTS, Layout(pipeline=pipeline), ONE)
    assert sum(stage.num_blocks for stage in stages) == 32
    assert sum(stage.parameters(1) for stage in stages) == FACTS.parameters


def test_a_large_head_makes_the_last_stage_shorter() -> None:
    counts = [s.num_blocks for s in stages_of(FACTS, Layout(pipeline=4), ONE)]
    assert counts[-1] < counts[0]


def test_stages_of_equal_numbers_give_the_last_ones_what_is_over() -> None:
    stages = stages_of(FACTS, Layout(pipeline=5), ONE, "even")
    assert [stage.num_blocks for stage in stages] == [6, 6, 6, 7, 7]


def test_a_stage_that_ends_past_its_share_keeps_the_block_that_crossed() -> None:
    stages = stages_of(FACTS, Layout(pipeline=2), ONE, "crossing")
    # The head costs 2.4 blocks, so that a half is 17.2 of them: the 18th crosses it.
    assert [stage.num_blocks for stage in stages] == [18, 14]
    many = stages_of(FACTS, Layout(pipeline=16), ONE, "crossing")
    assert sum(stage.num_blocks for stage in many) == 32 and len(many) == 16


def test_virtual_stages_take_turns() -> None:
    stages = stages_of(FACTS, Layout(pipeline=2), Schedule("interleaved", 2))
    assert stages[0].entry and not stages[0].exit and stages[1].exit
    assert stages[0].num_chunks == 2


def test_a_folded_pipeline_ends_where_it_began() -> None:
    stages = stages_of(FACTS, Layout(pipeline=2), Schedule("zero-bubble", 2))
    assert stages[0].entry and stages[0].exit and not stages[1].ends


def test_a_tied_matrix_counts_once_where_both_users_live() -> None:
    tied = find_facts("llama3.2-1b")
    assert stages_of(tied, Layout(), ONE)[0].parameters(1, tied.tied_parameters) == tied.parameters


def test_tensor_ways_divide_all_but_what_is_held_whole() -> None:
    block = FACTS.parts[1]
    whole = block.whole_parameters
    assert rank_parameters(block, 8) == pytest.approx((block.parameters - whole) / 8 + whole)


def test_schedules_hold_as_many_micro_batches_as_they_must() -> None:
    assert in_flight(ONE, 4, 0, 16) == 4 and in_flight(ONE, 4, 3, 16) == 1
    assert in_flight(Schedule("gpipe"), 4, 0, 16) == 16
    assert in_flight(Schedule("interleaved", 2), 4, 0, 16) == (2 * 3 + 4 + 1) / 2
    assert in_flight(Schedule("zero-bubble", 2), 4, 3, 16) == 4
    assert in_flight(ONE, 1, 0, 16) == 1 and in_flight(ONE, 8, 0, 2) == 2


def test_interleaving_and_splitting_shrink_the_bubble() -> None:
    assert bubble_share(ONE, 8) == bubble_share(Schedule("gpipe"), 8) == 7
    assert bubble_share(Schedule("interleaved", 2), 8) == 3.5
    assert bubble_share(Schedule("zero-bubble", 2), 8) < 3.5
    assert bubble_share(ONE, 1) == 0
