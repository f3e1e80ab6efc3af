"""What a loss over many classes moves."""

from dataclasses import replace

import pytest

from stepladder.hardware import Cluster
from stepladder.plan import Plan, SettledPlan
from stepladder.planner import forecast
from stepladder.planner.memory.byte_sizes import sizes_of
from stepladder.planner.memory.logits import (
    backward_logit_bytes,
    forward_logit_bytes,
    logit_traffic_bytes,
)
from stepladder.planner.training_software import OURS, Software
from stepladder.workload import find_facts

FACTS = find_facts("gpt2", 1024)


def traffic(text: str, software: Software = OURS) -> float:
    """Bytes per token and class."""
    sizes = sizes_of(FACTS, SettledPlan(Plan.parse(text).settle(1)), software)
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
    assert traffic("bf16 micro=1 compile=whole") == fused


LLAMA_1B = find_facts(
    "llama:layers=16,hidden=2048,heads=32,kv_heads=8,ffn=8192,vocab=128256,sequence=4096,tied=1",
    4096,
)


def test_the_fused_head_moves_a_third_and_holds_a_chunk() -> None:
    fused = traffic("bf16 micro=1 kernels=on")
    assert 3 * 2 < fused < traffic("bf16 micro=1") / 3
    sizes = sizes_of(LLAMA_1B, SettledPlan(Plan.parse("bf16 micro=8 kernels=on").settle(1)))
    weight = 2048 * 128256 * 4
    assert forward_logit_bytes(LLAMA_1B, sizes) == 8192 * 128256 * 2 + weight
    assert backward_logit_bytes(LLAMA_1B, sizes) == weight


def test_a_small_vocabulary_keeps_the_plain_loss() -> None:
    small = replace(FACTS, vocab=1000)
    plain, asked = (
        sizes_of(small, SettledPlan(Plan.parse(f"bf16 micro=1{w}").settle(1)))
        for w in ("", " kernels=on")
    )
    assert logit_traffic_bytes(small, asked) == logit_traffic_bytes(small, plain)


def test_each_tensor_parallel_rank_holds_its_classes_of_a_chunk() -> None:
    halves = SettledPlan(Plan.parse("bf16 micro=8 tensor=2 kernels=on").settle(2))
    sizes = sizes_of(LLAMA_1B, halves)
    weight = 2048 * 128256 * 4 / 2
    assert forward_logit_bytes(LLAMA_1B, sizes) == 8192 * 128256 * 2 / 2 + weight
    assert backward_logit_bytes(LLAMA_1B, sizes) == weight


@pytest.mark.parametrize(
    ("plan", "measured_gb"),  # H200, torch 2.11, 8 sequences: benchmarks/results/peers_gpu*.json
    [
        ("bf16 compile=on kernels=on", 65.4),
        ("bf16-master compile=on kernels=on", 63.3),
        ("bf16-master compile=on kernels=on recompute=selective", 48.3),
        ("bf16 compile=on kernels=on recompute=selective", 48.4),
    ],
)
def test_the_peak_of_faster_plans_is_near_what_an_h200_held(plan: str, measured_gb: float) -> None:
    cluster = Cluster.parse("1 x H200")
    said = forecast(LLAMA_1B, Plan.parse(f"{plan} micro=8 batch=8"), cluster)
    assert measured_gb < said.memory.peak_bytes / 1e9 < 1.15 * measured_gb


def test_a_loss_in_place_has_one_copy_in_fp32() -> None:
    sizes = sizes_of(
        FACTS,
        SettledPlan(Plan.parse("bf16 micro=1 kernels=off").settle(1)),
        Software(loss="in-place"),
    )
    each = FACTS.vocab * FACTS.tokens
    assert forward_logit_bytes(FACTS, sizes) == each * (2 + 4)
    assert backward_logit_bytes(FACTS, sizes) == each * (2 + 4 + 2), (
        "and the gradient in the work type"
    )
