"""bf16-master on ranks, in micro-batches: gradients are the float32 sum of every micro-batch's."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional

import stepladder as sl
from stepladder.model import build
from stepladder.train.optimizer.lay_out_state import laid_out
from tests.ranks import run
from tests.soak import soak_after

WORDS, ROWS = 64, 64
SHAPE = f"llama:layers=2,hidden=32,heads=2,kv_heads=2,vocab={WORDS},sequence=8"
LAYOUTS = [
    "zero3 shard=2",
    "ddp replicate=2",
    "zero1 shard=2",
    "zero2 shard=2",
    "hsdp shard=2 replicate=2",
]


def module_of() -> torch.nn.Module:
    torch.manual_seed(0)
    return build(SHAPE)


def rows():
    tokens = torch.randint(0, WORDS, (ROWS, 8), generator=torch.Generator().manual_seed(1))
    return tokens, tokens.roll(-1, 1)


def summed_exactly() -> dict[str, torch.Tensor]:
    """Each row's gradient in bfloat16, added up in float64 by a plain loop."""
    module = module_of().bfloat16()
    sums = {
        name: torch.zeros(p.shape, dtype=torch.float64) for name, p in module.named_parameters()
    }
    for token, target in zip(*rows()):
        logits = module(token[None]).float()
        (functional.cross_entropy(logits[0], target) / ROWS).backward()
        for name, p in module.named_parameters():
            sums[name] += p.grad
            p.grad = None
    return sums


def furthest(layout: str) -> float:
    """How far this rank's part of any gradient is from the exact sum, relative to that."""
    run_ = sl.climb(
        module_of(), loss="cross_entropy", optimizer="adamw lr=1e-3 clip=none", device="cpu",
        plan=f"bf16-master {layout} micro=1 batch={ROWS}",
    )  # fmt: skip
    run_.step(rows(), rows="global").read()
    beta, exact = run_.optimizer.param_groups[0]["betas"][0], summed_exactly()
    off = []
    for shard in run_.climbed.shards:  # after one step the first moment is (1 - beta) x gradient
        found = run_.optimizer.state[shard.owned]["exp_avg"].double() / (1 - beta)
        wanted = laid_out(exact[shard.name], shard)
        off.append(((found - wanted).norm() / wanted.norm().clamp(min=1e-12)).item())
    return max(off)


@pytest.mark.parametrize("layout", soak_after(LAYOUTS, gate=2))
def test_gradients_of_micro_batches_are_added_up_in_float32(layout):
    ranks = 4 if layout.count("=2") == 2 else 2
    # Added up in bfloat16 the furthest is off by 0.01; each row's own rounding makes the rest.
    assert max(run(furthest, ranks, layout)) < 6e-3
