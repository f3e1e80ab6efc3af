"""Blocks are cut where the planner cuts them."""

import pytest
import torch

from stepladder.model import build, describe, find_anatomy
from stepladder.plan.stage_split import cut_blocks
from stepladder.planner.pipeline_stages import chunk_blocks
from stepladder.rungs.pipeline.find_stages import measure_blocks


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
    tokens = torch.zeros(1, 16, dtype=torch.long)
    _, costs = measure_blocks(module, find_anatomy(module), tokens)
    assert cut_blocks(costs, stages) == chunk_blocks(describe(text), stages)
    assert [len(part) for part in cut_blocks(costs, stages)] != sorted(
        len(part) for part in cut_blocks(costs, stages)
    ), "the head makes the last stage shorter"
