"""Blocks are cut where the planner cuts them."""

import pytest
import torch

from stepladder.model import build, describe, find_anatomy
from stepladder.plan.stage_split import cut_blocks
from stepladder.planner.pipeline_stages import chunk_blocks
from stepladder.rungs.pipeline.find_stages import weigh_blocks
from stepladder.rungs.pipeline.stage_parts import find_parts

from .chains import ALL


def weigh(module, inputs, num_stages=2):
    parts = find_parts(module, find_anatomy(module), num_stages, inputs)
    return weigh_blocks(module, parts, inputs)


@pytest.mark.parametrize(
    "text",
    [
        "gpt:layers=7,hidden=32,heads=2,vocab=500,sequence=16",
        "llama:layers=9,hidden=32,heads=2,vocab=900,sequence=16",
    ],
)
@pytest.mark.parametrize("stages", [2, 3, 4])
def test_a_run_cuts_where_the_planner_does(text, stages):
    module = build(text, device="meta")
    costs = weigh(module, torch.zeros(1, 16, dtype=torch.long), stages)
    assert cut_blocks(costs, stages) == chunk_blocks(describe(text), stages)
    assert [len(part) for part in cut_blocks(costs, stages)] != sorted(
        len(part) for part in cut_blocks(costs, stages)
    ), "the head makes the last stage shorter"


def test_a_block_carries_what_runs_between_it_and_the_next():
    make, _, _ = ALL["translator"]
    tokens = torch.zeros(1, 16, dtype=torch.long)
    first, *_, last = weigh(make(), tokens)
    per_block = 2 * 16 * 16 * (16 * 4 + 32 * 2)  # projections and MLP of one encoder layer
    assert first > 2 * per_block  # the whole encoder runs before the first block
    assert last < first
