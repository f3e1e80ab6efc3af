from dataclasses import replace

import pytest
from torch import nn

from stepladder.loss import make_loss
from stepladder.model import build
from stepladder.plan import Plan
from stepladder.train.build_run import settle_here
from stepladder.train.tuning.candidates import (
    candidates,
    fuses_head,
    in_micro_batches,
    recorded,
)
from stepladder.world import Place

BF16 = Plan.parse("bf16 micro=4")
BLOCKS = "gpt:layers=2,hidden=32,heads=2,vocab=64,sequence=16"


def texts(module, plan=BF16, *written):
    return [str(each) for each in candidates(plan, module, frozenset(written))]


def test_the_plan_without_compilation_comes_first_and_the_rest_is_kept():
    assert texts(nn.Linear(2, 2)) == [
        "bf16 micro=4",
        "bf16 micro=4 compile=whole",
        "bf16 micro=4 compile=whole kernels=on",
    ]


def test_blocks_that_are_alike_are_also_compiled_one_by_one():
    assert texts(build(BLOCKS))[-2:] == [
        "bf16 micro=4 compile=blocks kernels=on", "bf16 micro=4 compile=blocks",
    ]  # fmt: skip
    assert len(texts(nn.Sequential(nn.Linear(2, 3), nn.Linear(3, 2)))) == 3


def test_convolutions_are_also_tried_in_their_own_layout():
    assert texts(nn.Conv2d(3, 4, 3))[-2:] == [
        "bf16 micro=4 compile=whole kernels=head,matmuls",
        "bf16 micro=4 compile=whole kernels=head,layout",
    ]


class Words(nn.Module):
    def __init__(self, words, width=8):
        super().__init__()
        self.embed, self.head = nn.Embedding(words, width), nn.Linear(width, words, bias=False)

    def forward(self, tokens):
        return self.head(self.embed(tokens))


@pytest.mark.parametrize(
    ("words", "loss", "fused"),
    [(60_000, "cross_entropy", True), (60, "cross_entropy", False),
     (60_000, "squared_error", False)],
)  # fmt: skip
def test_a_head_that_kernels_fuse_is_also_tried_without_that(words, loss, fused):
    module = Words(words)
    settled = settle_here(BF16, "cpu", Place())
    found = fuses_head(module, make_loss(loss, module), settled)
    assert found == fused
    ways = candidates(BF16, module, frozenset(), fuses_head=found)
    without = replace(BF16, compile="whole", kernels=("layout", "matmuls"))
    assert (without in ways) == fused


def test_a_batch_is_halved_until_its_parts_are_rows():
    sizes = [each.batch.micro for each in in_micro_batches(Plan.parse("bf16"), 12)]
    assert sizes == [6, 3, 1]
    assert not in_micro_batches(BF16, 12) and not in_micro_batches(Plan.parse("bf16"), 1)


@pytest.mark.parametrize(
    ("word", "value", "left"),
    [
        ("compile", False, ["bf16 micro=4", "bf16 micro=4 kernels=on"]),
        ("compile", True, ["bf16 micro=4 compile=on", "bf16 micro=4 compile=on kernels=on"]),
        ("kernels", False, ["bf16 micro=4", "bf16 micro=4 compile=whole"]),
    ],
)  # fmt: skip
def test_what_was_written_is_kept(word, value, left):
    assert texts(nn.Linear(2, 2), replace(BF16, **{word: value}), word) == left


@pytest.mark.parametrize(
    ("words", "others"),
    [("", "graphs=on"), ("kernels=on", "kernels=layout,matmuls graphs=on"),
     ("kernels=head,matmuls", "kernels=matmuls graphs=on"), ("kernels=head", "graphs=on")],
)  # fmt: skip
def test_steps_are_recorded_with_the_loss_in_the_compiled_graph(words, others):
    plan = Plan.parse(f"bf16 compile=whole {words}")
    assert recorded(plan) == Plan.parse(f"bf16 compile=whole {others}")


def test_ranks_that_exchange_gradients_are_compiled_block_by_block_where_blocks_are_alike():
    found = candidates(BF16, build(BLOCKS), frozenset(), several=True)
    assert [(one.compile, one.kernels) for one in found] == [
        (False, False), ("blocks", False), ("blocks", True),
    ]  # fmt: skip
    assert len(candidates(BF16, nn.Linear(2, 2), frozenset(), several=True)) == 3
