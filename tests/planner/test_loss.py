"""What a loss over many classes moves."""

import pytest

from stepladder.plan import Plan
from stepladder.planner import OURS, Software
from stepladder.planner.loss import logit_traffic_bytes
from stepladder.planner.sizes import sizes_of
from stepladder.workload import find_facts

FACTS = find_facts("gpt2", 1024)


def traffic(text: str, software: Software = OURS) -> float:
    """Bytes per token and class."""
    sizes = sizes_of(Plan.parse(text).settle(1), software)
    return logit_traffic_bytes(FACTS, sizes) / (FACTS.vocab * FACTS.tokens)


def test_softmax_reads_its_rows_anew_for_every_sum() -> None:
    copied = (2 + 4) + (4 + 2)  # to fp32, and the gradient back
    softmax = (4 + 4 + 4) + 4  # maximum, sum, result
    backward = 4 + (4 + 4) + (4 + 4) + 4  # filled in, summed, and the result
    assert traffic("bf16 micro=1") == copied + softmax + backward
    assert traffic("fp32 micro=1") == softmax + backward, "nothing is copied"


def test_the_loss_stays_outside_of_what_is_compiled() -> None:
    assert traffic("bf16 micro=1 compile=on") == traffic("bf16 micro=1")
    fused = traffic("bf16 micro=1 compile=on", Software(compiles_loss=True))
    assert fused == pytest.approx(18)
    assert traffic("bf16 micro=1", Software(compiles_loss=True)) == traffic("bf16 micro=1")
